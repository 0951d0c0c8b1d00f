"""The components of a mixture: their names, their keys and their own orders."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..datasets.columns import offered
from ..engine.bringing import brings_order
from ..errors import OptionError
from ..order.keyed import seed_of
from ..order.order import Indices, Order, Sequential, Shuffled

# Passes whose orders are kept.  A step may lie in two passes of each component.
_KEPT = 3


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


class Joined:
    """Several arrays as one, without a copy: what fancy indexing needs of it."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, indices: Any) -> Any:
        wanted: Indices = np.asarray(indices, np.int64)
        if wanted.ndim == 0:
            return self[wanted[None]][0]
        which = np.searchsorted(self._ends, wanted, side="right")
        found = np.empty(len(wanted), np.int64)
        begin = 0
        for number, part in enumerate(self._parts):
            mine = which == number
            if mine.any():
                found[mine] = part[wanted[mine] - begin]
            begin = int(self._ends[number])
        return found


class Components:
    """Datasets by name, and how the keys of a mixture name their samples.

    A key is a number, counted through all components, or, if one of them brings its
    order, the component's number and the key within it.
    """

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        self.datasets = datasets
        self.names = [*datasets]
        self.by_number = [*datasets.values()]
        # True if every key is a number: no component brings its order.
        self.is_plain = True
        # The number of samples of each component.
        self.counts = dict[str, int]()
        for name, dataset in datasets.items():
            if brings_order(dataset):
                self.is_plain = False
            self.counts[name] = _count(name, dataset)
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
