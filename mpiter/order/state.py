"""``state_dict()``: an iterator's place as JSON-able plain values, and the careful way back.

What is loaded has been checked key by key before anything changes, and nothing of it is ever unpickled, imported or
evaluated: a state is numbers, strings and lists of numbers.  Its size is constant with our own orders; with an
``order_sampler`` the current order goes along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from ..errors import StateError
from .cursor import Cursor, Pace
from .order import Given, Listed, Order, Sampled, Sequential, Shuffled

VERSION = 2  # another one when the orders that states go on in are others
SEEDS = -(1 << 127), (1 << 128) - 1  # the least and the greatest
_KINDS = {Sequential: "sequential", Shuffled: "shuffled", Given: "given", Sampled: "sampled"}
_IS_A = {"given": "shuffled"}  # from the next epoch on
LARGEST = 2**53  # what every JSON reader keeps exactly
_SAVED_BY = {"order": "batches() or an iterator", "loader": "a loader (DataLoader)"}  # by a key that only they write


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a state must agree with: the options of the iterator that saves or loads it."""

    pace: Pace
    dataset_length: int
    order: Order
    is_shared: bool = False  # by ranks, of which there may be others when a state is loaded


def save(cursor: Cursor, seed: int, around: Surroundings) -> dict[str, Any]:
    order: dict[str, Any] = {"kind": _KINDS[type(cursor.order)]}
    if isinstance(cursor.order, Listed):
        order["indices"] = cursor.order.array().tolist()
    place = {name: getattr(cursor, name) for name in ("epoch", "position", "is_new_epoch", "previous_epoch_detail")}
    shared = {"shared": True} if around.is_shared else {}
    # the seed as text: it may exceed what JSON readers keep exactly
    return {"mpiter": VERSION, **place, "seed": str(seed), "order": order, **shared, **_pace(around)}


def _pace(around: Surroundings) -> dict[str, Any]:
    """What must agree; a place is a number of samples, whatever the batch size."""
    return {"dataset_length": around.dataset_length, "wrap": around.pace.wrap, "drop_last": around.pace.drop_last}


def load(state: Any, around: Surroundings) -> tuple[Cursor, int]:
    """The cursor and the seed that ``state`` describes, or a StateError that says what is wrong with it."""
    check_kind(state, "order")
    for name, mine in _pace(around).items():
        saved = typed(state, name, type(mine))
        if saved != mine:
            raise StateError(f"the state was saved with {name}={saved!r:.40}, this iterator has {name}={mine!r}.")
    seed, last = seed_of(state), around.pace.epochs
    epoch = number_of(state, "epoch", 0, LARGEST if last is None else last)
    order = _order(state, seed, epoch, around)
    position = number_of(state, "position", 0, 0 if epoch == last else max(len(order) - 1, 0))
    detail: float = typed(state, "previous_epoch_detail", float)
    if not isfinite(detail) or not -1 <= detail <= LARGEST:
        raise StateError(f"the state's 'previous_epoch_detail' is {detail!r}.")
    return Cursor(position, epoch, typed(state, "is_new_epoch", bool), order, detail), seed


def check_kind(state: Any, key: str) -> None:
    """Is it a state of ours, of this version, and of the kind that has this key?"""
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict as state_dict() returns it, not {type(state).__name__}.")
    if "mpiter" not in state:
        raise StateError("this is no state of mpiter: the key 'mpiter' (its version) is missing.")
    if type(state["mpiter"]) is not int or state["mpiter"] != VERSION:
        raise StateError(f"the state has version {state['mpiter']!r:.40}; this mpiter reads version {VERSION}.")
    other = next((other for other in _SAVED_BY if other in state and key not in state), None)
    if other is not None:
        raise of_another_kind(_SAVED_BY[other], _SAVED_BY[key])


def of_another_kind(saver: str, mine: str) -> StateError:
    return StateError(f"the state is of another kind: {saver} saved it, and this is {mine}.  Each loads its own.")


def _order(state: Mapping[str, Any], seed: int, epoch: int, around: Surroundings) -> Order:
    saved = typed(state, "order", dict)
    kind, mine = typed(saved, "kind", str), _KINDS[type(around.order)]
    if _IS_A.get(kind, kind) != _IS_A.get(mine, mine):
        raise StateError(f"the state was saved with a {kind!r:.40} order, this iterator has a {mine!r} one.")
    if mine == "sequential":
        return around.order
    if kind == "shuffled":
        return Shuffled(around.dataset_length, seed, epoch)
    indices = typed(saved, "indices", list)
    if not all(type(i) is int and -LARGEST <= i <= LARGEST for i in indices):
        raise StateError("the state's order holds something other than whole numbers.")
    if len(indices) != len(around.order):
        raise StateError(f"the state's order has {len(indices)} indices, this iterator's has {len(around.order)}.")
    array = np.array(indices, np.int64)
    if kind == "given":
        return Given(array, Shuffled(around.dataset_length, seed, epoch + 1))
    assert isinstance(around.order, Sampled)
    return around.order.instead(array)


def seed_of(state: Mapping[str, Any]) -> int:
    """The seed, which is written as text."""
    text = typed(state, "seed", str)
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 40):
        raise StateError(f"the state's 'seed' is {text!r:.40}, not a whole number.")
    seed = int(text)
    if not SEEDS[0] <= seed <= SEEDS[1]:
        raise StateError(f"the state's 'seed' has {seed.bit_length()} bits; at most 128 are possible.")
    return seed


def number_of(state: Mapping[str, Any], name: str, low: int = 0, high: int = LARGEST) -> int:
    """A whole number of ``state``, within its bounds."""
    number: int = typed(state, name, int)
    if not low <= number <= high:
        raise StateError(f"the state's {name!r} is {number}, not within {low} … {high}.")
    return number


def typed(state: Mapping[str, Any], name: str, wanted: type) -> Any:
    """An entry of ``state``, of the type that it must have."""
    if name not in state:
        raise StateError(f"the state is incomplete: {name!r} is missing.")
    if type(state[name]) is not wanted:
        raise StateError(f"the state's {name!r} is {state[name]!r:.40}, not of type {wanted.__name__}.")
    return state[name]
