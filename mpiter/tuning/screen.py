"""What a live view shows of the last seconds, as lines of text that fit the screen: throughput, waiting, the queue,
memory, the verdict, and what each worker is doing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from .. import machine
from ..stats import Stats
from ..worker.board import Line

_STRETCH_S = 5.0  # that rates and shares are of
_LATE_S = 0.1  # a sample that takes longer is shown with its time


@dataclass(frozen=True, slots=True)
class View:
    """The last few seconds: what is recent in ``stats`` is of those; and a line for each worker that is there."""

    stats: Stats
    workers: Sequence[str] = ()
    worker_bytes: int = 0

    @property
    def _figures(self) -> list[str]:
        stats, count = self.stats, len(self.workers)
        size = f" with {self.worker_bytes / 1e6:,.0f} MB" if self.worker_bytes else ""
        rare = {"restart": stats.restarts, "error": stats.errors}
        return [
            f"{_some(stats.batches, 'batch', 'es')}, {_some(stats.samples, 'sample')}, "
            f"{stats.samples_per_s:,.4g} samples/s",
            f"waited {stats.recent_share:.0%}: {stats.verdict if stats.batches else 'no batch yet'}",
            f"{stats.ready_batches} ready, {stats.in_flight_batches} on their way",
            ", ".join([f"{_some(count, 'worker')}{size}", *(_some(n, what) for what, n in rare.items() if n)]),
        ]

    def line(self) -> str:
        """All in one line, for a log."""
        return "; ".join(self._figures)

    def lines(self, width: int = 80, height: int = 24) -> list[str]:
        """Lines for a screen of this size."""
        shown = [*self._figures, *(f"{name} {said}" for name, said in self.stats.dataset.items()), *self.workers]
        if len(shown) > height:
            shown = [*shown[: height - 1], f"and {len(shown) - height + 1} more"]
        return [line if len(line) <= width else f"{line[: max(0, width - 1)]}…" for line in shown]


class Watcher:
    """Remembers the last few seconds of one iterator."""

    def __init__(self) -> None:
        self._seen: deque[Stats] = deque()

    def view(self, stats: Stats, lines: Sequence[Line], processes: Collection[int]) -> View:
        """What those seconds and this moment have shown; workers that are no ``processes`` are threads."""
        seen = self._seen
        if seen and stats.batches < seen[-1].batches:
            seen.clear()  # another loop has begun
        while len(seen) > 1 and stats.seconds - seen[1].seconds >= _STRETCH_S:
            seen.popleft()
        base = seen[0] if seen and seen[0].batches else Stats(wait_s=stats.start_s)
        seen.append(stats)
        recent = replace(
            stats,
            recent_s=max(0.0, stats.seconds - base.seconds),
            recent_wait_s=max(0.0, stats.wait_s - base.wait_s),
            recent_batches=stats.batches - base.batches,
        )
        sizes = [machine.own_bytes(line.pid) if line.pid in processes else 0 for line in lines]
        told, now = [], time.monotonic()
        for number, (line, size) in enumerate(zip(lines, sizes, strict=True)):
            if line.pid:
                told.append(f"worker {number:<3} pid {line.pid:<8} {size / 1e6:6,.0f} MB  {doing(line, now)}")
        return View(recent, told, sum(sizes))


def doing(line: Line, now: float) -> str:
    """What the line of a worker says, in words."""
    if not line.ready:
        return "loading the dataset"
    if not line.active:
        return "idle"
    since = now - line.since / 1e9
    late = f", {since:.1f} s" if since >= _LATE_S else ""
    return f"fetching row {line.row} of block {line.block}{late}"


def _some(count: int, noun: str, plural: str = "s") -> str:
    return f"{count:,} {noun}{'' if count == 1 else plural}"
