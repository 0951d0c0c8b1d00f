"""mpiter's iterators for Chainer: change only the import, to ``from mpiter.chainer
import MultiprocessIterator``.

They add what Chainer's trainers, evaluators and ChainerMN need: the base class
``chainer.dataset.Iterator``, ``serialize`` with the keys of Chainer's snapshots, and
two private names.  Snapshots can be loaded in both directions. Chainer must be
importable: on NumPy 2 or Python 3.12 and later, ``import mpiter.chainer_compat`` first.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

try:
    import chainer
    from chainer.iterators._statemachine import IteratorState
except Exception as error:
    # NumPy 2 shows as AttributeError, a missing pkg_resources as ImportError.
    raise ImportError(
        f"Chainer cannot be imported here ({error}). Install chainer==7.8.1, and on "
        "NumPy 2 or Python 3.12 and later `import mpiter.chainer_compat` before "
        "anything that imports Chainer."
    ) from error

from .errors import StateError
from .iterators import iterators
from .iterators.iterator import DatasetIterator
from .order.cursor import Cursor
from .order.order import Given, Indices
from .order.state import SEEDS
from .samples.batch import Batch, columns_in_place

__all__ = ["MultiprocessIterator", "MultithreadIterator", "SerialIterator", "converter"]

_SEED_BYTES = 17  # for 128 bits and a sign


class _Door(DatasetIterator, chainer.dataset.Iterator):  # type: ignore[misc]
    """The base class of the iterators below: adds what Chainer's trainers and ChainerMN
    need.
    """

    _lists_hold_samples = True  # as in Chainer

    def __del__(self) -> None:
        """Do nothing: Chainer's would wait for the workers in the garbage collector;
        these end by themselves.
        """

    @property
    def _state(self) -> Any:
        """The position as ChainerMN reads it."""
        here = self._cursor
        return IteratorState(
            here.position, here.epoch, here.is_new_epoch, here.order.array()
        )

    @property
    def _epoch_size(self) -> int:
        return len(self._cursor.order)

    def serialize(self, serializer: Any) -> None:
        """Save the position to a snapshot or load it from one, depending on the
        ``serializer``.
        """
        here = self._cursor
        order = here.order.array()
        position = _exchange(serializer, "current_position", here.position)
        epoch = _exchange(serializer, "epoch", here.epoch)
        is_new_epoch = _exchange(serializer, "is_new_epoch", here.is_new_epoch)
        indices = _exchange_order(serializer, order)
        seed = _exchange_seed(serializer, self.seed)
        try:
            detail = _exchange(
                serializer, "previous_epoch_detail", float(here.previous_epoch_detail)
            )
        except KeyError:
            # Chainer's oldest snapshots don't have it.
            now = epoch + position / max(len(here.order), 1)
            if now > 0:
                detail = max(now - self.batch_size / max(len(here.order), 1), 0.0)
            else:
                detail = -1.0
        found = Cursor(position, epoch, is_new_epoch, here.order, detail)
        if found != here or seed != self.seed or not _equal(indices, order):
            self._go_to(found, seed, indices)

    def _go_to(self, found: Cursor, seed: int, indices: Indices | None) -> None:
        length = len(found.order)
        fits = indices is None or (
            len(indices) == length and indices.max(initial=-1) < len(self.dataset)
        )
        if not (fits and 0 <= found.position < max(length, 1) and found.epoch >= 0):
            if fits:
                where = f"epoch {found.epoch}"
            else:
                where = "an order that does not fit the dataset"
            raise StateError(
                f"snapshot of position {found.position} in {where}; epochs here have "
                f"{length} samples."
            )
        if (
            not isfinite(found.previous_epoch_detail)
            or not SEEDS[0] <= seed <= SEEDS[1]
        ):
            raise StateError(
                "the snapshot is damaged: its previous_epoch_detail or mpiter_seed is "
                "no such number."
            )
        self._refuse_if_closed("load a snapshot")
        self._pump.seed = seed
        order = self._order_of(found.epoch, indices)
        if isinstance(order, Given) and _equal(
            self._order_of(found.epoch).array(), indices
        ):
            # The library's own shuffle, whose state is a few numbers.
            order = self._order_of(found.epoch)
        self._go(found._replace(order=order))


def _equal(some: Indices | None, others: Indices | None) -> bool:
    if some is None or others is None:
        return some is others
    return np.array_equal(some, others)


def _exchange(serializer: Any, key: str, value: Any) -> Any:
    """Save ``value`` under ``key`` and return it, or load what is there and return it
    in the type of ``value``.
    """
    found = serializer(key, value)
    if found is None:
        return value
    return type(value)(found)


def _exchange_order(serializer: Any, order: Indices | None) -> Indices | None:
    """Save or load the order under both of Chainer's keys, of which each of its
    iterators reads a different one.
    """
    if order is None:
        with suppress(KeyError):
            # Chainer's MultithreadIterator can't load a snapshot without this key.
            serializer("_order", None)
        return None
    is_loading = isinstance(serializer, chainer.serializer.Deserializer)
    for key in ("order", "_order"):
        with suppress(KeyError):
            found = serializer(key, None if is_loading else order.copy())
            if is_loading and found is not None:
                return np.array(found, order.dtype)
    if is_loading:
        raise KeyError(
            "order: the snapshot has none, so it is of an iterator that does not "
            "shuffle; this one does"
        )
    return order


def _exchange_seed(serializer: Any, seed: int) -> int:
    """Save the seed, or load and return it; snapshots of Chainer's own iterators have
    none, and ``seed`` is kept.
    """
    words = np.frombuffer(
        seed.to_bytes(_SEED_BYTES, "little", signed=True), np.uint8
    ).copy()
    with suppress(KeyError):
        serializer("mpiter_seed", words)
    return int.from_bytes(words.tobytes(), "little", signed=True)


class MultiprocessIterator(_Door, iterators.MultiprocessIterator):
    """``mpiter.MultiprocessIterator`` for Chainer's trainers; the arguments are
    explained there.

    >>> with MultiprocessIterator([10, 20, 30], 2, repeat=False, shuffle=False, n_processes=2) as it:
    ...     it.next(), it.epoch_detail
    ([10, 20], 0.666...)
    """


class MultithreadIterator(_Door, iterators.MultithreadIterator):
    """``mpiter.MultithreadIterator`` for Chainer's trainers; the arguments are
    explained there.

    >>> with MultithreadIterator([10, 20, 30], 2, repeat=False, shuffle=False, n_threads=2) as it:
    ...     it.next(), it.epoch_detail
    ([10, 20], 0.666...)
    """


class SerialIterator(_Door, iterators.SerialIterator):
    """``mpiter.SerialIterator`` for Chainer's trainers; the arguments are explained
    there.

    >>> with SerialIterator([10, 20, 30], 2, repeat=False, shuffle=False) as it:
    ...     it.next(), it.epoch_detail
    ([10, 20], 0.666...)
    """


class _Converter(chainer.dataset.Converter):  # type: ignore[misc]
    def __call__(self, batch: Any, device: Any = None, padding: Any = None) -> Any:
        if isinstance(batch, Batch):
            columns = _plain(columns_in_place(batch))
        else:
            columns = None
        if columns is None:
            return chainer.dataset.concat_examples(batch, device, padding)
        send = partial(
            chainer.dataset.to_device,
            None if device is None else chainer.get_device(device),
        )
        if isinstance(columns, dict):
            return {key: send(column) for key, column in columns.items()}
        if isinstance(columns, tuple):
            return tuple(map(send, columns))
        return send(columns)

    def __reduce__(self) -> str:
        return "converter"


converter = _Converter()
"""Makes an array, or a tuple or dict of arrays, of a batch: ``converter(batch, device=None, padding=None)``.

Does what ``chainer.dataset.concat_examples`` does, but without a copy where the samples lie stacked already.

>>> import numpy as np
>>> from mpiter.chainer import SerialIterator
>>> it = SerialIterator([(np.full(2, i, "f"), i) for i in range(3)], 3, shuffle=False)
>>> x, y = converter(it.next())
>>> x.shape, y.tolist()
((3, 2), [0, 1, 2])
"""


def _plain(columns: Any) -> Any:
    """Return ``columns`` if ``concat_examples`` would make just these of the samples;
    else None.
    """
    parts: Iterable[Any] = (columns,)
    if type(columns) is dict:
        parts = columns.values()
    elif isinstance(columns, tuple):
        parts = columns
    is_plain = all(
        type(one) is np.ndarray and one.dtype.kind in "biufc" and one.dtype.isnative
        for one in parts
    )
    return columns if parts and is_plain else None
