"""Is the system fit for mpiter: what to think of its memory, limits, cores and clock.

From values to a ``Finding``, wherever it is called; asks nothing of the machine (``probes`` does), so that every
verdict is tested with values.  Guarantees that a remedy names the command or the option.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection

from .finding import Finding, Status, Trial

_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30
_FILES, _FILES_PER_WORKER = 24, 4  # measured: 21 for a program and its crew, 2 a worker, more while one starts
_SOCKET_FOLDER = 64  # characters; mpiter.pool.starting puts its socket into /tmp where the folder's name is longer
_GOOD_CLOCKS = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"}  # read without a system call
_OTHERS_NEED_IT = "mpiter doesn't need it, but torch's and Chainer's own loaders do"


def shared_memory(memfd: Trial | None, file: Trial, folder: str) -> Finding:
    """Whether a memfd can be made and used (None: unknown to this system), or an unlinked file in its place."""
    subject = "shared memory"
    if memfd is not None and not memfd.error:
        return Finding(subject, Status.GOOD, "memfd works: no mount bounds it, nothing named is left behind")
    found = "no memfd on this system" if memfd is None else f"memfd fails ({memfd.error})"
    permit = "let the sandbox permit memfd_create, fallocate and mmap (docker run --security-opt seccomp=PROFILE.json)"
    memory = f"set TMPDIR to a folder in memory (a tmpfs, a RAM disk) if {folder} is on a disk"
    if file.error:
        remedy = permit if memfd else "set TMPDIR to a folder that can be written"
        return Finding(
            subject, Status.BAD, f"{found}, nor does an unlinked file in {folder} ({file.error})", f"{remedy}."
        )
    status = Status.NOTE if memfd is None else Status.WARN
    remedy = f"{permit}; or {memory}." if memfd else f"{memory}."
    return Finding(subject, status, f"{found}: unlinked files in {folder}", remedy)


def dev_shm(size: int | None, free: int, linux: bool = True) -> Finding:
    """The mount that other loaders put batches on, and multiprocessing its locks; None: it can't be written."""
    if not linux:
        return Finding("/dev/shm", Status.GOOD, "unknown to this system")
    remedy = "docker run --shm-size=2g (or --ipc=host); in Kubernetes mount an emptyDir of medium Memory there."
    if size is None:
        return Finding("/dev/shm", Status.NOTE, f"missing or not writable: {_OTHERS_NEED_IT}", remedy)
    found = f"{_amount(free)} of {_amount(size)} free"
    if size < _GB:
        return Finding("/dev/shm", Status.NOTE, f"{found}: {_OTHERS_NEED_IT}", remedy)
    if free < 64 * _MB:
        remedy = "ls -l /dev/shm, and remove what ended programs have left."
        return Finding("/dev/shm", Status.NOTE, f"{found}: {_OTHERS_NEED_IT}", remedy)
    return Finding("/dev/shm", Status.GOOD, found)


def memory(available: int, total: int, host: int, kills: int) -> Finding:
    """Bytes that we may use now and at most, those of the machine, and how often the killer has come."""
    found = f"{_amount(available)} of {_amount(total)} available"
    if limited := total < host:
        found += f", by control group; the machine has {_amount(host)}"
    more = "raise the container's limit (docker run --memory)" if limited else "end other programs"
    less = "lower batch_size, n_prefetch, run_ahead or n_processes"
    if available < 128 * _MB:
        return Finding("memory", Status.BAD, found, f"{more}, or pass n_processes=0 and a smaller batch_size.")
    if available < _GB:
        return Finding("memory", Status.WARN, found, f"{more}, or {less}.")
    if kills:
        found += f"; {kills} processes of this control group were killed for memory so far"
        return Finding("memory", Status.NOTE, found, f"if they were yours: {more}, or {less}.")
    return Finding("memory", Status.NOTE if limited else Status.GOOD, found)


def address_space(left: int | None, file_size: int | None) -> Finding:
    """Bytes that may still be mapped, and that a file (a memfd is one) may have; None: no limit."""
    bounds = {"ulimit -v": left, "ulimit -f": file_size}
    bounded = {name: size for name, size in bounds.items() if size is not None}
    if not bounded:
        return Finding("address space", Status.GOOD, "unlimited, and so is the size of files")
    found = ", ".join(f"{name} leaves {_amount(size)}" for name, size in bounded.items())
    remedy = f"{' and '.join(f'{name} unlimited' for name in bounded)} before the program starts."
    smallest = min(bounded.values())
    if smallest < 64 * _MB:
        return Finding("address space", Status.BAD, found, remedy)
    return Finding("address space", Status.WARN if smallest < 4 * _GB else Status.NOTE, found, remedy)


def overcommit(mode: int, left: int) -> Finding:
    """vm.overcommit_memory, and the bytes that strict accounting would still grant."""
    if mode != 2:
        return Finding("overcommit", Status.GOOD, f"vm.overcommit_memory is {mode}")
    found = f"vm.overcommit_memory is 2 and {_amount(left)} are left: forking a large program can fail with ENOMEM"
    remedy = (
        "as root: sysctl vm.overcommit_memory=0; or keep to the default start method, which doesn't fork your program."
    )
    return Finding("overcommit", Status.WARN if left < _GB else Status.NOTE, found, remedy)


