"""The options of an iterator or a loader, checked once, at construction.

Guarantees that numbers out of range, unknown words and options that contradict each
other are refused at construction, by a message that names the argument, the value and
the remedy.  Types are left to type checkers; what can only show later (whether a
dataset can be pickled) is left to the first ``next()``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..datasets.columns import as_dataset, offered, users
from ..datasets.mistaken import refuse_mistaken
from ..errors import OptionError, warn
from ..machine import cores
from ..order.cursor import WHOLE, Share
from ..order.ranks import ranks_here, shard_for
from ..order.state import SEEDS
from ..pool.backends import Backend, backend_for
from ..pool.starting import interrupts_later
from ..rules import BATCHES, DEAR_S, Door, OnError, Rules, Skip
from ..samples.batch import settle_as
from .hook import BY_OPTION, Hook

# What is sent to the workers: the dataset, and the function that they call first.
Cargo = tuple[Any, Callable[[Any], Any] | None]


class _NoWorkers:
    """The backend for loading without workers, where the consumer's thread fetches."""

    name = "serial"
    shares_memory = True
    in_process = True
    launch = None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one iterator.

    They say which workers it has, how far ahead these fetch, and how samples are sent.
    """

    dataset: Any
    # Rows at the most.
    batch_size: int = 1
    # None: one for each core; 0: the consumer's thread fetches.
    n_workers: int | None = None
    n_prefetch: int = 1
    dataset_timeout: float | None = 30.0
    sample_timeout: float | None = 600.0
    # That a worker fetches before it is replaced.
    max_samples: int | None = None
    seed: int | None = None
    # A name, or an object; it is replaced by the backend itself.
    backend: Any = "process"
    serializer: Any = "slots"
    copy: bool = False
    on_error: OnError = "raise"
    run_ahead: int | None = None
    worker_init: Callable[[Any], Any] | None = None
    in_order: bool = True
    ragged: str = "list"
    # A Trace, or a path, which is replaced by one.
    trace: Any = None
    # This rank's part, in any form that ``shard=`` may have; replaced by a Shard.
    shard: Any = None
    # A Receipts, or a folder, which is replaced by one.
    receipts: Any = None
    # The dataset is taken as it is, not as columns.
    is_settled: bool = False
    # So it is if it is a list or a tuple.
    lists_hold_samples: bool = False
    # The name of the argument for ``n_workers``, for messages.
    workers_name: str = "n_processes"
    door: Door = BATCHES
    workers: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not self.is_settled:
            refuse_mistaken(self.dataset, self.batch_size)
        is_list = isinstance(self.dataset, (list, tuple))
        holds_samples = self.lists_hold_samples and is_list
        if not (self.is_settled or holds_samples):
            self._set(dataset=as_dataset(self.dataset))
        kind = type(self.dataset)
        if not hasattr(kind, "__getitem__"):
            raise OptionError(
                f"a dataset needs dataset[i], which {kind.__name__} has "
                "not; pass a list, an array or an object with __len__ and "
                "__getitem__. mpiter.DataLoader takes what can only be iterated over."
            )
        whole("batch_size", self.batch_size, least=1)
        whole(self.workers_name, self.n_workers, least=0, optional=True)
        whole("n_prefetch", self.n_prefetch, least=1)
        whole("run_ahead", self.run_ahead, least=0, optional=True)
        whole("maxtasksperchild", self.max_samples, least=1, optional=True)
        whole("seed", self.seed, optional=True)
        least, greatest = SEEDS
        if self.seed is not None and not least <= self.seed <= greatest:
            bits = int(self.seed).bit_length()
            raise OptionError(
                f"seed has {bits} bits; use a whole number of at most 128."
            )
        function("worker_init", self.worker_init)
        seconds("dataset_timeout", self.dataset_timeout)
        seconds("sample_timeout", self.sample_timeout)
        if isinstance(self.on_error, Skip):
            whole("most", self.on_error.most, least=0, optional=True)
        elif self.on_error not in ("raise", "skip"):
            raise OptionError(
                f"on_error={self.on_error!r} is unknown; use 'raise', 'skip' or "
                "Skip(most=…)."
            )
        settle_as(self.ragged)
        shard = shard_for(self.shard)
        seed = self.seed
        # Each rank would draw a seed of its own, and all need the same order.
        if seed is None and shard is not None:
            seed = 0
        # From here on these are Python's numbers: NumPy's overflow, and are no JSON.
        if seed is not None:
            seed = int(seed)
        self._set(batch_size=int(self.batch_size), seed=seed, shard=shard)
        # The backend is checked even where there are no workers.
        backend: Backend | _NoWorkers = backend_for(self.backend)
        if self.n_workers == 0:
            backend = _NoWorkers()
        self._set(backend=backend)
        self._set(workers=self._count_workers())
        if self.receipts is not None and not self.in_order:
            raise OptionError(
                "receipts need in_order=True: else no audit could tell lost batches "
                "from coming ones."
            )
        for name in ("trace", "receipts"):
            given = getattr(self, name)
            if given is None or hasattr(given, "hook"):
                continue
            if not given or not isinstance(given, (str, bytes, os.PathLike)):
                raise OptionError(f"{name}={given!r:.60} must be a path.")
            made = BY_OPTION[name](os.fsdecode(given))
            self._set(**{name: made})
        # Some backends have wishes of their own, and know the options by now.
        check = getattr(self.backend, "check", None)
        if check is not None:
            check(self)
        serializer = self.serializer
        if isinstance(serializer, str) and serializer not in ("slots", "packed"):
            raise OptionError(
                f"serializer={serializer!r:.60} is unknown; use 'slots', 'packed' "
                "or an object with pack and unpack."
            )

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _count_workers(self) -> int:
        if self.n_workers is not None:
            # Where there are none, the consumer counts as one.
            return max(1, int(self.n_workers))
        # With some backends the workers are there already, as ranks of MPI are.
        count = getattr(self.backend, "count_workers", None)
        if count is not None:
            return int(count())
        if self.shard is None:
            return cores()
        # The ranks on this machine share its cores.
        return max(1, cores() // ranks_here())

    def hooks(self) -> list[Hook]:
        """Return new hooks for one loop: of the trace, the receipts and the dataset."""
        found: list[Hook] = []
        if self.trace is not None:
            rules = self.rules()
            found.append(self.trace.hook(rules, self.backend.name))
        if self.receipts is not None:
            found.append(self.receipts.hook(self.shard))
        make = offered(users(self.dataset), "mpiter_hook")
        if make is not None:
            found.append(make())
        return found

    def share(self) -> Share:
        """Return this rank's part of the order."""
        if self.shard is None:
            return WHOLE
        share: Share = self.shard.share()
        return share

    def check_drop_last(self) -> None:
        """Refuse ``drop_last`` together with a shard that promises every sample."""
        if self.shard is not None and self.shard.exact:
            raise OptionError(
                "drop_last leaves samples out, and Shard(exact=True) gives each: "
                "leave one of them out."
            )

    def warn_of_disorder(self) -> None:
        """Warn that a state isn't exact if batches are handed out as they finish."""
        if not self.in_order:
            warn(
                "in_order=False: going on from a state, some samples may come twice, "
                "or never; see in_order=True."
            )

    def prepare(self) -> None:
        """Have the backend start what takes time, such as a fork server.

        Workers will be needed soon.
        """
        prepare = getattr(self.backend, "prepare", None)
        if prepare is not None:
            # Ctrl-C in the middle would leave half a fork server.
            with interrupts_later():
                prepare()

    def rules(self, seed: int = 0, as_samples: bool = True) -> Rules:
        """Return the options that the loop and the workers need, as plain values."""
        # Without workers nothing is fetched ahead.
        n_prefetch = int(self.n_prefetch)
        run_ahead = self.run_ahead
        if self.n_workers == 0:
            n_prefetch = 1
            run_ahead = 0
        most_skipped = None
        if isinstance(self.on_error, Skip):
            most_skipped = self.on_error.most
        return Rules(
            workers=self.workers,
            in_process=self.backend.in_process,
            shares_memory=self.backend.shares_memory,
            dear_s=getattr(self.backend, "dear_s", DEAR_S),
            batch_size=self.batch_size,
            n_prefetch=n_prefetch,
            run_ahead=run_ahead,
            in_order=self.in_order,
            skips_errors=self.on_error != "raise",
            most_skipped=most_skipped,
            as_samples=as_samples,
            seed=seed,
            sample_timeout=self.sample_timeout,
            max_samples=self.max_samples,
            door=self.door,
        )

    @property
    def cargo(self) -> Cargo:
        """What is sent to the workers."""
        return self.dataset, self.worker_init


