"""``mpiter.tune()`` and `mpiter tune module:dataset`: try numbers of workers on a dataset, and report which is best.

Runs in the consumer process.  Each trial loads batches as a program would; ``bracket`` chooses what to try.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from .. import machine
from ..datasets.columns import as_dataset
from ..engine.options import Options, whole
from ..errors import OptionError
from ..iterators.iterators import batches
from .bracket import Bracket, Trial

BUDGET_S = 60.0  # by default
_TRIAL_S, _PART = 0.5, 40  # a trial measures for at least 0.5 seconds, or a 40th of the budget if that is less
_MEMORY = 0.9  # the share of the available memory that may be used
_WARM_S = 0.15  # seconds of batches before the measurement of a trial

Step = Callable[[Any], object]
_log = logging.getLogger("mpiter.tuning")


@dataclass(frozen=True, slots=True)
class Row:
    """The result of all trials with one number of workers."""

    workers: int
    seconds: float  # for a batch
    bytes: int | None  # of all processes; None if the system doesn't say
    spread: float | None  # the slowest trial's time minus the fastest's, divided by the median; None for one trial
    trials: int  # the number of trials


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of ``tune``: the chosen number, the reason, and a row for each number that was tried."""

    n_processes: int
    reason: str
    table: tuple[Row, ...]
    spent_s: float

    def __str__(self) -> str:
        """Return the table, the choice and the reason as text."""
        lines = ["workers  seconds a batch  spread      MB  trials"]
        for row in self.table:
            spread = "–" if row.spread is None else f"{row.spread:.0%}"
            size = "–" if row.bytes is None else f"{row.bytes / 1e6:,.0f}"
            mark = "  ← chosen" if row.workers == self.n_processes else ""
            seconds = f"{row.seconds:#.3g}".rstrip(".").rjust(15)
            lines.append(f"{row.workers:7}  {seconds}  {spread:>6}  {size:>6}  {row.trials:6}{mark}")
        lines.append(f"n_processes={self.n_processes}: {self.reason} (measured in {self.spent_s:.1f} s).")
        return "\n".join(lines)


def tune(
    dataset: Any,
    batch_size: int,
    *,
    max_workers: int | None = None,
    budget_s: float = BUDGET_S,
    memory_bytes: int | None = None,
    step: Step | None = None,
    **loading: Any,
) -> Tuned:
    """Find the best number of workers, by loading from ``dataset`` with several numbers of them.

    Args:
        dataset: as for ``batches()``.
        batch_size: as for ``batches()``.
        max_workers: the most workers to try; None: twice the number of cores, and at least 8.
        budget_s: seconds that all trials together may take.
        memory_bytes: bytes that all processes together may take; None: nine tenths of the available memory.
        step: a function that does with a batch what your program does; None measures loading alone.
        loading: the other arguments of ``batches()``.

    >>> from mpiter import batches
    >>> found = tune(range(100_000), 64, max_workers=1, budget_s=2)
    >>> [row.workers for row in found.table]
    [0, 1]
    >>> stream = batches(range(100_000), 64, n_processes=found.n_processes)
    """
    if "n_processes" in loading:
        raise OptionError("n_processes is what tune() finds; pass max_workers= for the most to try.")
    if not (isinstance(budget_s, Real) and budget_s > 0):
        raise OptionError(f"budget_s={budget_s!r:.40} must be a number above 0.")
    whole("memory_bytes", memory_bytes, least=1, optional=True)
    whole("max_workers", max_workers, least=0, optional=True)
    dataset = as_dataset(dataset)
    Options(dataset=dataset, batch_size=batch_size)  # raises if they are wrong
    if not len(dataset):
        raise OptionError("the dataset is empty: there is nothing to try.")

    began = time.perf_counter()
    load = Loading(dataset, batch_size, loading, step, min(_TRIAL_S, budget_s / _PART))
    memory = memory_bytes or machine.own_bytes(os.getpid()) + int(_MEMORY * machine.memory_available())
    most = max(8, 2 * machine.cores()) if max_workers is None else max_workers  # workers may wait for a disk
    search = Bracket(load, most, budget_s, memory)
    chosen, why = search.choose()
    table = []
    for workers, trials in sorted(search.of.items()):
        times, middle = [trial.batch_s for trial in trials], search.batch_s(workers)
        spread = (max(times) - min(times)) / middle if len(times) > 1 else None
        table.append(Row(workers, middle, search.bytes(workers) or None, spread, len(times)))
    return Tuned(chosen, why, tuple(table), time.perf_counter() - began)


