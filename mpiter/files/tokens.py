"""``Tokens``: documents in one flat file of tokens, as most corpora are kept."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..datasets.columns import Reader
from ..datasets.lengths import DocumentLengths, Numbers
from ..errors import OptionError
from ..machine import replacing

__all__ = ["Tokens"]

_Offsets = NDArray[np.integer[Any]]
# Tokens of a file that are looked at in one go.
_AT_ONCE = 1 << 24
# Ends of documents that are compared with the file, if their offsets were kept.
_LOOKED_AT = 256

_log = logging.getLogger("mpiter")


class _Lengths(DocumentLengths):
    """The lengths of documents that lie between ``offsets``."""

    def __init__(self, offsets: _Offsets) -> None:
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def _found(self, wanted: Numbers) -> Numbers:
        begins = np.asarray(self._offsets[wanted], np.int64)
        return np.asarray(self._offsets[wanted + 1], np.int64) - begins


class Tokens:
    """A dataset of documents that lie one after the other in a file of tokens.

    The file is mapped, not read: workers share it, and only what is asked for is read.

    Args:
        path: the file, of numbers of one type and nothing else; or an ``.npy`` file.
        offsets: the token where each document begins, and the end of the last: an
            array, or the path of an ``.npy`` file.  With a ``separator`` the path is
            that of a file which gets the offsets, so that they are searched once, and
            again where the tokens are others than before.
        dtype: the type of the tokens; an ``.npy`` file has its own.
        separator: the token with which each document ends, and which belongs to it; in
            place of offsets.

    >>> import numpy, tempfile, os
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "web.bin")
    >>> numpy.array([5, 6, 0, 7, 0], "uint16").tofile(path)
    >>> documents = Tokens(path, separator=0)
    >>> len(documents), documents[0].tolist(), documents.lengths[[0, 1]].tolist()
    (2, [5, 6, 0], [3, 2])
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        offsets: ArrayLike | str | os.PathLike[str] | None = None,
        dtype: DTypeLike = "uint16",
        *,
        separator: int | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._tokens = _mapped(self.path, np.dtype(dtype))
        if separator is not None:
            separator = _checked_separator(separator, self._tokens.dtype)
        found: ArrayLike | None = None
        keeps: Path | None = None
        if not isinstance(offsets, (str, os.PathLike)):
            found = offsets
        else:
            keeps = Path(offsets)
            if keeps.exists():
                found = np.load(keeps, mmap_mode="r")
        if found is None and separator is None:
            raise OptionError(
                f"Tokens({self.path!r}) needs offsets=, where its documents begin and "
                "the last one ends, or separator=, the token that ends each."
            )
        has_both = found is not None and separator is not None
        if has_both and keeps is not None and not _fits(found, self._tokens, separator):
            _log.warning(
                "%s doesn't have the documents of %s as they are now: they are "
                "searched anew",
                keeps,
                self.path,
            )
            found = None
        if found is None:
            found = _ends(self._tokens, separator, self.path)
            if keeps is not None:
                with replacing(keeps) as file:
                    np.save(file, found)
        self._offsets = _checked(found, len(self._tokens), self.path)
        after = len(self._tokens) - int(self._offsets[-1])
        if after:
            _log.warning(
                "%s has %s tokens after the last document", self.path, f"{after:,}"
            )
        self.lengths = _Lengths(self._offsets)
        self._open()

    def _open(self) -> None:
        # The same memory as plain arrays, of which a part is taken in half the time.
        self._documents = len(self._offsets) - 1
        self._flat = np.asarray(self._tokens)
        self._borders = np.asarray(self._offsets)

    def __getstate__(self) -> dict[str, Any]:
        # Mapped files are sent to workers by name.
        state = dict(self.__dict__)
        del state["_flat"], state["_borders"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return self._documents

    def __getitem__(self, index: int) -> NDArray[Any]:
        if not 0 <= index < self._documents:
            raise IndexError(f"{index} isn't from 0 to before {len(self)}")
        begin, stop = self._borders[index : index + 2].tolist()
        return self._flat[begin:stop]

    def mpiter_reader(self) -> Reader:
        return self._many

    def _many(self, indices: Any) -> list[NDArray[Any]]:
        """Return the documents with these numbers."""
        keys = np.asarray(indices)
        # An index that is too large has no border, and is an error of NumPy's.
        if min(keys.tolist()) < 0:
            raise IndexError(f"{keys.min()} isn't from 0 to before {len(self)}")
        begins = self._borders[keys].tolist()
        stops = self._borders[keys + 1].tolist()
        flat = self._flat
        return [flat[begin:stop] for begin, stop in zip(begins, stops, strict=True)]

    def __repr__(self) -> str:
        return (
            f"Tokens({self.path!r}: {len(self):,} documents, {len(self._tokens):,} "
            f"tokens of {self._tokens.dtype})"
        )


def _mapped(path: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.endswith(".npy"):
        found: NDArray[Any] = np.load(path, mmap_mode="r")
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise OptionError(
                f"{path} has an array of {found.dtype} with shape {found.shape}; it "
                "must be one of whole numbers with one dimension."
            )
        return found
    if dtype.kind not in "iu":
        raise OptionError(f"dtype={dtype} must be of whole numbers, such as 'uint16'.")
    size = os.path.getsize(path)
    if not size or size % dtype.itemsize:
        raise OptionError(
            f"{path} has {size:,} bytes, which are no tokens of {dtype}; dtype= says "
            "what it has."
        )
    return np.memmap(path, dtype, "r")


def _checked_separator(separator: Any, dtype: np.dtype[Any]) -> int:
    kind = np.iinfo(dtype)
    is_number = isinstance(separator, Integral) and not isinstance(separator, bool)
    if not is_number or not kind.min <= separator <= kind.max:
        raise OptionError(
            f"separator={separator!r:.60} must be a whole number that tokens of "
            f"{dtype} can be, from {kind.min} to {kind.max}; dtype= says what they are."
        )
    return int(separator)


def _fits(found: Any, tokens: NDArray[Any], separator: int | None) -> bool:
    """True if offsets that were kept may be those of ``tokens``.

    Looks at the ends of some documents, and of the file.
    """
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) < 2:
        return False
    # The last document may lack its separator.
    inner = found[1:-1]
    some = np.asarray(inner[:: max(1, len(inner) // _LOOKED_AT)], np.int64)
    some = np.append(some, np.asarray(inner[-1:], np.int64))
    if found[0] != 0 or found[-1] != len(tokens):
        return False
    if some.size and (some.min() < 1 or some.max() > len(tokens)):
        return False
    return bool((tokens[some - 1] == separator).all())


def _ends(tokens: NDArray[Any], separator: int | None, path: str) -> _Offsets:
    """Return where documents begin that end with ``separator``, and the end."""
    found: list[_Offsets] = [np.zeros(1, np.int64)]
    for begin in range(0, len(tokens), _AT_ONCE):
        some = tokens[begin : begin + _AT_ONCE]
        found.append(np.flatnonzero(some == separator) + (begin + 1))
    if not any(some.size for some in found[1:]):
        raise OptionError(
            f"separator={separator} is nowhere in {path}, whose first tokens of "
            f"{tokens.dtype} are {', '.join(map(str, tokens[:8].tolist()))}: pass the "
            "token that ends each document, or dtype=, what the tokens are.  A file of "
            f"one document has offsets=[0, {len(tokens)}]."
        )
    # The last document may lack its separator.
    if found[-1].size == 0 or found[-1][-1] != len(tokens):
        found.append(np.array([len(tokens)]))
    return np.concatenate(found)


def _checked(offsets: ArrayLike | Sequence[int], tokens: int, path: str) -> _Offsets:
    found = np.asanyarray(offsets)
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) < 2:
        raise OptionError(
            f"offsets= of {path} is an array of {found.dtype} with shape "
            f"{found.shape}; it must have where each document begins, and the end."
        )
    for begin in range(0, len(found), _AT_ONCE):
        some = np.asarray(found[begin : begin + _AT_ONCE + 1], np.int64)
        if (np.diff(some) < 0).any():
            raise OptionError(f"offsets= of {path} must rise.")
    if found[0] < 0 or found[-1] > tokens:
        raise OptionError(
            f"offsets= of {path} go from {found[0]:,} to {found[-1]:,}, and it has "
            f"{tokens:,} tokens; dtype= says how large they are."
        )
    return found
