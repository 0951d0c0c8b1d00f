"""Compares samples, batches, or results of a training, to the last bit of arrays."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np

from ..samples import tensors

_SHOWN = 60  # characters


def same(one: object, other: object) -> bool:
    """Return True if two values are equal, to the last bit of their arrays."""
    return difference(one, other, "") is None


def difference(one: object, other: object, name: str) -> str | None:
    """Return in words where the value ``name`` first differs from another, if so."""
    # A Batch is equal to its copy, though that is a plain list.
    are_lists = isinstance(one, list) and isinstance(other, list)
    if type(one) is not type(other) and not are_lists:
        return _told(name, one, other)
    mine = _parts(one)
    theirs = _parts(other)
    if mine is None or theirs is None:
        if _are_equal(one, other):
            return None
        return _told(name, one, other)
    for key in mine:
        if key not in theirs:
            continue
        found = difference(mine[key], theirs[key], f"{name}[{key!r:.{_SHOWN}}]")
        if found:
            return found
    if len(mine) != len(theirs):
        return f"{name} has {len(mine)} parts in place of {len(theirs)}"
    if mine.keys() == theirs.keys():
        return None
    return _told(name, one, other)


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return what a value consists of; None if it is to be compared as a whole."""
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    if hasattr(type(value), "__dataclass_fields__"):
        names = value.__dataclass_fields__
        return {name: getattr(value, name, None) for name in names}
    if callable(getattr(type(value), "state_dict", None)):
        return {"state_dict()": value.state_dict()}
    return None


def _told(name: str, one: object, other: object) -> str:
    mine = " ".join(repr(one).split())
    theirs = " ".join(repr(other).split())
    return f"{name} is {mine:.{_SHOWN}} in place of {theirs:.{_SHOWN}}"


def _are_equal(one: Any, other: Any) -> bool:
    # Only a dense tensor without a gradient shows its bytes.
    if hasattr(one, "requires_grad"):
        one = one.detach().to_dense()
        other = other.detach().to_dense()
    mine = tensors.as_bytes(one)
    theirs = tensors.as_bytes(other)
    if mine is not None and theirs is not None:
        are_alike = mine[1:] == theirs[1:]
        return are_alike and mine[0].tobytes() == theirs[0].tobytes()
    if isinstance(one, np.ndarray):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        # The bytes of other kinds aren't all of their value: a masked array has a mask,
        # and objects lie elsewhere.
        if type(one) in (np.ndarray, np.memmap) and not one.dtype.hasobject:
            return bool(one.tobytes() == other.tobytes())
    # Some kinds of values can't be compared, others can't be pickled.
    with contextlib.suppress(Exception):
        if np.all(one == other):
            return True
    with contextlib.suppress(Exception):
        return pickle.dumps(one) == pickle.dumps(other)
    return False
