"""A live view of an iterator or a loader: on a terminal by rich, elsewhere as a line now and then.

A thread looks twice a second and draws; it ends with the ``with`` or the ``for``.  Guarantees that looking changes
nothing for the user: ``stats()`` tells what it would have told, and what goes wrong while drawing is left out.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self, TextIO

from ..engine.alone import Alone
from ..engine.pump import Pump
from ..errors import OptionError
from ..iterators.iterator import DatasetIterator
from ..loaders.loading import Epoch, Loading
from ..stats import Stats, total
from ..worker.board import Line
from .screen import View, Watcher

_DRAW_S, _LINE_S = 0.5, 10.0
_log = logging.getLogger("mpiter")


class Live:
    """``with Live(loader): …``, or ``for batch in Live(loader): …``; on standard output unless told otherwise."""

    def __init__(self, source: Any, stream: TextIO | None = None, line_s: float = _LINE_S) -> None:
        pumps_of(source)
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
                self._screen = screen_for(self._stream or sys.stdout, self._line_s)
            self._screen.show([look(self._source, self._watcher)], is_last)
        except Exception as problem:
            _log.debug("the live view could not be drawn: %r", problem)


def pumps_of(source: Any) -> list[Pump | Alone]:
    """What fetches for an iterator, a loader or an epoch of one: nothing before the first batch was asked for."""
    if isinstance(source, DatasetIterator):
        found: Any = source._pump
    elif isinstance(source, Loading):
        found = source._fetching
    elif isinstance(source, Epoch):
        found = source._current.pump
    else:
        raise OptionError(f"a live view is of mpiter's iterators and loaders, not of {type(source).__name__}.")
    return [] if found is None else list(getattr(found, "pumps", [found]))


def look(source: Any, watcher: Watcher) -> View:
    """What there is to see of it now."""
    parts: list[Stats] = []
    lines: list[Line] = []
    pids: list[int] = []
    for pump in pumps_of(source):
        loop = pump.loop
        parts.append(pump.stats(looks=False))
        if loop is not None and parts[-1].workers:
            lines += loop.lines
            pids += loop.pids
    return watcher.view(total(parts), lines, pids)


class Lines:
    """A line for each view now and then, and one at the end; above the bar that tqdm has."""

    def __init__(self, stream: TextIO, every_s: float) -> None:
        self._stream, self._every_s = stream, every_s
        self._due = time.monotonic() + every_s

    def show(self, views: Sequence[View], is_last: bool) -> None:
        if is_last or time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_s
            for view in views:
                text = f"mpiter: {view.line()}"
                if _has_bar():
                    sys.modules["tqdm"].tqdm.write(text, file=self._stream)
                else:
                    print(text, file=self._stream, flush=True)

    def close(self) -> None: ...


class Terminal(Lines):
    """The last few lines, drawn again and again; what is printed meanwhile stands above them."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console(file=stream)
        redirects = {"redirect_stdout": stream is sys.stdout, "redirect_stderr": sys.stderr.isatty()}
        self._live = RichLive(console=self._console, auto_refresh=False, **redirects)
        self._live.start()

    def show(self, views: Sequence[View], is_last: bool) -> None:
        from rich.text import Text

        size = self._console.size
        each = max(2, (size.height - 1) // len(views))
        text = "\n".join("\n".join(view.lines(size.width, each)) for view in views)
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        self._live.stop()


def screen_for(stream: TextIO, line_s: float) -> Lines:
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
