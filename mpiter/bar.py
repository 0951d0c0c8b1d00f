"""How far a run has come, on standard error: a bar by rich on a terminal, else a line now and then.

Guarantees that a log gets a line at most every ten seconds; that the bar leaves nothing behind; and that nothing is
drawn while a turn is measured, only between two; and that it has one line.  Without rich (of the extra `live`) a
terminal gets lines too.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any, TextIO

WIDTH = 80  # of a terminal
_LINE_S = 10.0


class Bar(ExitStack):
    """`with Bar("overhead", 36) as bar: bar.at(3, "28x28 slots")`."""

    def __init__(self, name: str, total: int, stream: TextIO | None = None) -> None:
        super().__init__()
        self._name, self._total, self._stream = name, total, sys.stderr if stream is None else stream
        self._written = -_LINE_S
        self._rich = _rich(self._stream) if self._stream.isatty() else None
        if self._rich is not None:
            self._task = self.enter_context(self._rich).add_task(name, total=total, doing="")

    def at(self, done: int, doing: str = "") -> None:
        """So many are done, and this is under way."""
        if self._rich is not None:
            self._rich.update(self._task, completed=done, doing=doing, refresh=True)
        elif time.monotonic() - self._written >= _LINE_S:
            self._written = time.monotonic()
            print(f"{self._name} {done}/{self._total}  {doing}"[:WIDTH], file=self._stream, flush=True)


def _rich(stream: TextIO) -> Any:
    """A bar that is drawn when it is told to; None where rich isn't installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column
    except ImportError:
        return None
    console = Console(file=stream)
    console.width = min(console.width, WIDTH)
    columns = [TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()]
    as_is = Column(no_wrap=True, overflow="ellipsis")
    doing = TextColumn("{task.fields[doing]}", markup=False, table_column=as_is)
    return Progress(*columns, doing, console=console, auto_refresh=False, transient=True)
