"""Batches, seconds, processor time, memory and pipes of a loader in full flow.

Runs in the process that is measured. Guarantees: processor time comes from the kernel's
process clocks, all threads included, parent and workers apart; it is read while the
workers live, because a reaped worker's time can no longer be told from its start-up.
Memory counts each page once, however many processes share it. Bytes through pipes are
what the workers have passed to `write`. Assumes Linux: `/proc`, and `clock_gettime` on
another process's CPU clock.
"""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpiter import machine

# Seconds between two looks at the memory, which take some milliseconds themselves.
_LOOK_S = 0.002


@dataclass(frozen=True)
class Cpu:
    """What was spent in a window.

    `changed` says that a worker came or went, so that the figures are lower bounds.
    """

    parent_s: float
    workers_s: float
    changed: bool
    # Bytes that the workers have written to pipes (and to files).
    piped: int = 0

    def ms(self, count: float) -> dict[str, Any]:
        """Return the milliseconds for one of ``count``.

        They are of both sides together, then of each; the last value tells whether
        workers changed.
        """
        parent = 1e3 * self.parent_s / count
        workers = 1e3 * self.workers_s / count
        times = {
            "cpu_ms": parent + workers,
            "parent_cpu_ms": parent,
            "workers_cpu_ms": workers,
        }
        return times | {"workers_changed": self.changed}


class CpuWindow:
    """Finds the workers when made, and reads their clocks.

    It reads them at `start()` and at `stop()`, which also notices changed workers.
    """

    def __init__(self) -> None:
        self._workers = descendants(os.getpid())

    def start(self) -> None:
        self._before = {pid: cpu_s(pid) for pid in self._workers}
        self._written = {pid: written_bytes(pid) for pid in self._workers}
        self._parent = time.process_time()

    def stop(self) -> Cpu:
        parent_s = time.process_time() - self._parent
        after = {pid: cpu_s(pid) for pid in self._workers}
        both = zip(self._before.values(), after.values(), strict=True)
        spent = [
            now - then for then, now in both if now is not None and then is not None
        ]
        piped = sum(
            max(0, written_bytes(pid) - before) for pid, before in self._written.items()
        )
        return Cpu(
            parent_s, sum(spent), descendants(os.getpid()) != self._workers, piped
        )


def cpu_s(pid: int) -> float | None:
    """Return a process's seconds of processor, in all threads; None when it is gone."""
    try:
        # This is the clock that clock_getcpuclockid(3) names.
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, AttributeError):
        return None


def descendants(root: int) -> set[int]:
    """Return every live process below ``root``.

    Workers may be children of a fork server.
    """
    stats = {
        int(name): machine.stat_of(name)
        for name in os.listdir("/proc")
        if name.isdigit()
    }
    parents = {pid: int(stat[1]) for pid, stat in stats.items() if stat}
    found = set[int]()
    below = {root}
    while below := {pid for pid, parent in parents.items() if parent in below} - found:
        found |= below
    return found


def tree_memory() -> int | None:
    """Return the bytes held by this process and all below it; None if uncounted here.

    They are private ones, files mapped, and shared memory.
    """
    pids = {os.getpid(), *descendants(os.getpid())}
    sums = Counter[str]()
    for pid in pids:
        text = machine.text_of(Path(f"/proc/{pid}/smaps_rollup"))
        for name, kilobytes in re.findall(r"^Pss_(\w+): +(\d+)", text, re.M):
            sums[name] += 1024 * int(kilobytes)
    if not sums:
        return None
    # An open page that isn't mapped is in no process's sum, and one that is mapped
    # without a descriptor is in no open file. So take the larger of both.
    shared = max(sums["Shmem"], _open_shared_memory(pids))
    return sums["Anon"] + sums["File"] + shared


def _open_shared_memory(pids: Iterable[int]) -> int:
    """Return the bytes of memfds and files in /dev/shm that these processes have open.

    Each file counts once.
    """
    sizes = {}
    for pid in pids:
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if os.readlink(descriptor).startswith(("/memfd:", "/dev/shm/")):
                        about = descriptor.stat()
                        sizes[about.st_dev, about.st_ino] = 512 * about.st_blocks
    return sum(sizes.values())


def written_bytes(pid: int) -> int:
    """Return the bytes that a process has passed to `write`.

    They are 0 where it is gone or the kernel doesn't count.
    """
    for line in machine.text_of(Path(f"/proc/{pid}/io")).splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


class MemoryWatch(threading.Thread):
    """Looks at the memory again and again, and remembers the most.

    Use it as `with MemoryWatch() as watch: …`, then read `watch.most`.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.most = max(tree_memory() or 0, self.most)

    def __enter__(self) -> MemoryWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def consume(
    take_one: Callable[[], Any], seconds: float, least: int = 1
) -> tuple[int, float]:
    """Return batches and seconds, from the arrival of one to that of another.

    It goes on for so long, and for at least so many.
    """
    clock = time.perf_counter
    begin = now = clock()
    count = 0
    while now - begin < seconds or count < least:
        take_one()
        count += 1
        now = clock()
    return count, now - begin


def warm_up(take_one: Callable[[], Any], seconds: float, least: int = 4) -> None:
    """Use up the batches fetched while workers started, and touch memory.

    No figure includes that.

    Start the clock right afterwards: in a pause the workers would get ahead.
    """
    gc.collect()
    consume(take_one, seconds, least)


def flowing(
    take_one: Callable[[], Any],
    warmup_s: float,
    seconds: float,
    *,
    warm: int = 4,
    timed: int = 1,
) -> tuple[int, float, Cpu]:
    """Measure batches, seconds and processor time in full flow, after a warm-up.

    Each part has at least so many batches.
    """
    window = CpuWindow()
    warm_up(take_one, warmup_s, warm)
    window.start()
    count, took = consume(take_one, seconds, timed)
    return count, took, window.stop()
