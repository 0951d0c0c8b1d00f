"""The components of a mixture: their names, their keys and their own orders."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..datasets.columns import Reader, as_dataset, offered, reader_of, users
from ..datasets.lengths import DocumentLengths, Numbers
from ..engine.bringing import brings_order
from ..errors import OptionError
from ..order.brought import Brought
from ..order.keyed import seed_of
from ..order.order import Order, Sequential, Shuffled
from ..worker.here import WorkerInfo, call_own_init
from ..worker.underway import refuse_async

# Passes whose orders are kept.  A step may lie in two passes of each component.
_KEPT = 3
_UNEVEN = (
    "component {!r}: a Pack around a Mix can't be a component: each of its passes has "
    "another number of rows. Pack each component of the inner Mix and mix the packed "
    "ones, or pack one Mix of all documents."
)


class Source(NamedTuple):
    """Where a sample of a mixture is from.

    >>> import mpiter
    >>> mix = mpiter.Mix({"web": range(100), "code": range(10)}, {"web": 1, "code": 1})
    >>> mix.source(103)
    Source(name='code', key=3)
    """

    # The component's name.
    name: str
    # What the component is indexed with.
    key: Any


class Telling(Order):
    """An order of this package, as mixtures and packs around it need it."""

    @abstractmethod
    def told(self) -> dict[str, Any]:
        """Return what it follows from, beside seed and epoch, as values for JSON."""

    @property
    def packs_mix(self) -> bool:
        """True if it is of a Pack around a Mix."""
        return False

    @property
    def unweighed(self) -> Order:
        """The order without what ``Balanced`` adds."""
        return self


class Joined(DocumentLengths):
    """The lengths of several datasets as one sequence, without a copy."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _found(self, wanted: Numbers) -> Numbers:
        which = np.searchsorted(self._ends, wanted, side="right")
        found = np.empty(len(wanted), np.int64)
        begin = 0
        for number, part in enumerate(self._parts):
            mine = which == number
            places = wanted[mine] - begin
            if isinstance(part, (list, tuple)):
                found[mine] = [part[place] for place in places.tolist()]
            elif places.size:
                found[mine] = part[places]
            begin = int(self._ends[number])
        return found


