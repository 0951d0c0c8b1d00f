"""What this process may use of the machine: cores and memory.

Cores are counted by affinity and cgroup quota, memory by availability and limits.
/proc and /sys are read where they exist; elsewhere the standard library answers.  The
numbers stay within what the container allows, so that nothing is sized for the whole
host.  What must reach the disk as a whole is written here as well, and files are
locked among the processes of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

BEYOND_REACH = 1 << 62  # bytes, where nothing limits them
_CGROUPS = Path("/sys/fs/cgroup")
# The time between two attempts to lock a file.
_PAUSE_S = 0.01


def cores() -> int:
    """Return the number of cores that this process may use, at least one."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    share = quota()
    if share is not None:
        allowed = min(allowed, int(share))
    return max(1, allowed)


def quota() -> float | None:
    """Return the number of cores that the control groups allow; None for no limit."""
    found = []
    for folder in control_groups():
        # A group of version 2 has both numbers in one file, one of version 1 in two.
        said = text_of(folder / "cpu.max")
        if not said:
            quota_us = text_of(folder / "cpu.cfs_quota_us")
            period_us = text_of(folder / "cpu.cfs_period_us")
            said = f"{quota_us} {period_us}"
        # Without a limit the first is a word, or -1.
        match = re.fullmatch(r"(\d+) ([1-9]\d*)", said)
        if match is not None:
            allowed_us = int(match[1])
            every_us = int(match[2])
            found.append(allowed_us / every_us)
    return min(found, default=None)


def memory_available() -> int:
    """Return the bytes that can be used now without displacing other programs'."""
    found = [meminfo("MemAvailable")]
    for limit, used in _memory_limits():
        found.append(max(0, limit - used))
    return min(found)


def memory_total() -> int:
    """Return the bytes of memory that this process may ever use."""
    found = [meminfo("MemTotal")]
    for limit, _ in _memory_limits():
        found.append(limit)
    return min(found)


def address_space() -> int:
    """Return the bytes of address space that may still be mapped.

    It is an amount beyond reach if there is no limit.
    """
    try:
        import resource
    except ImportError:  # as on Windows
        return BEYOND_REACH
    said = text_of(Path("/proc/self/statm")) or "0"
    pages = int(said.split()[0])
    used = pages * mmap.PAGESIZE
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return BEYOND_REACH
    return max(0, most - used)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the memory limit of each of our control groups, and how much is used."""
    of_version_2 = ("memory.max", "memory.current")
    of_version_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for folder in control_groups():
        for most, now in (of_version_2, of_version_1):
            limit = text_of(folder / most)
            # A group of version 2 without a limit has a word there.
            if not limit.isdigit():
                continue
            used = text_of(folder / now)
            if used.isdigit():
                yield int(limit), int(used)


def control_groups() -> Iterator[Path]:
    """Yield the folders of our own control groups, and all above them.

    The groups may be of version 2 or 1.
    """
    for line in text_of(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        # A group of version 2 names no controllers, and lies in the folder itself.
        for name in controllers.split(","):
            base = _CGROUPS / name
            here = base / path.lstrip("/")
            while here != base and base in here.parents:
                yield here
                here = here.parent
            yield base


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Have the system write a folder's entries to disk.

    ``os.fsync`` of a file does so only with the file's contents.
    """
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def replacing(path: Path, unfinished: str = "") -> Iterator[BinaryIO]:
    """Open a new file in a ``with`` block, which replaces ``path`` at the block's end.

    By then it is complete and on the disk.  An error leaves the old file.  A kill
    leaves both: the new one, which lies beside it under the name ``unfinished``, stays.
    Unless the caller alone writes ``path``, that name must be the process's own, as it
    is if it is left out.
    """
    part = path.with_name(unfinished or f".{path.name}-{os.getpid()}-unfinished")
    part.unlink(missing_ok=True)
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    # Until the folder is on the disk as well, a power cut could bring back the old
    # file.
    sync_folder(path.parent)


@contextlib.contextmanager
def opened_to_lock(
    path: str | os.PathLike[str], flags: int = os.O_RDWR | os.O_CREAT
) -> Iterator[int]:
    """Open a file for locking, and create it if it is missing."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        # Closing alone would leave it locked if a process that was forked meanwhile has
        # the file open too.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def locked_within(fd: int, seconds: float) -> bool:
    """Lock an opened file; return False if others had it locked all this time.

    The system frees the lock even if its process is killed.  It would itself wait
    without a timeout, and a process that has the lock may be stopped.
    """
    until = time.monotonic() + seconds
    is_ours = _try_to_lock(fd)
    while not is_ours and time.monotonic() < until:
        time.sleep(_PAUSE_S)
        is_ours = _try_to_lock(fd)
    return is_ours


def _try_to_lock(fd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def own_bytes(pid: int) -> int:
    """Return the private memory that a process has in use; 0 if it isn't known.

    Pages of files and of shared memory, of which all processes share one copy, aren't
    counted until they are written.
    """
    said = text_of(Path(f"/proc/{pid}/statm")) or "0 0 0"
    _, resident, shared, *_ = said.split()
    pages = int(resident) - int(shared)
    return max(0, pages) * mmap.PAGESIZE


def meminfo(name: str) -> int:
    text = text_of(Path("/proc/meminfo"))
    said = re.search(rf"^{name}: +(\d+) kB", text, re.MULTILINE)
    if said is not None:
        return int(said[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 1 << 32


def stat_of(process: int | str) -> list[str]:
    """Return the fields of /proc/…/stat from the state letter on.

    The list is empty if the process has ended.
    """
    text = text_of(Path(f"/proc/{process}/stat"))
    # The command's name stands before, in parentheses, and may have any characters.
    return text.rpartition(")")[2].split()


def text_of(path: Path) -> str:
    """Return the text of a file of /proc or /sys; an empty string if there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
