"""The bytes at a place: a path, or a URL of a store that fsspec knows ("s3://…", "gs://…", "https://…").

fsspec is imported where a URL is asked for; it keeps one connection for each process.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from ..errors import OptionError


def bytes_at(source: str, check: Callable[[int], None] = lambda size: None) -> bytes:
    """All of them; of a pipe or a device, which may never end, an error.

    ``check`` is told their number before any is read, and may raise; not of a URL elsewhere: it takes a request more.
    """
    if "://" not in source:
        # without waiting for something to write into a pipe
        with open(source, "rb", opener=lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise OSError(errno.EINVAL, "Not a regular file", source)
            check(about.st_size)
            return file.read()
    try:
        import fsspec
    except ImportError as error:
        raise OptionError(f"{source:.200} is a URL, which takes fsspec: pip install 'mpiter[staging]'.") from error
    system, path = fsspec.core.url_to_fs(source)
    if "file" in system.protocol:
        check(system.size(path))
    data: bytes = system.cat_file(path)
    return data
