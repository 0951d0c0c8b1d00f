"""The dataset of a packed folder: the samples of an `ImageFolder`, out of one file.

Runs where the dataset is made, and then wherever it is read.  Guarantees the samples, order and labels that the folder
had, and that a million pictures are some arrays, which all workers share, and no object each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from .archive import Archive
from .folders import EXTENSIONS, Classes, endings
from .zipped import BadArchive

_NO_CLASSES = {"", "__MACOSX"}  # no folder, and what macOS adds to the archives that it makes


class PackedFolder(Classes):
    """The pictures of an ``ImageFolder`` that was packed: ``mpiter pack folder/ out.zip``.

    Any ZIP archive will do whose members are stored or deflated. Each worker reads at random from the one file.

    Args:
        path: of the archive.
        transform: as for ``ImageFolder``.
        extensions: of the members that count.
        verify: compare each picture's checksum, which takes less than a fiftieth of decoding it.
        options: as for ``ImageFolder``.

    Attributes:
        classes: their names, sorted; their numbers are the labels.
        class_to_idx: the number of each.
        labels: of all pictures, as an array.
        paths: of the pictures in the archive.

    >>> import os, tempfile
    >>> import numpy as np
    >>> from PIL import Image
    >>> from mpiter.__main__ import main
    >>> root = tempfile.mkdtemp()
    >>> for name in ("cat", "dog"):
    ...     os.makedirs(os.path.join(root, "pets", name))
    ...     Image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(os.path.join(root, "pets", name, "1.png"))
    >>> main(["pack", os.path.join(root, "pets"), os.path.join(root, "pets.zip")])
    /...pets.zip: 2 files in ... bytes
    0
    >>> pets = PackedFolder(os.path.join(root, "pets.zip"))
    >>> pets.classes, len(pets)
    (['cat', 'dog'], 2)
    >>> picture, label = pets[1]
    >>> picture.shape, label
    ((6, 8, 3), 1)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Any = None,
        *,
        extensions: str | Iterable[str] = EXTENSIONS,
        verify: bool = True,
        **options: Any,
    ) -> None:
        wanted = endings(extensions)
        self._archive = Archive(os.fspath(path), verify)
        names = list(map(self._archive.index.name, range(len(self._archive.index))))
        tops = [name.partition("/")[0] if "/" in name else "" for name in names]  # the classes, and "" of no folder
        self._name_classes(set(tops) - _NO_CLASSES)
        found = [at for at, name in enumerate(names) if tops[at] not in _NO_CLASSES and name.lower().endswith(wanted)]
        in_order = sorted((tops[at], *names[at].rpartition("/"), at) for at in found)
        self._members = np.array([at for *_, at in in_order], np.int64)
        labels = np.array([self.class_to_idx[name] for name, *_ in in_order], np.int32)
        super().__init__(labels, transform, **options)
        self._check_there_are_some(self._archive.path, wanted)
        self._check_are_readable()

    def _check_are_readable(self) -> None:
        index = self._archive.index
        for member in self._members[~index.are_readable()[self._members]][:1].tolist():
            raise BadArchive(
                f"{self._archive.place(member)} {index.why_unreadable(member)}, which can't be read here; pack the "
                f"folder with `mpiter pack`."
            )

    def __len__(self) -> int:
        return len(self._members)

    def source(self, index: int) -> str:
        """The archive's path, and the picture's in it."""
        return self._archive.place(self._members[index])

    def fetch(self, index: int) -> bytes:
        """The file's bytes."""
        return self._archive.data(self._members[index])

    @property
    def paths(self) -> Sequence[str]:
        """All pictures, as they are called in the archive."""
        return _Names(self._archive, self._members)


class _Names(Sequence[str]):
    """Made when they are asked for."""

    def __init__(self, archive: Archive, members: Any) -> None:
        self._archive, self._members = archive, members

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> _Names: ...
    def __getitem__(self, at: int | slice) -> str | _Names:
        if isinstance(at, slice):
            return _Names(self._archive, self._members[at])
        return self._archive.index.name(self._members[at])

    def __iter__(self) -> Iterator[str]:
        return map(self._archive.index.name, self._members.tolist())
