"""What the bytes of a file become, by the ending of its name.

Nothing here unpickles or runs what is in a file.
"""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import OptionError

Decoder = Callable[[bytes], Any]
# What users ask for: a function by ending, None or False for bytes as they are; False
# for none.
Asked = Mapping[str, Decoder | Literal[False] | None] | Literal[False] | None


class Field(NamedTuple):
    """A field of samples, and what makes its values from bytes."""

    name: str
    # None leaves the bytes as they are.
    decode: Decoder | None = None
    # True if an error of it is one of the bytes, and not of a function of the user's.
    is_ours: bool = True


class _Picture:
    """Decodes pictures as ``mpiter.images`` does, to RGB."""

    def __init__(self) -> None:
        from ..images.decoding import Decoding

        self._decoding = Decoding("auto", "RGB")

    def __call__(self, data: bytes) -> Any:
        from ..images.decoding import BrokenImage
        from ..images.transforms import plain

        try:
            return plain(self._decoding.open(data, ""))
        except BrokenImage as error:
            raise ValueError(error.reason) from error


def _text(data: bytes) -> str:
    return data.decode()


def _array(data: bytes) -> Any:
    """Return the array in the bytes of an ``.npy`` file.

    NumPy takes 25 us to read a header, and the samples of a dataset have few different
    ones.
    """
    # As the format has it: a magic word, two bytes of version, and the header's length
    # in two bytes, or in four.
    of_length = 2 if data[6:7] == b"\1" else 4
    begin = 8 + of_length + int.from_bytes(data[8 : 8 + of_length], "little")
    form = _form(data[:begin])
    if form is None:
        return np.load(io.BytesIO(data), allow_pickle=False)
    flat = np.frombuffer(data, form.dtype, form.size, begin)
    return flat.reshape(form.shape, order=form.order).copy(form.order)


class _Form(NamedTuple):
    """What the header of an ``.npy`` file says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int
    order: Literal["C", "F"]


@functools.lru_cache(maxsize=64)
def _form(header: bytes) -> _Form | None:
    """Return what a header says; None where NumPy itself must read the file."""
    file = io.BytesIO(header)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        found = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        found = np.lib.format.read_array_header_2_0(file)
    else:
        return None
    shape, is_fortran, dtype = found
    if dtype.hasobject:
        return None
    return _Form(dtype, shape, math.prod(shape), "F" if is_fortran else "C")


_DECODERS: dict[str, Decoder] = {
    "json": json.loads,
    "npy": _array,
    "txt": _text,
    "cls": int,
}


def fields_of(names: Sequence[str], asked: Asked) -> list[Field]:
    """Return the fields with these names, decoded as the argument ``decode`` says."""
    if asked is False:
        return [Field(name) for name in names]
    chosen = _checked(asked)
    # The ending of a field such as "mask.png" says how it is decoded.
    endings = {name: name.rpartition(".")[2] for name in names}
    unknown = chosen.keys() - endings.keys() - {*endings.values()}
    if unknown:
        raise OptionError(
            f"decode= has a function for {min(unknown)!r:.60}, and no sample has such "
            f"an extension; they have {', '.join(map(repr, names)):.200}."
        )
    found: list[Field] = []
    for name, ending in endings.items():
        if name in chosen or ending in chosen:
            decode = chosen.get(name, chosen.get(ending))
            found.append(Field(name, decode, is_ours=False))
        else:
            found.append(Field(name, _decoder_of(ending)))
    return found


def _decoder_of(ending: str) -> Decoder | None:
    from ..images.decoding import is_picture

    if ending in _DECODERS:
        return _DECODERS[ending]
    if is_picture(f".{ending}"):
        return _Picture()
    return None


def _checked(asked: Any) -> dict[str, Decoder | None]:
    if asked is None:
        return {}
    if not isinstance(asked, Mapping):
        raise OptionError(
            f"decode={asked!r:.60} must be a dict of functions by extension, such as "
            "{'json': parse}, or False to decode nothing."
        )
    found: dict[str, Decoder | None] = {}
    for name, decode in asked.items():
        if decode is False:
            decode = None
        if not isinstance(name, str) or not (decode is None or callable(decode)):
            raise OptionError(
                f"decode= has {decode!r:.60} for {name!r:.60}; it must have a function "
                "of bytes for an extension, or None to leave the bytes as they are."
            )
        found[name.lstrip(".").lower()] = decode
    return found
