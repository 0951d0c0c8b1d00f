"""Datasets of pictures, which are decoded and transformed when they are read.

Runs in the workers, if there are any.  Follows the dataset protocol: ``source(i)``
names the file, ``fetch(i)`` reads its bytes, ``read(i)`` decodes them,
``transform(sample)`` augments; ``dataset[i]`` is ``transform(read(i))``.  To read
pictures from elsewhere, override ``source`` and ``fetch``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, SupportsIndex, TypedDict, Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..engine import describing
from ..errors import OptionError, warn
from ..order.order import Order
from .decoding import EXTENSIONS, Decoding, is_picture
from .places import Below, Classed, Place, walk
from .tarred import HasShards, in_shards
from .transforms import Picture, adapted, check_is_one, is_pillows, plain

Path = str | os.PathLike[str]
# A warning names this many folders at most.
_FEW = 5


class Form(TypedDict, total=False):
    """How files are decoded, and the form of the resulting arrays."""

    decoder: Literal["auto", "pillow", "simplejpeg"]
    mode: Literal["RGB", "RGBA", "L", "I;16"]
    dtype: DTypeLike
    layout: Literal["HWC", "CHW"]


class Pictures:
    """Pictures at a place.

    A sample is ``(picture, label)``, or the picture if ``labels`` is None.
    """

    def __init__(
        self,
        place: Place,
        labels: Any,
        transform: Any,
        form: Form,
    ) -> None:
        for name in form.keys() - Form.__annotations__.keys():
            raise TypeError(
                f"{type(self).__name__} has no option {name!r}; it has "
                f"{', '.join(Form.__annotations__)}."
            )
        layout = form.get("layout", "HWC")
        check_is_one("layout", layout, ("HWC", "CHW"))
        self._place = place
        self.root = place.root
        self.paths = place.paths
        self.labels = labels
        decoder = form.get("decoder", "auto")
        mode = form.get("mode", "RGB")
        self._decoding = Decoding(decoder, mode)
        self._augment: Callable[[Any], Any]
        if transform is None:
            self._augment = plain
        else:
            self._augment = adapted(transform)
        self._dtype: np.dtype[Any] | None = None
        # NumPy takes None for float64.
        if form.get("dtype") is not None:
            self._dtype = np.dtype(form["dtype"])
        self._turns = layout == "CHW"

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        """Say in one line what it is, and where the files lie."""
        return describing.in_a_line(self, type(self).__name__, self._facts)

    def _facts(self) -> describing.Facts:
        about_labels = "no labels" if self.labels is None else "labelled"
        return [f"{_pictures(len(self))}, {about_labels}", str(self._place)]

    def source(self, index: int) -> str:
        """Return the path or the URL of the file; in a shard, in words where it is."""
        return self._place.source(index)

    def fetch(self, index: int) -> bytes:
        """Read the bytes of the file."""
        return self._place.fetch(index, self.source(index))

    def read(self, index: int, *, in_array: bool = True) -> Any:
        """Return the decoded sample.

        With ``in_array=False`` its picture may be Pillow's image, as it was decoded.
        """
        data = self.fetch(index)
        image = self._decoding.open(data, self.source(index))
        if in_array:
            image = plain(image)
        if self.labels is None:
            return image
        label = self.labels[index]
        if isinstance(label, np.generic):
            label = label.item()
        return image, label

    def transform(self, sample: Any) -> Any:
        """Return a decoded sample with its picture transformed.

        The picture has the layout and dtype that were asked for.
        """
        if self.labels is None:
            return self._augmented(sample)
        return (self._augmented(sample[0]), sample[1])

    def __getitem__(self, index: SupportsIndex) -> Any:
        try:
            at = range(len(self))[index]
        except IndexError:
            raise IndexError(
                f"there is no picture {index} among the {len(self):,} of {self!r}."
            ) from None
        if type(self).read is Pictures.read:
            return self.transform(self.read(at, in_array=False))
        # The `read` of a derived class may take nothing but the index.
        return self.transform(self.read(at))

    def _augmented(self, picture: Picture) -> Any:
        image = self._augment(picture)
        if is_pillows(image):
            image = plain(image)
        # The user's transform may return a tensor, or anything else.  Layout and dtype
        # are asked of arrays only, so the rest is handed on as it is.
        if not isinstance(image, np.ndarray):
            return image
        if self._turns and image.ndim == 3:
            image = image.transpose(2, 0, 1)
        return np.ascontiguousarray(image, self._dtype)


def _pictures(count: int) -> str:
    if count == 1:
        return "1 picture"
    return f"{count:,} pictures"


class ImageFolder(Pictures):
    """The pictures below ``root``, where each folder is a class.

    A sample is ``(picture, class)``.  The pictures are sorted as torchvision sorts
    them: by class, then folder, then file.  ``classes`` lists the classes' names,
    ``class_to_idx`` maps them to numbers; ``paths`` and ``labels`` have an entry for
    each picture.

    Args:
        root: a folder, or ``mpiter.files.Tar(…)``, whose pictures come in the order of
            its shards.  Their classes are the numbers in ``.cls`` members, which have
            no names in ``classes``; without these, the first folder of each key.  In
            slices of ``labels`` and ``paths``, -1 and "" stand where a sample has none.
        transform: a function of an array (height, width, channels), or a transform of
            this package, Albumentations or torchvision.
        options: ``decoder`` ("auto", "pillow", "simplejpeg"), ``mode`` ("RGB", "RGBA",
            "L", "I;16"), ``dtype`` and ``layout`` ("HWC", "CHW") of the resulting
            arrays.

    >>> import os, tempfile
    >>> from PIL import Image
    >>> root = tempfile.mkdtemp()
    >>> os.mkdir(os.path.join(root, "cat"))
    >>> Image.new("RGB", (8, 6)).save(os.path.join(root, "cat", "1.png"))
    >>> picture, label = ImageFolder(root)[0]
    >>> picture.shape, label
    ((6, 8, 3), 0)
    """

    # Loaders ask a dataset for its order by this name, if it has one.
    mpiter_order: Callable[[int, bool | None], Order] | None = None

    def __init__(
        self,
        root: Path | HasShards,
        transform: Any = None,
        **options: Unpack[Form],
    ) -> None:
        if isinstance(root, (str, os.PathLike)):
            found = self._in_folder(os.fspath(root))
        else:
            found = in_shards(root)
        self.classes = found.classes
        self.class_to_idx = _numbered(self.classes)
        # A derived class may have an order of its own.
        if self.mpiter_order is None:
            self.mpiter_order = found.mpiter_order
        super().__init__(found.place, found.labels, transform, options)

    def _facts(self) -> describing.Facts:
        facts = _pictures(len(self))
        if self.classes:
            facts += f" of {len(self.classes):,} classes"
        return [facts, str(self._place)]

    def _in_folder(self, root: str) -> Classed:
        if root.lower().endswith(".tar"):
            raise OptionError(
                f"{root!r:.80} is no folder; pass "
                "ImageFolder(mpiter.files.Tar(…)) for tar shards."
            )
        found, names = self._found(root)
        classes = sorted(found)
        numbers = _numbered(classes)
        in_order = list[tuple[str, str, str, str]]()
        for name in names:
            folder = name.partition("/")[0]
            if folder in numbers and is_picture(name):
                in_order.append((folder, *name.rpartition("/")))
        in_order.sort()
        if not in_order:
            raise OptionError(
                f"{root} has no subfolder with pictures ({', '.join(EXTENSIONS)})."
            )
        without = numbers.keys() - {folder for folder, *_ in in_order}
        if without:
            few = sorted(without)[:_FEW]
            named = ", ".join(map(repr, few))
            if len(without) > _FEW:
                named += ", …"
            warn(
                f"folders in {root} without pictures ({len(without)}) count as classes "
                f"too: {named}."
            )
        labels = np.array([numbers[folder] for folder, *_ in in_order], np.int32)
        paths = ("".join(path) for _, *path in in_order)
        return Classed(Below(root, paths), classes, labels)

    def _found(self, root: str) -> tuple[Iterable[str], Iterable[str]]:
        """Return the names of the classes, and of all files."""
        errors = list[OSError]()
        found = list(walk(root, errors.append))
        if errors:
            raise errors[0]
        names = list[str]()
        for prefix, _, files in found:
            names += [prefix + file for file in files]
        _, classes, _ = found[0]
        return classes, names


def _numbered(classes: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(classes)}


class ImageList(Pictures):
    """The pictures of a list of paths, or of pairs of path and label.

    The list may be a text file with one of these per line: Chainer's
    ``LabeledImageDataset`` and ``ImageDataset`` read the same files.  Without labels a
    sample is the picture. Paths are relative to ``root``; ``root`` or the paths may be
    URLs of a store that fsspec can read.

    >>> ImageList([("cat.jpg", 7), ("dog.jpg", 1)]).labels
    array([7, 1])
    """

    def __init__(
        self,
        pairs: Path | Iterable[Any],
        transform: Any = None,
        root: Path = ".",
        **options: Unpack[Form],
    ) -> None:
        if isinstance(pairs, Mapping):
            raise OptionError(
                "a dict's labels would be lost, as it is a list of its keys; pass its "
                "items()."
            )
        items: list[Any]
        if isinstance(pairs, (str, os.PathLike)):
            items = _lines(pairs)
        else:
            items = list(pairs)
        labelled = {isinstance(item, (tuple, list)) for item in items}
        if len(labelled) > 1:
            raise OptionError(
                "the list has paths and pairs; give each picture a label, or none."
            )
        labels: NDArray[Any] | None = None
        names = items
        if True in labelled:
            labels = np.array([label for _, label in items])
            names = [name for name, _ in items]
        place = Below(root, map(os.fspath, names))
        super().__init__(place, labels, transform, options)


def _lines(path: Path) -> list[Any]:
    """Return the lines of a text file, as paths or as pairs of path and label.

    They are pairs if each line ends with a whole number.
    """
    # Files' names are any bytes, so a line need not be UTF-8.
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        stripped = map(str.strip, file)
        lines = [line for line in stripped if line]
    if any("\0" in line for line in lines):
        raise OptionError(
            f"{os.fspath(path)} is no text file of paths; for a single picture pass a "
            "list, [path]."
        )
    bare = list[str]()
    for line in lines:
        if not re.search(r"\s[+-]?[0-9]+$", line):
            bare.append(line)
    if 0 < len(bare) < len(lines):
        where = f"line {bare[0]!r:.80} of {os.fspath(path)}"
        raise OptionError(
            f"{where} has no whole number at its end, as other lines have: their "
            "labels."
        )
    if bare:
        return lines
    halves = (line.rsplit(None, 1) for line in lines)
    return [(name, int(label)) for name, label in halves]
