"""``mpiter.tune()`` and `mpiter tune module:dataset`: find the number of workers.

Runs in the consumer process.  Each trial loads batches as a program would; ``bracket``
chooses what to try.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import math
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Sized
from typing import Any, NamedTuple

from .. import machine
from ..datasets.columns import as_dataset
from ..datasets.mistaken import refuse_mistaken
from ..engine.options import seconds, whole
from ..errors import OptionError
from ..iterators.iterators import batches
from .bracket import Bracket, Trial

BUDGET_S = 60.0  # by default
# A trial measures for at least 0.5 seconds, or a 40th of the budget if that is less.
_TRIAL_S = 0.5
_PART = 40
_WARM_S = 0.15  # of batches before the measurement of a trial
_MEMORY = 0.9  # the share of the available memory that may be used

_log = logging.getLogger("mpiter.tuning")


class Tuned(NamedTuple):
    """The result of ``tune``: the chosen number of workers, and the reason.

    ``table`` has the median trial of each number that was tried.
    """

    n_processes: int
    reason: str
    table: dict[int, Trial]

    def __str__(self) -> str:
        """Return the table, the choice and the reason as text."""
        lines = ["workers  seconds a batch      MB"]
        for workers, trial in self.table.items():
            seconds = f"{trial.batch_s:#.3g}".rstrip(".").rjust(15)
            line = f"{workers:7}  {seconds}  {trial.bytes / 1e6:6,.0f}"
            if workers == self.n_processes:
                line += "  ← chosen"
            lines.append(line)
        lines.append(f"n_processes={self.n_processes}: {self.reason}.")
        return "\n".join(lines)


def tune(
    dataset: Any,
    batch_size: int,
    *,
    max_workers: int | None = None,
    budget_s: float | None = BUDGET_S,
    step: Callable[[Any], object] | None = None,
    **loading: object,
) -> Tuned:
    """Find the best number of workers, by loading from ``dataset`` with several.

    Args:
        dataset: as for ``batches()``.
        batch_size: as for ``batches()``.
        max_workers: the most workers to try; None: twice the number of cores, and at
            least 8.
        budget_s: seconds that all trials together may take; None sets no limit.
        step: a function that does with a batch what your program does; None measures
            loading alone.
        loading: the other arguments of ``batches()``, but for ``n_processes`` and
            ``epochs``.

    >>> from mpiter import batches
    >>> found = tune(range(100_000), 64, max_workers=1, budget_s=5)
    >>> [*found.table]
    [0, 1]
    >>> stream = batches(range(100_000), 64, n_processes=found.n_processes)
    """
    whole("max_workers", max_workers, least=0, optional=True)
    seconds("budget_s", budget_s)
    if budget_s is None:
        budget_s = math.inf
    for name in {"n_processes", "epochs"} & loading.keys():
        raise OptionError(f"{name} is set by tune() for each trial: leave it out.")
    refuse_mistaken(dataset, batch_size)
    found = as_dataset(dataset)
    if not isinstance(found, Sized) or not len(found):
        raise OptionError(
            "the dataset is empty or has no len(): there is nothing to try."
        )
    each_s = min(_TRIAL_S, budget_s / _PART)
    if max_workers is not None:
        most = max_workers
    else:
        # Workers that wait for a disk may be more than the cores.
        most = max(8, 2 * machine.cores())
    memory = machine.own_bytes(os.getpid())
    memory += int(_MEMORY * machine.memory_available())

    def trial(workers: int, limit_s: float) -> Trial:
        return measure(dataset, batch_size, workers, each_s, limit_s, step, **loading)

    search = Bracket(trial, most, budget_s, memory)
    chosen, why = search.choose()
    table = dict[int, Trial]()
    for workers in sorted(search.of):
        table[workers] = search.median(workers)
    return Tuned(chosen, why, table)


def measure(
    dataset: Any,
    batch_size: int,
    workers: int,
    seconds: float,
    limit_s: float = math.inf,
    step: Callable[[Any], object] | None = None,
    **loading: Any,
) -> Trial:
    """Load batches with a new iterator, as a program would; return the time of one.

    The start of the workers and the warm-up are in the cost of the trial, which ends
    soon after ``limit_s`` seconds.
    """

    def consume(seconds: float, least: int, ends: float) -> float:
        """Take ``least`` batches for ``seconds`` or more; return the seconds of one.

        It takes none after ``ends``.
        """
        since = time.perf_counter()
        for count, batch in enumerate(stream, 1):
            if step is not None:
                step(batch)
            now = time.perf_counter()
            is_enough = now - since >= seconds and count >= least
            if is_enough or now >= ends:
                return (now - since) / count
        raise OptionError(
            "no batch comes: drop_last needs as many samples as batch_size says."
        )

    began = time.perf_counter()
    with batches(
        dataset,
        batch_size,
        n_processes=workers,
        epochs=None,
        **loading,
    ) as stream:
        # The first batch comes late, whatever the limit: it waits for the workers'
        # start.
        consume(0.0, 1, math.inf)
        consume(_WARM_S, workers + 1, began + limit_s / 2)
        # Workers finish at about the same time, so batches come in bursts.  Two of each
        # worker are measured at least, else a burst more or less would decide.
        least = max(2 * workers, 1)
        batch_s = consume(seconds, least, began + limit_s)
        shown = stream.stats()
        used = machine.own_bytes(os.getpid())
        used += shown.worker_bytes + shown.in_flight_bytes
    _log.info("%s workers: %.3g ms a batch", workers, 1e3 * batch_s)
    return Trial(batch_s, used, time.perf_counter() - began)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = (
        "Find out how many workers a dataset needs on this machine, if any, by "
        "loading from it. MODULE:NAME is a dataset, or a function or class that makes "
        "one, found as `python -m` would find it."
    )
    parser = commands.add_parser(
        "tune",
        help="are workers worth having, and how many?",
        description=about,
    )
    add = parser.add_argument
    add("dataset", metavar="MODULE:NAME")
    add(
        "--batch-size",
        type=int,
        default=32,
        metavar="B",
        help="(default 32)",
    )
    add(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="S",
        help="seconds (default %(default)g)",
    )
    add(
        "--max-workers",
        type=int,
        metavar="N",
        help="the most to try (default: 8, or twice the cores)",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # The log has a line for each trial, which thus goes to standard error.
    tells = logging.StreamHandler()
    _log.addHandler(tells)
    _log.setLevel(logging.INFO)
    dataset = _named(options.dataset)
    bounds = {"max_workers": options.max_workers, "budget_s": options.budget}
    try:
        # Samples may differ in shape, which is no reason to refuse a dataset here.
        print(tune(dataset, options.batch_size, **bounds, ragged="list"))
    finally:
        _log.removeHandler(tells)
    return 0


def _named(name: str) -> Any:
    """Return the dataset that ``module:name`` names or, if called, returns."""
    sys.path.insert(0, os.getcwd())
    module, _, within = name.partition(":")
    if module.endswith(".py"):
        path = os.path.normpath(module.removesuffix(".py"))
        module = path.replace(os.sep, ".").lstrip(".")
        raise OptionError(
            f"{name} is a file: write {module}:{within or 'dataset'}, as after "
            "`import`."
        )
    try:
        made = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"{name} cannot be found ({error}); write module:name, of a dataset or its "
            "class."
        ) from error
    if inspect.ismodule(made):
        raise OptionError(
            f"{name} is a module: write {module}:NAME, of a dataset in it or what "
            "makes one."
        )
    if hasattr(type(made), "__getitem__"):
        return made
    try:
        inspect.signature(made).bind()
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{name} is no dataset ({error}); name a function of no arguments that "
            "makes it."
        ) from error
    return made()
