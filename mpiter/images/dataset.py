"""Datasets of pictures: which files there are, how each is decoded, and what becomes of it.

Runs wherever the dataset does.  As the dataset protocol has it ``source(i)`` names the file, ``fetch(i)`` brings its
bytes, ``read(i)`` decodes them, ``transform(sample)`` augments; ``dataset[i]`` is ``transform(read(i))``, decoded no
larger than needed if ``scaled``.  A dataset of pictures that lie elsewhere overrides ``source`` and ``fetch``.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np

from ..datasets.packed import Packed
from ..errors import OptionError
from .decoding import Decoding
from .transforms import LAYOUTS, adapted, check_is_one, is_pillows, plain

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
Path = str | os.PathLike[str]


class Pictures:
    """Pictures of these names below ``root``; a sample is ``(picture, label)``, or the picture without ``labels``."""

    def __init__(
        self,
        root: Path,
        names: Iterable[str],
        labels: Any,
        transform: Any,
        *,
        decoder: str = "auto",
        mode: Literal["RGB", "RGBA", "L", "I;16"] = "RGB",
        dtype: Any = None,
        layout: Literal["HWC", "CHW"] = "HWC",
        scaled: bool = False,
        upright: bool = False,
    ) -> None:
        check_is_one("layout", layout, LAYOUTS)
        self.root, self.labels = os.fspath(root), labels
        self.paths: Sequence[str] = Packed(names)  # in memory that all workers share: there may be millions
        self._decoding = Decoding(decoder, mode, upright)
        self._augment = adapted(transform if transform is not None else plain)
        self._dtype = None if dtype is None else np.dtype(dtype)
        self._turns = layout == "CHW" and getattr(self._augment, "layout", "HWC") != "CHW"
        self._scaled = scaled
        if scaled and not hasattr(self._augment, "region"):
            raise OptionError("scaled=True needs Resize, RandomResizedCrop, or what says its region as they do, first.")

    def __len__(self) -> int:
        return len(self.paths)

    def source(self, index: int) -> str:
        """The path or the URL of the file."""
        return os.path.join(self.root, self.paths[index])

    def fetch(self, index: int) -> bytes:
        """Read the bytes of the file."""
        return bytes_at(self.source(index))

    def read(self, index: int, *, in_full: bool = True) -> Any:
        """The sample as it was decoded: an array, in full size.

        Not ``in_full``, for ``transform``: what the decoder gives, no larger than the transform needs if ``scaled``.
        """
        wish = self._augment.region if self._scaled and not in_full else None
        image, region = self._decoding.open(self.fetch(index), self.source(index), wish)
        image = plain(image) if in_full else image if region is None else (image, region)
        if self.labels is None:
            return image
        label = self.labels[index]
        return image, label.item() if isinstance(label, np.generic) else label

    def transform(self, sample: Any) -> Any:
        """Apply the transform, then layout and dtype."""
        return self._augmented(sample) if self.labels is None else (self._augmented(sample[0]), sample[1])

    def __getitem__(self, index: SupportsIndex) -> Any:
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"there is no sample {at} among {len(self)}")
        at %= len(self)
        is_ours = type(self).read is Pictures.read  # a subclass's own takes an index, as the protocol has it
        return self.transform(self.read(at, in_full=False) if is_ours else self.read(at))

    def about(self) -> dict[str, str]:
        """Say which decoder is in use, in words."""
        return {"decoder": self._decoding.names}

    def _augmented(self, image: Any) -> Any:
        image = self._augment.apply(*image) if isinstance(image, tuple) else self._augment(image)  # with its region
        image = plain(image) if is_pillows(image) else image
        if not isinstance(image, np.ndarray):
            return image  # a tensor, or what the user has made of it
        return np.ascontiguousarray(image.transpose(2, 0, 1) if self._turns and image.ndim == 3 else image, self._dtype)


class ImageFolder(Pictures):
    """The pictures below ``root``, where each folder is a class; a sample is ``(picture, class)``.

    The order is torchvision's: classes by name, then folders, then files; ``classes`` are their names, ``class_to_idx``
    the number of each, ``paths`` and ``labels`` those of all pictures.

    Args:
        transform: of an array of height, width, channels: those of this package, any function, Albumentations' and
            torchvision's.
        extensions: of the files that count.
        options: ``decoder`` ("auto", "pillow", "pillow-simd", "simplejpeg", "opencv", "accimage"), ``mode`` ("RGB",
            "RGBA", "L", "I;16"), ``dtype`` and ``layout`` ("HWC", "CHW") of what comes out, ``scaled`` (JPEG decoded no
            larger than the transform wants), ``upright`` (turned as EXIF says; it isn't else).

    >>> import os, tempfile
    >>> from PIL import Image
    >>> root = tempfile.mkdtemp()
    >>> os.mkdir(os.path.join(root, "cat"))
    >>> Image.new("RGB", (8, 6)).save(os.path.join(root, "cat", "1.png"))
    >>> picture, label = ImageFolder(root)[0]
    >>> picture.shape, label
    ((6, 8, 3), 0)
    """

    def __init__(
        self, root: Path, transform: Any = None, *, extensions: str | Iterable[str] = EXTENSIONS, **options: Any
    ) -> None:
        wanted = tuple(map(str.lower, (extensions,) if isinstance(extensions, str) else extensions))
        classes, names = self._found(os.fspath(root))
        self.classes = sorted(classes)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        parts = ((name.partition("/")[0], *name.rpartition("/")) for name in names if name.lower().endswith(wanted))
        in_order = sorted(each for each in parts if each[0] in self.class_to_idx)
        if not in_order:
            raise OptionError(f"{root} has no pictures in folders of its own, that end with {' or '.join(wanted)}.")
        labels = np.array([self.class_to_idx[name] for name, *_ in in_order], np.int32)
        super().__init__(root, ("".join(name) for _, *name in in_order), labels, transform, **options)

    def _found(self, root: str) -> tuple[Iterable[str], Iterable[str]]:
        """The classes, and the names of all files."""
        classes, names, failed = list[str](), list[str](), list[OSError]()
        for prefix, folders, files in walk(root, failed):
            classes += [] if prefix else folders
            names += [prefix + file for file in files]
        for error in failed:
            raise error
        return classes, names


def walk(top: str, failed: list[OSError]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each folder from ``top`` on ("" itself, "cat/", …), and the names of the folders and files in it.

    Links are followed, but not to a folder that they lie in.  What can't be listed is ``failed``.
    """
    around = {top: {os.path.realpath(top)}}
    for folder, folders, files in os.walk(top, onerror=failed.append, followlinks=True):
        here = around.pop(folder)
        places = {name: os.path.realpath(os.path.join(folder, name)) for name in folders}
        folders[:] = [name for name in folders if places[name] not in here]
        around |= {os.path.join(folder, name): {*here, places[name]} for name in folders}
        yield "" if folder == top else os.path.join(os.path.relpath(folder, top), ""), folders, files


class ImageList(Pictures):
    """Pictures of a list: pairs of path and label, or paths; or a text file of them, a pair or a path a line.

    The text is that of Chainer's ``LabeledImageDataset`` and ``ImageDataset``. Without labels a sample is the picture.
    ``root`` is what the paths are relative to; it, or they, may be URLs of a store that fsspec knows.

    >>> ImageList([("cat.jpg", 7), ("dog.jpg", 1)]).labels
    array([7, 1])
    """

    def __init__(
        self, pairs: Path | Iterable[tuple[Path, Any] | Path], transform: Any = None, root: Path = ".", **options: Any
    ) -> None:
        if isinstance(pairs, Mapping):
            raise OptionError("a dict's labels would be lost, as it is a list of its keys; pass its items().")
        items: list[Any] = _lines(pairs) if isinstance(pairs, (str, os.PathLike)) else list(pairs)
        labelled = {isinstance(item, (tuple, list)) for item in items}
        if len(labelled) > 1:
            raise OptionError("the list has paths and pairs; give each picture a label, or none.")
        labels = np.array([label for _, label in items]) if True in labelled else None
        names = (os.fspath(item if labels is None else item[0]) for item in items)
        super().__init__(root, names, labels, transform, **options)


def _lines(path: Path) -> list[Any]:
    """Read a text file: it has pairs if each line ends with a whole number, else paths."""
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:  # names are whatever bytes they are
        lines = [line.strip() for line in file if line.strip()]
    parts = [line.rsplit(None, 1) for line in lines]
    numbered = [len(part) == 2 and re.fullmatch("[+-]?[0-9]+", part[1]) is not None for part in parts]
    if any(numbered) and not all(numbered):
        line = lines[numbered.index(False)]
        raise OptionError(f"line {line!r:.80} of {os.fspath(path)} has no label, while others have one.")
    return [(name, int(label)) for name, label in parts] if all(numbered) else lines


def bytes_at(source: str) -> bytes:
    """All bytes of a file, or of what a URL names."""
    if "://" not in source:
        with open(source, "rb") as file:
            return file.read()
    try:
        import fsspec
    except ImportError as error:
        raise OptionError(f"{source:.200} is a URL, which takes fsspec: pip install 'mpiter[staging]'.") from error
    system, path = fsspec.core.url_to_fs(source)
    data: bytes = system.cat_file(path)
    return data
