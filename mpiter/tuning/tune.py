"""``mpiter.tune()``: tries numbers of workers on the dataset, and says which to take.

Runs in the consumer process.  The trials are real ones (``measuring``), the search is pure (``bracket``, ``nwt``); what
was found before on this machine is not looked for again (``cache``).
"""

from __future__ import annotations

import html
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from .. import machine
from ..datasets.columns import as_dataset
from ..engine.options import Options, whole
from ..engine.pilot import Setting
from ..errors import OptionError
from .bracket import Bracket, most_trials
from .cache import Cache, folder, key_of
from .capacity import most_workers
from .measuring import Loading
from .nwt import ALPHA, ITERATIONS, nwt
from .trials import Asked, Notes, Row, Trial

BUDGET_S = 60.0  # of a bracket, unless told otherwise
_TRIAL_S = 0.5
_PART = 40  # of the budget: the most that is asked of a trial
_MEMORY = 0.9  # of what is there
_PREFETCHES = (2, 4, 8, 16)
_FORM = 1  # of of what is kept

Told = Callable[[Setting, Trial | None], object]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found: print it.

    Attributes:
        n_processes: the choice.
        n_prefetch: likewise.
        table: a row for each number of workers that was tried.
        reason: of the choice.
        method: that made it.
        batches: how many of them the seconds in the table are for.
        spent_s: what it took.
        over: "budget" if that ended the search.
        date: when it was measured.
        source: "cache" if it was measured earlier; "cache, other data" if it was with other samples of the same size.
    """

    n_processes: int
    n_prefetch: int
    table: tuple[Row, ...]
    reason: str
    method: str
    batches: int
    spent_s: float
    over: str
    date: str
    source: str = ""

    def __str__(self) -> str:
        """The table, the choice and the reason."""
        return f"{self.columns()}\n{self.sentence}"

    @property
    def chosen(self) -> Setting:
        return Setting(self.n_processes, self.n_prefetch)

    def columns(self) -> str:
        """The table."""
        head = "seconds a batch" if self.batches == 1 else f"seconds for {self.batches} batches"
        lines = [f"workers  {head}  spread      MB  trials"]
        for row in self.table:
            spread = "–" if row.spread is None else f"{row.spread:.0%}"
            size = "–" if row.bytes is None else f"{row.bytes / 1e6:,.0f}"
            mark = "  ← chosen" if (row.workers, row.n_prefetch) == self.chosen else ""
            other = f"  n_prefetch={row.n_prefetch}" if row.n_prefetch != self.table[0].n_prefetch else ""
            seconds = f"{row.seconds:#.3g}".rstrip(".")
            lines.append(
                f"{row.workers:7}  {seconds:>{len(head)}}  {spread:>6}  {size:>6}  {row.trials:6}{other}{mark}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def sentence(self) -> str:
        """The choice in one."""
        whence = f"measured in {self.spent_s:.1f} s"
        if self.source:
            about = ", of other data with samples as large" if self.source != "cache" else ""
            whence = f"from the cache{about}, measured on {self.date}"
        return f"n_processes={self.n_processes}, n_prefetch={self.n_prefetch}: {self.reason} ({whence})."


def tune(
    dataset: Any,
    batch_size: int,
    *,
    method: Literal["bracket", "nwt"] = "bracket",
    max_workers: int | None = None,
    budget_s: float | None = None,
    memory_bytes: int | None = None,
    step: Callable[[Any], object] | None = None,
    n_prefetch: int | None = None,
    alpha: float = ALPHA,
    iterations: int = ITERATIONS,
    device: Any = "auto",
    cache: bool | str | os.PathLike[str] = True,
    progress: Told | None = None,
    **loading: Any,
) -> Tuned:
    """Find out how many workers to take, by loading from ``dataset`` with several numbers of them.

    Args:
        dataset: as for ``batches()``.
        batch_size: likewise.
        method: "bracket" takes few trials and counts a difference beyond the measured spread only.  "nwt" is the Num
            Worker Tuner of Synn and Kim: every number from 0 on, and a larger one is taken if ``iterations`` batches
            take more than ``alpha`` seconds less.
        max_workers: the most to try; None: the cores for "nwt", twice as many, at least 8, for "bracket".
        budget_s: seconds that all of it may take; None: 60 for "bracket", no limit for "nwt".
        memory_bytes: that all processes together may take; None: nine tenths of what there is.
        step: what your program does with a batch, so that the choice is for its pace; None: nothing.
        n_prefetch: batches that wait; None: 2, or with ``step`` more where that helps.
        alpha: of "nwt", seconds.
        iterations: of "nwt", batches.
        device: where batches are copied to; "auto": to the GPU if torch has been imported and sees one; None: nowhere.
        cache: look among earlier results first; a folder for them, or False.
        progress: called with the setting before each trial, and with what it showed after it.
        loading: the other arguments of ``batches()``.

    >>> from mpiter import batches
    >>> found = tune(range(100_000), 64, max_workers=1, budget_s=2, cache=False)
    >>> [row.workers for row in found.table]
    [0, 1]
    >>> stream = batches(range(100_000), 64, n_processes=found.n_processes, n_prefetch=found.n_prefetch)
    """
    if method not in ("bracket", "nwt"):
        raise OptionError(f"method={method!r:.40} is unknown; use 'bracket' or 'nwt'.")
    if "n_processes" in loading:
        raise OptionError("n_processes is what tune() finds; pass max_workers= for the most to try.")
    _above_zero(budget_s=budget_s, memory_bytes=memory_bytes, alpha=alpha)
    whole("max_workers", max_workers, least=0, optional=True)
    whole("iterations", iterations, least=1)
    whole("n_prefetch", n_prefetch, least=1, optional=True)
    dataset = as_dataset(dataset)
    Options(dataset=dataset, batch_size=batch_size)  # which says what is wrong with them
    asked = {
        "method": method,
        "batch_size": int(batch_size),
        "max_workers": default_most(method) if max_workers is None else int(max_workers),
        "budget_s": BUDGET_S if budget_s is None and method == "bracket" else budget_s,
        "memory_bytes": memory_bytes,
        "n_prefetch": n_prefetch,
        "alpha": alpha,
        "iterations": iterations,
    }
    if not len(dataset):
        raise OptionError("the dataset is empty: there is nothing to try.")
    measure = Loading(dataset, batch_size, loading, step, device, progress or _tell_nobody)
    where = folder() if cache is True else Path(cache) if cache else None
    if where is None:
        return _search(asked, measure)
    kept = Cache(where, measure.sample_bytes())
    question = asked | {"step": step, "device": str(measure.device), "loading": loading, "form": _FORM}
    any_data, key = key_of(question, dataset)
    found = _opened(kept.find(key), "cache")
    if found is None and method == "nwt":  # whose authors reuse it for all samples of that size
        found = _opened(kept.find_other(any_data), "cache, other data")
    if found is None:
        found = _search(asked, measure)
        kept.keep(key, asdict(found))
    return found


def _search(asked: Mapping[str, Any], measure: Loading) -> Tuned:
    """Try, and choose."""
    began = time.perf_counter()
    most, budget_s, memory_bytes = asked["max_workers"], asked["budget_s"] or math.inf, asked["memory_bytes"]
    if memory_bytes is None:
        memory_bytes = (machine.tree_memory() or 0) + int(_MEMORY * machine.memory_available())
    if asked["method"] == "nwt":
        of = asked["iterations"]
        notes = Notes(measure, Asked(batches=of), budget_s)
        choice = nwt(notes, most, asked["alpha"], of, memory_bytes, asked["n_prefetch"] or _PREFETCHES[0])
    else:
        of = 1
        notes = Notes(measure, Asked(min(_TRIAL_S, budget_s / _PART)), budget_s, most_trials(most))
        fixed = asked["n_prefetch"]
        prefetches = (fixed,) if fixed else _PREFETCHES if measure.has_step else _PREFETCHES[:1]
        choice = Bracket(notes, most, memory_bytes, prefetches).choose()
    rows = tuple(notes.row(one, of) for one in sorted(notes.of))
    date = datetime.now().astimezone().isoformat(" ", "minutes")
    workers, n_prefetch = choice.setting
    spent_s = time.perf_counter() - began
    return Tuned(workers, n_prefetch, rows, choice.reason, asked["method"], of, spent_s, notes.over, date)


def _opened(kept: Mapping[str, Any] | None, source: str) -> Tuned | None:
    """A result as it was kept; None where there is none, or what is there is none."""
    if kept is None:
        return None
    try:
        rows = tuple(Row(**row) for row in kept["table"])
        return Tuned(**{**kept, "table": rows, "source": source})
    except (TypeError, KeyError, ValueError):
        return None


def default_most(method: str) -> int:
    """As many as there are cores, or more."""
    return machine.cores() if method == "nwt" else most_workers(machine.cores())


def _above_zero(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not (isinstance(value, Real) and value > 0):
            raise OptionError(f"{name}={value!r:.40} must be a number above 0, or None.")


def _tell_nobody(setting: Setting, trial: Trial | None) -> None: ...
