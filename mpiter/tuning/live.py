"""``Live``: shows the statistics of an iterator or a loader while it runs.

A thread reads them twice a second; in a terminal it updates a display by rich, elsewhere it prints a line now and then.
It ends with the ``with`` or the ``for``.  Guarantees that the program isn't affected: ``stats()`` returns what it would
without ``Live``, and errors while drawing are only logged.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, TextIO

from .. import machine
from ..engine.alone import Alone
from ..engine.pump import Pump
from ..errors import OptionError
from ..iterators.iterator import DatasetIterator
from ..loaders.loading import Epoch, Loading
from ..stats import Stats, total
from ..worker.board import Line

_DRAW_S = 0.5
_STRETCH_S = 5.0  # the period that rates and shares cover
_LATE_S = 0.1  # a worker's present sample is shown with its time once that is longer
_log = logging.getLogger("mpiter")


class Watcher:
    """Makes the lines to show, from the statistics of the last few seconds, which it keeps."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Stats]] = deque()  # with the time of each

    def look(self, source: Any) -> tuple[list[str], list[str]]:
        """Return the lines to show for an iterator or a loader now, as ``view`` does."""
        parts: list[Stats] = []
        lines: list[Line] = []
        pids: list[int] = []
        for pump in _pumps_of(source):
            parts.append(pump.stats(looks=False))
            if pump.loop is not None and parts[-1].workers:
                lines += pump.loop.lines
                pids += pump.loop.pids
        return self.view(total(parts), lines, pids, time.monotonic())

    def view(
        self, stats: Stats, lines: Sequence[Line], processes: Collection[int], now: float
    ) -> tuple[list[str], list[str]]:
        """Return two lists of lines: figures of the last few seconds, and what each worker is doing."""
        stats = self._lately(stats, now)
        sizes = [machine.own_bytes(line.pid) if line.pid in processes else 0 for line in lines]
        workers = [
            f"worker {number:<3} pid {line.pid:<8} {size / 1e6:6,.0f} MB  {doing(line, now)}"
            for number, (line, size) in enumerate(zip(lines, sizes, strict=True))
            if line.pid
        ]
        whole = _some(len(workers), "worker") + (f" with {sum(sizes) / 1e6:,.0f} MB" if any(sizes) else "")
        rare = {"restart": stats.restarts, "skipped sample": stats.skipped}
        figures = [
            f"{_some(stats.batches, 'batch', 'es')}, {_some(stats.samples, 'sample')}, "
            f"{stats.samples_per_s:,.4g} samples/s",
            f"waited {stats.recent_share:.0%}: {stats.verdict() if stats.batches else 'no batch yet'}",
            f"{stats.ready_batches} ready, {stats.in_flight_batches} on their way",
            ", ".join([whole, *(_some(count, what) for what, count in rare.items() if count)]),
        ]
        return figures, workers

    def _lately(self, stats: Stats, now: float) -> Stats:
        """Return ``stats`` with the rates and shares of the last few seconds, and keep them."""
        seen = self._seen
        if seen and stats.batches < seen[-1][1].batches:
            seen.clear()  # new workers, whose counters began at 0
        while len(seen) > 1 and now - seen[1][0] >= _STRETCH_S:
            seen.popleft()
        if seen and seen[0][1].batches:
            since, base = seen[0]
            wait_s, batches = max(0.0, stats.wait_s - base.wait_s), stats.batches - base.batches
            stats = replace(stats, recent_s=now - since, recent_wait_s=wait_s, recent_batches=batches)
        seen.append((now, stats))
        return stats


def doing(line: Line, now: float) -> str:
    """Return in words what a worker is doing, by its ``line`` in shared memory, which it keeps up to date."""
    if not line.ready:
        return "loading the dataset"
    if not line.active:
        return "idle"
    since = now - line.since / 1e9
    late = f", {since:.1f} s" if since >= _LATE_S else ""
    return f"fetching row {line.row} of block {line.block}{late}"


def _some(count: int, noun: str, plural: str = "s") -> str:
    return f"{count:,} {noun}{'' if count == 1 else plural}"


class Live:
    """Shows statistics of an iterator or a loader in ``with Live(loader): …`` or ``for batch in Live(loader): …``.

    ``stream`` is standard output by default; if it is no terminal, a line is printed every ``line_s`` seconds.

    >>> import io, mpiter
    >>> with mpiter.batches(range(8), 4, n_processes=0) as stream:
    ...     for batch in Live(stream, io.StringIO()):
    ...         pass
    """

    def __init__(self, source: Any, stream: TextIO | None = None, line_s: float = 10.0) -> None:
        _pumps_of(source)
        self._source, self._stream, self._line_s = source, stream, line_s
        self._watcher = Watcher()
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._stop.clear()
        self._due = time.monotonic() + self._line_s
        self._terminal = _terminal_on(self._stream or sys.stdout)
        self._thread = threading.Thread(target=self._watch, name="mpiter-live", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._draw(is_last=True)
        if self._terminal is not None:
            self._terminal.stop()

    def __iter__(self) -> Iterator[Any]:
        with self:
            yield from self._source

    def __len__(self) -> int:
        return len(self._source)

    def _watch(self) -> None:
        while not self._stop.wait(_DRAW_S):
            self._draw()

    def _draw(self, is_last: bool = False) -> None:
        try:
            figures, workers = self._watcher.look(self._source)
            if self._terminal is not None:
                from rich.text import Text

                text = Text("\n".join([*figures, *workers]), no_wrap=True, overflow="ellipsis")
                self._terminal.update(text, refresh=True)
            elif is_last or time.monotonic() >= self._due:
                self._due = time.monotonic() + self._line_s
                print(f"mpiter: {'; '.join(figures)}", file=self._stream or sys.stdout, flush=True)
        except Exception as problem:
            _log.debug("the live view could not be drawn: %r", problem)


def _terminal_on(stream: TextIO) -> Any:
    """Return rich's display, which stays below what the program prints; None without a terminal or without rich."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
        from rich.live import Live as RichLive
    except ImportError:  # rich is installed by the extra `live`
        return None
    redirects = {"redirect_stdout": stream is sys.stdout, "redirect_stderr": sys.stderr.isatty()}
    terminal = RichLive(console=Console(file=stream), auto_refresh=False, **redirects)
    terminal.start()
    return terminal


def _pumps_of(source: Any) -> list[Pump | Alone]:
    """Return the pumps, which own the workers, of an iterator, a loader or an epoch; none if there are none yet."""
    if isinstance(source, DatasetIterator):
        found: Any = source._pump
    elif isinstance(source, Loading):
        found = source._fetching
    elif isinstance(source, Epoch):
        found = source._current.pump
    else:
        raise OptionError(f"a live view is of mpiter's iterators and loaders, not of {type(source).__name__}.")
    return [] if found is None else list(getattr(found, "pumps", [found]))
