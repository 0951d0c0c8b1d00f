"""Where pictures lie: below a folder, at addresses, or in tar shards."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ..datasets.packed import Packed
from ..order.order import Order


class Place(Protocol):
    """Where the pictures of a dataset lie.  ``str()`` says it in words."""

    # The folder of the paths; nothing where they have none.
    root: str
    # The path of each picture.
    paths: Sequence[str]

    def source(self, index: int) -> str:
        """Return in words where a picture lies: its path or URL, if it has one."""

    def fetch(self, index: int, source: str) -> bytes:
        """Read the bytes of a picture, which lies at ``source``."""


class Classed(NamedTuple):
    """Pictures with their classes."""

    place: Place
    # The names of the classes, where they have some.
    classes: list[str]
    # The class of each picture, an array or what is like one.
    labels: Any
    # What makes the order of the pictures, if these bring one.
    mpiter_order: Callable[[int, bool | None], Order] | None = None


class Below:
    """Files whose paths begin in a folder, or that have URLs."""

    def __init__(self, root: str | os.PathLike[str], names: Iterable[str]) -> None:
        self.root = os.fspath(root)
        # All workers share this memory, since there may be millions of names.
        self.paths: Sequence[str]
        if isinstance(names, Sequence):
            self.paths = names
        else:
            self.paths = Packed(names)

    def __str__(self) -> str:
        return self.root

    def source(self, index: int) -> str:
        path = self.paths[index]
        if "://" in path:
            return path
        return os.path.join(self.root, path)

    def fetch(self, index: int, source: str) -> bytes:
        return bytes_at(source)


def walk(
    top: str,
    onerror: Callable[[OSError], None],
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield for ``top`` and each folder below it its path, and the names in it.

    The path is that from ``top`` ("", "cat/", …); the folders' names come before the
    files'.  Links are followed, except to a folder that contains them.  ``onerror``
    gets the error of listing a folder.
    """
    # This has where each folder that is still to come really lies, and those around it.
    around = {top: {os.path.realpath(top)}}
    for folder, folders, files in os.walk(top, onerror=onerror, followlinks=True):
        here = around.pop(folder)
        entered = list[str]()
        for name in folders:
            path = os.path.join(folder, name)
            place = os.path.realpath(path)
            # A link to a folder around it would lead round and round.
            if place not in here:
                entered.append(name)
                around[path] = {*here, place}
        # `os.walk` enters what is left in its own list.
        folders[:] = entered
        prefix = ""
        if folder != top:
            within = os.path.relpath(folder, top)
            prefix = os.path.join(within, "")
        yield prefix, folders, files


def bytes_at(source: str) -> bytes:
    """Return all bytes of the file that a path or a URL names.

    A pipe or a device, which may never end, is an error.
    """
    if "://" not in source:
        with open(source, "rb", opener=_open_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "Not a regular file", source)
            return file.read()
    import fsspec  # of mpiter[staging]

    system, path = fsspec.core.url_to_fs(source)
    return bytes(system.cat_file(path))


def _open_at_once(path: str, flags: int) -> int:
    # Opening a pipe would otherwise wait until somebody writes to it.
    return os.open(path, flags | os.O_NONBLOCK)
