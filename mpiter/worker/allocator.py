"""A worker keeps the memory that it will need again: what one sample took serves the next.

Runs in worker processes.  glibc gives blocks of 128 kB and more back to the system as soon as they are free, until it
has learnt better, so that each decoded picture is paid for page by page once more.  Guarantees that blocks of the size
of pictures are kept, no more of them than glibc may come to keep by itself; larger ones, for which NumPy asks for huge
pages, are given back.  Does nothing where the user has set glibc's tunables, or the C library is another.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_LARGE = 4 << 20  # what NumPy asks for huge pages for
_KEPT = 64 << 20  # free bytes at the top of the heap: what glibc has learnt to keep once it has seen 32 MB freed
_TUNABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_MAX_",
)


def keep_memory() -> None:
    """Have what is freed used again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None and not any(name in os.environ for name in _TUNABLES):
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