def seconds(name: str, value: object) -> None:
    """Refuse a value that is no number of seconds."""
    if value is None:
        return
    if not isinstance(value, Real) or not float(value) > 0:
        raise OptionError(
            f"{name}={value!r} must be a number of seconds above 0, or None."
        )


def function(name: str, value: object) -> None:
    """Refuse a value that is neither a function nor None."""
    if value is not None and not callable(value):
        raise OptionError(f"{name}={value!r:.60} cannot be called; pass a function.")


def flag(name: str, value: object) -> None:
    """Refuse a value that is neither true nor false nor None.

    Python would take any other for true: a word, say.
    """
    if value is None or isinstance(value, (bool, np.bool_)):
        return
    if not isinstance(value, Integral) or value not in (0, 1):
        raise OptionError(f"{name}={value!r:.60} must be True or False.")


def whole(
    name: str,
    value: object,
    least: int | None = None,
    optional: bool = False,
) -> None:
    """Refuse a value that is no whole number, or is less than ``least``.

    ``optional`` allows None.
    """
    if value is None and optional:
        return
    if not isinstance(value, Integral) or isinstance(value, bool):
        wanted = "a whole number"
        if optional:
            wanted += " or None"
        raise OptionError(f"{name}={value!r:.60} must be {wanted}.")
    if least is not None and value < least:
        raise OptionError(f"{name}={value} must be at least {least}.")
