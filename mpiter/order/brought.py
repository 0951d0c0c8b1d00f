"""An order that the dataset brings: one of the user's own, checked at each call.

Called by the thread that plans and by the consumer's, one at a time.  Guarantees that
what the order returns are as many keys as were asked for, as they travel to workers;
that an error names the order by its type; and that a state is loaded only into the
order that it was saved from, unless the order itself says otherwise.
"""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, StateError, add_note
from .order import NO_INDICES, EpochOrder, Indices, Keys, Order

# So many keys before a position, and after it, show whether an order is the saved one.
_AROUND = 8
# Parts of a key that are sent as they are; NumPy's numbers become Python's.
_PLAIN = frozenset({int, str, float, bool, bytes, type(None)})
# An address in a ``repr()`` differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_KEYS = "whole numbers or tuples, in a list or an array"


class Brought(EpochOrder):
    """The order of one epoch by ``order``, which the user has written."""

    def __init__(
        self,
        order: Order,
        begin: Callable[[int], Order],
        epoch: int = 0,
        asked: threading.RLock | None = None,
    ) -> None:
        self._order = order
        # Makes the order of epoch 0 by a seed.
        self._begin = begin
        self.epoch = epoch
        # Held while the order is called: it may keep what it has computed, and the
        # threads of the loop and of the user must not change that at the same time.
        self.asked = asked or threading.RLock()
        self.name = type(order).__name__
        kind = type(order)
        self.is_weighed = (
            kind.costs is not Order.costs or kind.tokens is not Order.tokens
        )

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        # An order may have to plan an epoch to know it, and where a state is loaded
        # nobody asks for that of the orders on the way.
        length = self._ask("__len__")
        if not isinstance(length, Integral) or length < 0:
            raise OptionError(
                f"len() of the order {self.name} is {length!r:.60}; it must be a whole "
                "number."
            )
        return int(length)

    def take(self, start: int, stop: int) -> Keys:
        stop = min(stop, self._length)
        if start >= stop:
            return NO_INDICES
        found = self._ask("take", start, stop)
        keys = _as_keys(found)
        if keys is None:
            raise OptionError(
                f"the order {self.name} gives no keys: take({start}, {stop}) returned "
                f"{_told(found)}; return {_KEYS}."
            )
        if len(keys) != stop - start:
            raise OptionError(
                f"the order {self.name} has {self._length} keys, and take({start}, "
                f"{stop}) returned {len(keys)} of them, not {stop - start}."
            )
        return keys

    def costs(self, start: int, stop: int) -> NDArray[np.float64] | None:
        return self._numbers("costs", start, stop, "fiub")

    def tokens(self, start: int, stop: int) -> NDArray[np.float64] | None:
        return self._numbers("tokens", start, stop, "iu")

    def _numbers(
        self, method: str, start: int, stop: int, kinds: str
    ) -> NDArray[np.float64] | None:
        """Return what a method says of each sample; None if it says nothing."""
        stop = min(stop, self._length)
        found = self._ask(method, start, stop)
        if found is None:
            return None
        numbers = np.asarray(found)
        are_right = numbers.shape == (max(0, stop - start),)
        # A NaN compares with nothing.
        if numbers.size:
            are_right &= numbers.dtype.kind in kinds and bool((numbers >= 0).all())
        if not are_right:
            raise OptionError(
                f"{method}({start}, {stop}) of the order {self.name} returned "
                f"{_told(found)}; return a number of at least 0 for each key."
            )
        return numbers.astype(np.float64)

    def later(self, epochs: int) -> Brought:
        if not epochs:
            return self
        return self._another("later", epochs, epoch=self.epoch + epochs)

    def lengths(self, epochs: int) -> Iterator[tuple[int, int]]:
        # Epochs may differ in length.
        for epoch in range(epochs):
            yield len(self.later(epoch)), 1

    def onwards(self, at: int, position: int) -> tuple[int, Brought, int]:
        # Epochs may differ in length, so each is looked at.
        order = self
        while at >= len(order):
            at -= len(order)
            order = order.later(1)
            if not len(order):
                raise OptionError(
                    f"the order {self.name} has no keys in epoch {order.epoch}, so it "
                    "cannot be repeated."
                )
        return order.epoch - self.epoch, order, at

    def saved(self, position: int) -> dict[str, Any]:
        """Return what a state that is saved at ``position`` holds of this order."""
        own = self._ask("state", position)
        if own is None:
            return {
                "order_length": self._length,
                "order_checksum": self._checksum(position),
            }
        try:
            text = json.dumps(own, allow_nan=False)
            again = json.loads(text)
        except (TypeError, ValueError) as error:
            raise OptionError(
                f"state() of the order {self.name} returned what JSON can't hold: "
                f"{error}."
            ) from error
        # A number as the key of a dict would come back as text, a tuple as a list.
        if again != own:
            raise OptionError(
                f"state() of the order {self.name} would come back from JSON as "
                f"{text:.200}; return dicts with text as keys, lists, text and numbers."
            )
        return {"order_state": again}

    def resumed(
        self, state: Mapping[str, Any], seed: int, epoch: int, position: int
    ) -> Brought:
        """Return the order of ``epoch`` in which to go on at ``position``.

        ``state`` holds what was ``saved`` there.  Raise a StateError if that was
        another order.
        """
        with self.asked:
            first = self._begin(seed)
        order = Brought(first, self._begin, 0, self.asked).later(epoch)
        return order.back(state, position)

    def back(self, state: Mapping[str, Any], position: int) -> Brought:
        """Return the order of this epoch that goes on at ``position``.

        ``state`` holds what was ``saved`` there.  If the user's order had a state of
        its own, its ``restored`` gets that and makes the order.  Otherwise this order
        goes on, once its length and the keys around ``position`` are found to be those
        that were saved.  Raise a StateError if they aren't.
        """
        if "order_state" in state:
            own = state["order_state"]
            try:
                return self._another("restored", own, position, epoch=self.epoch)
            except StateError:
                raise
            # A damaged state may make the user's code raise anything.
            except Exception as error:
                raise StateError(
                    f"the state doesn't fit the order {self.name}: "
                    f"{type(error).__name__}: {error}."
                ) from error
        length = state.get("order_length")
        if type(length) is not int or length != self._length:
            raise StateError(
                f"the state was saved with order_length={length!r:.40}, and the order "
                f"{self.name} has {self._length} keys in epoch {self.epoch}."
            )
        checksum = state.get("order_checksum")
        if type(checksum) is not int or checksum != self._checksum(position):
            raise StateError(
                f"the order {self.name} has other keys around position {position} of "
                f"epoch {self.epoch} than when the state was saved: the dataset, or "
                "what the order was made with, is another."
            )
        return self

    def _checksum(self, position: int) -> int:
        keys = self.take(max(0, position - _AROUND), position + _AROUND)
        if isinstance(keys, np.ndarray):
            keys = tuple(keys.tolist())
        return zlib.crc32(_ADDRESS.sub("", repr(keys)).encode())

    def _another(self, method: str, *args: object, epoch: int) -> Brought:
        found = self._ask(method, *args)
        if not isinstance(found, Order):
            raise OptionError(
                f"{method}() of the order {self.name} returned {_told(found)}; return "
                "an mpiter.Order."
            )
        return Brought(found, self._begin, epoch, self.asked)

    def _ask(self, method: str, *args: object) -> Any:
        """Call a method of the user's order; an error gets a note that names it."""
        try:
            with self.asked:
                return getattr(self._order, method)(*args)
        except Exception as error:
            text = f"{self.name}.{method}({', '.join(map(repr, args)):.200})"
            # The caller's loop would take it for its end.
            if isinstance(error, StopIteration):
                raise RuntimeError(f"{text} raised StopIteration") from error
            add_note(error, f"mpiter: {text} of the dataset's order raised this.")
            raise


