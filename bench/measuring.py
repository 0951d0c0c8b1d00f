"""Batches, seconds, processor time, memory and pipes of a loader in full flow.

Runs in the process that is measured.
Guarantees: processor time comes from the kernel's process clocks, all threads included, parent and workers apart; it
is read while the workers live, because a reaped worker's time can no longer be told from its start-up. Memory counts
each page once, however many processes share it. Bytes through pipes are what the workers have passed to `write`.
Assumes Linux: `/proc`, and `clock_gettime` on another process's CPU clock.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpiter import machine
from mpiter.tuning import memory

_LOOK_S = 0.002  # between two looks at the memory, which take some milliseconds themselves


@dataclass(frozen=True)
class Cpu:
    """What was spent in a window; `changed` says that a worker came or went, so that the figures are lower bounds."""

    parent_s: float
    workers_s: float
    changed: bool
    piped: int = 0  # bytes that the workers have written to pipes (and files)

    def ms(self, count: float) -> dict[str, float]:
        """Of one of so many, in milliseconds: both sides together, and each."""
        parent, workers = 1e3 * self.parent_s / count, 1e3 * self.workers_s / count
        return {"cpu_ms": parent + workers, "parent_cpu_ms": parent, "workers_cpu_ms": workers}


class CpuWindow:
    """Finds the workers when made, reads their clocks at `start()` and `stop()`, which also notices changed workers."""

    def __init__(self) -> None:
        self._workers = memory.descendants(os.getpid())

    def start(self) -> None:
        self._before = {pid: machine.cpu_s(pid) for pid in self._workers}
        self._written = {pid: written_bytes(pid) for pid in self._workers}
        self._parent = time.process_time()

    def stop(self) -> Cpu:
        parent_s = time.process_time() - self._parent
        after = {pid: machine.cpu_s(pid) for pid in self._workers}
        both = zip(self._before.values(), after.values(), strict=True)
        spent = [now - then for then, now in both if now is not None and then is not None]
        piped = sum(max(0, written_bytes(pid) - before) for pid, before in self._written.items())
        return Cpu(parent_s, sum(spent), memory.descendants(os.getpid()) != self._workers, piped)


def written_bytes(pid: int) -> int:
    """What a process has passed to `write` so far; 0 where it is gone or the kernel doesn't count."""
    for line in machine.text_of(Path(f"/proc/{pid}/io")).splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


class MemoryWatch(threading.Thread):
    """Looks at the memory again and again, and remembers the most; `with MemoryWatch() as watch: …`, `watch.most`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.most = max(memory.tree_memory() or 0, self.most)

    def __enter__(self) -> MemoryWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def consume(take_one: Callable[[], Any], seconds: float, least: int = 1) -> tuple[int, float]:
    """Batches and seconds, from the arrival of one to that of another, for so long and at least so many."""
    clock = time.perf_counter
    begin = now = clock()
    count = 0
    while now - begin < seconds or count < least:
        take_one()
        count += 1
        now = clock()
    return count, now - begin


def warm_up(take_one: Callable[[], Any], seconds: float, least: int = 4) -> None:
    """What no figure includes: what was fetched ahead while workers started is used up, memory touched.

    The clock is to be started right afterwards: in any pause the workers would get ahead for nothing.
    """
    gc.collect()
    consume(take_one, seconds, least)


def flowing(
    take_one: Callable[[], Any], warmup_s: float, seconds: float, *, warm: int = 4, timed: int = 1
) -> tuple[int, float, Cpu]:
    """Batches, seconds and processor time in full flow, right after a warm-up; at least so many batches of both."""
    window = CpuWindow()
    warm_up(take_one, warmup_s, warm)
    window.start()
    count, took = consume(take_one, seconds, timed)
    return count, took, window.stop()
