"""What a live view shows: throughput, waiting, the queue, each worker, and the verdict, from snapshots over time.

Pure but for ``/proc``: whoever looks at an iterator, in its own process or from another one, takes a ``Glance``; two of
them make a ``View``, and a view is lines of text.  Guarantees that no line is wider than asked, in terminals of any
width, and that there are no more of them than asked.
"""

from __future__ import annotations

import textwrap
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from .. import machine
from ..stats import Stats
from ..worker.board import Line
from .advice import rate_told, some

_STRETCH_S = 5.0  # that rates and shares are of
_WIDE = 60  # columns from which on there is room for everything
_LATE_S = 0.1  # a sample that takes longer is shown with its time


@dataclass(frozen=True, slots=True)
class Glance:
    """What there is to see at one moment."""

    at: float  # on the monotonic clock
    stats: Stats
    lines: Sequence[Line]  # one for each worker
    cpu_s: Sequence[float | None]  # that each worker has had
    sizes: Sequence[int]  # bytes of its own


def glance(stats: Stats, lines: Sequence[Line], processes: Collection[int]) -> Glance:
    """Of these workers, now; those that are no ``processes`` are threads."""
    cpu_s = [machine.cpu_s(line.pid) if line.pid in processes else None for line in lines]
    sizes = [machine.own_bytes(line.pid) if line.pid in processes else 0 for line in lines]
    return Glance(time.monotonic(), stats, lines, cpu_s, sizes)


@dataclass(frozen=True, slots=True)
class Worker:
    """What one of them is doing."""

    number: int
    pid: int
    doing: str
    busy: float | None  # share of a core
    size: int


@dataclass(frozen=True, slots=True)
class View:
    """The last few seconds."""

    stats: Stats
    samples_per_s: float | None
    waited: float | None  # share of the time
    verdict: str
    workers: tuple[Worker, ...]

    @property
    def figures(self) -> str:
        """In a few words."""
        parts = [f"{self.stats.batches:,} batch{'es' * (self.stats.batches != 1)}", some(self.stats.samples, "sample")]
        if self.samples_per_s is not None:
            parts.append(f"{rate_told(self.samples_per_s)} samples/s")
        return ", ".join(parts)

    @property
    def share(self) -> str:
        return "–" if self.waited is None else f"{self.waited:.0%}"

    def line(self) -> str:
        """All in one, for a log."""
        stats = self.stats
        parts = [
            self.figures,
            f"waited {self.share}",
            f"{stats.ready_batches} ready, {stats.in_flight_batches} on their way",
        ]
        parts += [some(len(self.workers), "worker")] if self.workers else []
        parts += [some(stats.restarts, "restart")] if stats.restarts else []
        return "; ".join([*parts, *([self.verdict] if self.verdict else [])])

    def lines(self, width: int = 80, height: int = 24) -> list[str]:
        """For a screen of this size."""
        stats, bar = self.stats, max(0, min(20, width - 40))
        ready = stats.ready_batches / stats.in_flight_batches if stats.in_flight_batches else 0.0
        memory = sum(worker.size for worker in self.workers)
        head = [
            self.figures,
            _row("waited", self.waited or 0.0, bar, f"{self.share} of the time"),
            _row("ready", ready, bar, f"{stats.ready_batches} of {stats.in_flight_batches} batches on their way"),
        ]
        own = f"{memory / 1e6:,.0f} MB in {some(len(self.workers), 'worker')}" if memory else "no worker processes"
        rare = [some(count, noun) for count, noun in ((stats.restarts, "restart"), (stats.errors, "error")) if count]
        head.append(_row("memory", None, bar, ", ".join([own, *rare])))
        head += [_row(name, None, 0, said) for name, said in stats.dataset.items()]
        told = textwrap.wrap(self.verdict, max(width, 10))[: max(1, height - len(head) - 1)]
        room = max(0, height - len(head) - len(told))
        shown = self.workers if len(self.workers) <= room else self.workers[: max(0, room - 1)]
        body = [_of_worker(worker, width) for worker in shown]
        if len(shown) < len(self.workers) and room:
            body.append(f"and {some(len(self.workers) - len(shown), 'other')}")
        return [_cut(line, width) for line in [*head, *body, *told]][:height]


class Watcher:
    """Remembers the last few seconds."""

    def __init__(self) -> None:
        self._seen: deque[Glance] = deque()

    def view(self, now: Glance) -> View:
        """What has come of them."""
        seen = self._seen
        if seen and now.stats.batches < seen[-1].stats.batches:
            seen.clear()  # others have begun
        while len(seen) > 1 and now.at - seen[1].at >= _STRETCH_S:
            seen.popleft()
        since = seen[0] if seen else None
        before = seen[-1] if seen else None
        seen.append(now)
        return view(now, since, before)


def view(now: Glance, since: Glance | None = None, before: Glance | None = None) -> View:
    """What came of it since then; workers since just before."""
    stats = now.stats
    base = since.stats if since is not None and since.stats.batches else Stats(wait_s=stats.start_s)
    batches, seconds = stats.batches - base.batches, stats.seconds - base.seconds
    has_moved = batches > 0 and seconds > 0
    waited_s = max(0.0, stats.wait_s - base.wait_s)
    recent = replace(stats, recent_s=seconds, recent_wait_s=waited_s, recent_batches=batches)
    return View(
        stats,
        samples_per_s=(stats.samples - base.samples) / seconds if has_moved else None,
        waited=min(1.0, waited_s / seconds) if seconds > 0 else None,
        verdict="no batch yet" if not stats.batches else recent.verdict if has_moved else "",
        workers=tuple(_worker(number, now, before) for number, line in enumerate(now.lines) if line.pid),
    )


def _worker(number: int, now: Glance, before: Glance | None) -> Worker:
    line, busy = now.lines[number], None
    if before is not None and number < len(before.lines) and before.lines[number].pid == line.pid:
        then, spent = before.cpu_s[number], now.cpu_s[number]
        if then is not None and spent is not None and now.at > before.at:
            busy = max(0.0, spent - then) / (now.at - before.at)
    return Worker(number, line.pid, doing(line, now.at), busy, now.sizes[number])


def doing(line: Line, now: float) -> str:
    """What the line of a worker says, in words."""
    if not line.ready:
        return "loading the dataset"
    if not line.active:
        return "idle"
    since = now - line.since / 1e9
    late = f", {since:.1f} s" if since >= _LATE_S else ""
    return f"fetching row {line.row} of batch {line.batch}{late}"


def _of_worker(worker: Worker, width: int) -> str:
    busy = "   –" if worker.busy is None else f"{worker.busy:4.0%}"
    size = f"{worker.size / 1e6:,.0f} MB" if worker.size else "–"
    pid = f"pid {worker.pid:<8}" if width >= _WIDE else ""
    return f"worker {worker.number:<3} {pid}{busy} {size:>9}  {worker.doing}"


def _row(name: str, share: float | None, bar: int, text: str) -> str:
    full = round(bar * min(1.0, share or 0.0))
    drawn = " " * bar if share is None else "█" * full + "░" * (bar - full)
    return f"{name:<7} {drawn}{' ' * bool(bar)}{text}"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"
