"""mpiter's iterators for Chainer, for which a program changes only an import.

It becomes ``from mpiter.chainer import MultiprocessIterator``.  The iterators add what
Chainer's trainers, evaluators and ChainerMN need: the base class
``chainer.dataset.Iterator``, ``serialize`` with the keys of Chainer's snapshots, and
two private names.  Snapshots can be loaded in both directions. Chainer must be
importable: on NumPy 2 or Python 3.12 and later, ``import mpiter.chainer_compat`` first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import Any, Protocol, TypeVar

import numpy as np

try:
    import chainer
    from chainer.iterators._statemachine import IteratorState
except Exception as error:
    # On NumPy 2 this is an AttributeError, without pkg_resources an ImportError.
    raise ImportError(
        f"Chainer cannot be imported here ({error}). Install chainer==7.8.1, and on "
        "NumPy 2 or Python 3.12 and later `import mpiter.chainer_compat` before "
        "anything that imports Chainer."
    ) from error

from .errors import StateError
from .iterators import iterators
from .iterators.iterator import DatasetIterator
from .order.brought import Brought
from .order.cursor import Cursor
from .order.order import Given, Indices
from .order.state import SEEDS
from .samples.batch import Batch, columns_in_place

__all__ = [
    "MultiprocessIterator",
    "MultithreadIterator",
    "SerialIterator",
    "converter",
]

_SEED_BYTES = 17  # for 128 bits and a sign
_Value = TypeVar("_Value", int, float, bool)


class _Serializer(Protocol):
    """What mpiter uses of Chainer's ``Serializer``, which saves a value or loads it."""

    def __call__(self, key: str, value: object) -> Any: ...


class _Door(DatasetIterator, chainer.dataset.Iterator):  # type: ignore[misc]
    """The base class of the iterators below.

    It adds what Chainer's trainers and ChainerMN need.
    """

    # In Chainer, too, a list is a dataset of samples.
    _taken_for = "samples"

    def __del__(self) -> None:
        """Do nothing, since the workers end by themselves.

        Chainer's would wait for them in the garbage collector.
        """

    @property
    def _state(self) -> IteratorState:
        """The position as ChainerMN reads it."""
        here = self._cursor
        order = here.order.array()
        return IteratorState(here.position, here.epoch, here.is_new_epoch, order)

    @property
    def _epoch_size(self) -> int:
        return len(self._cursor.order)

    def serialize(self, serializer: _Serializer) -> None:
        """Save the position to a snapshot or load it, as the ``serializer`` says.

        Chainer's format has the whole order of a shuffled epoch: saving a million
        samples takes 3 ms, and 50 ms for the first time in an epoch.  What isn't
        shuffled, or is in an order that the dataset brings, costs the same at any
        length.
        """
        here = self._cursor
        # Chainer's keys can't tell of an order that the dataset brings.
        if isinstance(here.order, Brought):
            _exchange_state(serializer, self)
            return
        order = here.order.array()
        position = _exchange(serializer, "current_position", here.position)
        epoch = _exchange(serializer, "epoch", here.epoch)
        is_new_epoch = _exchange(serializer, "is_new_epoch", here.is_new_epoch)
        indices = _exchange_order(serializer, order)
        seed = _exchange_seed(serializer, self.seed)
        detail = float(here.previous_epoch_detail)
        try:
            detail = _exchange(serializer, "previous_epoch_detail", detail)
        except KeyError:
            # Chainer's oldest snapshots lack it.  As in Chainer, it is then that of one
            # batch before.
            length = max(len(here.order), 1)
            now = epoch + position / length
            detail = -1.0
            if now > 0:
                detail = max(now - self.batch_size / length, 0.0)
        found = Cursor(position, epoch, is_new_epoch, here.order, detail)
        if found != here or seed != self.seed or not _equal(indices, order):
            self._go_to(found, seed, indices)

    def _go_to(
        self,
        found: Cursor,
        seed: int,
        indices: Indices | None,
    ) -> None:
        length = len(found.order)
        fits = True
        if indices is not None:
            largest = indices.max(initial=-1)
            fits = len(indices) == length and largest < len(self.dataset)
        is_a_place = 0 <= found.position < max(length, 1) and found.epoch >= 0
        if not (fits and is_a_place):
            where = "an order that does not fit the dataset"
            if fits:
                where = f"epoch {found.epoch}"
            raise StateError(
                f"snapshot of position {found.position} in {where}; epochs here have "
                f"{length} samples."
            )
        is_a_seed = SEEDS[0] <= seed <= SEEDS[1]
        if not is_a_seed or not isfinite(found.previous_epoch_detail):
            raise StateError(
                "the snapshot is damaged: its previous_epoch_detail or mpiter_seed is "
                "no such number."
            )
        self._refuse_if_closed("load a snapshot")
        self._pump.seed = seed
        order = self._order_of(found.epoch, indices)
        if isinstance(order, Given):
            ours = self._order_of(found.epoch).array()
            # These are the indices of the library's own shuffle, whose state is a few
            # numbers.  It is made anew, since one that was asked for its array keeps
            # it.
            if _equal(ours, indices):
                order = self._order_of(found.epoch)
        self._go(found._replace(order=order))


def _equal(some: Indices | None, others: Indices | None) -> bool:
    if some is None or others is None:
        return some is others
    return np.array_equal(some, others)


