"""Datasets of pictures, which are decoded and transformed when they are read.

Runs in the workers, if there are any.  Follows the dataset protocol: ``source(i)``
names the file, ``fetch(i)`` reads its bytes, ``read(i)`` decodes them,
``transform(sample)`` augments; ``dataset[i]`` is ``transform(read(i))``.  To read
pictures from elsewhere, override ``source`` and ``fetch``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, TypedDict, Unpack

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..datasets.packed import Packed
from ..engine import describing
from ..errors import OptionError, warn
from .decoding import EXTENSIONS, Decoding, is_picture
from .tarred import Shards, Tarred
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
    """The pictures in the files ``names`` below ``root``.

    A sample is ``(picture, label)``, or the picture if ``labels`` is None.
    """

    def __init__(
        self,
        root: Path,
        names: Iterable[str],
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
        self.root = os.fspath(root)
        self.labels = labels
        # All workers share this memory, since there may be millions of names.
        self.paths: Sequence[str]
        if isinstance(names, Sequence):
            self.paths = names
        else:
            self.paths = Packed(names)
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
        return [f"{_pictures(len(self))}, {about_labels}", self.root]

    def source(self, index: int) -> str:
        """Return the path or the URL of the file."""
        path = self.paths[index]
        if "://" in path:
            return path
        return os.path.join(self.root, path)

    def fetch(self, index: int) -> bytes:
        """Read the bytes of the file."""
        return bytes_at(self.source(index))

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
            no names in ``classes``; without these, the first folder of each key.
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

    def __init__(
        self,
        root: Path | Shards,
        transform: Any = None,
        **options: Unpack[Form],
    ) -> None:
        self._tar: Tarred | None = None
        if not isinstance(root, (str, os.PathLike)):
            self._tar = Tarred(root)
            self.classes = self._tar.classes
            self.class_to_idx = _numbered(self.classes)
            # Loaders ask for an order by this name; a derived class may have its own.
            if not hasattr(type(self), "mpiter_order"):
                self.mpiter_order = root.mpiter_order
            names_there = self._tar.names()
            super().__init__("", names_there, self._tar.labels, transform, options)
            return
        if os.fspath(root).endswith(".tar"):
            raise OptionError(
                f"{os.fspath(root)!r:.80} is no folder; pass "
                "ImageFolder(mpiter.files.Tar(…)) for tar shards."
            )
        classes, names = self._found(os.fspath(root))
        self.classes = sorted(classes)
        self.class_to_idx = _numbered(self.classes)
        in_order = list[tuple[str, str, str, str]]()
        for name in names:
            folder = name.partition("/")[0]
            if folder in self.class_to_idx and is_picture(name):
                in_order.append((folder, *name.rpartition("/")))
        in_order.sort()
        if not in_order:
            raise OptionError(
                f"{root} has no subfolder with pictures ({', '.join(EXTENSIONS)})."
            )
        without = self.class_to_idx.keys() - {folder for folder, *_ in in_order}
        if without:
            few = sorted(without)[:_FEW]
            named = ", ".join(map(repr, few))
            if len(without) > _FEW:
                named += ", …"
            warn(
                f"folders in {root} without pictures ({len(without)}) count as classes "
                f"too: {named}."
            )
        numbers = [self.class_to_idx[folder] for folder, *_ in in_order]
        labels = np.array(numbers, np.int32)
        paths = ("".join(path) for _, *path in in_order)
        super().__init__(
            root,
            paths,
            labels,
            transform,
            options,
        )

    def _facts(self) -> describing.Facts:
        if self._tar is not None:
            return [_pictures(len(self)), repr(self._tar.shards)]
        return [f"{_pictures(len(self))} of {len(self.classes):,} classes", self.root]

    def source(self, index: int) -> str:
        """Return the path of the file, or in words where it lies in a shard."""
        if self._tar is not None:
            return self._tar.source(index)
        return super().source(index)

    def fetch(self, index: int) -> bytes:
        """Read the bytes of the file."""
        if self._tar is not None:
            return self._tar.fetch(index)
        return super().fetch(index)

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
        super().__init__(
            root,
            map(os.fspath, names),
            labels,
            transform,
            options,
        )


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
