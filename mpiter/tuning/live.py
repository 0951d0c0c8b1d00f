"""``Live``: a view of an iterator or a loader while it runs.

Its thread looks twice a second and draws, on a terminal by rich, elsewhere a line now and then; it ends with the
``with`` or the ``for``.  Looking changes nothing for the user: ``stats()`` tells what it would have told, and what goes
wrong while drawing is left out.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
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
_STRETCH_S = 5.0  # that rates and shares are of
_LATE_S = 0.1  # a sample that takes longer is shown with its time
_log = logging.getLogger("mpiter")


# -- what there is to see --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """The figures of the last few seconds, and a line for each worker."""

    stats: Stats
    workers: Sequence[str] = ()
    worker_bytes: int = 0

    @property
    def _figures(self) -> list[str]:
        stats = self.stats
        workers = _some(len(self.workers), "worker")
        workers += f" with {self.worker_bytes / 1e6:,.0f} MB" if self.worker_bytes else ""
        rare = {"restart": stats.restarts, "skipped sample": stats.skipped}
        return [
            f"{_some(stats.batches, 'batch', 'es')}, {_some(stats.samples, 'sample')}, "
            f"{stats.samples_per_s:,.4g} samples/s",
            f"waited {stats.recent_share:.0%}: {stats.verdict() if stats.batches else 'no batch yet'}",
            f"{stats.ready_batches} ready, {stats.in_flight_batches} on their way",
            ", ".join([workers, *(_some(count, what) for what, count in rare.items() if count)]),
        ]

    def line(self) -> str:
        """All in one line, for a log."""
        return "; ".join(self._figures)

    def lines(self, width: int = 80, height: int = 24) -> list[str]:
        """Lines for a screen of this size."""
        shown = [*self._figures, *self.workers]
        if len(shown) > height:
            shown = [*shown[: height - 1], f"and {len(shown) - height + 1} more"]
        return [line if len(line) <= width else f"{line[: max(0, width - 1)]}…" for line in shown]


class Watcher:
    """Remembers the last few seconds of one iterator."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Stats]] = deque()  # with the time of each

    def view(self, stats: Stats, lines: Sequence[Line], processes: Collection[int], now: float) -> View:
        """The view at a moment; lines of workers that are no ``processes`` are of threads."""
        seen = self._seen
        if seen and stats.batches < seen[-1][1].batches:
            seen.clear()  # another loop has begun
        while len(seen) > 1 and now - seen[1][0] >= _STRETCH_S:
            seen.popleft()
        if seen and seen[0][1].batches:
            since, base = seen[0]
            wait_s, batches = max(0.0, stats.wait_s - base.wait_s), stats.batches - base.batches
            stats = replace(stats, recent_s=now - since, recent_wait_s=wait_s, recent_batches=batches)
        seen.append((now, stats))
        sizes = [machine.own_bytes(line.pid) if line.pid in processes else 0 for line in lines]
        told = []
        for number, (line, size) in enumerate(zip(lines, sizes, strict=True)):
            if line.pid:
                told.append(f"worker {number:<3} pid {line.pid:<8} {size / 1e6:6,.0f} MB  {doing(line, now)}")
        return View(stats, told, sum(sizes))


def doing(line: Line, now: float) -> str:
    """Put a worker's line on the board into words."""
    if not line.ready:
        return "loading the dataset"
    if not line.active:
        return "idle"
    since = now - line.since / 1e9
    late = f", {since:.1f} s" if since >= _LATE_S else ""
    return f"fetching row {line.row} of block {line.block}{late}"


def _some(count: int, noun: str, plural: str = "s") -> str:
    return f"{count:,} {noun}{'' if count == 1 else plural}"


# -- where it is shown -----------------------------------------------------------------------------------------------


class Lines:
    """Prints a line now and then, and one at the end; above a bar of tqdm's."""

    def __init__(self, stream: TextIO, every_s: float) -> None:
        self._stream, self._every_s = stream, every_s
        self._due = time.monotonic() + every_s

    def show(self, view: View, is_last: bool = False) -> None:
        if is_last or time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_s
            text = f"mpiter: {view.line()}"
            if _has_bar():
                sys.modules["tqdm"].tqdm.write(text, file=self._stream)
            else:
                print(text, file=self._stream, flush=True)

    def close(self) -> None: ...


class Terminal(Lines):
    """Draws lines again and again in a terminal; what the program prints stands above them."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console(file=stream)
        redirects = {"redirect_stdout": stream is sys.stdout, "redirect_stderr": sys.stderr.isatty()}
        self._live = RichLive(console=self._console, auto_refresh=False, **redirects)
        self._live.start()

    def show(self, view: View, is_last: bool = False) -> None:
        from rich.text import Text

        text = "\n".join(view.lines(self._console.size.width, self._console.size.height - 1))
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _screen_for(stream: TextIO, line_s: float) -> Lines:
    """A terminal where rich is installed and tqdm has no bar; else lines."""
    if stream.isatty() and not _has_bar():
        try:
            return Terminal(stream)
        except ImportError:  # rich is of the extra `live`
            pass
    return Lines(stream, line_s)


def _has_bar() -> bool:
    """Does tqdm show a bar?"""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return bool(getattr(tqdm, "_instances", ()))


# -- the view -------------------------------------------------------------------------------------------------------


class Live:
    """A view of an iterator or a loader while it runs: ``with Live(loader): …``, or ``for batch in Live(loader): …``.

    ``stream`` is standard output unless given; where that is no terminal, there is a line every ``line_s`` seconds.

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
        self._screen: Lines | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, name="mpiter-live", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._draw(is_last=True)
        if self._screen is not None:
            self._screen.close()
            self._screen = None

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
            if self._screen is None:  # by now a bar of tqdm is there, if there will be one
                self._screen = _screen_for(self._stream or sys.stdout, self._line_s)
            self._screen.show(look(self._source, self._watcher), is_last)
        except Exception as problem:
            _log.debug("the live view could not be drawn: %r", problem)


def look(source: Any, watcher: Watcher) -> View:
    """The view of an iterator or a loader at this moment."""
    parts: list[Stats] = []
    lines: list[Line] = []
    pids: list[int] = []
    for pump in _pumps_of(source):
        parts.append(pump.stats(looks=False))
        if pump.loop is not None and parts[-1].workers:
            lines += pump.loop.lines
            pids += pump.loop.pids
    return watcher.view(total(parts), lines, pids, time.monotonic())


def _pumps_of(source: Any) -> list[Pump | Alone]:
    """The pumps of an iterator, a loader or an epoch; none before the first batch was asked for."""
    if isinstance(source, DatasetIterator):
        found: Any = source._pump
    elif isinstance(source, Loading):
        found = source._fetching
    elif isinstance(source, Epoch):
        found = source._current.pump
    else:
        raise OptionError(f"a live view is of mpiter's iterators and loaders, not of {type(source).__name__}.")
    return [] if found is None else list(getattr(found, "pumps", [found]))
