"""``mpiter doctor``: checks whether mpiter works here, and says what to do if not.

Start methods, which might hang or crash, are tried in another process, which has a
minute.  Guarantees that a check that fails is reported as a finding, never as a
traceback, and that a warning comes with a remedy.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import multiprocessing
import os
import platform
import subprocess
import sys
import textwrap
from typing import NamedTuple

from . import machine

_PACKAGES = (
    "numpy msgpack cloudpickle threadpoolctl torch jax chainer Pillow simplejpeg ray "
    "mpi4py fsspec"
)
_GB = 1 << 30
_LIMIT_S = 60.0  # for a start method
# There is nothing to do.
GOOD = "good"
# Something may fail or be slow unless the remedy is applied.
WARN = "WARN"
# mpiter does not work here with its defaults.
BAD = "BAD"
_TRY_START = """
import time, mpiter
began = time.perf_counter()
backend = mpiter.Process({method!r})
with mpiter.batches([7, 7], 2, n_processes=1, backend=backend) as stream:
    assert list(next(stream)) == [7, 7]
print(f"{{time.perf_counter() - began:.1f}} s")
"""


class Finding(NamedTuple):
    """The result of one check, and the remedy if something is wrong."""

    status: str
    found: str
    remedy: str = ""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "Examine this machine: packages, start methods, memory, cores."
    parser = commands.add_parser(
        "doctor",
        help="is this machine fit? what to do if not",
        description=about,
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run all checks and print each finding.

    Return the exit status: 1 if a finding is BAD, else 0.
    """
    is_bad = False
    for check in CHECKS:
        try:
            status, found, remedy = check()
        except Exception as error:
            status = WARN
            found = f"could not be examined ({type(error).__name__}: {error})"
            remedy = ""
        name = check.__name__.replace("_", " ")
        told = f"{status:6}{name:16}{found}"
        if remedy:
            told += f"  → {remedy}"
        indent = " " * 22
        text = textwrap.fill(
            told,
            118,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
        # The next check may take a minute.
        print(text, flush=True)
        is_bad |= status is BAD
    return int(is_bad)


def software() -> Finding:
    found = [f"Python {sys.version} on {platform.platform()}"]
    for name in _PACKAGES.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return Finding(GOOD, ", ".join(found))


def start_methods() -> Finding:
    """Measure the time to the first batch with each start method, in another Python."""
    default = "forkserver" if sys.platform == "linux" else "spawn"
    works = []
    told = []
    for method in multiprocessing.get_all_start_methods():
        command = [sys.executable, "-c", _TRY_START.format(method=method)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            told.append(f"{method} fails (no answer within {_LIMIT_S:g} s)")
            continue
        if done.returncode:
            error = done.stderr.strip() or f"exit code {done.returncode}"
            # The last line of a traceback names the error.
            last = error.splitlines()[-1]
            why = textwrap.shorten(last, 160, placeholder=" …")
            told.append(f"{method} fails ({why})")
            continue
        told.append(f"{method} {done.stdout.strip()}")
        works.append(method)
    found = f"to the first batch: {', '.join(told)}; {default} is the default"
    if default in works:
        return Finding(GOOD, found)
    if works:
        return Finding(BAD, found, f"pass backend=mpiter.Process({works[0]!r}).")
    return Finding(
        BAD,
        found,
        "do what the other findings say; failing that, pass backend='thread'.",
    )


def memory() -> Finding:
    available = machine.memory_available()
    total = machine.memory_total()
    host = machine.meminfo("MemTotal")
    found = f"{available / _GB:,.1f} GB of {total / _GB:,.1f} GB available"
    if total < host:
        found += f", by control group; the machine has {host / _GB:,.1f} GB"
    if available >= _GB:
        return Finding(GOOD, found)
    return Finding(
        WARN,
        found,
        "end other programs, raise the container's limit (docker run --memory), or "
        "lower batch_size, n_prefetch, run_ahead or n_processes.",
    )


def cores() -> Finding:
    present = os.cpu_count() or 1
    quota = machine.quota()
    affinity = present
    if hasattr(os, "sched_getaffinity"):
        affinity = len(os.sched_getaffinity(0))
    found = f"{present}; n_processes=None takes {machine.cores()}"
    if affinity < present:
        found += f"; affinity allows {affinity}"
    if quota is not None:
        found += f"; the control group allows {quota:g}"
    if quota is not None and quota < 1:
        return Finding(
            WARN,
            found,
            "docker run --cpus=2: program and workers share less than one; or "
            "n_processes=0.",
        )
    return Finding(GOOD, found)


CHECKS = (software, start_methods, memory, cores)
