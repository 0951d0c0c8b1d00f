"""A worker keeps the memory that it will need again: what one sample took serves the next.

Runs in worker processes.  glibc gives blocks of 128 kB and more back to the system as soon as they are free, until it
has learnt better, so that each decoded picture is paid for page by page once more.  Guarantees that a worker keeps at
most 128 MB of what it has freed, and smaller blocks where the address space is limited, in which those that are kept
leave holes.  Does nothing where the user has set glibc's tunables, or the C library is another.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_LARGE, _LARGE_FOR_LIMITED = 32 << 20, 4 << 20  # blocks from here on are given back; by itself glibc learns up to 32 MB
_KEPT = 128 << 20  # free bytes at the top of the heap: to crop a picture of 4000 x 3000 Pillow takes 87 MB
_TUNABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_MAX_",
)


def keep_memory() -> None:
    """Have what is freed used again."""
    if os.name != "posix" or any(name in os.environ for name in _TUNABLES):
        return
    import resource

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_FOR_LIMITED if is_limited else _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
