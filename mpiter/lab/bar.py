"""How far a run has come: a bar on a terminal, a line now and then elsewhere; always on standard error.

Guarantees that a log gets a line at most every ten seconds, and that what the bar leaves behind is a clean line.
"""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

_LINE_S, _TICK_S = 10.0, 0.1
_WIDTH = 24


class Bar:
    """`with Bar("overhead", 36) as bar: bar.at(3, "28x28 slots")`."""

    def __init__(self, name: str, total: int, stream: TextIO | None = None) -> None:
        self._name, self._total = name, total
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._began = time.monotonic()
        self._drawn = -_LINE_S

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal:
            self._write("\r\033[K")

    def at(self, done: int, doing: str = "") -> None:
        """So many are done, and this is under way."""
        now = time.monotonic()
        if now - self._drawn < (_TICK_S if self._is_terminal else _LINE_S):
            return
        self._drawn = now
        text = line(self._name, done, self._total, now - self._began, doing)
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r{text[:width]}\033[K")
        else:
            self._write(text + "\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def line(name: str, done: int, total: int, elapsed_s: float, doing: str) -> str:
    """What stands there: a bar, how many, how much longer, and what is under way."""
    filled = _WIDTH * done // total if total else _WIDTH
    left = f"{_span(elapsed_s / done * (total - done))} left" if done else "…"
    return f"{name} [{'=' * filled}{' ' * (_WIDTH - filled)}] {done}/{total} {left}  {doing}".rstrip()


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
