"""Clocks, statistics and names: what a turn reads from the operating system and what a run says of its figures.

Runs in the process that is measured (CPU clocks) and in the driver (statistics, machine, commit).
Guarantees: CPU seconds come from the kernel's process clocks, all threads included, parent and workers apart; they are
read while the workers live, because a reaped worker's time can no longer be told from its start-up.
Assumes Linux: `/proc`, and `clock_gettime` on another process's CPU clock.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def process_cpu_s(pid: int) -> float | None:
    """CPU seconds of all threads of a process, None when it is gone; the clock id is that of clock_getcpuclockid(3)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def descendants(root: int) -> set[int]:
    """Every live process below `root`: workers may be children of a fork server."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent(entry), []).append(int(entry.name))
    found: set[int] = set()
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found.update(below)
        pending.extend(below)
    return found


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # gone between the listing and the reading
        return 0


@dataclass(frozen=True)
class Cpu:
    """CPU seconds spent in a window; `changed` says that a worker came or went, so that the figure is a lower bound."""

    parent_s: float
    workers_s: float
    changed: bool


class CpuWindow:
    """Finds the workers when made, reads their clocks at `start()` and `stop()`, which also notices changed workers."""

    def __init__(self) -> None:
        self._workers = descendants(os.getpid())

    def start(self) -> None:
        self._before = {pid: process_cpu_s(pid) for pid in self._workers}
        self._parent = time.process_time()

    def stop(self) -> Cpu:
        parent_s = time.process_time() - self._parent
        after = {pid: process_cpu_s(pid) for pid in self._workers}
        spent = [now - then for then, now in zip(self._before.values(), after.values(), strict=True) if now and then]
        return Cpu(parent_s, sum(spent), descendants(os.getpid()) != self._workers)


@dataclass(frozen=True)
class Spread:
    """Median and interquartile range of one figure over the rounds."""

    median: float
    iqr: float
    values: tuple[float, ...]

    @property
    def relative(self) -> float:
        return self.iqr / self.median if self.median else 0.0


def spread(values: Sequence[float]) -> Spread:
    if len(values) < 2:
        return Spread(values[0], 0.0, tuple(values))
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), high - low, tuple(values))


def machine() -> dict[str, Any]:
    return {
        "node": platform.node(),
        "cpu": _cpu_model(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "cores_present": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Processor")):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit(root: Path) -> dict[str, Any]:
    """The commit measured, and whether the working tree differs from it (results under bench/results aside)."""
    return {
        "id": _git(root, "rev-parse", "--verify", "HEAD"),
        "dirty": bool(_git(root, "status", "--porcelain", "--", ".", ":!bench/results")),
    }


def _git(root: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
