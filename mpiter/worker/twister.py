"""torch's global generator, looked at in memory.

Whether it was drawn from is asked twice for each batch, and reading its state through
torch takes six times as long.  Where its words lie is tried with another generator of
the same kind; if they aren't found there, or if a draw doesn't show, torch is asked
instead.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Protocol

import numpy as np

from ..samples.tensors import torch_with

# A Mersenne twister has so many words of four bytes each.
_WORDS = 624
# Before the words lie these bytes: how many words are left, whether the generator is
# seeded, and which word comes next.
_BEFORE = 16
# After the words lie these bytes: the normal numbers that it keeps for later draws.
_RESERVE = 24
# A state has the words here, eight bytes each.
_IN_STATE = slice(24, 24 + 8 * _WORDS)
# The words are looked for in so many bytes of the generator.
_SEARCHED = 256

Views = tuple[memoryview, memoryview]


class Generator(Protocol):
    """What is used here of ``torch.Generator``."""

    _cdata: int

    def get_state(self) -> Any: ...

    def __hash__(self) -> int: ...


def mark_of(generator: Generator) -> object:
    """Return what changes when torch's ``generator`` is drawn from."""
    views = _views_of(generator)
    if views is None:
        return generator.get_state().numpy().tobytes()
    index, reserve = views
    return index.tobytes(), reserve.tobytes()


@functools.lru_cache(maxsize=1)
def _views_of(generator: Generator) -> Views | None:
    """Return views of a generator's index with its first word, and of its reserve.

    Return None if they can't be trusted.
    """
    like = type(generator)()
    offset = _offset_in(like)
    if offset is None:
        return None
    views = _views_at(like, offset)
    if not _shows_each_draw(like, views):
        return None
    return _views_at(generator, offset)


def _offset_in(generator: Generator) -> int | None:
    """Return where the words begin in a generator's memory, or None.

    They are found by comparison with the state that torch returns.
    """
    address = getattr(generator, "_cdata", None)
    words = generator.get_state().numpy()[_IN_STATE]
    if address is None or len(words) < 8 * _WORDS:
        return None
    first = words.view(np.uint64)[:8]
    wanted = first.astype(np.uint32).tobytes()
    memory = ctypes.string_at(address, _SEARCHED)
    offset = memory.find(wanted)
    return offset if offset >= _BEFORE else None


def _views_at(generator: Generator, offset: int) -> Views:
    words = generator._cdata + offset
    of_index = ctypes.c_char * (_BEFORE + 4)
    of_reserve = ctypes.c_char * _RESERVE
    index = of_index.from_address(words - _BEFORE)
    reserve = of_reserve.from_address(words + 4 * _WORDS)
    return memoryview(index), memoryview(reserve)


def _shows_each_draw(generator: Generator, views: Views) -> bool:
    """Return True if each of several draws changes what the views show.

    A draw from the normal distribution may take the number that the one before has
    left in the reserve: the second of each pair does, and the first of another dtype.
    """
    torch = torch_with("randn")
    index, reserve = views
    for dtype in (torch.float64, torch.float32) * 2:
        for draw in (torch.randn, torch.randn, torch.rand):
            before = (index.tobytes(), reserve.tobytes())
            draw(1, dtype=dtype, generator=generator)
            after = (index.tobytes(), reserve.tobytes())
            if after == before:
                return False
    return True
