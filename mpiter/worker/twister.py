"""torch's global generator, looked at in memory: whether it was drawn from is asked
twice for each batch.

Reading its state through torch takes six times as long.  Where its words lie is tried
with another generator of the same kind; if they aren't found there, or if a draw
doesn't show, torch is asked instead.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from ..samples.tensors import torch_with

# Of a Mersenne twister, four bytes each.
_WORDS = 624
# Bytes before them in memory: how many are left, whether it is seeded, and which comes
# next.
_BEFORE = 16
# Bytes after them: the normal numbers that it keeps for later draws.
_RESERVE = 24
# Where a state has the words, eight bytes each.
_TOLD = slice(24, 24 + 8 * _WORDS)
# Bytes of the generator in which they are looked for.
_SEARCHED = 256

Views = tuple[memoryview, memoryview]


def mark_of(generator: Any) -> Any:
    """Return what changes when torch's ``generator`` is drawn from."""
    views = _views_of(generator)
    if views is None:
        return generator.get_state().numpy().tobytes()
    index, reserve = views
    return index.tobytes(), reserve.tobytes()


@functools.lru_cache(maxsize=1)
def _views_of(generator: Any) -> Views | None:
    """Return views of a generator's index with its first word, and of its reserve; None
    if they can't be trusted.
    """
    like = type(generator)()
    offset = _offset_in(like)
    if offset is None or not _shows_each_draw(like, _views_at(like, offset)):
        return None
    return _views_at(generator, offset)


def _offset_in(generator: Any) -> int | None:
    """Return where the words begin in a generator's memory, by comparing it with the
    state that torch tells.
    """
    address = getattr(generator, "_cdata", None)
    words = generator.get_state().numpy()[_TOLD]
    if address is None or len(words) < 8 * _WORDS:
        return None
    wanted = words.view(np.uint64)[:8].astype(np.uint32).tobytes()
    offset = ctypes.string_at(address, _SEARCHED).find(wanted)
    return offset if offset >= _BEFORE else None


def _views_at(generator: Any, offset: int) -> Views:
    words = generator._cdata + offset
    index = (ctypes.c_char * (_BEFORE + 4)).from_address(words - _BEFORE)
    reserve = (ctypes.c_char * _RESERVE).from_address(words + 4 * _WORDS)
    return memoryview(index), memoryview(reserve)


def _shows_each_draw(generator: Any, views: Views) -> bool:
    """Return True if each of several draws changes what the views show; some only take
    a number from the reserve.
    """
    torch = torch_with("randn")
    index, reserve = views
    for dtype in (torch.float64, torch.float32) * 2:
        for draw in (torch.randn, torch.randn, torch.rand):
            before = index.tobytes(), reserve.tobytes()
            draw(1, dtype=dtype, generator=generator)
            if (index.tobytes(), reserve.tobytes()) == before:
                return False
    return True
