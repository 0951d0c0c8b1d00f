"""``mpiter doctor``: checks whether mpiter works on this machine, and says what to do if it doesn't.

Start methods, which might hang or crash, are tried in another process, which has a minute.  Guarantees that a check
that fails is reported as a finding, never as a traceback, and that a warning comes with a remedy.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import mmap
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

from . import machine
from .transport import memory as shared

_PACKAGES = (
    *("numpy", "cloudpickle", "threadpoolctl"),
    *("torch", "jax", "chainer", "Pillow", "simplejpeg"),
)
_GB = 1 << 30
_LIMIT_S = 60.0  # for a start method
GOOD = "good"  # nothing to do
WARN = "WARN"  # something may fail or be slow unless the remedy is applied
BAD = "BAD"  # mpiter does not work here with its defaults
_TRY_START = """
import time, mpiter
began = time.perf_counter()
with mpiter.batches([7, 7], 2, n_processes=1, backend=mpiter.Process({method!r})) as stream:
    assert list(next(stream)) == [7, 7]
print(f"{{time.perf_counter() - began:.1f}} s")
"""


class Finding(NamedTuple):
    """The result of one check, and the remedy if something is wrong."""

    status: str
    found: str
    remedy: str = ""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``doctor`` to ``commands``."""
    about = "Examine this machine: packages, start methods, shared memory, memory, limits, cores."
    parser = commands.add_parser("doctor", help="is this machine fit? what to do if not", description=about)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run all checks and print each finding; return 1, for the exit status, if one is BAD, else 0."""
    is_bad = False
    for check in CHECKS:
        try:
            status, found, remedy = check()
        except Exception as error:
            status, found, remedy = WARN, f"could not be examined ({type(error).__name__}: {error})", ""
        told = f"{status:6}{check.__name__.replace('_', ' '):16}{found}" + f"  → {remedy}" * bool(remedy)
        print(textwrap.fill(told, 118, subsequent_indent=" " * 22, break_on_hyphens=False), flush=True)
        is_bad |= status is BAD
    return int(is_bad)


def software() -> Finding:
    found = [f"Python {sys.version} on {platform.platform()}"]
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return Finding(GOOD, ", ".join(found))


def start_methods() -> Finding:
    """Measure how long it takes to the first batch with each start method."""
    default = "forkserver" if sys.platform == "linux" else "spawn"
    works, told = [], []
    for method in multiprocessing.get_all_start_methods():
        try:
            told.append(f"{method} {ask(_TRY_START.format(method=method), _LIMIT_S)}")
            works.append(method)
        except RuntimeError as error:
            told.append(f"{method} fails ({error})")
    found = f"to the first batch: {', '.join(told)}; {default} is the default"
    if default in works:
        return Finding(GOOD, found)
    if works:
        return Finding(BAD, found, f"pass backend=mpiter.Process({works[0]!r}).")
    return Finding(BAD, found, "do what the other findings say; failing that, pass backend='thread'.")


def shared_memory() -> Finding:
    """Check whether a memfd can be used, or else an unlinked file."""
    remedy = (
        "let the sandbox permit memfd_create, fallocate and mmap (docker run --security-opt seccomp=…), or set TMPDIR "
        "to a folder in memory (a tmpfs)."
    )
    faults = []
    for name, make in (("memfd", shared.memfd), (f"unlinked files in {tempfile.gettempdir()}", shared.unlinked_file)):
        try:
            _use(make())
        except (OSError, AttributeError) as error:
            faults.append(f"no {name} ({error})")
        else:
            found = "; ".join([*faults, f"{name}: works"])
            return Finding(WARN, found, remedy) if faults else Finding(GOOD, found)
    return Finding(BAD, "; ".join(faults), remedy)


def memory() -> Finding:
    available, total, host = machine.memory_available(), machine.memory_total(), machine.meminfo("MemTotal")
    found = f"{_amount(available)} of {_amount(total)} available"
    if total < host:
        found += f", by control group; the machine has {_amount(host)}"
    if kills := machine.out_of_memory_kills():
        found += f"; {kills} processes of this control group were killed for memory so far"
    if available >= _GB:
        return Finding(GOOD, found)
    remedy = "end other programs, raise the container's limit (docker run --memory), or lower batch_size, n_prefetch, "
    return Finding(WARN, found, remedy + "run_ahead or n_processes.")


def limits() -> Finding:
    """Check the limits of ulimit -n and -u, and pids.max of the control groups."""
    workers, files, processes = machine.cores(), machine.limit("RLIMIT_NOFILE"), _processes_left()
    want_files, want_processes = 48 + 4 * workers, 16 + 4 * workers  # measured, with threads and the fork server
    found, remedies = [], []
    if files < want_files:
        found.append(f"{files} open files allowed, {want_files} wanted")
        remedies.append("ulimit -n 1024 (docker run --ulimit nofile=1024)")
    if processes < want_processes:
        found.append(f"{processes} more processes and threads allowed, {want_processes} wanted")
        remedies.append("ulimit -u 4096 (docker run --pids-limit=4096)")
    if not found:
        return Finding(GOOD, f"files and processes are enough for {workers} workers")
    return Finding(WARN, "; ".join(found), f"{', '.join(remedies)}; or fewer n_processes.")


def cores() -> Finding:
    present, quota = os.cpu_count() or 1, machine.quota()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    found = f"{present}; n_processes=None takes {machine.cores()}"
    if affinity < present:
        found += f"; affinity allows {affinity}"
    if quota is not None:
        found += f"; the control group allows {quota:g}"
        if quota < 1:
            return Finding(
                WARN, found, "docker run --cpus=2: program and workers share less than one; or n_processes=0."
            )
    return Finding(GOOD, found)


CHECKS = (software, start_methods, shared_memory, memory, limits, cores)


def ask(code: str, seconds: float) -> str:
    """Run ``code`` in another Python and return what it prints; a RuntimeError says in one line what went wrong."""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer within {seconds:g} s") from None
    if done.returncode:
        last = (done.stderr.strip() or f"ended with exit code {done.returncode}").splitlines()[-1]
        raise RuntimeError(textwrap.shorten(last, 160, placeholder=" …"))
    return done.stdout.strip()


def _use(descriptor: int) -> None:
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as mapped:
            mapped[:1] = b"x"
    finally:
        os.close(descriptor)


def _processes_left() -> int:
    """Return the number of processes and threads that the control groups and ulimit -u still allow."""
    left = [machine.BEYOND_REACH]
    for folder in machine.control_groups():
        most, now = machine.text_of(folder / "pids.max"), machine.text_of(folder / "pids.current")
        if most.isdigit() and now.isdigit():
            left.append(int(most) - int(now))
    allowed = machine.limit("RLIMIT_NPROC")
    if allowed != machine.BEYOND_REACH and os.getuid():
        owners = [path.stat().st_uid for path in Path("/proc").glob("[0-9]*/task/[0-9]*")]
        left.append(allowed - owners.count(os.getuid()))
    return min(left)


def _amount(size: int) -> str:
    return f"{size / _GB:,.1f} GB"
