"""The options of an iterator or a loader, checked once, at construction.

Pure.  Guarantees that a wrong option is refused at construction, by a message that names the argument, the value and
the remedy.  What can only show later (whether a dataset can be pickled) is left to the first ``next()``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..datasets.columns import as_dataset, offered, users
from ..errors import OptionError, warn
from ..machine import cores
from ..order.cursor import WHOLE, Share, batches_of
from ..order.ranks import ranks_here, shard_for
from ..order.state import SEEDS
from ..pool.backends import backend_for
from ..pool.starting import interrupts_later
from ..rules import DEAR_S, Rules, Skip
from ..samples.batch import settle_as
from .hook import Hook
from .pilot import Wings, auto
from .rooms import check_serializer


class _NoWorkers:
    """The backend for loading without workers, where the consumer's thread fetches."""

    name, shares_memory, in_process = "serial", True, True


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one iterator: its workers, how far ahead they fetch, and how samples are sent."""

    dataset: Any
    batch_size: int = 1  # rows at the most
    n_workers: Any = None  # a number, "auto" or an Auto; None: one for each core
    n_prefetch: int = 1
    dataset_timeout: float | None = 30.0
    sample_timeout: float | None = 600.0
    max_samples: int | None = None  # for a worker's life
    seed: int | None = None
    backend: Any = "process"
    serializer: Any = "slots"
    copy: bool = False
    on_error: Any = "raise"  # or "skip", or a Skip
    run_ahead: int | None = None
    worker_init: Callable[[Any], Any] | None = None
    in_order: bool = True
    ragged: str = "list"
    trace: Any = None  # the name of a file, or a Trace; the name is made one
    shard: Any = None  # this rank's part; it is made a Shard
    receipts: Any = None  # a folder; it is made a Receipts
    is_settled: bool = False  # take the dataset as it is, not as columns
    workers_name: str = "n_processes"  # the argument's name, for messages
    workers: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not self.is_settled:
            self._set(dataset=as_dataset(self.dataset))
        is_object("dataset", self.dataset)
        if not hasattr(type(self.dataset), "__getitem__"):
            streams = "  mpiter.DataLoader takes what can only be iterated over." * hasattr(
                type(self.dataset), "__iter__"
            )
            raise OptionError(
                f"a dataset needs dataset[i], which {type(self.dataset).__name__} has not; pass a list, an array or an "
                f"object with __len__ and __getitem__.{streams}"
            )
        whole("batch_size", self.batch_size, least=1)
        if isinstance(self.n_workers, str) and self.n_workers != "auto":
            raise OptionError(f"{self.workers_name}={self.n_workers!r:.60} is unknown; use a whole number or 'auto'.")
        if auto(self.n_workers) is None:
            whole(self.workers_name, self.n_workers, least=0, optional=True)
        whole("n_prefetch", self.n_prefetch, least=1)
        whole("run_ahead", self.run_ahead, least=0, optional=True)
        whole("maxtasksperchild", self.max_samples, least=1, optional=True)
        whole("seed", self.seed, optional=True)
        if self.seed is not None and not SEEDS[0] <= self.seed <= SEEDS[1]:
            raise OptionError(f"seed has {int(self.seed).bit_length()} bits; use a whole number of at most 128.")
        for name in ("copy", "in_order"):
            flag(name, getattr(self, name))
        seconds("dataset_timeout", self.dataset_timeout)
        seconds("sample_timeout", self.sample_timeout)
        if not isinstance(self.on_error, Skip) and self.on_error not in ("raise", "skip"):
            raise OptionError(f"on_error={self.on_error!r} is unknown; use 'raise', 'skip' or Skip(most=…).")
        settle_as(self.ragged)
        if self.worker_init is not None and not callable(self.worker_init):
            raise OptionError(f"worker_init={self.worker_init!r:.60} cannot be called; pass a function.")
        # plain numbers from here on: np.int64 overflows, and is no JSON
        self._set(batch_size=int(self.batch_size), seed=None if self.seed is None else int(self.seed))
        self._set(shard=shard_for(self.shard))
        if self.shard is not None and self.seed is None:
            self._set(seed=0)  # which all ranks have
        if not isinstance(self.backend, _NoWorkers):
            backend = backend_for(self.backend)  # which is checked even where there are no workers
            self._set(backend=backend if self.has_workers else _NoWorkers())
        self._set(workers=self._count_workers())
        if isinstance(self.trace, (str, os.PathLike)):
            self._set(trace=Wings.trace(os.fspath(self.trace)))
        elif self.trace is not None and not hasattr(self.trace, "hook"):
            raise OptionError(f"trace={self.trace!r:.60} is no path; name a file, such as 'run.json'.")
        if self.receipts is not None:
            if not self.in_order:
                raise OptionError(
                    "receipts need in_order=True: of batches that come as they finish, no audit could tell which are "
                    "lost and which are still to come."
                )
            if not hasattr(self.receipts, "hook"):
                self._set(receipts=Wings.receipts(self.receipts))
        if (check := getattr(self.backend, "check", None)) is not None:
            check(self)
        check_serializer(self.serializer)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _count_workers(self) -> int:
        if not self.has_workers:
            return 1
        found = auto(self.n_workers)
        count = getattr(self.backend, "count_workers", None)  # where they are there already
        if found is not None:
            return found.bound if count is None else min(found.bound, count())
        if self.n_workers is not None:
            return int(self.n_workers)
        if count is not None:
            return int(count())
        return cores() if self.shard is None else max(1, cores() // ranks_here())

    def hooks(self) -> list[Hook]:
        """Return new hooks for one loop: those of the trace, the pilot, the receipts and the dataset that there are."""
        found = [] if self.trace is None else [self.trace.hook(self.rules(), self.backend.name)]
        if self.has_workers and (workers := auto(self.n_workers)) is not None:
            found.append(Wings.pilot(replace(workers, most=self.workers)))
        if self.receipts is not None:
            found.append(self.receipts.hook(self.shard))
        if (make := offered(users(self.dataset), "mpiter_hook")) is not None:
            found.append(of_dataset := make())
            if not isinstance(of_dataset, Hook):
                raise OptionError(
                    f"mpiter_hook() gave a {type(of_dataset).__name__}; derive it from {Hook.__module__}.Hook."
                )
        return found

    def share(self) -> Share:
        """Return this rank's part of the order."""
        return WHOLE if self.shard is None else self.shard.share()

    def check_drop_last(self, length: int, batch_size: int) -> None:
        """Warn if ``length`` samples make no full batch: the loop would have no pass and look as if it had finished."""
        if self.shard is not None and self.shard.exact:
            raise OptionError("drop_last leaves samples out, and Shard(exact=True) gives each: leave one of them out.")
        if self.shard is not None and self.shard.rank is None:
            return  # it shows later how many share them
        if length and batches_of(length, batch_size, True, self.share()) == 0:
            warn(
                f"no batch will come: the dataset has a length of {length}, batch_size={batch_size}"
                f"{f' on {ranks} ranks' if (ranks := self.share().size) > 1 else ''}, and drop_last leaves out short "
                f"batches."
            )

    def warn_of_disorder(self) -> None:
        """Warn that a state isn't exact if batches are handed out as they finish."""
        if not self.in_order:
            warn(
                "in_order=False: a state counts the batches that were handed out, and does not say which; going on "
                "from it, some samples come twice and as many never. Pass in_order=True where that matters."
            )

    def prepare(self) -> None:
        """Have the backend start what takes time, such as a fork server, because workers will be needed soon."""
        prepare = getattr(self.backend, "prepare", None)
        if prepare is not None:
            with interrupts_later():
                prepare()

    @property
    def has_workers(self) -> bool:
        """True if workers fetch; False if the consumer's thread does."""
        return bool(self.n_workers != 0)

    def rules(self, seed: int = 0, as_samples: bool = True) -> Rules:
        """Return the options that the loop and the workers need, as plain values."""
        alone = not self.has_workers
        return Rules(
            workers=self.workers,
            workers_first=min(found.least, self.workers) if (found := auto(self.n_workers)) else None,
            in_process=self.backend.in_process,
            shares_memory=self.backend.shares_memory,
            dear_s=getattr(self.backend, "dear_s", DEAR_S),
            batch_size=self.batch_size,
            n_prefetch=1 if alone else int(self.n_prefetch),
            run_ahead=0 if alone else self.run_ahead,
            in_order=self.in_order,
            skips_errors=self.on_error != "raise",
            most_skipped=self.on_error.most if isinstance(self.on_error, Skip) else None,
            as_samples=as_samples,
            seed=seed,
            sample_timeout=self.sample_timeout,
            max_samples=self.max_samples,
        )

    @property
    def most_ahead(self) -> int:
        """The largest number of batches in flight to the consumer."""
        return self.rules().most

    @property
    def cargo(self) -> tuple[Any, Any]:
        """What is sent to the workers: the dataset, and the function that they call first."""
        return self.dataset, self.worker_init


def is_object(name: str, value: Any) -> None:
    """Refuse a class where an instance is meant."""
    if isinstance(value, type) and not any(hasattr(type(value), read) for read in ("__getitem__", "__iter__")):
        raise OptionError(f"{name}={value.__name__} is a class; pass one of its objects, {value.__name__}(…).")


def flag(name: str, value: Any) -> None:
    """Refuse what is neither true nor false, such as "no"; numbers and NumPy's own are either."""
    if not isinstance(value, (np.bool_, Integral)):
        raise OptionError(f"{name}={value!r:.60} must be True or False.")


def seconds(name: str, value: Any) -> None:
    """Refuse a value that is no number of seconds."""
    if value is not None and not (isinstance(value, Real) and float(value) > 0):
        raise OptionError(f"{name}={value!r} must be a number of seconds above 0, or None.")


def whole(name: str, value: Any, least: int | None = None, optional: bool = False) -> None:
    """Refuse a value that is no whole number, or is less than ``least``; ``optional`` allows None."""
    if value is None and optional:
        return
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise OptionError(f"{name}={value!r:.60} must be a whole number{' or None' if optional else ''}.")
    if least is not None and value < least:
        raise OptionError(f"{name}={value} must be at least {least}.")
