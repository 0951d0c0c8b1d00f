"""Which files there are: a folder of classes, or a list in memory or in a file.

Runs where the dataset is made.  Paths are packed into memory that all workers share, since there may be millions; their
order is torchvision's: classes by name, then folders, then files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..datasets.packed import Packed
from ..errors import OptionError
from .dataset import Pictures

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
Path = str | os.PathLike[str]


class _Files(Pictures):
    """Pictures in files below a folder."""

    def __init__(self, root: Path, names: Iterable[str], labels: Any, transform: Any, options: dict[str, Any]) -> None:
        super().__init__(labels, transform, **options)
        self.root = os.fspath(root)
        self._names = Packed(names)

    def __len__(self) -> int:
        return len(self._names)

    def source(self, index: int) -> str:
        """The file's path."""
        return os.path.join(self.root, self._names[index])

    @property
    def paths(self) -> Sequence[str]:
        """All files, below ``root``."""
        return self._names


class ImageFolder(_Files):
    """The pictures below ``root``, where each folder is a class; a sample is ``(picture, class)``.

    Args:
        root: the folder of the classes' folders.
        transform: of the picture: an array of height, width, channels. Those of this package, any function,
            Albumentations' and torchvision's.
        extensions: of the files that count.
        options: ``decoder`` ("auto", "pillow", "pillow-simd", "simplejpeg", "opencv", "accimage"), ``mode`` ("RGB",
            "RGBA", "L", "I;16"), ``dtype`` and ``layout`` ("HWC", "CHW") of what comes out, ``scaled`` (JPEG decoded no
            larger than the transform wants), ``upright`` (turned as EXIF says; it isn't else).

    Attributes:
        classes: their names, sorted; their numbers are the labels.
        class_to_idx: the number of each.
        paths: of the files, below ``root``.

    >>> import os, tempfile
    >>> import numpy as np
    >>> from PIL import Image
    >>> root = tempfile.mkdtemp()
    >>> for name in ("cat", "dog"):
    ...     os.mkdir(os.path.join(root, name))
    ...     Image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(os.path.join(root, name, "1.png"))
    >>> pets = ImageFolder(root)
    >>> pets.classes, len(pets)
    (['cat', 'dog'], 2)
    >>> picture, label = pets[1]
    >>> picture.shape, label
    ((6, 8, 3), 1)
    """

    def __init__(
        self, root: Path, transform: Any = None, *, extensions: Iterable[str] = EXTENSIONS, **options: Any
    ) -> None:
        wanted = tuple(extension.lower() for extension in extensions)
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        labels: list[int] = []
        super().__init__(root, self._found(os.fspath(root), wanted, labels), None, transform, options)
        self._labels = np.array(labels, np.int32)
        if not len(self):
            raise OptionError(
                f"{os.fspath(root)} has no pictures in folders of its own; each class is a folder, and files end with "
                f"one of {', '.join(wanted)}."
            )

    def _found(self, root: str, extensions: tuple[str, ...], labels: list[int]) -> Iterator[str]:
        for label, name in enumerate(self.classes):
            below = os.walk(os.path.join(root, name), followlinks=True)
            for folder, _, files in sorted(below, key=lambda step: step[0]):
                for file in sorted(files):
                    if file.lower().endswith(extensions):
                        labels.append(label)
                        yield os.path.relpath(os.path.join(folder, file), root)


class ImageList(_Files):
    """Pictures of a list: pairs of path and label, or paths; or a text file of them, a pair or a path a line.

    The text is that of Chainer's ``LabeledImageDataset`` and ``ImageDataset``. Without labels a sample is the picture.

    Args:
        pairs: the list, or the name of the text file.
        transform: as for ``ImageFolder``.
        root: what the paths are relative to; it, or they, may be URLs of a store that fsspec knows.
        options: as for ``ImageFolder``.

    Attributes:
        paths: of the files, below ``root``.

    >>> import os, tempfile
    >>> import numpy as np
    >>> from PIL import Image
    >>> root = tempfile.mkdtemp()
    >>> Image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(os.path.join(root, "1.png"))
    >>> picture, label = ImageList([("1.png", 7)], root=root)[0]
    >>> picture.shape, label
    ((6, 8, 3), 7)
    """

    def __init__(
        self,
        pairs: Path | Iterable[tuple[Path, Any]] | Iterable[Path],
        transform: Any = None,
        root: Path = ".",
        **options: Any,
    ) -> None:
        items: list[Any] = _lines(pairs) if isinstance(pairs, (str, os.PathLike)) else list(pairs)
        labelled = {isinstance(item, (tuple, list)) for item in items}
        if len(labelled) > 1:
            raise OptionError("the list has paths and pairs; give each picture a label, or none.")
        labels = np.array([label for _, label in items]) if True in labelled else None
        names = (os.fspath(item[0] if labels is not None else item) for item in items)
        super().__init__(root, names, labels, transform, options)


def _lines(path: Path) -> list[Any]:
    """Of a text file: pairs if each line ends with a number of its own, else paths."""
    with open(path) as file:
        lines = [line.strip() for line in file if line.strip()]
    parts = [line.rsplit(None, 1) for line in lines]
    numbered = [len(part) == 2 and part[1].lstrip("-").isdigit() for part in parts]
    if not any(numbered):
        return lines
    if not all(numbered):
        number = numbered.index(False)
        raise OptionError(f"line {lines[number]!r:.80} of {os.fspath(path)} has no label, while others have one.")
    return [(name, int(label)) for name, label in parts]
