"""`mpiter top PID`: what the iterators of a running program are doing, seen from another process.

Nothing is asked of the program: its notice boards lie in shared memory that it has open, and which the same user (or
root) may read by way of ``/proc/PID/fd``; processor time and memory come from ``/proc`` too.  Guarantees that the
program notices nothing, and an error that says why when there is nothing to see.  Linux only.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..asked import above_zero
from ..errors import MpiterError
from ..stats import Stats
from ..worker.board import FIGURES, HEAD, LINE_BYTES, MARK, Line
from .screen import Glance, View, Watcher, glance

_MOST_WORKERS = 4096
_INTERVAL_S = 1.0
_ABOUT = "Look at a running program from outside: how fast batches come, who waits for whom, what each worker does."


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand."""
    parser = commands.add_parser("top", help="what a running program's workers do", description=_ABOUT)
    parser.add_argument("pid", type=int, metavar="PID", help="of the program that iterates")
    parser.add_argument("--once", action="store_true", help="print what there is to see, and end")
    parser.add_argument("--interval", type=above_zero, default=_INTERVAL_S, metavar="S", help="seconds between looks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    top = Top(options.pid)
    if options.once:
        top.look()
        time.sleep(min(options.interval, _INTERVAL_S))  # rates take two looks
        _print(top.look())
        return 0
    watch = _on_terminal if sys.stdout.isatty() else _in_lines
    return watch(top, options.interval)


class Top:
    """The iterators of one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._watchers: dict[tuple[int, int], Watcher] = {}  # by the file of a board, and its place in it

    def look(self) -> list[View]:
        """One view for each iterator."""
        boards = {board.key: board for board in boards_of(self._pid)}
        if not boards:
            raise MpiterError(_why_nothing(self._pid))
        self._watchers = {key: self._watchers.get(key) or Watcher() for key in boards}
        return [self._watchers[key].view(board.glance()) for key, board in boards.items()]


class Board:
    """One that was found."""

    def __init__(self, pid: int, fd: str, inode: int) -> None:
        self._pid, self._fd, self.key = pid, fd, (inode, 0)

    def read(self) -> tuple[Stats, list[Line]] | None:
        """What stands on it; None if it is none."""
        try:
            with open(self._fd, "rb", buffering=0) as file:
                head = file.read(HEAD.size)
                if len(head) < HEAD.size:
                    return None
                mark, count, began, waits, *figures = HEAD.unpack(head)
                if mark != MARK or not 0 < count <= _MOST_WORKERS:
                    return None
                lines = file.read(count * LINE_BYTES)
        except OSError:
            return None
        return _stats(began, waits, figures), _lines(lines)

    def glance(self) -> Glance:
        stats, lines = self.read() or (Stats(), [])
        threads = {int(name) for name in _names(f"/proc/{self._pid}/task")}
        return glance(stats, lines if stats.workers else [], {line.pid for line in lines} - threads)


def _stats(began: float, waits: float, figures: list[float]) -> Stats:
    values: dict[str, Any] = {
        name: value if name.endswith("_s") else int(value) for name, value in zip(FIGURES, figures, strict=True)
    }
    now = time.monotonic()
    values["wait_s"] += max(0.0, now - waits) if waits else 0.0
    seconds = max(0.0, now - began) if began else 0.0
    size = values["in_flight_batches"] * values["room_bytes"]
    return Stats(**values, seconds=seconds, in_flight_bytes=size)


def _lines(data: bytes) -> list[Line]:
    cells = memoryview(data[: len(data) // LINE_BYTES * LINE_BYTES]).cast("q").tolist()
    width = len(Line._fields)
    return [Line(*cells[at : at + width]) for at in range(0, len(cells), width)]


def boards_of(pid: int) -> Iterator[Board]:
    """The notice boards that a process has open."""
    folder = f"/proc/{pid}/fd"
    for name in sorted(_names(folder), key=int):
        path = os.path.join(folder, name)
        try:
            file = os.stat(path)
        except OSError:  # it has just been closed
            continue
        if not stat.S_ISREG(file.st_mode) or file.st_nlink:  # shared memory is a file without a name
            continue
        found = Board(pid, path, file.st_ino)
        if found.read() is not None:
            yield found


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _why_nothing(pid: int) -> str:
    if not Path("/proc/self/fd").exists():
        return "mpiter top reads /proc, which this system has not; use stats() in the program."
    if not Path(f"/proc/{pid}").exists():
        return f"there is no process {pid}."
    if not os.access(f"/proc/{pid}/fd", os.R_OK):
        return f"process {pid} is another user's; ask as that user, or as root."
    return (
        f"process {pid} has no iterator of mpiter under way; give the number of the process whose loop it is, once it "
        f"has asked for its first batch."
    )


# -- showing it --------------------------------------------------------------------------------------------------------


def _print(views: list[View]) -> None:
    for number, view in enumerate(views, 1):
        if len(views) > 1:
            print(f"iterator {number}")
        print("\n".join(view.lines()), flush=True)


def _in_lines(top: Top, interval_s: float) -> int:
    """A line for each iterator, until the program ends."""
    views = top.look()
    while views:
        for view in views:
            print(view.line(), flush=True)
        time.sleep(interval_s)
        views = _next(top)
    return 0


def _on_terminal(top: Top, interval_s: float) -> int:
    """On the whole screen, until the program ends."""
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError:  # of the extra `live`
        return _in_lines(top, interval_s)
    console, views = Console(), top.look()
    with Live(console=console, auto_refresh=False) as live:
        while views:
            size = console.size
            each = max(2, (size.height - 1) // len(views))
            text = "\n".join("\n".join(view.lines(size.width, each)) for view in views)
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(interval_s)
            views = _next(top)
    return 0


def _next(top: Top) -> list[View]:
    """Another look; none when there is nothing to see any more."""
    try:
        return top.look()
    except MpiterError:
        return []
