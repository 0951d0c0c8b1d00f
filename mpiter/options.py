"""The iterators' options, checked once, where the user wrote them.

Pure.  Guarantees that whatever is knowable at construction is refused at construction, by a sentence that names the
argument, the value and the remedy; what only shows later (whether a dataset can be pickled) is left to the first
``next()``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from .backends import Backend, Serial, backend_for
from .checkpoint import SEEDS
from .course import Rules
from .cursor import Pace
from .errors import OptionError
from .machine import cores
from .rows import as_dataset
from .starting import interrupts_later
from .transport import Transport
from .transports import transport_for


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that an iterator is told."""

    dataset: Any
    pace: Pace
    shuffle: bool | None = None
    n_workers: int | None = None
    n_prefetch: int = 1
    order_sampler: Any = None
    dataset_timeout: float | None = 30.0
    sample_timeout: float | None = 600.0
    max_samples: int | None = None  # for a worker's life
    seed: int | None = None
    backend: Any = "process"
    serializer: Any = "slots"
    copy: bool = False
    on_error: str = "raise"
    run_ahead: int | None = None
    worker_init: Callable[[Any], Any] | None = None
    in_order: bool = True
    workers_name: str = "n_processes"  # as the user knows the argument
    workers: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", as_dataset(self.dataset))
        _check_dataset(self.dataset)
        _whole("batch_size", self.pace.batch_size, least=1)
        _whole(self.workers_name, self.n_workers, least=0, optional=True)
        _whole("n_prefetch", self.n_prefetch, least=1)
        _whole("run_ahead", self.run_ahead, least=0, optional=True)
        _whole("maxtasksperchild", self.max_samples, least=1, optional=True)
        _whole("seed", self.seed, optional=True)
        _whole("epochs", self.pace.epochs, least=0, optional=True)
        if self.seed is not None and not SEEDS[0] <= self.seed <= SEEDS[1]:
            raise OptionError(f"seed has {int(self.seed).bit_length()} bits; use a whole number of at most 128.")
        _seconds("dataset_timeout", self.dataset_timeout)
        _seconds("sample_timeout", self.sample_timeout)
        if self.on_error not in ("raise", "skip"):
            raise OptionError(f"on_error={self.on_error!r} is unknown; use 'raise' or 'skip'.")
        for name, hook in (("order_sampler", self.order_sampler), ("worker_init", self.worker_init)):
            if hook is not None and not callable(hook):
                raise OptionError(f"{name}={hook!r:.60} cannot be called; pass a function.")
        if self.shuffle is not None and self.order_sampler is not None:
            raise OptionError("shuffle and order_sampler exclude each other; leave shuffle at None to use the sampler.")
        if self.pace.wrap and len(self.dataset) == 0 and self.order_sampler is None:
            raise OptionError("the dataset is empty, so it cannot be repeated; pass repeat=False or fill it.")
        if self.shuffle is not None:
            object.__setattr__(self, "shuffle", bool(self.shuffle))
        if self.seed is not None:  # plain numbers from here on: np.int64 overflows, and is no JSON
            object.__setattr__(self, "seed", int(self.seed))
        object.__setattr__(self, "pace", self.pace.plain())
        backend = Serial() if self.n_workers == 0 else backend_for(self.backend)
        object.__setattr__(self, "backend", backend)
        object.__setattr__(self, "workers", self._count_workers(backend))
        transport = self.make_transport()
        if not backend.shares_memory and getattr(transport, "needs_shared_memory", False):
            raise OptionError(f"the workers of {backend!r} share no memory with us; pass serializer='packed'.")

    def _count_workers(self, backend: Backend) -> int:
        if not self.has_workers:
            return 1
        return cores() if self.n_workers is None else int(self.n_workers)

    def make_transport(self) -> Transport:
        return transport_for(self.serializer, self.copy)

    def prepare(self) -> None:
        """Have the backend start what takes time: workers are wanted soon."""
        prepare = getattr(self.backend, "prepare", None)
        if prepare is not None:
            with interrupts_later():
                prepare()

    @property
    def has_workers(self) -> bool:
        """Is there anybody who could work ahead?"""
        return bool(self.backend.name != "serial")

    @property
    def rules(self) -> Rules:
        """What binds the engine."""
        return Rules(
            n_prefetch=self.n_prefetch if self.has_workers else 1,
            run_ahead=self.run_ahead if self.has_workers else 0,
            workers=self.workers,
            skips_errors=self.skips_errors,
            in_order=self.in_order,
        )

    @property
    def most_ahead(self) -> int:
        """Batches that may be on their way to the consumer."""
        return self.rules.n_prefetch + self.rules.most_run_ahead

    @property
    def shuffles(self) -> bool:
        return self.order_sampler is None and self.shuffle is not False

    @property
    def skips_errors(self) -> bool:
        return self.on_error == "skip"

    @property
    def cargo(self) -> tuple[Any, Any]:
        """What the workers need of the user's: the dataset, and the function to call first."""
        return self.dataset, self.worker_init


def _check_dataset(dataset: Any) -> None:
    for name, what in (("__len__", "len(dataset)"), ("__getitem__", "dataset[i]")):
        if not hasattr(type(dataset), name):
            raise OptionError(
                f"a dataset needs {what}, which {type(dataset).__name__} has not; pass a list, an array or an object "
                f"with __len__ and __getitem__."
            )


def _seconds(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, Real) and float(value) > 0):
        raise OptionError(f"{name}={value!r} must be a number of seconds above 0, or None.")


def _whole(name: str, value: Any, least: int | None = None, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise OptionError(f"{name}={value!r:.60} must be a whole number{' or None' if optional else ''}.")
    if least is not None and value < least:
        raise OptionError(f"{name}={value} must be at least {least}.")
