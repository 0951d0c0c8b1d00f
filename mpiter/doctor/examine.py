"""Is this machine fit for mpiter?  One examination after the other, each a finding with what to do about it.

Runs in the process of the command; what might hang or crash is tried in others (``probes``), what to think of the
answers is decided from values (``software_checks``, ``system_checks``).  Guarantees that an examination that fails is a
finding itself, never a traceback, and that nothing is left running or lying about.
"""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import os
import platform
import struct
import sys
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import machine
from . import probes, software_checks, system_checks
from .finding import Finding, Status

SCHEMA = "mpiter.doctor/1"
_LINUX = sys.platform == "linux"
_WIDTH = 118  # columns of text


def findings(progress: Callable[[str], object] | None = None) -> Iterator[Finding]:
    """Examine one thing after the other; ``progress`` is told the subject before each."""
    for subject, examine in _EXAMINATIONS.items():
        if progress is not None:
            progress(subject)
        yield examined(subject, examine)


def examined(subject: str, examine: Callable[[], Finding]) -> Finding:
    """The finding, also where the examination itself fails."""
    try:
        return examine()
    except Exception as error:
        return Finding(subject, Status.NOTE, f"could not be examined ({type(error).__name__}: {error})")


def as_text(findings: Iterable[Finding]) -> str:
    """One paragraph for each finding, and a line that counts them."""
    found = list(findings)
    column = 6 + max((len(finding.subject) for finding in found), default=0)
    wrap = functools.partial(textwrap.fill, width=_WIDTH, subsequent_indent=" " * (column + 2), break_on_hyphens=False)
    lines = []
    for finding in found:
        label = finding.status.value if finding.status in (Status.GOOD, Status.NOTE) else finding.status.value.upper()
        lines.append(wrap(f"{f'{label:6}{finding.subject}':{column}}  {finding.found}"))
        if finding.remedy:
            lines.append(wrap(finding.remedy, initial_indent=" " * column + "→ "))
    counted = Counter(finding.status for finding in found)
    lines += ["", ", ".join(f"{counted[status]} {status.value}" for status in Status if counted[status]) + "."]
    return "\n".join(lines)


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings as plain values."""
    return {
        "schema": SCHEMA,
        "findings": [
            {"subject": one.subject, "status": one.status.value, "found": one.found, "remedy": one.remedy}
            for one in findings
        ],
    }


def exit_code(findings: Iterable[Finding]) -> int:
    """1 if mpiter does not work here as it should, else 0."""
    return int(any(finding.status is Status.BAD for finding in findings))


def _python() -> Finding:
    build = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    bits = 8 * struct.calcsize("P")
    return software_checks.python(sys.version_info[:2], build, free_threaded, machine.gil_is_in_use(), bits)


def _start_methods() -> Finding:
    trials = {method: probes.try_start(method) for method in multiprocessing.get_all_start_methods()}
    return software_checks.start_methods(trials, "forkserver" if _LINUX else "spawn")


def _shared_memory() -> Finding:
    folder = probes.temporary_folder() or "a temporary folder"
    return system_checks.shared_memory(probes.memfd(), probes.unlinked_file(), folder)


def _memory() -> Finding:
    host = machine.meminfo("MemTotal")
    kills = machine.out_of_memory_kills()
    return system_checks.memory(machine.memory_available(), machine.memory_total(), host, kills)


def _address_space() -> Finding:
    limited = machine.limit("RLIMIT_AS")[0] is not None
    return system_checks.address_space(machine.address_space() if limited else None, machine.limit("RLIMIT_FSIZE")[0])


def _overcommit() -> Finding:
    return system_checks.overcommit(probes.number_in("/proc/sys/vm/overcommit_memory"), probes.commit_left())


def _processes() -> Finding:
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # whom the limit doesn't bind
    allowed = None if root else machine.limit("RLIMIT_NPROC")[0]
    running = 0 if allowed is None else probes.tasks_of_the_user()
    return system_checks.processes(allowed, running, probes.processes_left(), machine.cores())


def _cores() -> Finding:
    present = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    return system_checks.cores(present, affinity, machine.quota())


def _numerical_threads() -> Finding:
    return software_checks.numerical_threads(probes.threads_by_library(), probes.thread_variables(), machine.cores())


def _chainer() -> Finding:
    has_resources = importlib.util.find_spec("pkg_resources") is not None
    version = probes.version_of("chainer")
    return software_checks.chainer(version, probes.version_of("numpy") or "", sys.version_info[:2], has_resources)


def _frameworks() -> Finding:
    versions = {name: probes.version_of(name) for name in ("torch", "jax")}
    return software_checks.frameworks(versions, probes.version_of("numpy") or "")


def _gpu() -> Finding:
    names, trouble = probes.gpus()
    torch = probes.version_of("torch")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles")
    seen = probes.torch_sees() if names and torch and not hidden else None
    return software_checks.gpu(names, trouble, torch, seen, hidden)


def _temporary_files() -> Finding:
    return system_checks.temporary_files(probes.temporary_folder(), os.access("/tmp", os.W_OK | os.X_OK))


def _clock() -> Finding:
    folder = "/sys/devices/system/clocksource/clocksource0"
    source = " ".join(probes.words_in(f"{folder}/current_clocksource"))
    return system_checks.clock(source, probes.words_in(f"{folder}/available_clocksource"))


_EXAMINATIONS: dict[str, Callable[[], Finding]] = {
    "Python": _python,
    "packages": lambda: software_checks.packages({name: probes.version_of(name) for name in software_checks.NEEDED}),
    "start methods": _start_methods,
    "shared memory": _shared_memory,
    "/dev/shm": lambda: system_checks.dev_shm(*probes.dev_shm(), linux=_LINUX),
    "memory": _memory,
    "address space": _address_space,
    "overcommit": _overcommit,
    "open files": lambda: system_checks.open_files(*machine.limit("RLIMIT_NOFILE"), machine.cores()),
    "processes": _processes,
    "cores": _cores,
    "numerical threads": _numerical_threads,
    "image decoders": lambda: software_checks.image_decoders(probes.decoders()),
    "Chainer": _chainer,
    "torch and jax": _frameworks,
    "GPU": _gpu,
    "temporary files": _temporary_files,
    "process 1": lambda: system_checks.first_process(os.getpid(), probes.uncollected()),
    "clock": _clock,
}
SUBJECTS = tuple(_EXAMINATIONS)
