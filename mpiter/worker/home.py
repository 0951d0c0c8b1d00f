"""The setup of a worker process: its signals, its memory, its libraries' threads.

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
from typing import TYPE_CHECKING, Any

from ..samples.tensors import torch_with

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Variables with the numbers of the descriptors by which an MPI rank reaches its
# launcher.  In a worker these numbers are other files', the fork server's say, and MPI
# would write there when a dataset imports it.
TO_THE_LAUNCHER = ("PMI_FD", "HYDI_CONTROL_FD")


def settle_in(environment: dict[str, str]) -> None:
    """Set this process up as a worker, before the dataset is loaded."""
    global _user_decides
    # Ctrl-C is the caller's.  If it ended a worker first, the caller would see a worker
    # that died instead.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update(environment)
    for name in TO_THE_LAUNCHER:
        os.environ.pop(name, None)
    _user_decides = any(name in os.environ for name in _VARIABLES)
    # Libraries that are loaded later read these variables.
    for name in _VARIABLES:
        os.environ.setdefault(name, "1")
    _keep_memory()
    # A worker is to be killed first if memory runs out, since it can be replaced.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def die_with_parent() -> None:
    """Have this process killed when the main process ends.

    PR_SET_PDEATHSIG can't do it: it reports the end of the *thread* that started this
    process, or of the fork server.
    """
    pipe: int = multiprocessing.parent_process().sentinel  # type: ignore[union-attr]
    try:
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):
        # This isn't Linux.  A thread ends the worker instead, unless the worker is
        # stuck and never releases the GIL: then it stays.
        threading.Thread(
            target=_end_with,
            args=(pipe, None),
            name="mpiter-lifeline",
            daemon=True,
        ).start()
    else:
        # The main process may have ended before the signal was set up, and then nothing
        # would come any more.
        _end_with(pipe, 0)


def _end_with(pipe: int, timeout: float | None) -> None:
    if connection.wait([pipe], timeout):
        os._exit(1)


# Counts the forks between this process and the first one.  Asking the system for the
# process's number takes longer.
generation = 0
# These are made free in a forked child: the thread of the parent that held one doesn't
# exist there, so nobody would release it.
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
    """Cut all ties to the consumer.

    The dataset has forked this process from a worker, whose answers aren't its own.
    """
    try:
        for cut in ties:
            cut()
        ties.clear()
        # The stack of a crash here would be taken for the worker's.
        faulthandler.disable()
    except BaseException:
        # A process that still has a tie could send an answer, or write into a batch.
        traceback.print_exc()
        os._exit(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_is_child)


_M_TRIM_THRESHOLD = -1  # of <malloc.h>
_M_MMAP_THRESHOLD = -3  # of <malloc.h>
_LARGE = 32 << 20  # bytes; a larger block is returned to the system
_TUNABLES = ("GLIBC_TUNABLES", "MALLOC_TRIM_", "MALLOC_MMAP_", "MALLOC_TOP_PAD_")
# The bytes that stay free at the top of the heap.  To crop a picture of 4000 x 3000
# Pillow takes 87 MB.
_KEPT = 128 << 20


def _keep_memory() -> None:
    """Have glibc keep freed memory, and not return each decoded picture's at once."""
    if any(name.startswith(_TUNABLES) for name in os.environ):
        # The user has decided.
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


# -- numerical libraries get one thread ------------------------------------------------
#
# By default each worker would start as many as there are cores.

_VARIABLES = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
]
_user_decides = any(name in os.environ for name in _VARIABLES)


def limit_loaded_libraries() -> None:
    """Limit the libraries that are loaded to one thread.

    This is done before the first block, and after it, as it may have loaded more.
    """
    if _user_decides:
        return
    # It takes 10 ms, so not each program imports it; and it adds to the modules that
    # are counted below.
    import threadpoolctl  # noqa: F401

    for library in _loaded_libraries(len(sys.modules)).lib_controllers:
        if library.num_threads != 1:
            library.set_num_threads(1)
            # After a fork OpenBLAS restarts its threads when it is told to use one, and
            # they would spin.  While other threads run, one of them may be using these.
            if threading.active_count() == 1:
                with contextlib.suppress(AttributeError):
                    library.dynlib.blas_thread_shutdown_()
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "setNumThreads"):
        cv2.setNumThreads(0)
    torch = torch_with("set_num_threads")
    if torch is not None:
        torch.set_num_threads(1)


@functools.lru_cache(maxsize=1)
def _loaded_libraries(modules: int) -> ThreadpoolController:
    """Look for loaded libraries, which takes some 20 ms.

    They are looked for again only if the number of ``modules`` has changed.
    """
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()
