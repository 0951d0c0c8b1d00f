"""``mpiter doctor``: checks whether mpiter works on this machine, and says what to do if it doesn't.

What might hang or crash (start methods) is tried in a separate process, which is ended with all its children after a
time limit.  Guarantees that a check that fails is reported as a finding, never as a traceback, that a warning comes
with a remedy, and that no process is left running.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import mmap
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

from . import machine
from .transport import memory as shared

_NEEDED = ("numpy", "msgpack", "cloudpickle", "threadpoolctl")  # pip has installed suitable versions
_SEEN = ("torch", "jax", "chainer", "Pillow", "simplejpeg", "opencv-python-headless")
_TESTED = (3, 13)  # the newest Python that the tests run on
_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30
GOOD = "good"  # nothing to do
NOTE = "note"  # nothing to do, but good to know
WARN = "WARN"  # something will fail or be slow unless the remedy is applied
BAD = "BAD"  # mpiter does not work here with its defaults
_TRY_START = """
import time, mpiter
began = time.perf_counter()
with mpiter.batches([7, 7], 2, n_processes=1, backend=mpiter.Process({method!r})) as stream:
    assert list(next(stream)) == [7, 7]
print(time.perf_counter() - began)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and the remedy if something is wrong."""

    status: str
    found: str
    remedy: str = ""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``doctor`` to ``commands``."""
    about = "Examine this machine: packages, start methods, shared memory, memory, limits, cores."
    parser = commands.add_parser("doctor", help="is this machine fit? what to do if not", description=about)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run all checks and print each finding; return 1, for the exit status, if one is BAD, else 0."""
    findings = {}
    for check in CHECKS:
        subject = check.__name__.replace("_", " ")
        try:
            finding = check()
        except Exception as error:
            finding = Finding(NOTE, f"could not be examined ({type(error).__name__}: {error})")
        findings[subject] = finding
        if not options.json:
            print(as_text(subject, finding), flush=True)
    if options.json:
        told = [{"subject": subject, **dataclasses.asdict(finding)} for subject, finding in findings.items()]
        print(json.dumps({"schema": "mpiter.doctor/1", "findings": told}, indent=1))
    return int(any(finding.status is BAD for finding in findings.values()))


def as_text(subject: str, finding: Finding) -> str:
    told = f"{finding.status:6}{subject:16}{finding.found}" + f"  → {finding.remedy}" * bool(finding.remedy)
    return textwrap.fill(told, 118, subsequent_indent=" " * 22, break_on_hyphens=False)


def software() -> Finding:
    build = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    build += "" if getattr(sys, "_is_gil_enabled", lambda: True)() else " without the GIL"
    versions = {name: _version(name) for name in (*_NEEDED, *_SEEN)}
    found = ", ".join([build, *(f"{name} {version}" for name, version in versions.items() if version)])
    if sys.version_info[:2] > _TESTED:
        return Finding(NOTE, f"{found}; mpiter is tested up to Python {_TESTED[0]}.{_TESTED[1]}")
    return Finding(GOOD, found)


def start_methods() -> Finding:
    """Measure how long it takes to the first batch with each start method."""
    default = "forkserver" if sys.platform == "linux" else "spawn"
    works, told = {}, []
    for method in multiprocessing.get_all_start_methods():
        try:
            works[method] = float(ask(_TRY_START.format(method=method), 60))
            told.append(f"{method} {works[method]:.1f} s")
        except RuntimeError as error:
            told.append(f"{method} fails ({error})")
    found = f"to the first batch: {', '.join(told)}; {default} is the default"
    if not works:
        return Finding(BAD, found, "do what the other findings say; failing that, pass backend='thread'.")
    if default not in works:
        return Finding(BAD, found, f"pass backend=mpiter.Process({next(iter(works))!r}).")
    if len(works) < len(told):
        return Finding(WARN, found, f"leave backend= as it is: {default} works.")
    return Finding(GOOD, found)


def shared_memory() -> Finding:
    """Check whether a memfd can be used, or else an unlinked file."""
    has_memfd, folder = hasattr(os, "memfd_create"), tempfile.gettempdir()
    fault = _fault(lambda: _use(shared.memfd())) if has_memfd else "there is none on this system"
    if not fault:
        return Finding(GOOD, "memfd works: no mount bounds it, nothing named is left behind")
    permit = "let the sandbox permit memfd_create, fallocate and mmap (docker run --security-opt seccomp=…)"
    if worse := _fault(lambda: _use(shared.unlinked_file())):
        remedy = permit if has_memfd else "set TMPDIR to a folder that can be written."
        return Finding(BAD, f"no memfd ({fault}), and no unlinked file in {folder} ({worse})", remedy)
    remedy = f"set TMPDIR to a folder in memory (a tmpfs) if {folder} is on a disk" + f"; or {permit}" * has_memfd
    return Finding(WARN if has_memfd else NOTE, f"no memfd ({fault}): unlinked files in {folder}", remedy)


def memory() -> Finding:
    available, total, host = machine.memory_available(), machine.memory_total(), machine.meminfo("MemTotal")
    found, more = f"{_amount(available)} of {_amount(total)} available", "end other programs"
    if total < host:
        found += f", by control group; the machine has {_amount(host)}"
        more = "raise the container's limit (docker run --memory)"
    remedy = f"{more}, or lower batch_size, n_prefetch, run_ahead or n_processes."
    if available < _GB:
        return Finding(BAD if available < 128 * _MB else WARN, found, remedy)
    if kills := machine.out_of_memory_kills():
        return Finding(NOTE, f"{found}; {kills} processes of this control group were killed for memory so far", remedy)
    return Finding(NOTE if total < host else GOOD, found)


def limits() -> Finding:
    """Check the limits of ulimit -n, -u, -v and -f, and pids.max of the control groups."""
    workers = machine.cores()
    files, size = map(machine.limit, ("RLIMIT_NOFILE", "RLIMIT_FSIZE"))
    processes, space = _processes_left(), min(machine.address_space(), size)
    want_files, want_processes = 48 + 4 * workers, 16 + 4 * workers  # measured, with threads and the fork server
    found, remedies = [], []
    if files < want_files:
        found.append(f"{files} open files allowed, {want_files} wanted")
        remedies.append("ulimit -n 1024 (docker run --ulimit nofile=1024)")
    if processes < want_processes:
        found.append(f"{processes} more processes and threads allowed, {want_processes} wanted")
        remedies.append("ulimit -u 4096 (docker run --pids-limit=4096)")
    if space < 4 * _GB:
        found.append(f"{_amount(space)} to be mapped, or for a file")
        remedies.append("ulimit -v unlimited and ulimit -f unlimited")
    if not found:
        return Finding(GOOD, f"files, processes and address space are enough for {workers} workers")
    is_bad = files < 40 or processes < 8 or space < 64 * _MB
    return Finding(BAD if is_bad else WARN, "; ".join(found), f"{', '.join(remedies)}; or fewer n_processes.")


def cores() -> Finding:
    present, quota, allowed = os.cpu_count() or 1, machine.quota(), machine.cores()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    bounds = [f"affinity allows {affinity}"] if affinity < present else []
    if quota is not None and quota < affinity:
        bounds.append(f"the control group allows {quota:g}")
    if not bounds:
        return Finding(GOOD, f"{present}, all ours; n_processes=None takes {allowed}")
    found = f"{present}, but {' and '.join(bounds)}; n_processes=None takes {allowed}, os.cpu_count() says {present}"
    if quota is not None and quota < 1:
        return Finding(WARN, found, "docker run --cpus=2: program and workers share less than one; or n_processes=0.")
    remedy = f"libraries that ask os.cpu_count() should use {allowed} (PYTHON_CPU_COUNT={allowed} from Python 3.13 on)."
    return Finding(NOTE, found, remedy)


CHECKS = (software, start_methods, shared_memory, memory, limits, cores)


def ask(code: str, seconds: float) -> str:
    """Run ``code`` in another Python and return what it prints; a RuntimeError says in one line what went wrong."""
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no answer within {seconds:g} s") from None
        finally:
            if process.poll() is None:  # also after Ctrl-C; its fork server and workers are in its process group
                os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    if process.returncode:
        last = (err.strip() or f"ended with exit code {process.returncode}").splitlines()[-1]
        raise RuntimeError(textwrap.shorten(last, 160, placeholder=" …"))
    return out.strip()


def _fault(trial: Callable[[], object]) -> str:
    try:
        trial()
    except (OSError, RuntimeError) as error:
        return str(error)
    return ""


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


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _amount(size: int) -> str:
    unit, name = next(((unit, name) for unit, name in ((_GB, "GB"), (_MB, "MB")) if size >= unit), (_KB, "KB"))
    return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size // unit} {name}"
