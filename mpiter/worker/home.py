"""The setup of a worker process: its signals, its memory, its libraries' threads, and
its end with the main process.

Runs in workers; ``limit_loaded_libraries`` also in the fork server.  Guarantees on
Linux that the kernel kills the worker when the main process ends, even a worker that is
stopped or never releases the GIL: each worker has the reading end of a pipe whose other
end only the main process has.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

from ..samples.tensors import torch_with

# Variables with the numbers of the descriptors by which an MPI rank reaches its
# launcher.  In a worker these numbers are other files', the fork server's say, and MPI
# would write there when a dataset imports it.
TO_THE_LAUNCHER = ("PMI_FD", "HYDI_CONTROL_FD")


def settle_in(environment: dict[str, str]) -> None:
    """Set this process up as a worker, before the dataset is loaded."""
    global _user_decides
    # Ctrl-C is for the caller, who closes us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update(environment)
    for name in TO_THE_LAUNCHER:
        os.environ.pop(name, None)
    _user_decides = any(name in os.environ for name in _VARIABLES)
    # For libraries that are loaded later.
    for name in _VARIABLES:
        os.environ.setdefault(name, "1")
    _keep_memory()
    # To be killed first if memory runs out: workers can be replaced.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def die_with_parent() -> None:
    """Have this process killed when the main process ends.

    PR_SET_PDEATHSIG can't do it: it reports the end of the *thread* that started this
    process, or of the fork server.
    """
    pipe: Any = multiprocessing.parent_process().sentinel  # type: ignore[union-attr]
    try:
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):
        # Not Linux: a stuck worker stays.
        threading.Thread(
            target=_end_with, args=(pipe, None), name="mpiter-lifeline", daemon=True
        ).start()
    else:
        # The main process may have ended already.
        _end_with(pipe, 0)


def _end_with(pipe: Any, timeout: float | None) -> None:
    if connection.wait([pipe], timeout):
        os._exit(1)


# Counts the forks between this process and the first: asking for the process's number
# takes longer.
generation = 0
# Free in a forked child, even if another thread of the parent held one.
locks: weakref.WeakSet[Any] = weakref.WeakSet()
# Each cuts one tie to the consumer, in a process that is forked from this worker.
ties: list[Callable[[], object]] = []


def _is_child() -> None:
    global generation
    generation += 1
    for lock in locks:
        if not lock._is_owned():
            lock._at_fork_reinit()
    if ties:
        _leave_the_consumer()


def _leave_the_consumer() -> None:
    """Cut all ties to the consumer: the dataset has forked this process from a worker,
    whose answers aren't its own.
    """
    try:
        for cut in ties:
            cut()
        ties.clear()
        # Its stack, if it crashes, would be taken for the worker's.
        faulthandler.disable()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_is_child)


_M_TRIM_THRESHOLD = -1  # of <malloc.h>
_M_MMAP_THRESHOLD = -3
# Larger blocks of memory are returned to the system.
_LARGE = 32 << 20
_TUNABLES = ("GLIBC_TUNABLES", "MALLOC_TRIM_", "MALLOC_MMAP_", "MALLOC_TOP_PAD_")
# Free bytes at the top of the heap: to crop a picture of 4000 x 3000 Pillow takes 87
# MB.
_KEPT = 128 << 20


def _keep_memory() -> None:
    """Have glibc keep freed memory, instead of returning each decoded picture's to the
    system.
    """
    is_told = any(name.startswith(_TUNABLES) for name in os.environ)
    if is_told:
        mallopt = None
    else:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


# -- numerical libraries get one thread: by default each worker would start as many as there are cores

_VARIABLES = [
    f"{name}_NUM_THREADS" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
] + ["VECLIB_MAXIMUM_THREADS"]
_user_decides = any(name in os.environ for name in _VARIABLES)


def limit_loaded_libraries() -> None:
    """Limit loaded libraries to one thread; called before the first block and after it,
    which may load more.
    """
    if _user_decides:
        return
    # Before the modules are counted; it takes 10 ms, so not in each program.
    import threadpoolctl  # noqa: F401

    for library in _loaded_libraries(len(sys.modules)).lib_controllers:
        if library.num_threads != 1:
            library.set_num_threads(1)
            # Or another thread might be using them.
            if threading.active_count() == 1:
                # after a fork OpenBLAS restarts its threads when it is told to use one:
                # they would spin
                with contextlib.suppress(AttributeError):
                    library.dynlib.blas_thread_shutdown_()
    if (cv2 := sys.modules.get("cv2")) is not None and hasattr(cv2, "setNumThreads"):
        cv2.setNumThreads(0)
    if (torch := torch_with("set_num_threads")) is not None:
        torch.set_num_threads(1)


@functools.lru_cache(maxsize=1)
def _loaded_libraries(modules: int) -> Any:
    """Look for loaded libraries, which takes some 20 ms; not again unless the number of
    ``modules`` has changed.
    """
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()
