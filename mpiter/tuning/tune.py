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
from collections.abc import Callable, Mapping, Sized
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
# The share of the budget for the number of workers.  The rest is for how many samples
# each has under way, where they wait; these numbers of samples are tried.
_FOR_WORKERS = 0.75
_UNDER_WAY = (16, 64)
# Another choice that takes so much longer is as fast.
_AS_FAST = 0.05
_MEMORY = 0.9  # the share of the available memory that may be used

_log = logging.getLogger("mpiter.tuning")


# A number of workers, and how many samples each had under way.
Several = tuple[int, int]


class Tuned(NamedTuple):
    """The result of ``tune``: the chosen number of workers, and the reason.

    ``table`` has the median trial of each number that was tried.  Where workers wait,
    each may have several samples under way: then ``concurrency`` says how many, and
    ``under_way`` has the trials by numbers of workers and of samples.
    """

    n_processes: int
    reason: str
    table: dict[int, Trial]
    concurrency: int | None = None
    under_way: Mapping[Several, Trial] = {}

    def __str__(self) -> str:
        """Return the table, the choice and the reason as text."""
        rows = list[tuple[str, Trial, bool]]()
        for workers, trial in self.table.items():
            is_chosen = (workers, None) == (self.n_processes, self.concurrency)
            rows.append((str(workers), trial, is_chosen))
        for several, trial in self.under_way.items():
            is_chosen = several == (self.n_processes, self.concurrency)
            rows.append(("{} × {}".format(*several), trial, is_chosen))
        lines = ["workers  seconds a batch      MB"]
        for name, trial, is_chosen in rows:
            seconds = f"{trial.batch_s:#.3g}".rstrip(".").rjust(15)
            line = f"{name:>7}  {seconds}  {trial.bytes / 1e6:6,.0f}"
            lines.append(line + "  ← chosen" * is_chosen)
        chosen = f"n_processes={self.n_processes}"
        if self.concurrency is not None:
            chosen += f", concurrency={self.concurrency}"
        lines.append(f"{chosen}: {self.reason}.")
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

    Where these wait for their samples, find out how many each should have under way at
    the same time, too, unless ``concurrency`` is given.

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

    part = budget_s
    if "concurrency" not in loading:
        part *= _FOR_WORKERS
    search = Bracket(trial, most, part, memory)
    chosen, why = search.choose()
    table = dict[int, Trial]()
    for workers in sorted(search.of):
        table[workers] = search.median(workers)
    found = Tuned(chosen, why, table)
    if "concurrency" in loading:
        return found

    def several(workers: int, under_way: int, limit_s: float) -> Trial:
        given = {**loading, "concurrency": under_way}
        return measure(dataset, batch_size, workers, each_s, limit_s, step, **given)

    left_s = budget_s - search.spent_s
    return _with_several(found, several, left_s, min(most, machine.cores()))


def _with_several(
    found: Tuned,
    measured: Callable[[int, int, float], Trial],
    budget_s: float,
    most: int,
) -> Tuned:
    """Return ``found``, or better: fewer workers that have several samples under way.

    Only where workers wait this is tried, with one and with ``most`` workers.
    """
    chosen = found.table[found.n_processes]
    waiting = [trial.useful for workers, trial in found.table.items() if workers]
    if not any(waiting) or not most:
        return found
    tried = dict[Several, Trial]()
    for under_way in _UNDER_WAY:
        for workers in sorted({1, most}):
            if budget_s <= max((one.cost_s for one in tried.values()), default=0.0):
                break
            trial = measured(workers, under_way, budget_s)
            tried[workers, under_way] = trial
            budget_s -= trial.cost_s
    if not tried:
        return found
    best_s = min(trial.batch_s for trial in tried.values())
    if best_s > chosen.batch_s * (1 + _AS_FAST):
        return found._replace(under_way=tried)
    # The fewest workers, with the fewest samples, that are about as fast as the best.
    workers, under_way = min(
        several
        for several, trial in tried.items()
        if trial.batch_s <= best_s * (1 + _AS_FAST)
    )
    gain = chosen.batch_s / tried[workers, under_way].batch_s
    why = (
        f"workers wait for their samples: {gain:.2g} times as fast as "
        f"{found.n_processes} with one at a time"
    )
    return found._replace(
        n_processes=workers, concurrency=under_way, reason=why, under_way=tried
    )


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
    useful = shown.useful_concurrency or 0
    name = str(workers)
    if under_way := loading.get("concurrency"):
        name += f" × {under_way}"
    _log.info("%s workers: %.3g ms a batch", name, 1e3 * batch_s)
    return Trial(batch_s, used, time.perf_counter() - began, useful)


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
