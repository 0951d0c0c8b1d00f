"""Time and memory by the number of workers: bars for a terminal, and a picture if matplotlib is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..engine.pilot import Setting
from ..errors import OptionError
from .trials import Row

_WIDE = 30
_KINDS = (".svg", ".png", ".pdf")


def bars(table: Sequence[Row], chosen: Setting) -> Iterator[str]:
    """A bar of time, and one of memory, for each row; the chosen one is marked."""
    longest, largest = max(row.seconds for row in table), max(row.bytes or 0 for row in table)
    yield ""
    yield f"workers   {'time':{_WIDE}}   memory" if largest else "workers   time"
    for row in table:
        mark = "→" if (row.workers, row.n_prefetch) == chosen else " "
        memory = "" if not largest else _bar((row.bytes or 0) / largest)
        yield f"{mark}{row.workers:6}   {_bar(row.seconds / longest):{_WIDE}}   {memory}".rstrip()
    yield ""


def _bar(share: float) -> str:
    return "█" * max(1, round(_WIDE * share)) if share else ""


def refuse_unless_drawable(file: Path) -> None:
    """Before anything is measured."""
    if file.suffix not in _KINDS:
        raise OptionError(f"{file} is none of the pictures that can be drawn; end its name in {', '.join(_KINDS)}.")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise OptionError("a plot takes matplotlib, which is not installed: pip install matplotlib.") from None


def plot(file: Path, table: Sequence[Row], chosen: Setting, title: str, batches: int) -> None:
    """Draw the two curves into a file."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = [row for row in table if row.n_prefetch == table[0].n_prefetch]
    workers = [row.workers for row in rows]
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    time, memory = figure.subplots(2, 1, sharex=True)
    time.set_title(title)
    half = [(row.spread or 0.0) * row.seconds / 2 for row in rows]
    time.errorbar(workers, [row.seconds for row in rows], half, marker="o", capsize=3)
    time.set_ylabel("seconds a batch" if batches == 1 else f"seconds for {batches} batches")
    memory.plot(workers, [(row.bytes or 0) / 1e6 for row in rows], marker="o", color="C1")
    memory.set_ylabel("MB of all processes")
    memory.set_xlabel("workers")
    memory.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (time, memory):
        axes.set_ylim(bottom=0)
        axes.axvline(chosen.workers, color="0.6", linestyle="--", zorder=0, label="chosen")
    time.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
