"""``Balanced``: the samples of a step are dealt to the ranks by their lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.columns import in_words, users
from ..errors import OptionError
from ..order.order import Order
from ..worker.here import WorkerInfo, call_own_init
from .components import Telling, components_in, own_order, told_of, unweighed
from .lengths import lengths_for
from .pack import Pack
from .packed_order import Cost
from .windows import Lengths

__all__ = ["Balanced"]


class Balanced:
    """A dataset whose samples are dealt to the ranks such that each has as much to do.

    Its samples are those of ``dataset``, one document each, in the dataset's own order
    or shuffled.  Under ``shard=`` each rank still gets a batch of as many samples, but
    which ones of a step depends on their cost.  Rows of a ``Pack`` need no such
    wrapper.

    Args:
        dataset: samples, with ``[]`` and ``len``; or a dataset that brings its order.
        lengths: the length of each sample, as for ``Pack``.
        cost: a function of an array with one sample's length, that says what it costs
            the training.  None: the square of the length, as attention.

    >>> import mpiter
    >>> from mpiter.language import Balanced
    >>> texts = ["a", "bc", "def", "ghij"]
    >>> both = Balanced(texts, lengths=[1, 2, 3, 4])
    >>> for rank in 0, 1:
    ...     options = {"n_processes": 0, "shuffle": False, "shard": (rank, 2)}
    ...     print(*mpiter.batches(both, 2, **options))
    ['a', 'ghij']
    ['bc', 'def']
    """

    def __init__(
        self, dataset: Any, lengths: Any = None, cost: Cost | None = None
    ) -> None:
        if isinstance(dataset, Pack):
            raise OptionError(
                "the rows of a Pack are dealt by their cost already: pass it as it is, "
                "without Balanced; Pack has cost= itself."
            )
        if cost is not None and not callable(cost):
            raise OptionError(f"cost={cost!r:.60} must be a function of a length.")
        self.dataset = dataset
        self.lengths: Lengths = lengths_for(dataset, lengths)
        self.cost = cost

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Any) -> Any:
        return self.dataset[key]

    def worker_init(self, info: WorkerInfo) -> None:
        """Call the ``worker_init`` of the dataset, if it has one, in a worker."""
        call_own_init(users(self.dataset), info)

    def mpiter_words(self, key: Any) -> str:
        """Return in words which sample has this key, for errors and warnings."""
        return in_words(self.dataset, key)

    def components_of(self, keys: Any) -> dict[str, int]:
        """Return what the dataset tells of these keys; nothing if it can't."""
        return components_in(self.dataset, keys)

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Order:
        """Return the order of epoch 0; unless ``shuffle`` is False it is shuffled."""
        inner = own_order(self.dataset, seed, shuffle)
        return _Weighed(inner, self.lengths, self.cost)


class _Weighed(Telling):
    """An order that knows the length of each sample."""

    def __init__(self, inner: Order, lengths: Lengths, cost: Cost | None) -> None:
        self._inner = inner
        self._lengths = lengths
        self._cost = cost

    def __len__(self) -> int:
        return len(self._inner)

    def told(self) -> dict[str, Any]:
        # Nothing here changes which samples come.
        found: dict[str, Any] = told_of(self._inner)
        return found

    @property
    def unweighed(self) -> Order:
        return unweighed(self._inner)

    @property
    def packs_mix(self) -> bool:
        return isinstance(self._inner, Telling) and self._inner.packs_mix

    def take(self, start: int, stop: int) -> Any:
        return self._inner.take(start, stop)

    def tokens(self, start: int, stop: int) -> NDArray[np.int64]:
        keys = np.asarray(self.take(start, stop))
        return np.asarray(self._lengths[keys]).astype(np.int64)

    def costs(self, start: int, stop: int) -> NDArray[Any]:
        lengths = self.tokens(start, stop)
        if self._cost is None:
            return lengths.astype(np.float64) ** 2
        found = [self._cost(lengths[at : at + 1]) for at in range(len(lengths))]
        return np.array(found, np.float64)

    def later(self, epochs: int) -> Order:
        return _Weighed(self._inner.later(epochs), self._lengths, self._cost)

    def state(self, position: int) -> Any:
        return self._inner.state(position)

    def restored(self, state: Any, position: int) -> Order:
        inner = self._inner.restored(state, position)
        return _Weighed(inner, self._lengths, self._cost)