class Components:
    """Datasets by name, and how the keys of a mixture name their samples.

    A key is a number, counted through all components, or, if one of them brings its
    order, the component's number and the key within it.
    """

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        # Columns are a dataset of their rows, as everywhere.
        datasets = {
            name: as_dataset(one) if isinstance(one, (tuple, Mapping)) else one
            for name, one in datasets.items()
        }
        self.datasets = datasets
        self.names = [*datasets]
        self.by_number = [*datasets.values()]
        # True if every key is a number: no component brings its order.
        self.is_plain = True
        # The number of samples of each component.
        self.counts = dict[str, int]()
        # What the orders follow from that components bring.
        self.told = dict[str, Any]()
        for name, dataset in datasets.items():
            refuse_async(dataset, f"component {name!r}", "a mixture")
            order: Order | None = None
            if brings_order(dataset):
                self.is_plain = False
                order = own_order(dataset, 0, True)
                _check_even(name, order)
            self.counts[name] = _count(name, dataset)
            if order is not None:
                self.told[name] = told_of(order)
        # The first key of each component.
        self.begins = list[int]()
        self._ends = list[int]()
        begin = 0
        for its in self.counts.values():
            self.begins.append(begin)
            begin += its
            self._ends.append(begin)
        self._passes = dict[tuple[str, int, int, bool], Order]()

    def __getstate__(self) -> dict[str, Any]:
        # The orders of passes aren't sent to workers.  They would be others in the next
        # epoch, and workers be started anew.
        return {**self.__dict__, "_passes": {}}

    def __len__(self) -> int:
        return self._ends[-1]

    def find(self, key: Any) -> tuple[int, Any]:
        """Return the number of a key's component, and the key within it."""
        if isinstance(key, tuple):
            component, inner = key
            return component, inner
        if not 0 <= key < self._ends[-1]:
            raise IndexError(f"{key} isn't from 0 to before {len(self)}")
        number = bisect_right(self._ends, key)
        return number, int(key) - self.begins[number]

    def reader(self) -> Reader | None:
        """Return a function that reads samples by their numbers, many at once.

        None if a component can't, or brings its order.
        """
        readers = [reader_of(dataset) for dataset in self.by_number]
        if not self.is_plain or None in readers:
            return None
        ends = np.array(self._ends)

        def read(keys: Any) -> list[Any]:
            places: list[list[int]] = [[] for _ in readers]
            numbers = np.searchsorted(ends, keys, "right").tolist()
            for place, number in enumerate(numbers):
                places[number].append(place)
            found: list[Any] = [None] * len(keys)
            for mine, reader, begin in zip(places, readers, self.begins, strict=True):
                if mine and reader is not None:
                    samples = reader(keys[mine] - begin)
                    for place, sample in zip(mine, samples, strict=True):
                        found[place] = sample
            return found

        return read

    def worker_init(self, info: WorkerInfo) -> None:
        """Call the ``worker_init`` of each component that has one."""
        begun: list[object] = []
        for dataset in self.by_number:
            theirs = users(dataset)
            # One dataset may have several names.
            if not any(theirs is one for one in begun):
                begun.append(theirs)
                call_own_init(theirs, info)

    def source(self, key: Any) -> Source:
        """Return where the sample with this key is from."""
        number, inner = self.find(key)
        return Source(self.names[number], inner)

    @property
    def lengths(self) -> Joined | None:
        """The lengths of all samples, if each component has ``lengths``."""
        if not self.is_plain:
            return None
        parts = list[Any]()
        for dataset in self.datasets.values():
            part = getattr(dataset, "lengths", None)
            if part is None:
                return None
            parts.append(part)
        return Joined(parts)

    def order_of(self, name: str, number: int, seed: int, shuffles: bool) -> Order:
        """Return a component's order in its pass ``number``."""
        asked = (name, number, seed, shuffles)
        found = self._passes.get(asked)
        if found is not None:
            return found
        length = self.counts[name]
        own = own_order(self.datasets[name], seed_of(seed, name), shuffles)
        found = own.later(number)
        if len(found) != length:
            if isinstance(own, Telling) and own.packs_mix:
                raise OptionError(_UNEVEN.format(name))
            raise OptionError(
                f"component {name!r} has {len(found)} samples in its pass "
                f"{number + 1} and {length} in its first one, so it can't be mixed."
            )
        if len(self._passes) >= _KEPT * len(self.names):
            self._passes.pop(next(iter(self._passes)))
        self._passes[asked] = found
        return found


def own_order(dataset: Any, seed: int, shuffle: bool | None) -> Order:
    """Return the order that a dataset brings; or else it is shuffled, or not."""
    if brings_order(dataset):
        found: Order = dataset.mpiter_order(seed, shuffle)
        return found
    if shuffle is False:
        return Sequential(len(dataset))
    return Shuffled(len(dataset), seed)


def unweighed(order: Order) -> Order:
    """Return an order without what ``Balanced`` adds."""
    if isinstance(order, Telling):
        return order.unweighed
    return order


def told_of(order: Order) -> Any:
    """Return what an order of epoch 0 follows from, as values for JSON.

    Of a user's order it is what a state has that is saved at its beginning.
    """
    if isinstance(order, Telling):
        return order.told()
    return Brought(order, lambda _: order).saved(0)


def _check_even(name: str, order: Order) -> None:
    """Raise an OptionError if passes surely have other numbers of samples."""
    if isinstance(order, Telling) and order.packs_mix:
        told = order.told()
        if told["how"] == "fit":
            raise OptionError(_UNEVEN.format(name))


def components_in(dataset: Any, keys: Sequence[Any]) -> dict[str, int]:
    """Return how many of the samples with these keys are from each component.

    Nothing if the dataset has no components.
    """
    ask = offered(dataset, "components_of")
    if ask is None:
        return {}
    found: dict[str, int] = ask(keys)
    return found


def _count(name: str, dataset: Any) -> int:
    try:
        count = len(dataset)
    except TypeError as error:
        raise OptionError(
            f"component {name!r} ({type(dataset).__name__}) has no len(); a stream "
            "can't be mixed."
        ) from error
    if not count:
        raise OptionError(f"component {name!r} is empty; leave it out.")
    return int(count)