def open_files(soft: int | None, hard: int | None, workers: int) -> Finding:
    """RLIMIT_NOFILE (None: unlimited) against what a crew of ``workers`` takes."""
    needed = 2 * _FILES + _FILES_PER_WORKER * workers  # the program has files of its own
    if soft is None or soft >= needed:
        return Finding("open files", Status.GOOD, f"{'unlimited' if soft is None else soft} allowed")
    wanted = max(1024, needed)
    way = f"ulimit -n {wanted}"
    if hard is not None and hard < wanted:
        way = f"docker run --ulimit nofile={wanted}, or as root a line in /etc/security/limits.conf"
    status = Status.BAD if soft < _FILES + 4 * _FILES_PER_WORKER else Status.WARN
    return Finding(
        "open files", status, f"{soft} allowed, {workers} workers want {needed}", f"{way}; or fewer n_processes."
    )


def processes(allowed: int | None, running: int, room: int | None, workers: int) -> Finding:
    """RLIMIT_NPROC, against all that the user runs, and what pids.max of the control groups leaves."""
    needed = 4 * workers + 16  # processes and their threads, the fork server, the resource tracker
    left = None if allowed is None else max(0, allowed - running)
    told = [f"ulimit -u allows the user {allowed}, who runs {running}"] if allowed is not None else []
    told += [f"the control group allows {room} more"] if room is not None else []
    found = ", ".join(told) or "unlimited"
    smallest = min((count for count in (left, room) if count is not None), default=needed)
    if smallest >= needed:
        return Finding("processes", Status.GOOD, found)
    wanted = max(4096, running + needed)
    ways = [f"ulimit -u {wanted}"] if left is not None and left < needed else []
    ways += [f"docker run --pids-limit={wanted}"] if room is not None and room < needed else []
    status = Status.BAD if smallest < 8 else Status.WARN
    found += f"; {workers} workers want about {needed}"
    return Finding("processes", status, found, f"{' and '.join(ways)}; or fewer n_processes.")


def cores(present: int, affinity: int, quota: float | None) -> Finding:
    """The cores of the machine, those that we may run on, and how many of them at a time."""
    bounds = [f"affinity allows {affinity}"] if affinity < present else []
    if quota is not None and quota < affinity:
        bounds.append(f"the control group allows {quota:g}")
    allowed = max(1, min(affinity, math.floor(affinity if quota is None else quota)))
    if not bounds:
        return Finding("cores", Status.GOOD, f"{present}, all ours; n_processes=None takes {allowed}")
    found = f"{present}, but {' and '.join(bounds)}; n_processes=None takes {allowed}, os.cpu_count() says {present}"
    if quota is not None and quota < 1:
        remedy = "docker run --cpus=2: less than one core is shared by program and workers; or pass n_processes=0."
        return Finding("cores", Status.WARN, found, remedy)
    remedy = (
        f"tell libraries that ask os.cpu_count() to use {allowed} (PYTHON_CPU_COUNT={allowed} from Python 3.13 on)."
    )
    return Finding("cores", Status.NOTE, found, remedy)


def temporary_files(folder: str | None, tmp_is_writable: bool) -> Finding:
    """The folder for temporary files, where the fork server's socket begins, and whether /tmp can take its place."""
    remedy = "set TMPDIR to a writable folder with at most 64 characters."
    if folder is None:
        return Finding("temporary files", Status.BAD, "no folder for them can be written", remedy)
    if len(os.fsencode(folder)) <= _SOCKET_FOLDER:
        return Finding("temporary files", Status.GOOD, f"in {folder}")
    found = f"{folder} is too long a name for a socket, which goes to /tmp"
    if tmp_is_writable:
        return Finding("temporary files", Status.NOTE, found)
    return Finding("temporary files", Status.BAD, f"{found}, which cannot be written", remedy)


def first_process(pid: int, uncollected: int) -> Finding:
    """Our own number, and how many dead processes the first one has not collected."""
    if uncollected:
        found = f"{uncollected} dead processes that process 1 does not collect; each keeps its number"
        return Finding("process 1", Status.WARN, found, "docker run --init: an init that collects them.")
    if pid == 1:
        found = "that is us: nobody collects the orphans of ended programs, and SIGTERM is ignored"
        return Finding("process 1", Status.NOTE, found, "docker run --init")
    return Finding("process 1", Status.GOOD, "leaves no dead processes lying about")


def clock(source: str, available: Collection[str]) -> Finding:
    """The clock that the kernel counts by; with most of them, to read the time is a system call."""
    if not source or source in _GOOD_CLOCKS:
        return Finding("clock", Status.GOOD, source or "the system's")
    better = next((name for name in available if name in _GOOD_CLOCKS), "")
    file = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    remedy = f"as root: echo {better} > {file}" if better else ""
    return Finding("clock", Status.NOTE, f"{source}: to read the time takes a system call, several a batch", remedy)


def _amount(size: int) -> str:
    for unit, name in ((_GB, "GB"), (_MB, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size // unit} {name}"
    return f"{size // _KB} KB"
