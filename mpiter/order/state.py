"""States: an iterator's position as values for JSON, and how they are checked.

Guarantees that a state is checked key by key before anything changes, and that nothing
in it is unpickled, imported or evaluated: a state is numbers, strings and lists of
numbers, and what an order of the user's adds.  Its size is constant, but with an
``order_sampler`` it contains the present epoch's order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from ..errors import StateError
from .brought import Brought
from .cursor import Cursor
from .order import EpochOrder, Given, Listed, Sampled, Sequential, Shuffled

_T = TypeVar("_T")
# A state, or a part of one: values that JSON can hold, by name.
State = Mapping[str, Any]

# Changes whenever the same seed gives another order, in which older states can't be
# resumed.
VERSION = 2
# The least and the greatest seed.
SEEDS = (-(1 << 127), (1 << 128) - 1)
_ORDERS = {
    Sequential: "sequential",
    Shuffled: "shuffled",
    Given: "shuffled",
    Sampled: "sampled",
}
# The largest whole number that every JSON reader keeps exactly.
LARGEST = 2**53


def save(cursor: Cursor, seed: int, agreed: State) -> dict[str, Any]:
    """Return a state.

    ``agreed`` are the options that an iterator which loads it must agree with.
    """
    order = cursor.order
    state = begun(_with_order(agreed, order), seed)
    for name in ("epoch", "position", "is_new_epoch", "previous_epoch_detail"):
        state[name] = getattr(cursor, name)
    if isinstance(order, Listed):
        state["indices"] = order.array().tolist()
    elif isinstance(order, Brought):
        state |= order.saved(cursor.position)
    return state


def load(
    state: State,
    agreed: State,
    now: EpochOrder,
) -> tuple[Cursor, int]:
    """Return the cursor and the seed in ``state``, or raise a StateError.

    ``now`` is the present order.
    """
    seed = check(state, _with_order(agreed, now), "iterator")
    epoch = number_of(state, "epoch")
    order: EpochOrder
    if isinstance(now, Brought):
        order = now.resumed(state, seed, epoch, number_of(state, "position"))
    else:
        order = _order(state, seed, epoch, now, agreed["dataset_length"])
    length = len(order)
    # What the order itself has put into the state may end the epoch here, where it has
    # become shorter.
    may_end = isinstance(order, Brought) and "order_state" in state
    last = length if may_end else max(length - 1, 0)
    position = number_of(state, "position", 0, last)
    detail = typed(state, "previous_epoch_detail", float)
    if not -1 <= detail <= LARGEST:
        raise StateError(f"the state's 'previous_epoch_detail' is {detail!r}.")
    is_new_epoch = typed(state, "is_new_epoch", bool)
    if 0 < length == position:
        return Cursor(0, epoch + 1, True, order.later(1), detail), seed
    return Cursor(position, epoch, is_new_epoch, order, detail), seed


def _with_order(agreed: State, order: EpochOrder) -> State:
    if not isinstance(order, Brought):
        return {"kind": "iterator", "order": _ORDERS[type(order)], **agreed}
    # The order has a length of its own.
    found = {"kind": "iterator", "order": order.name, **agreed}
    del found["dataset_length"]
    return found


def _order(
    state: State,
    seed: int,
    epoch: int,
    now: EpochOrder,
    length: int,
) -> EpochOrder:
    """Return the order of the epoch that the state is of."""
    if isinstance(now, Sequential):
        return now
    if not isinstance(now, Sampled) and "indices" not in state:
        return Shuffled(length, seed, epoch)
    indices = typed(state, "indices", list)
    are_numbers = all(type(i) is int and -LARGEST <= i <= LARGEST for i in indices)
    if len(indices) != len(now) or not are_numbers:
        raise StateError(
            f"the state's order isn't a list of {len(now)} whole numbers, as this "
            "iterator's is."
        )
    array = np.array(indices, np.int64)
    if isinstance(now, Sampled):
        return now.instead(array)
    return Given(array, Shuffled(length, seed, epoch + 1))


def begun(agreed: State, seed: int) -> dict[str, Any]:
    """Return the beginning of a state.

    The seed is text, since JSON readers may not keep so large a number exactly.
    """
    return {"mpiter": VERSION, **agreed, "seed": str(seed)}


def check(state: object, agreed: State, whose: str) -> int:
    """Return the seed in ``state``.

    Raise a StateError unless it is of this version and has all that is ``agreed``.
    """
    if not isinstance(state, Mapping) or "mpiter" not in state:
        raise StateError(
            "this is no state of mpiter: a dict, as state_dict() returns it, with the "
            "key 'mpiter'."
        )
    for name, mine in {"mpiter": VERSION, **agreed}.items():
        saved = state.get(name)
        # To Python True is 1, and 1.0 is too.
        if type(saved) is not type(mine) or saved != mine:
            raise StateError(
                f"the state was saved with {name}={saved!r:.40}, this {whose} has "
                f"{name}={mine!r}."
            )
    text = typed(state, "seed", str)
    is_number = text.isascii() and text.removeprefix("-").isdigit()
    if not is_number or len(text) > 40:
        raise StateError(f"the state's 'seed' is {text!r:.40}, not a whole number.")
    seed = int(text)
    if not SEEDS[0] <= seed <= SEEDS[1]:
        raise StateError(
            f"the state's 'seed' has {seed.bit_length()} bits; at most 128 are "
            "possible."
        )
    return seed


def number_of(
    state: State,
    name: str,
    low: int = 0,
    high: int = LARGEST,
) -> int:
    """Return the whole number ``state[name]``.

    Raise a StateError unless it is from ``low`` to ``high``.
    """
    number = typed(state, name, int)
    if not low <= number <= high:
        raise StateError(
            f"the state's {name!r} is {number}, not within {low} … {high}."
        )
    return number


def typed(state: State, name: str, wanted: type[_T]) -> _T:
    """Return ``state[name]``.

    Raise a StateError if it is missing or not of exactly the type ``wanted``.
    """
    if not isinstance(state, Mapping) or name not in state:
        raise StateError(f"the state is incomplete: {name!r} is missing.")
    value: _T = state[name]
    if type(value) is not wanted:
        raise StateError(
            f"the state's {name!r} is {value!r:.40}, not of type {wanted.__name__}."
        )
    return value
