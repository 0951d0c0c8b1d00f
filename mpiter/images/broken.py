"""The error for a file that is no picture, or is no longer a whole one; what the system refuses keeps its own type."""

from __future__ import annotations

from typing import Any

from ..errors import MpiterError

# A file of more is no picture, and would fill a worker's memory before that shows.  The largest that decoders take, of
# 89 million pixels with four channels of 16 bits and no compression, has a third of it.
MOST_BYTES = 2 << 30


class BrokenImage(MpiterError, OSError):
    """A file was read and cannot be decoded: truncated, empty, no picture, or too large; the text says which and why.

    Files that cannot be read raise the system's own ``FileNotFoundError``, ``PermissionError`` and so on, which name
    the path as well. All of them are ``OSError``.

    Attributes:
        path: of the file.
        reason: what is wrong with it.

    >>> import os, tempfile
    >>> from mpiter.images import ImageList
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     open(os.path.join(folder, "empty.jpg"), "w").close()
    ...     ImageList(["empty.jpg"], root=folder)[0]
    Traceback (most recent call last):
    mpiter.images.broken.BrokenImage: ...empty.jpg cannot be decoded: the file is empty.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be decoded: {reason}.")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


def check_size(path: str, size: int) -> None:
    """Before so many bytes are read."""
    if size > MOST_BYTES:
        raise BrokenImage(path, f"it has {size:,} bytes, and no more than {MOST_BYTES:,} are read of a picture")
