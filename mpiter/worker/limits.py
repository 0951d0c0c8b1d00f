"""One thread for each worker: numerical libraries would otherwise start as many as there are cores, in every worker.

Runs in workers, and in the fork server that they come from.  Libraries loaded later read the environment, those already
loaded are told directly.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

from ..samples.tensors import torch_with

if TYPE_CHECKING:
    import threadpoolctl

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


_user_decides = False


def limit_libraries_to_come() -> None:
    """Before the dataset is loaded; what the user has set is kept, and then holds for loaded libraries too."""
    global _user_decides
    _user_decides = _is_told_by_user()
    for name in VARIABLES:
        os.environ.setdefault(name, "1")


_seen: tuple[int, threadpoolctl.ThreadpoolController] | None = None  # libraries, and the modules when we looked


def look_around() -> threadpoolctl.ThreadpoolController:
    """Find the libraries that are loaded, which takes some 20 ms; again only if something was imported since.

    Whoever is about to fork workers looks for all of them.
    """
    import threadpoolctl  # here, since it takes 10 ms, and most programs that import mpiter start no worker yet

    global _seen
    if _seen is None or _seen[0] != len(sys.modules):
        found = threadpoolctl.ThreadpoolController()
        _seen = len(sys.modules), found
    return _seen[1]


def limit_fork_server() -> None:
    """What is forked from it finds its libraries limited, and needn't wake them to tell them so."""
    if not _is_told_by_user():
        limit_loaded_libraries()


def _is_told_by_user() -> bool:
    return any(name in os.environ for name in VARIABLES)


def limit_loaded_libraries() -> None:
    """Before the first sample, and once more after it, since it may have imported something."""
    if _user_decides:
        return
    for library in look_around().lib_controllers:
        if library.num_threads != 1:
            library.set_num_threads(1)
            _send_away_threads(library)
    if (cv2 := sys.modules.get("cv2")) is not None and hasattr(cv2, "setNumThreads"):
        cv2.setNumThreads(0)
    if (torch := torch_with("set_num_threads")) is not None:
        torch.set_num_threads(1)


def _send_away_threads(library: threadpoolctl.LibController) -> None:
    """OpenBLAS in a forked process starts its threads again to hear that it has none; they would spin for 100 ms."""
    if threading.active_count() == 1:  # or somebody might be using them
        with contextlib.suppress(AttributeError):
            library.dynlib.blas_thread_shutdown_()