class Loading:
    """Measures the loading of a dataset, in trials of at least ``seconds`` seconds and ``least`` batches.

    Each trial loads batches with a new iterator, as a user's program would.  The start of the workers and the warm-up
    are in the cost of a trial, not in the time of a batch; the memory is that of all processes at its end.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        options: Mapping[str, Any],
        step: Step | None = None,
        seconds: float = 0.0,
        least: int = 1,
    ) -> None:
        self._dataset, self._batch_size, self._step = dataset, batch_size, step
        self._seconds, self._least = seconds, least
        self._options = {"drop_last": len(as_dataset(dataset)) >= batch_size, **options, "epochs": None}

    def __call__(self, workers: int, limit_s: float = math.inf) -> Trial:
        began = time.perf_counter()
        with batches(self._dataset, self._batch_size, n_processes=workers, **self._options) as loading:
            self._consume(loading, 0.0, 1, math.inf)
            self._consume(loading, _WARM_S, workers + 1, began + limit_s / 2)
            least = max(self._least, 2 * workers, 1)  # workers finish batches at about the same time
            batch_s = self._consume(loading, self._seconds, least, began + limit_s)
            shown = loading.stats()
            used = machine.own_bytes(os.getpid()) + shown.worker_bytes + shown.in_flight_bytes
        _log.info("%s workers: %.3g ms a batch", workers, 1e3 * batch_s)
        return Trial(batch_s, used or None, time.perf_counter() - began)

    def _consume(self, loading: Iterator[Any], seconds: float, least: int, ends: float) -> float:
        """Take batches for ``seconds`` and at least ``least``, but not after ``ends``; return the seconds of one."""
        began = now = time.perf_counter()
        count = 0
        while (now - began < seconds or count < least) and (now < ends or not count):
            batch = next(loading)
            if self._step is not None:
                self._step(batch)
            count, now = count + 1, time.perf_counter()
        return (now - began) / count


# -- the command -----------------------------------------------------------------------------------------------------


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``tune`` to ``commands``."""
    about = (
        "Find out how many workers a dataset needs on this machine, if any, by loading from it. MODULE:NAME is a "
        "dataset, or a function or class that makes one, found as `python -m` would find it."
    )
    parser = commands.add_parser("tune", help="are workers worth having, and how many?", description=about)
    add = parser.add_argument
    add("dataset", metavar="MODULE:NAME")
    add("--batch-size", type=int, default=32, metavar="B", help="(default 32)")
    add("--budget", type=float, default=BUDGET_S, metavar="S", help="seconds (default %(default)g)")
    add("--max-workers", type=int, metavar="N", help="the most to try (default: 8, or twice the cores)")
    add("--backend", choices=("process", "thread"), default="process", help="(default process)")
    add("--ragged", choices=("raise", "list", "pad"), default="raise", help="samples that differ in shape (raise)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    tells = logging.StreamHandler()  # shows each trial on standard error
    _log.addHandler(tells)
    _log.setLevel(logging.INFO)
    bounds = {"max_workers": options.max_workers, "budget_s": options.budget}
    try:
        dataset = _named(options.dataset)
        print(tune(dataset, options.batch_size, **bounds, backend=options.backend, ragged=options.ragged))
    finally:
        _log.removeHandler(tells)
    return 0


def _named(name: str) -> Any:
    """Return the dataset that ``module:name`` names, or that is returned by calling it."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise OptionError(
            f"{name!r} names no dataset; write module:name, of a dataset or of a function that makes one."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"{name} cannot be imported: {error}") from error
    if not callable(made) or (hasattr(made, "__getitem__") and not isinstance(made, type)):
        return made
    try:
        inspect.signature(made).bind()
    except TypeError as error:
        raise OptionError(f"{name} needs arguments ({error}); name a function without any that makes it.") from error
    return made()
