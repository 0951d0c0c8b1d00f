"""What the demo reads from the clock and the system, and how it shows progress."""

import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple


class Progress:
    """A line that is rewritten on a terminal.

    Elsewhere there is a new line at every quarter of the way.
    """

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self.began = time.perf_counter()
        self.live = sys.stdout.isatty()

    def step(self, note: str = "") -> None:
        """Count one more that is done, and show it now and then."""
        self.done += 1
        lines = 100 if self.live else 4
        is_due = self.done % max(1, self.total // lines) == 0
        if is_due or self.done == self.total:
            self.show(note)

    def show(self, note: str) -> None:
        """Say how far it is."""
        seconds = time.perf_counter() - self.began
        done = f"{self.done:>5} of {self.total}"
        line = f"  {self.what:<12} {done}  {seconds:5.1f} s  {note}"
        if self.live:
            print(f"\r{line:<78}", end="", flush=True)
        else:
            print(line, flush=True)

    def end(self) -> None:
        """Leave the last line standing."""
        if self.live:
            print()


def side_by_side(names: list[str], rows: dict[str, list[str]]) -> None:
    """Print a table: a column for each name, a row for each title."""
    print(f"  {'':<36}" + "".join(f"{name:>12}" for name in names))
    for title, cells in rows.items():
        print(f"  {title:<36}" + "".join(f"{cell:>12}" for cell in cells))


class Plain:
    """A stream for reports that expect a terminal.

    What moves the cursor is left out.
    """

    def write(self, text: str) -> None:
        """Pass on the text."""
        sys.stdout.write(text.replace("\033[J", ""))

    def flush(self) -> None:
        """Pass it on at once."""
        sys.stdout.flush()


class Cpu(NamedTuple):
    """Seconds of processor time."""

    parent_s: float
    workers_s: float

    def __sub__(self, before: "Cpu") -> "Cpu":
        """Return what was spent since ``before``."""
        return Cpu(self.parent_s - before.parent_s, self.workers_s - before.workers_s)


def cpu_seconds() -> Cpu:
    """Return the processor time so far of this process and of all that it started.

    Workers may be children of a helper process, so the whole tree is added up where the
    system shows it in /proc.
    """
    if not Path("/proc/self/stat").exists():
        times = os.times()
        return Cpu(
            times.user + times.system, times.children_user + times.children_system
        )
    parent = {}
    ticks = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            # The process has ended since the folder was listed.
            continue
        pid = int(stat.parent.name)
        parent[pid] = int(fields[1])
        # User and system time of the process, then those of its children that ended.
        ticks[pid] = list(map(int, fields[11:15]))
    ours = sum(sum(ticks[pid]) for pid in parent if is_ours(pid, parent))
    second = os.sysconf("SC_CLK_TCK")
    own = sum(ticks[os.getpid()][:2])
    return Cpu(own / second, (ours - own) / second)


def is_ours(pid: int, parent: dict[int, int]) -> bool:
    """Tell whether the process is this one or descends from it."""
    while pid in parent and pid != os.getpid():
        pid = parent[pid]
    return pid == os.getpid()


def clock(iterator: Any) -> list[float]:
    """Return a list in which each ``iterator.next()`` notes how long it took."""
    waits = list[float]()
    following = iterator.next

    def clocked() -> Any:
        began = time.perf_counter()
        try:
            return following()
        finally:
            waits.append(time.perf_counter() - began)

    iterator.next = clocked
    return waits
