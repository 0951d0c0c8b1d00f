"""How much memory a program has, with all processes below it: what trials and benchmarks compare."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..machine import stat_of, text_of


def descendants(root: int) -> set[int]:
    """Every live process below `root`: workers may be children of a fork server."""
    parents = {int(name): int(stat[1]) for name in os.listdir("/proc") if name.isdigit() and (stat := stat_of(name))}
    found, below = set[int](), {root}
    while below := {pid for pid, parent in parents.items() if parent in below} - found:
        found |= below
    return found


def tree_memory() -> int | None:
    """Bytes held by this process and all below it: private ones, files mapped, shared memory; None: nobody counts."""
    pids = {os.getpid(), *descendants(os.getpid())}
    sums = Counter[str]()
    for pid in pids:
        for name, kilobytes in re.findall(r"^Pss_(\w+): +(\d+)", text_of(Path(f"/proc/{pid}/smaps_rollup")), re.M):
            sums[name] += 1024 * int(kilobytes)
    # A page that nobody has mapped is nobody's; one that is mapped without a descriptor is in no open file.
    return sums["Anon"] + sums["File"] + max(sums["Shmem"], _open_shared_memory(pids)) if sums else None


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
