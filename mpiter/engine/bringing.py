"""Orders that datasets bring, by a method ``mpiter_order(seed, shuffle)``.

Runs in the consumer, when an iterator or a loader is made, reset or given a state.
Guarantees that an order which contradicts the arguments is refused, with the remedy.
"""

from __future__ import annotations

from ..datasets.columns import offered, users
from ..errors import OptionError
from ..order.brought import Brought
from ..order.order import Order
from ..worker import home

_METHOD = "mpiter_order"


def brings_order(dataset: object, **instead: object) -> bool:
    """Return True if the dataset brings its order.

    Raise an OptionError if it does and one of the arguments ``instead``, such as a
    sampler, is given as well.
    """
    dataset = users(dataset)
    if offered(dataset, _METHOD) is None:
        return False
    for name, given in instead.items():
        if given is not None:
            kind = type(dataset).__name__
            raise OptionError(
                f"{kind} brings its order, by {_METHOD}(), and {name} says another: "
                f"leave {name} out; or wrap {kind} in a dataset that has no such "
                "method."
            )
    return True


def order_of(dataset: object, seed: int, shuffle: object) -> Brought | None:
    """Return the order of epoch 0 that the dataset brings; None if it brings none.

    ``shuffle`` is the user's argument.
    """
    dataset = users(dataset)
    make = offered(dataset, _METHOD)
    if make is None:
        return None
    if not callable(make):
        raise OptionError(
            f"{_METHOD} of {type(dataset).__name__} is {type(make).__name__} "
            f"{make!r:.60}; define it as a method {_METHOD}(self, seed, shuffle) that "
            "returns an mpiter.Order."
        )
    if shuffle is not None:
        shuffle = bool(shuffle)

    def begin(seed: int) -> Order:
        found = make(seed, shuffle)
        if not isinstance(found, Order):
            raise OptionError(
                f"{_METHOD}(seed, shuffle) of {type(dataset).__name__} returned "
                f"{type(found).__name__} {found!r:.60}; return an mpiter.Order."
            )
        return found

    order = Brought(begin(seed), begin)
    # A wrong length is refused here.
    len(order)
    home.locks.add(order.asked)
    return order
