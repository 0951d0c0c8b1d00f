"""Where a result comes from: the machine, the versions, the commit, the command.

Runs in the driver.  Guarantees that what cannot be found out is None, never a guess: an installed mpiter has a version
but no commit, and a package that isn't installed no version.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mpiter
from mpiter import machine as limits_of

ROOT = Path(mpiter.__file__).resolve().parent.parent  # of the checkout, if it is one
PACKAGES = (
    *("numpy", "msgpack", "cloudpickle", "chainer", "torch", "jax", "grain", "spdl", "spdl_core"),
    *("Pillow", "pillow-simd", "simplejpeg", "accimage", "opencv-python-headless", "opencv-python", "albumentations"),
    *("ray", "pyarrow", "mpi4py", "mpich", "torchdata", "datasets", "litdata", "mosaicml-streaming"),
)


def heading(schema: str, root: Path, began: float, load: tuple[float, float, float]) -> dict[str, Any]:
    """What each JSON answer begins with; how to repeat it is added by who knows."""
    return {
        "schema": schema,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began)),
        "took_s": time.time() - began,
        "machine": machine() | {"load_before": load, "load_after": os.getloadavg()},
        "commit": commit(root),
    }


def command() -> str:
    """What was asked; of files elsewhere their names, since the folders of this machine are nobody else's."""
    return shlex.join(["python", *map(_told, sys.orig_argv[1:])])


def _told(word: str) -> str:
    path = Path(word)
    if not path.is_absolute():
        return word
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def machine() -> dict[str, Any]:
    return {
        "node": platform.node(),
        "cpu": _cpu_model(),
        "cores_usable": limits_of.cores(),
        "cores_present": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Of Python, of mpiter and of what it may be compared with, where installed."""
    found = {"python": platform.python_version(), "mpiter": mpiter.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Processor")):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit(root: Path) -> dict[str, Any]:
    """The commit measured, and whether the working tree differs from it (results under bench/results aside)."""
    if not (root / ".git").exists():
        return {"id": None, "dirty": None}
    changes = _git(root, "status", "--porcelain", "--", ".", ":!bench/results")
    return {"id": _git(root, "rev-parse", "--verify", "HEAD"), "dirty": None if changes is None else bool(changes)}


def commit_in_words(found: Mapping[str, Any]) -> str:
    return f"{found['id']}{' and changes' if found['dirty'] else ''}"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    except OSError:  # no git here
        return None
    return done.stdout.strip() if done.returncode == 0 else None
