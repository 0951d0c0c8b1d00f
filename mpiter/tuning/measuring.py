"""A trial: batches are loaded as a user's program would load them, by an iterator made for the purpose.

Runs in the consumer process.  Starts, warm-up and what was fetched ahead meanwhile are not in the time, but in the
cost; memory is that of all processes right afterwards.  Guarantees that a dataset which opens its files on first use
goes to the workers as it came: what 0 workers open is opened in a copy; and that samples so dear that a few batches
would use up the budget are loaded in smaller ones.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from .. import machine
from ..datasets.columns import as_dataset
from ..engine.pilot import Setting
from ..iterators.generate import Batches, batches
from ..rules import DEAR_S
from .trials import Asked, Trial

_WARM_S = 0.15
_DEPTH = 4
_BATCHES = 8  # that should go into the time that is left


class Loading:
    """Measures the loading of a dataset."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        options: Mapping[str, Any],
        step: Callable[[Any], object] | None = None,
        device: Any = "auto",
        told: Callable[[Setting, Trial | None], object] = lambda setting, trial: None,
    ) -> None:
        self._dataset, self._batch_size, self._step, self._told = dataset, batch_size, step, told
        self._sample_s: float | None = None  # what the first one took
        self.device = _device_of(device)
        self._options = {"epochs": None, "drop_last": len(as_dataset(dataset)) >= batch_size, **options}

    @property
    def has_step(self) -> bool:
        return self._step is not None

    def sample_bytes(self) -> int:
        """Of the first one."""
        began = time.perf_counter()
        with batches(apart(self._dataset), 1, **self._options | {"n_processes": 0, "shuffle": False}) as loading:
            found = _bytes_in(next(loading))
        self._sample_s = time.perf_counter() - began
        return found

    def __call__(self, setting: Setting, asked: Asked) -> Trial:
        self._told(setting, None)
        began = time.perf_counter()
        dataset = self._dataset if setting.workers else apart(self._dataset)
        options = self._options | {"n_processes": setting.workers, "n_prefetch": setting.n_prefetch}
        limit_s = asked.limit_s
        rows = self._rows(setting.workers, limit_s)
        with batches(dataset, rows, **options) as loading:
            take = self._taker(loading)
            take()
            warm_s, warm, least = _shortest(setting.workers, loading.stats().sample_s * rows)
            _consume(take, warm_s, warm, began + limit_s / 2)
            count, seconds = _consume(take, asked.seconds, max(asked.batches, least), began + limit_s, 1)
            used = machine.tree_memory()
        trial = Trial(seconds * self._batch_size / rows, count, used, time.perf_counter() - began)
        self._told(setting, trial)
        return trial

    def _rows(self, workers: int, limit_s: float) -> int:
        """Of a batch; fewer than asked for where those would take too long, and nothing but loading is measured."""
        if limit_s == math.inf or self._step is not None:
            return self._batch_size
        if self._sample_s is None:
            self.sample_bytes()
        assert self._sample_s is not None
        fitting = int(limit_s / _BATCHES / max(self._sample_s, 1e-9))
        return min(self._batch_size, max(fitting, workers, 1))

    def _taker(self, loading: Batches[Any]) -> Callable[[], None]:
        """Takes a batch, and does with it what is to be done."""
        step = self._step
        following: Iterator[Any] = loading
        wait: Callable[[], object] | None = None
        if self.device is not None:
            from ..device import DevicePrefetcher

            following = iter(DevicePrefetcher(loading, self.device))
            if "cuda" in str(self.device):  # a copy is done when what comes after it on the stream could begin
                wait = sys.modules["torch"].cuda.current_stream(self.device).synchronize

        def take() -> None:
            batch = next(following)
            if wait is not None:
                wait()
            if step is not None:
                step(batch)

        return take


def _shortest(workers: int, batch_s: float) -> tuple[float, int, int]:
    """Seconds and batches of warm-up, and batches of the timed part, where a batch takes so long to fetch."""
    if batch_s > DEAR_S:  # all workers fetch one together
        return 0.0, min(workers, 1), min(workers, 1) + 1
    return _WARM_S, workers + 2, 2 * workers  # each its own: they come in volleys


def _consume(take: Callable[[], None], seconds: float, least: int, ends: float, at_all: int = 0) -> tuple[int, float]:
    """Batches and seconds, from the arrival of one to that of another: so many, for so long, but not beyond the end."""
    clock = time.perf_counter
    began = now = clock()
    count = 0
    while count < at_all or ((now - began < seconds or count < least) and now < ends):
        take()
        count += 1
        now = clock()
    return count, now - began


def _bytes_in(tree: Any) -> int:
    """Of a batch: its arrays, and roughly the rest."""
    if isinstance(tree, Mapping):
        return sum(map(_bytes_in, tree.values()))
    if isinstance(tree, (list, tuple)):
        return sum(map(_bytes_in, tree))
    size = getattr(tree, "nbytes", None)
    return size if isinstance(size, int) else sys.getsizeof(tree)


def _device_of(device: Any) -> Any:
    """Where batches are copied to: "auto" is the GPU, if torch has been imported and sees one."""
    if device != "auto":
        return device
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else None


def apart(value: Any, depth: int = _DEPTH) -> Any:
    """A copy of a dataset, and of those within it, in which things may be opened; arrays and the like are shared."""
    inner = getattr(value, "__dict__", None)
    if inner is None or not depth or isinstance(value, type) or not hasattr(type(value), "__getitem__"):
        return value
    twin = value
    with suppress(Exception):  # one that can't be copied is used as it is
        twin = copy.copy(value)
        for name, part in inner.items():
            if (other := apart(part, depth - 1)) is not part:
                twin.__dict__[name] = other
    return twin
