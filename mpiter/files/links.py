"""Links within a tar archive: which file's bytes they stand for."""

from __future__ import annotations

import itertools
import posixpath
import tarfile
from array import array
from collections.abc import Iterator
from typing import NamedTuple

# How names become bytes: those that aren't UTF-8 come back as they were.
CODING = ("utf-8", "surrogateescape")


class Linked(NamedTuple):
    """A member of a sample that is a link."""

    name: str
    # The byte where the file that it leads to begins, and its bytes; None for no file.
    lies: tuple[int, int] | None


class Links:
    """The files of an archive by name, and its links.

    Names of files are needed only where there are links, but a link may come behind its
    file.  So they are kept as one piece of bytes.
    """

    def __init__(self) -> None:
        self._names = bytearray()
        self._borders = array("q", [0])
        self._begins = array("q")
        self._sizes = array("q")
        # What each link leads to.
        self._targets: dict[str, str] = {}
        # The links that are members of samples, by the numbers of the members.
        self._members: dict[int, str] = {}

    def add_file(self, member: tarfile.TarInfo) -> None:
        self._names += member.name.encode(*CODING)
        self._borders.append(len(self._names))
        self._begins.append(member.offset_data)
        self._sizes.append(member.size)

    def add_link(self, member: tarfile.TarInfo, number: int | None) -> None:
        """Add a link, which is the member ``number`` of samples if it is one."""
        target = member.linkname
        # A hard link has the name of a file in the archive, a symbolic one a path.
        if member.issym():
            target = posixpath.join(posixpath.dirname(member.name), target)
        self._targets[posixpath.normpath(member.name)] = posixpath.normpath(target)
        if number is not None:
            self._members[number] = member.name

    def found(self) -> Iterator[tuple[int, Linked]]:
        """Yield for each link that is a member of a sample what it leads to."""
        if not self._members:
            return
        wanted = {*self._targets, *self._targets.values()}
        lies: dict[str, tuple[int, int]] = {}
        for at, (begin, end) in enumerate(itertools.pairwise(self._borders)):
            name = posixpath.normpath(self._names[begin:end].decode(*CODING))
            if name in wanted:
                lies[name] = self._begins[at], self._sizes[at]
        for number, link in self._members.items():
            yield number, Linked(link, self._end_of(link, lies))

    def _end_of(
        self, link: str, lies: dict[str, tuple[int, int]]
    ) -> tuple[int, int] | None:
        """Return where the file lies at the end of links that lead to links."""
        name = posixpath.normpath(link)
        # Links may lead round in circles.
        came: set[str] = set()
        while name in self._targets and name not in came:
            came.add(name)
            name = self._targets[name]
            if name in lies:
                return lies[name]
        return None
