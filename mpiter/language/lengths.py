"""The lengths of documents: passed, told by the dataset, or found by reading once."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.columns import in_words
from ..datasets.lengths import DocumentLengths
from ..errors import OptionError, add_note
from ..iterators.iterators import batches
from ..machine import cores, replacing
from .rows import TOKENS, wrong
from .windows import Lengths

__all__ = ["measure_lengths"]

# Returns how many tokens of each piece of a document count, from their lengths.
Counted = Callable[[NDArray[np.int64]], Any]

_log = logging.getLogger("mpiter")
# Documents in a batch of the pass that reads them all.
_AT_ONCE = 256
# So few documents are read without workers.
_FEW = 10_000
# Lengths that are looked at in one go, so that a mapped file isn't read as a whole.
_LOOKED_AT = 1 << 20
# Seconds between two lines about its progress.
_EVERY_S = 10.0


class _Measured:
    """A dataset of the lengths of another one's documents."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> int:
        try:
            document = self.dataset[index]
        except Exception as error:
            where = in_words(self.dataset, index)
            add_note(error, f"mpiter: document {where}, read for its length.")
            raise
        if isinstance(document, dict):
            if not document:
                raise wrong(self.dataset, index, "has no fields")
            document = document.get(TOKENS, next(iter(document.values())))
        try:
            return len(document)
        except TypeError as error:
            why = f"is of type {type(document).__name__}, which has no length"
            raise wrong(self.dataset, index, why) from error


def measure_lengths(
    dataset: Any, path: str | os.PathLike[str] | None = None, n_processes: int = 2
) -> Lengths:
    """Read all documents once, with workers, and return their lengths.

    With ``path`` they are saved there, as an ``.npy`` file.

    >>> from mpiter.language import measure_lengths
    >>> measure_lengths([[1, 2, 3], [4]], n_processes=0)
    array([3, 1], dtype=uint32)
    """
    total = len(dataset)
    found = np.empty(total, np.uint32)
    done = 0
    said = time.monotonic()
    with batches(
        _Measured(dataset), _AT_ONCE, shuffle=False, n_processes=n_processes
    ) as stream:
        for lengths in stream:
            found[done : done + len(lengths)] = lengths
            done += len(lengths)
            now = time.monotonic()
            if now - said > _EVERY_S:
                said = now
                _log.warning("lengths: %s of %s documents", f"{done:,}", f"{total:,}")
    if path is not None:
        with replacing(Path(path)) as file:
            np.save(file, found)
    return found


def lengths_for(dataset: Any, given: Any, name: str = "lengths") -> Any:
    """Return the lengths of a dataset's documents, as the argument says."""
    if not hasattr(dataset, "__len__"):
        raise OptionError(
            f"the dataset ({type(dataset).__name__}) has no len(): its documents must "
            "be known before, so those of a stream can't be packed or dealt."
        )
    if given is None:
        given = getattr(dataset, "lengths", None)
    # These are read here in no time.
    if given is None and len(dataset) <= _FEW:
        return measure_lengths(dataset, n_processes=0)
    if given is None:
        _log.warning(
            "pack: reading all %s documents once for their lengths; lengths= takes "
            "the path of a file that keeps them",
            f"{len(dataset):,}",
        )
        return measure_lengths(dataset, n_processes=min(4, cores()))
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        if path.exists():
            given = np.load(path, mmap_mode="r")
        else:
            given = measure_lengths(dataset, path, min(4, cores()))
    elif not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise OptionError(
            f"{name}={given!r:.60} must have a number for each document: an array, or "
            "the path of a file.  Lengths that a dataset has are an attribute or a "
            "property, not a method."
        )
    # A mapped array stays one, and is sent to workers by its file's name.
    stays = isinstance(given, (np.ndarray, DocumentLengths))
    if isinstance(given, (list, tuple)) or (hasattr(given, "__array__") and not stays):
        given = _as_array(name, given)
    is_array = isinstance(given, np.ndarray)
    if is_array and (given.ndim != 1 or given.dtype.kind not in "iu"):
        raise OptionError(
            f"{name}= is an array of {given.dtype} with shape {given.shape}; it must "
            "have a whole number for each document."
        )
    if len(given) != len(dataset):
        raise OptionError(
            f"{name}= has {len(given):,} numbers, and there are {len(dataset):,} "
            "documents."
        )
    if is_array and given.dtype.kind == "i" and len(given) and given.min() < 0:
        raise OptionError(f"{name}= has negative numbers.")
    return given


def _as_array(name: str, given: Any) -> Lengths:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise OptionError(f"{name}= has {given!r:.60}, and needs numbers.") from error


def counted_for(
    dataset: Any, given: Any, lengths: Lengths, capacity: int
) -> Lengths | Counted:
    """Return what says how many tokens count, as the argument says it.

    It is tried with the lengths of the first documents, as far as a row takes them.
    """
    if callable(given):
        some = np.asarray(lengths[: min(len(lengths), _LOOKED_AT)]).astype(np.int64)
        counted_by(given, np.minimum(some[some > 0], capacity))
        its: Counted = given
        return its
    is_path = isinstance(given, (str, os.PathLike))
    if is_path and not os.path.exists(given):
        raise OptionError(
            f"counted={given!r:.200} isn't there: unlike lengths, these numbers can't "
            "be measured."
        )
    found: Lengths = lengths_for(dataset, given, "counted")
    for begin in range(0, len(found), _LOOKED_AT):
        indices = np.arange(begin, min(begin + _LOOKED_AT, len(found)))
        counts = np.asarray(found[indices]).astype(np.int64)
        sizes = np.asarray(lengths[indices]).astype(np.int64)
        odd = np.flatnonzero((counts < 0) | (counts > sizes))
        if odd.size:
            first = int(odd[0])
            raise OptionError(
                f"counted= has {counts[first]:,} for document "
                f"{in_words(dataset, begin + first)}, which has {sizes[first]:,} "
                "tokens."
            )
    return found


def counted_by(counted: Counted, sizes: NDArray[np.int64]) -> NDArray[Any]:
    """Return how many tokens of pieces with these sizes count; check the function."""
    # It may change its argument in place.
    found = np.asarray(counted(sizes.copy()))
    if found.shape != sizes.shape or found.dtype.kind not in "iu":
        raise OptionError(
            f"counted= returned {found.dtype} of shape {found.shape} for "
            f"{len(sizes):,} lengths; it must return a whole number for each, in an "
            "array."
        )
    odd = np.flatnonzero((found < 0) | (found > sizes))
    if odd.size:
        first = int(odd[0])
        raise OptionError(
            f"counted= returned {found[first]:,} for a piece of {sizes[first]:,} "
            "tokens; it must be from 0 to as many."
        )
    return found
