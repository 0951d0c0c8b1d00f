"""A worker keeps the memory that it will need again: what one sample took serves the next.

Runs in worker processes.  glibc gives blocks of 128 kB and more back to the system as soon as they are free, until it
has learnt better, so that each decoded picture is paid for page by page once more.  Guarantees thresholds that glibc
itself comes to once it has seen a large block freed; does nothing where the user has set its tunables, or the C library
is another.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_MOST = 32 << 20  # the largest threshold that glibc sets by itself; it then trims at twice that
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
        mallopt(_M_MMAP_THRESHOLD, _MOST)
        mallopt(_M_TRIM_THRESHOLD, 2 * _MOST)
