"""States: an iterator's position as JSON-able values (``state_dict()``), and how they are checked and loaded.

Guarantees that a state is checked key by key before anything changes, and that nothing in it is unpickled, imported or
evaluated: a state is numbers, strings and lists of numbers.  Its size is constant with the library's own orders; with
an ``order_sampler`` it contains the present epoch's order.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from ..errors import StateError
from .cursor import Cursor
from .order import Given, Listed, Order, Sampled, Sequential, Shuffled

VERSION = 2  # changes whenever the same seed gives another order, since states can't be resumed in it
SEEDS = -(1 << 127), (1 << 128) - 1  # the least and the greatest
_KINDS = {Sequential: "sequential", Shuffled: "shuffled", Given: "shuffled", Sampled: "sampled"}
LARGEST = 2**53  # the largest whole number that every JSON reader keeps exactly


def save(cursor: Cursor, seed: int, agreed: dict[str, Any]) -> dict[str, Any]:
    """Return a state; ``agreed`` are the options that an iterator which loads it must agree with."""
    order: dict[str, Any] = {"kind": _KINDS[type(cursor.order)]}
    if isinstance(cursor.order, Listed):
        order["indices"] = cursor.order.array().tolist()
    place = {name: getattr(cursor, name) for name in ("epoch", "position", "is_new_epoch", "previous_epoch_detail")}
    # the seed is text, since it may be larger than JSON readers keep exactly
    return {"mpiter": VERSION, **place, "seed": str(seed), "order": order, **agreed}


def load(state: Any, agreed: dict[str, Any], now: Order, epochs: int | None) -> tuple[Cursor, int]:
    """Return the cursor and the seed in ``state``; raise a StateError that says what is wrong with it.

    ``now`` is the present order of the iterator that loads it, ``epochs`` the number of its epochs (None: no limit).
    """
    check_kind(state, "order", "loader")
    for name, mine in agreed.items():
        saved = typed(state, name, type(mine))
        if saved != mine:
            raise StateError(f"the state was saved with {name}={saved!r:.40}, this iterator has {name}={mine!r}.")
    seed, epoch = seed_of(state), number_of(state, "epoch", 0, LARGEST if epochs is None else epochs)
    order = _order(state, seed, epoch, now, agreed["dataset_length"])
    position = number_of(state, "position", 0, 0 if epoch == epochs else max(len(order) - 1, 0))
    detail: float = typed(state, "previous_epoch_detail", float)
    if not isfinite(detail) or not -1 <= detail <= LARGEST:
        raise StateError(f"the state's 'previous_epoch_detail' is {detail!r}.")
    return Cursor(position, epoch, typed(state, "is_new_epoch", bool), order, detail), seed


def check_kind(state: Any, key: str, of_the_other: str) -> None:
    """Raise a StateError unless ``state`` is of this version and of the kind that has ``key``, not ``of_the_other``."""
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict as state_dict() returns it, not {type(state).__name__}.")
    if "mpiter" not in state:
        raise StateError("this is no state of mpiter: the key 'mpiter' (its version) is missing.")
    if type(state["mpiter"]) is not int or state["mpiter"] != VERSION:
        raise StateError(f"the state has version {state['mpiter']!r:.40}; this mpiter reads version {VERSION}.")
    if key not in state and of_the_other in state:
        names = {"order": "batches() or an iterator", "loader": "a loader (DataLoader)"}
        saver, mine = names[of_the_other], names[key]
        raise StateError(f"the state is of another kind: {saver} saved it, and this is {mine}.  Each loads its own.")


def _order(state: Mapping[str, Any], seed: int, epoch: int, now: Order, length: int) -> Order:
    saved = typed(state, "order", dict)
    kind, mine = typed(saved, "kind", str), _KINDS[type(now)]
    if kind != mine:
        raise StateError(f"the state was saved with a {kind!r:.40} order, this iterator has a {mine!r} one.")
    if mine == "sequential":
        return now
    if mine == "shuffled" and "indices" not in saved:
        return Shuffled(length, seed, epoch)
    indices = typed(saved, "indices", list)
    if not all(type(i) is int and -LARGEST <= i <= LARGEST for i in indices):
        raise StateError("the state's order holds something other than whole numbers.")
    if len(indices) != len(now):
        raise StateError(f"the state's order has {len(indices)} indices, this iterator's has {len(now)}.")
    array = np.array(indices, np.int64)
    if mine == "shuffled":  # this epoch's order was given; later ones are shuffled
        return Given(array, Shuffled(length, seed, epoch + 1))
    assert isinstance(now, Sampled)
    return now.instead(array)


def seed_of(state: Mapping[str, Any]) -> int:
    """Return the seed of ``state``, which holds it as text; raise a StateError if it is none."""
    text = typed(state, "seed", str)
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 40):
        raise StateError(f"the state's 'seed' is {text!r:.40}, not a whole number.")
    seed = int(text)
    if not SEEDS[0] <= seed <= SEEDS[1]:
        raise StateError(f"the state's 'seed' has {seed.bit_length()} bits; at most 128 are possible.")
    return seed


def number_of(state: Mapping[str, Any], name: str, low: int = 0, high: int = LARGEST) -> int:
    """Return the whole number ``state[name]``; raise a StateError unless it is from ``low`` to ``high``."""
    number: int = typed(state, name, int)
    if not low <= number <= high:
        raise StateError(f"the state's {name!r} is {number}, not within {low} … {high}.")
    return number


def typed(state: Mapping[str, Any], name: str, wanted: type) -> Any:
    """Return ``state[name]``; raise a StateError if it is missing or not of exactly the type ``wanted``."""
    if not isinstance(state, Mapping) or name not in state:
        raise StateError(f"the state is incomplete: {name!r} is missing.")
    if type(state[name]) is not wanted:
        raise StateError(f"the state's {name!r} is {state[name]!r:.40}, not of type {wanted.__name__}.")
    return state[name]
