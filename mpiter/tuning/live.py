"""A live view of an iterator or a loader: on a terminal by rich, in a notebook, or as a line now and then.

A thread looks twice a second and draws; it ends with the ``with`` or the ``for``.  Guarantees that looking changes
nothing for the user: ``stats()`` tells what it would have told, and what goes wrong while drawing is left out.  Where
tqdm has a bar, the view goes on in lines above it.
"""

from __future__ import annotations

import html
import logging
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, Self, TextIO

from ..datasets.access import about
from ..engine.pump import Pump
from ..errors import OptionError
from ..iterators.iterator import DatasetIterator
from ..loaders.epochs import Epoch
from ..loaders.loading import Loading
from ..stats import Stats, total
from ..worker.board import Line
from .beside import Beside
from .screen import Glance, View, Watcher, glance

_DRAW_S, _LINE_S = 0.5, 10.0
_log = logging.getLogger("mpiter")


class Live:
    """``with Live(loader): …``, or ``for batch in Live(loader): …``.

    ``stream`` is standard output unless told otherwise; ``line_s`` are the seconds between two lines where it is no
    terminal.

    >>> import io, mpiter
    >>> from mpiter.tuning.live import Live
    >>> told = io.StringIO()
    >>> for batch in Live(mpiter.batches(range(8), 4, n_processes=0), stream=told):
    ...     pass
    >>> print(told.getvalue())
    mpiter: 2 batches, 8 samples...
    """

    def __init__(self, source: Any, stream: TextIO | None = None, line_s: float = _LINE_S) -> None:
        pumps_of(source)
        self._source, self._stream, self._line_s = source, stream, line_s
        self._watcher = Watcher()
        self._stop = threading.Event()
        self._screen: _Screen | None = None

    def __enter__(self) -> Self:
        stream = sys.stdout if self._stream is None else self._stream
        self._stop.clear()
        self._screen = _screen_for(stream, self._line_s)
        self._thread = threading.Thread(target=self._watch, name="mpiter-live", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._draw(is_last=True)
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.close()

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
            if isinstance(self._screen, _Terminal) and _bars():
                self._screen.erase()
                self._screen = _Lines(self._screen.stream, self._line_s)
            if self._screen is not None:
                self._screen.show(self._watcher.view(glance_of(self._source)), is_last)
        except Exception as problem:
            _log.debug("the live view could not be drawn: %r", problem)


def pumps_of(source: Any) -> list[Pump]:
    """What fetches for an iterator, a loader or an epoch of one: nothing before the first batch was asked for."""
    if isinstance(source, DatasetIterator):
        found: Any = source._pump
    elif isinstance(source, Loading):
        found = source._somebody()
    elif isinstance(source, Epoch):
        found = source._pass.pump
    else:
        raise OptionError(f"a live view is of mpiter's iterators and loaders, not of {type(source).__name__}.")
    return [] if found is None else list(getattr(found, "pumps", [found]))


def glance_of(source: Any) -> Glance:
    """What there is to see of it now."""
    parts: list[Stats] = []
    lines: list[Line] = []
    pids: list[int] = []
    for pump in pumps_of(source):
        loop = pump.loop
        own = pump.stats() if loop is None else loop.stats(looks=False)
        parts.append(replace(own, dataset=about(pump.options.dataset)))
        if loop is not None and parts[-1].workers:
            lines += loop.lines
            pids += loop.pids
    return glance(total(parts), lines, pids)


# -- where it is shown -------------------------------------------------------------------------------------------------


class _Screen(Protocol):
    """Shows one view after the other."""

    def show(self, view: View, is_last: bool) -> None: ...
    def close(self) -> None: ...


class _Lines:
    """A line now and then, and one at the end."""

    def __init__(self, stream: TextIO, every_s: float) -> None:
        self._stream, self._every_s = stream, every_s
        self._due = time.monotonic() + every_s

    def show(self, view: View, is_last: bool) -> None:
        if is_last or time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_s
            text = f"mpiter: {view.line()}"
            if _bars():
                sys.modules["tqdm"].tqdm.write(text, file=self._stream)
            else:
                print(text, file=self._stream, flush=True)

    def close(self) -> None: ...


class _Terminal:
    """The last few lines of it, drawn again and again; what is printed meanwhile stands above them."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self.stream, self._console = stream, Console(file=stream)
        self._lock = threading.RLock()
        self._live: Any = None  # what is drawn
        self._is_held = False  # somebody is in the middle of a line
        self._errors = Beside(self._lift)
        if sys.stderr.isatty():
            self._errors.begin()

    def show(self, view: View, is_last: bool) -> None:
        from rich.live import Live as RichLive
        from rich.text import Text

        with self._lock:
            if self._is_held and not is_last:
                return
            if self._live is None:
                redirects = {"redirect_stdout": self.stream is sys.stdout, "redirect_stderr": False}
                self._live = RichLive(console=self._console, auto_refresh=False, **redirects)
                self._live.start()
            size = self._console.size
            first, *others = view.lines(size.width, size.height - 1)
            text = Text.assemble((first, "bold"), *(f"\n{line}" for line in others), no_wrap=True, overflow="ellipsis")
            self._live.update(text, refresh=True)

    def erase(self) -> None:
        """Leave nothing."""
        self._errors.end()
        self._lift("\n")

    def close(self) -> None:
        self._errors.end()
        with self._lock:
            if self._live is not None:
                self._live.stop()

    def _lift(self, text: str) -> None:
        """Make room for what is about to be written to standard error, until the next look."""
        with self._lock:
            self._is_held = not text.endswith("\n")
            if self._live is not None:
                self._live.transient = True
                self._live.stop()
                self._live = None


class _Notebook:
    """The output of a cell, shown anew."""

    def __init__(self, display: Any) -> None:
        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, view: View, is_last: bool) -> None:
        text = "\n".join(view.lines())
        self._handle.update({"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}, raw=True)

    def close(self) -> None: ...


def _screen_for(stream: TextIO, line_s: float) -> _Screen:
    display = _display_of_notebook()
    if display is not None:
        return _Notebook(display)
    if stream.isatty() and not _bars():
        try:
            return _Terminal(stream)
        except ImportError:  # rich is of the extra `live`
            pass
    return _Lines(stream, line_s)


def _display_of_notebook() -> Any:
    """What shows something in a notebook; None outside."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    return None if getattr(shell, "kernel", None) is None else sys.modules["IPython.display"].display


def _bars() -> bool:
    """Has tqdm a bar?"""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return bool(getattr(tqdm, "_instances", ()))
