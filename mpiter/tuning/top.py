"""`mpiter top PID`: what the iterators of a running program are doing, seen from another process.

Nothing is asked of the program: its notice boards lie in shared memory that it has open, and which the same user (or
root) may read by way of ``/proc/PID/fd``; workers' memory comes from ``/proc`` too.  Guarantees that the program
notices nothing, and an error that says why when there is nothing to see.  Linux only.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any

from ..errors import MpiterError
from ..stats import Stats
from ..worker.board import FIGURES, HEAD, LINE_BYTES, MARK, Line
from .command import above_zero
from .live import screen_for
from .screen import View, Watcher

_MOST_WORKERS = 4096
_INTERVAL_S = 1.0


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand."""
    parser = commands.add_parser("top", help="what a running program's iterators and workers do, seen from outside")
    parser.add_argument("pid", type=int, metavar="PID", help="of the program that iterates")
    parser.add_argument("--once", action="store_true", help="print what there is to see, and end")
    parser.add_argument("--interval", type=above_zero, default=_INTERVAL_S, metavar="S", help="seconds between looks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    top = Top(options.pid)
    views = top.look()
    if not views:
        raise MpiterError(_why_nothing(options.pid))
    if options.once:
        time.sleep(min(options.interval, _INTERVAL_S))  # rates take two looks
        print("\n".join(line for view in top.look() for line in view.lines()))
        return 0
    screen = screen_for(sys.stdout, 0.0)
    try:
        while views:  # until the program ends
            screen.show(views, is_last=False)
            time.sleep(options.interval)
            views = top.look()
    finally:
        screen.close()
    return 0


class Top:
    """The iterators of one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._watchers: dict[int, Watcher] = {}  # by the inode of a board

    def look(self) -> list[View]:
        """One view for each iterator."""
        boards = dict(boards_of(self._pid))
        self._watchers = {inode: self._watchers.get(inode) or Watcher() for inode in boards}
        threads = {int(name) for name in _names(f"/proc/{self._pid}/task")}
        return [
            self._watchers[inode].view(stats, lines if stats.workers else [], {line.pid for line in lines} - threads)
            for inode, (stats, lines) in boards.items()
        ]


def boards_of(pid: int) -> Iterator[tuple[int, tuple[Stats, list[Line]]]]:
    """The notice boards that a process has open, and their inodes."""
    folder = f"/proc/{pid}/fd"
    for name in sorted(_names(folder), key=int):
        path = os.path.join(folder, name)
        try:
            file = os.stat(path)
            if not stat.S_ISREG(file.st_mode) or file.st_nlink:  # shared memory is a file without a name
                continue
            found = _read(path)
        except OSError:  # it has just been closed
            continue
        if found is not None:
            yield file.st_ino, found


def _read(path: str) -> tuple[Stats, list[Line]] | None:
    """What stands on a board; None if it is none."""
    with open(path, "rb", buffering=0) as file:
        head = file.read(HEAD.size)
        if len(head) < HEAD.size:
            return None
        mark, count, began, waits, *figures = HEAD.unpack(head)
        if mark != MARK or not 0 < count <= _MOST_WORKERS:
            return None
        data = file.read(count * LINE_BYTES)
    cells = memoryview(data[: len(data) // LINE_BYTES * LINE_BYTES]).cast("q").tolist()
    width, fields, now = LINE_BYTES // 8, len(Line._fields), time.monotonic()
    values: dict[str, Any] = {
        name: value if name.endswith("_s") else int(value) for name, value in zip(FIGURES, figures, strict=True)
    }
    values["wait_s"] += max(0.0, now - waits) if waits else 0.0
    stats = Stats(**values, seconds=max(0.0, now - began) if began else 0.0)
    return stats, [Line(*cells[at : at + fields]) for at in range(0, len(cells), width)]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _why_nothing(pid: int) -> str:
    if not os.path.exists("/proc/self/fd"):
        return "mpiter top reads /proc, which this system has not; use stats() in the program."
    if not os.access(f"/proc/{pid}/fd", os.R_OK):
        return f"there is no process {pid}, or it is another user's; ask as that user, or as root."
    return f"process {pid} has no iterator of mpiter under way; name the process whose loop it is, once that runs."
