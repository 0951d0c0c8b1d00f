"""Which files there are: a folder of classes, or a list in memory or in a file.

Runs where the dataset is made.  Paths are packed into memory that all workers share, since there may be millions; their
order is torchvision's: classes by name, then folders, then files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from ..datasets.packed import Packed
from ..errors import OptionError
from .dataset import Pictures

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
Path = str | os.PathLike[str]


class Classes(Pictures):
    """Pictures in a folder for each class, wherever the folders are."""

    classes: list[str]
    class_to_idx: dict[str, int]

    def _name_classes(self, names: Iterable[str]) -> None:
        self.classes = sorted(names)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    def _check_there_are_some(self, place: str, extensions: tuple[str, ...]) -> None:
        if not len(self):
            raise OptionError(
                f"{place} has no pictures in folders of its own; each class is a folder, and files end with one of "
                f"{', '.join(extensions)}."
            )


def endings(extensions: str | Iterable[str]) -> tuple[str, ...]:
    """Of names in lower case."""
    return tuple(map(str.lower, (extensions,) if isinstance(extensions, str) else extensions))


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


class ImageFolder(_Files, Classes):
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
        labels: of all pictures, as an array.
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
        self, root: Path, transform: Any = None, *, extensions: str | Iterable[str] = EXTENSIONS, **options: Any
    ) -> None:
        wanted = endings(extensions)
        with os.scandir(root) as entries:
            self._name_classes(entry.name for entry in entries if _is_folder(entry))
        labels: list[int] = []
        super().__init__(root, self._found(os.fspath(root), wanted, labels), None, transform, options)
        self._labels = np.array(labels, np.int32)
        self._check_there_are_some(self.root, wanted)

    def _found(self, root: str, extensions: tuple[str, ...], labels: list[int]) -> Iterator[str]:
        for label, name in enumerate(self.classes):
            for folder, files in sorted(_walk(os.path.join(root, name), {_identity(root)})):
                for file in sorted(files):
                    if file.lower().endswith(extensions):
                        labels.append(label)
                        yield os.path.relpath(os.path.join(folder, file), root)


def _walk(folder: str, around: Set[tuple[int, int]]) -> Iterator[tuple[str, list[str]]]:
    """Each folder from this one on, and its files; not once more one that it is in, to which a link leads."""
    here = _identity(folder)
    if here in around:
        return
    folders, files = list[str](), list[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            (folders if _is_folder(entry) else files).append(entry.name)
    yield folder, files
    for name in folders:
        yield from _walk(os.path.join(folder, name), {*around, here})


def _identity(folder: str) -> tuple[int, int]:
    about = os.stat(folder)
    return about.st_dev, about.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


class ImageList(_Files):
    """Pictures of a list: pairs of path and label, or paths; or a text file of them, a pair or a path a line.

    The text is that of Chainer's ``LabeledImageDataset`` and ``ImageDataset``. Without labels a sample is the picture.

    Args:
        pairs: the list, or the name of the text file.
        transform: as for ``ImageFolder``.
        root: what the paths are relative to; it, or they, may be URLs of a store that fsspec knows.
        options: as for ``ImageFolder``.

    Attributes:
        labels: of all pictures, as an array; None without labels.
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
        if isinstance(pairs, Mapping):
            raise OptionError("a dict's labels would be lost, as it is a list of its keys; pass its items().")
        items: list[Any] = _lines(pairs, root) if isinstance(pairs, (str, os.PathLike)) else list(pairs)
        labelled = {isinstance(item, (tuple, list)) for item in items}
        if len(labelled) > 1:
            raise OptionError("the list has paths and pairs; give each picture a label, or none.")
        labels = _labels(items) if True in labelled else None
        names = (_name(item[0] if labels is not None else item) for item in items)
        super().__init__(root, names, labels, transform, options)


def _name(path: Any) -> str:
    if isinstance(path, (str, os.PathLike)) and isinstance(name := os.fspath(path), str):
        return name
    raise OptionError(f"{path!r:.80} in the list is no path; give (path, label) tuples, or paths as str or Path.")


def _labels(pairs: list[Any]) -> Any:
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise OptionError(f"{wrong!r:.80} in the list is no pair of path and label.")
    given = [label for _, label in pairs]
    try:
        labels = np.array(given)
    except ValueError as error:
        raise OptionError(f"the labels of the list differ in shape, and are to be one array: {error}") from error
    if labels.ndim == 1 and labels.dtype.kind == "U":  # NumPy makes a string of a number beside one
        for odd in (label for label in given if not isinstance(label, str)):
            raise OptionError(f"the list has labels that are strings, and {odd!r:.80}; give all of them one type.")
    return labels


def _lines(path: Path, root: Path) -> list[Any]:
    """Of a text file: pairs if each line ends with a whole number, else paths."""
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:  # names are whatever bytes they are
        lines = [line.strip() for line in file if line.strip()]
    if any("\0" in line for line in lines):
        raise OptionError(f"{os.fspath(path)} is no text file with a path a line.")
    _check_is_no_csv(lines, path, root)
    parts = [line.rsplit(None, 1) for line in lines]
    numbered = [len(part) == 2 and _NUMBER.fullmatch(part[1]) is not None for part in parts]
    if not any(numbered):
        _check_are_paths(parts, path, root)
        return lines
    if not all(numbered):
        number = numbered.index(False)
        raise OptionError(f"line {lines[number]!r:.80} of {os.fspath(path)} has no label, while others have one.")
    return [(name, int(label)) for name, label in parts]


_NUMBER = re.compile("[+-]?[0-9]+")


_OF_CSV = re.compile(r'"?(.+?)"?\s*[,;][^/]+')


def _check_is_no_csv(lines: list[str], path: Path, root: Path) -> None:
    """By the first line, or the second below a heading: a picture's name and a comma, which are no file's name."""
    for line in lines[:2]:
        found, names = _OF_CSV.fullmatch(line), (line, line.rsplit(None, 1)[0])
        if not found or not found[1].lower().endswith(EXTENSIONS):
            continue
        if not any(name.lower().endswith(EXTENSIONS) or os.path.exists(os.path.join(root, name)) for name in names):
            raise OptionError(
                f"line {line!r:.80} of {os.fspath(path)} looks like CSV; write the label behind a space, or pass "
                "a list of (path, label) pairs."
            )


def _check_are_paths(parts: list[list[str]], path: Path, root: Path) -> None:
    """By the first line: is the file the line, or is it there without the last word, which is meant as a label?"""
    if parts and len(parts[0]) == 2:
        name, label = parts[0]
        if os.path.exists(os.path.join(root, name)):
            raise OptionError(f"the label {label!r:.40} in {os.fspath(path)} is no whole number; number the classes.")
