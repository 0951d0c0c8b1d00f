"""Compares samples, batches, or results of a training, to the last bit of arrays."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np

from ..samples.kinds import kind_of

_SHOWN = 60  # characters


def same(one: object, other: object) -> bool:
    """Return True if two values are equal, to the last bit of their arrays."""
    return difference(one, other, "") is None


def difference(one: object, other: object, name: str) -> str | None:
    """Return in words where ``one``, called ``name``, first differs from ``other``.

    Return None if they are equal.
    """
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


def _are_equal(one: object, other: object) -> bool:
    kind = kind_of(type(one))
    if kind is not None:
        told = kind.are_same(one, other)
        if told is not None:
            return told
    # Some kinds of values can't be compared, others can't be pickled.
    with contextlib.suppress(Exception):
        if np.all(one == other):
            return True
    with contextlib.suppress(Exception):
        return pickle.dumps(one) == pickle.dumps(other)
    return False
