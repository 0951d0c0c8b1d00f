"""What the fork server imports before it forks workers, so that they needn't.

Runs in the fork server only.  Guarantees that a module which fails leaves the server as
it was, and that what datasets need is kept only if a fork can share it: a thread would
be missing in a worker, a file or a connection would have one place for all workers, and
a random generator would give all workers the same numbers.  Otherwise the server ends,
and the program starts one without these modules.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .home import limit_loaded_libraries

# The exit code of a server that has imported what can't be shared.
REFUSED = 77
# The name of a thread that the library starts again after a fork.
_FORKABLE = "jemalloc_bg_thd"


def load(
    usual: Iterable[str],
    of_datasets: Sequence[str],
    argv: list[str],
) -> list[str]:
    """Import the ``usual`` modules, and ``of_datasets`` with the program's ``argv``.

    End this process if a fork couldn't share what the latter leave.

    Return an empty list: the command line of the server calls this for the list of the
    modules that the server itself is to import.
    """
    for name in usual:
        # A worker that needs the module raises the error again.
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    # Here it is done once, and all workers inherit it.
    limit_loaded_libraries()
    if of_datasets:
        ours = sys.argv
        sys.argv = argv
        try:
            is_shareable = _load_for_all(of_datasets)
        except BaseException:
            # A worker raises it again, and then the user sees the traceback.
            is_shareable = False
        sys.argv = ours
        if not is_shareable:
            os._exit(REFUSED)
    return []


def _load_for_all(names: Iterable[str]) -> bool:
    """Import modules; return False if a fork can't share what that has left."""
    threads = _threads()
    files = _files()
    generators = _generators()
    known = set(sys.modules)
    for name in names:
        importlib.import_module(name)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # Each worker would write what is left in the buffer.
            stream.flush()
    limit_loaded_libraries()
    if _threads() - threads or _files() - files:
        return False
    found = _generators()
    for name, module in list(sys.modules.items()):
        # The garbage collector doesn't know torch's generators, so the variables of the
        # new modules are searched as well.
        if name not in known:
            values = list(getattr(module, "__dict__", {}).values())
            found += filter(_is_generator, values)
    # Each worker seeds this one.
    torch = sys.modules.get("torch")
    seeded = getattr(torch, "default_generator", None)
    before = set(map(id, [*generators, seeded]))
    return all(id(one) in before for one in found)


def _threads() -> Counter[str]:
    found: Counter[str] = Counter()
    for task in os.listdir("/proc/self/task"):
        name = Path("/proc/self/task", task, "comm").read_text().strip()
        if name != _FORKABLE:
            found[name] += 1
    return found


def _files() -> set[str]:
    """Return what the descriptors of this process are open on."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        # The descriptor by which the folder was read is listed, but closed by now.
        with contextlib.suppress(OSError):
            place = os.readlink(f"/proc/self/fd/{descriptor}")
            found.add(f"{descriptor} {place}")
    return found


def _generators() -> list[Any]:
    return [one for one in gc.get_objects() if _is_generator(one)]


def _is_generator(value: object) -> bool:
    """True for a random generator of Python, NumPy or torch."""
    kind = type(value)
    if kind.__name__ in ("Generator", "RandomState"):
        return True
    return issubclass(kind, random.Random)