def _as_keys(found: object) -> Keys | None:
    """Return keys as they are sent; None if some are neither numbers nor tuples."""
    if isinstance(found, range):
        found = np.arange(found.start, found.stop, found.step)
    if isinstance(found, np.ndarray):
        if found.ndim != 1 or found.dtype.kind not in "iu":
            return None
        # This is a copy, since the order may use its array again.
        return _as_indices(found)
    if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
        return None
    kinds = {*map(type, found)}
    if kinds <= {int}:
        return _as_indices(found)
    if kinds == {tuple}:
        return tuple(map(_as_plain, found))
    keys = list[Any]()
    for key in found:
        if isinstance(key, tuple):
            keys.append(_as_plain(key))
        elif isinstance(key, Integral) and not isinstance(key, bool):
            keys.append(int(key))
        else:
            return None
    if {*map(type, keys)} <= {int}:
        return _as_indices(keys)
    return tuple(keys)


def _as_indices(found: object) -> Indices | None:
    """Return whole numbers as an array; None if one is beyond 64 bits."""
    try:
        indices = np.array(found, np.int64)
    except OverflowError:
        return None
    is_unsigned = isinstance(found, np.ndarray) and found.dtype.kind == "u"
    if is_unsigned and indices.min(initial=0) < 0:
        return None
    return indices


def _as_plain(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a key with Python's numbers in place of NumPy's.

    Named tuples become plain ones, since workers couldn't import a script's class.
    """
    if _PLAIN.issuperset(map(type, key)):
        return tuple(key)
    parts = list[Any]()
    for part in key:
        if isinstance(part, np.generic):
            part = part.item()
        elif isinstance(part, tuple):
            part = _as_plain(part)
        parts.append(part)
    return tuple(parts)


def _told(found: object) -> str:
    """Return what an order has returned, in words."""
    return f"{type(found).__name__} {found!r:.100}"
