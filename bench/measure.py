"""Clocks, memory, statistics and names: what a turn reads from the operating system, what a run says of its figures.

Runs in the process that is measured (CPU clocks, memory) and in the driver (processes, statistics, machine, commit).
Guarantees: CPU seconds come from the kernel's process clocks, all threads included, parent and workers apart; they are
read while the workers live, because a reaped worker's time can no longer be told from its start-up. Memory counts each
page once, however many processes share it, and shared memory whether it is mapped or not.
Assumes Linux: `/proc`, and `clock_gettime` on another process's CPU clock.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
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


def tree_memory() -> int:
    """Bytes held by this process and all below it: private ones, files mapped, shared memory."""
    pids = {os.getpid(), *descendants(os.getpid())}
    sums: dict[str, int] = {}
    for pid in pids:
        for line in _lines(Path(f"/proc/{pid}/smaps_rollup")):
            if line.startswith("Pss_"):
                name, kilobytes = line.split()[:2]
                sums[name] = sums.get(name, 0) + 1024 * int(kilobytes)
    # A page that nobody has mapped is nobody's; one that is mapped without a descriptor is in no open file.
    shared = max(sums["Pss_Shmem:"], _open_shared_memory(pids))
    return sums["Pss_Anon:"] + sums["Pss_File:"] + shared


def _open_shared_memory(pids: Iterable[int]) -> int:
    """Bytes of the memfds and the files in /dev/shm that these processes have open, each once."""
    sizes = {}
    for pid in pids:
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if os.readlink(descriptor).startswith(("/memfd:", "/dev/shm/")):
                        about = descriptor.stat()
                        sizes[about.st_dev, about.st_ino] = 512 * about.st_blocks
    return sum(sizes.values())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # the process is gone
        return []


def answer_of(script: Path, turn: dict[str, Any], timeout: float, *paths: Path) -> dict[str, Any]:
    """What `script --turn` answers in a process of its own, whose session then ends; what went wrong is an answer too.

    `paths` are where it imports from first: this checkout is to be measured, not an installed mpiter.
    """
    command = [sys.executable, "-W", "ignore", str(script), "--turn", json.dumps(turn)]
    search = [*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(search)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, complaints = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return turn | {"error": f"gave no answer within {timeout:g} s"}
        finally:
            with suppress(ProcessLookupError):  # all of its workers are gone, as they should be
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        return turn | {"error": (complaints.strip().splitlines() or ["no message"])[-1]}
    return turn | json.loads(out.splitlines()[-1])


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


def summary(answers: list[dict[str, Any]], case: str, row: str, figures: Sequence[str]) -> dict[str, Spread]:
    """The figures of one row of one case over the rounds, or nothing."""
    found = [answer for answer in answers if (answer["case"], answer["row"]) == (case, row) and "error" not in answer]
    return {figure: spread([answer[figure] for answer in found]) for figure in figures} if found else {}


def heading(schema: str, root: Path, began: float, load: tuple[float, float, float]) -> dict[str, Any]:
    """What each JSON answer begins with."""
    return {
        "schema": schema,
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began)),
        "took_s": time.time() - began,
        "machine": machine() | {"load_before": load, "load_after": os.getloadavg()},
        "commit": commit(root),
    }


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