def _exchange(
    serializer: _Serializer,
    key: str,
    value: _Value,
) -> _Value:
    """Save ``value`` under ``key`` and return it, or load and return what is there.

    What is loaded gets the type of ``value``.
    """
    found = serializer(key, value)
    if found is None:
        return value
    return type(value)(found)


def _exchange_state(serializer: _Serializer, iterator: DatasetIterator[Any]) -> None:
    """Save the iterator's state as the bytes of its JSON, or load it."""
    key = "mpiter_state"
    if not isinstance(serializer, chainer.serializer.Deserializer):
        text = json.dumps(iterator.state_dict())
        serializer(key, np.frombuffer(text.encode(), np.uint8))
        return
    found = None
    with suppress(KeyError):
        found = serializer(key, None)
    if found is None:
        raise StateError(
            "the snapshot is of an iterator whose dataset brings no order; this one's "
            "does."
        )
    try:
        state = json.loads(np.asarray(found).tobytes())
    except ValueError as error:
        raise StateError(f"the snapshot's {key} is damaged: {error}.") from error
    iterator.load_state_dict(state)


def _exchange_order(
    serializer: _Serializer,
    order: Indices | None,
) -> Indices | None:
    """Save the order under both of Chainer's keys, or load it from one of them.

    Some of Chainer's iterators read one key, some the other.
    """
    if order is None:
        # Chainer's MultithreadIterator can't load a snapshot without this key.
        with suppress(KeyError):
            serializer("_order", None)
        return None
    is_loading = isinstance(serializer, chainer.serializer.Deserializer)
    copied = order
    if not is_loading:
        # The library keeps what is in ``order``, and goes on to use it.
        copied = order.copy()
    for key in ("order", "_order"):
        with suppress(KeyError):
            if not is_loading:
                serializer(key, copied)
                continue
            found = serializer(key, None)
            if found is not None:
                return np.array(found, order.dtype)
    if is_loading:
        raise KeyError(
            "order: the snapshot has none, so it is of an iterator that does not "
            "shuffle; this one does"
        )
    return order


def _exchange_seed(serializer: _Serializer, seed: int) -> int:
    """Save the seed, or load it, and return it.

    Snapshots of Chainer's own iterators have none, and ``seed`` is kept.
    """
    saved = seed.to_bytes(_SEED_BYTES, "little", signed=True)
    # A serializer that loads writes into this copy, since the bytes can't be changed.
    words = np.frombuffer(saved, np.uint8).copy()
    with suppress(KeyError):
        serializer("mpiter_seed", words)
    return int.from_bytes(words.tobytes(), "little", signed=True)


class MultiprocessIterator(_Door, iterators.MultiprocessIterator):
    """``mpiter.MultiprocessIterator`` for Chainer's trainers, with its arguments.

    >>> numbers = [10, 20, 30]
    >>> once = {"repeat": False, "shuffle": False}
    >>> with MultiprocessIterator(numbers, 2, n_processes=2, **once) as it:
    ...     it.next(), it.epoch_detail
    ([10, 20], 0.666...)
    """


class MultithreadIterator(_Door, iterators.MultithreadIterator):
    """``mpiter.MultithreadIterator`` for Chainer's trainers, with its arguments.

    >>> numbers = [10, 20, 30]
    >>> once = {"repeat": False, "shuffle": False}
    >>> with MultithreadIterator(numbers, 2, n_threads=2, **once) as it:
    ...     it.next(), it.epoch_detail
    ([10, 20], 0.666...)
    """


class SerialIterator(_Door, iterators.SerialIterator):
    """``mpiter.SerialIterator`` for Chainer's trainers, with its arguments.

    >>> with SerialIterator([10, 20, 30], 2, repeat=False, shuffle=False) as it:
    ...     it.next(), it.epoch_detail
    ([10, 20], 0.666...)
    """


class _Converter(chainer.dataset.Converter):  # type: ignore[misc]
    def __call__(
        self,
        batch: object,
        device: object = None,
        padding: object = None,
    ) -> Any:
        columns = None
        if isinstance(batch, Batch):
            columns = _plain(columns_in_place(batch))
        if columns is None:
            return chainer.dataset.concat_examples(batch, device, padding)
        if device is not None:
            device = chainer.get_device(device)
        send = partial(chainer.dataset.to_device, device)
        if isinstance(columns, dict):
            return {key: send(column) for key, column in columns.items()}
        if isinstance(columns, tuple):
            return tuple(map(send, columns))
        return send(columns)

    def __reduce__(self) -> str:
        return "converter"


converter = _Converter()
"""Makes an array, or a tuple or dict of arrays, of a batch.

``converter(batch, device=None, padding=None)`` does what
``chainer.dataset.concat_examples`` does, but without a copy where the samples lie
stacked already.

>>> import numpy as np
>>> from mpiter.chainer import SerialIterator
>>> it = SerialIterator([(np.full(2, i, "f"), i) for i in range(3)], 3, shuffle=False)
>>> x, y = converter(it.next())
>>> x.shape, y.tolist()
((3, 2), [0, 1, 2])
"""


def _plain(columns: object) -> object:
    """Return ``columns`` if ``concat_examples`` would make the same; else None."""
    parts: Iterable[Any] = (columns,)
    if type(columns) is dict:
        parts = columns.values()
    elif isinstance(columns, tuple):
        parts = columns
    for one in parts:
        if type(one) is not np.ndarray:
            return None
        if one.dtype.kind not in "biufc" or not one.dtype.isnative:
            return None
    return columns if parts else None
