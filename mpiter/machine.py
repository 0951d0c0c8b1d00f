"""What this process may use of the machine: cores by affinity and cgroup quota, memory by availability and limit.

Reads /proc and /sys where they exist and falls back on the standard library elsewhere.  Guarantees numbers within
what the container allows, so that nothing is sized for a host that isn't ours.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

_BEYOND_REACH = 1 << 62
_CGROUPS = Path("/sys/fs/cgroup")


def cores() -> int:
    """How many cores we may run on, at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroup_folders():
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            allowed = min(allowed, max(1, int(quota) // int(period)))
    return max(1, allowed)


def memory_available() -> int:
    """Bytes that can be used now without driving anyone out."""
    free = _meminfo("MemAvailable")
    for limit, used in _memory_limits():
        free = min(free, max(0, limit - used))
    return free


def memory_total() -> int:
    """Bytes of memory that we may ever use."""
    return min([_meminfo("MemTotal"), *(limit for limit, _ in _memory_limits())])


def out_of_memory_kills() -> int:
    """How many processes of our control groups the out-of-memory killer has ended so far; 0 where nobody counts."""
    found = [0]
    for folder in _cgroup_folders():
        for line in (_read(folder / "memory.events") or _read(folder / "memory.oom_control")).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                found.append(int(count))
    return max(found)


def address_space() -> int:
    """Bytes that may still be mapped; an amount beyond reach where there is no limit."""
    try:
        import resource
    except ImportError:
        return _BEYOND_REACH
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return _BEYOND_REACH
    used = int((_read(Path("/proc/self/statm")) or "0").split()[0]) * resource.getpagesize()
    return max(0, limit - used)


def _memory_limits() -> Iterator[tuple[int, int]]:
    for limit_file, used_file in _memory_files():
        limit, used = _read(limit_file), _read(used_file)
        if limit.isdigit() and used.isdigit():
            yield int(limit), int(used)


@functools.cache
def _memory_files() -> list[tuple[Path, Path]]:
    names = [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")]
    files = [(folder / limit, folder / used) for folder in _cgroup_folders() for limit, used in names]
    return [(limit, used) for limit, used in files if limit.exists()]


def _cgroup_folders() -> Iterator[Path]:
    """The folders of our own control groups and all above them, version 2 and 1."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        for base in [_CGROUPS / name for name in controllers.split(",")] if controllers else [_CGROUPS]:
            here = base / path.lstrip("/")
            while here != base and base in here.parents:
                yield here
                here = here.parent
            yield base


def _meminfo(name: str) -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 1 << 32


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
