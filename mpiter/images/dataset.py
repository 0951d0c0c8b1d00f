"""Datasets of pictures: they find the files, decode a picture when it is read, and
apply a transform.

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

from ..datasets.packed import Packed
from ..engine import describing
from ..errors import OptionError, warn
from .decoding import Decoding
from .transforms import adapted, check_is_one, is_pillows, plain

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
Path = str | os.PathLike[str]
# Names of folders that a warning shows.
_FEW = 5


# How files are decoded, and the form of the resulting arrays.
class Form(TypedDict, total=False):
    decoder: Literal["auto", "pillow", "simplejpeg"]
    mode: Literal["RGB", "RGBA", "L", "I;16"]
    dtype: Any
    layout: Literal["HWC", "CHW"]


class Pictures:
    """The files ``names`` below ``root``; a sample is ``(picture, label)``, or the
    picture if ``labels`` is None.
    """

    def __init__(
        self, root: Path, names: Iterable[str], labels: Any, transform: Any, form: Form
    ) -> None:
        for name in form.keys() - Form.__annotations__.keys():
            raise TypeError(
                f"{type(self).__name__} has no option {name!r}; it has "
                f"{', '.join(Form.__annotations__)}."
            )
        check_is_one("layout", form.get("layout", "HWC"), ("HWC", "CHW"))
        self.root = os.fspath(root)
        self.labels = labels
        # In memory that all workers share: there may be millions.
        self.paths: Sequence[str] = Packed(names)
        self._decoding = Decoding(form.get("decoder", "auto"), form.get("mode", "RGB"))
        self._augment: Any
        if transform is None:
            self._augment = plain
        else:
            self._augment = adapted(transform)
        if form.get("dtype") is None:
            self._dtype = None
        else:
            self._dtype = np.dtype(form["dtype"])
        self._turns = form.get("layout") == "CHW"

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        """Say in one line what it is, and where the files lie."""
        return describing.in_a_line(self, type(self).__name__, self._facts)

    def _facts(self) -> describing.Facts:
        return [
            f"{_pictures(len(self))}, "
            + ("no labels" if self.labels is None else "labelled"),
            self.root,
        ]

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
        """Return the decoded sample; with ``in_array=False`` its picture may be
        Pillow's image, as it was decoded.
        """
        image = self._decoding.open(self.fetch(index), self.source(index))
        if in_array:
            image = plain(image)
        else:
            image = image
        if self.labels is None:
            return image
        label = self.labels[index]
        return image, label.item() if isinstance(label, np.generic) else label

    def transform(self, sample: Any) -> Any:
        """Return a decoded sample with its picture transformed, in the layout and dtype
        asked for.
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
        # A derived class's own may take the index only.
        is_ours = type(self).read is Pictures.read
        return self.transform(
            self.read(at, in_array=False) if is_ours else self.read(at)
        )

    def _augmented(self, image: Any) -> Any:
        image = self._augment(image)
        if is_pillows(image):
            image = plain(image)
        else:
            image = image
        if not isinstance(image, np.ndarray):
            # A tensor, or any other result of the user's transform.
            return image
        return np.ascontiguousarray(
            image.transpose(2, 0, 1) if self._turns and image.ndim == 3 else image,
            self._dtype,
        )


def _pictures(count: int) -> str:
    if count == 1:
        return "1 picture"
    return f"{count:,} pictures"


class ImageFolder(Pictures):
    """The pictures below ``root``, where each folder is a class; a sample is
    ``(picture, class)``.

    The pictures are sorted as torchvision sorts them: by class, then folder, then
    file.  ``classes`` lists the classes' names, ``class_to_idx`` maps them to numbers;
    ``paths`` and ``labels`` have an entry for each picture.

    Args:
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
        self, root: Path, transform: Any = None, **options: Unpack[Form]
    ) -> None:
        classes, names = self._found(os.fspath(root))
        self.classes = sorted(classes)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        parts = (
            (name.partition("/")[0], *name.rpartition("/"))
            for name in names
            if name.lower().endswith(EXTENSIONS)
        )
        in_order = sorted(each for each in parts if each[0] in self.class_to_idx)
        if not in_order:
            raise OptionError(
                f"{root} has no subfolder with pictures ({', '.join(EXTENSIONS)})."
            )
        if without := self.class_to_idx.keys() - {name for name, *_ in in_order}:
            named = ", ".join(map(repr, sorted(without)[:_FEW])) + ", …" * (
                len(without) > _FEW
            )
            warn(
                f"folders in {root} without pictures ({len(without)}) count as classes "
                f"too: {named}."
            )
        labels = np.array([self.class_to_idx[name] for name, *_ in in_order], np.int32)
        super().__init__(
            root, ("".join(name) for _, *name in in_order), labels, transform, options
        )

    def _facts(self) -> describing.Facts:
        return [f"{_pictures(len(self))} of {len(self.classes):,} classes", self.root]

    def _found(self, root: str) -> tuple[Iterable[str], Iterable[str]]:
        """Return the names of the classes, and of all files."""
        errors = list[OSError]()
        found = list(walk(root, errors.append))
        if errors:
            raise errors[0]
        return found[0][1], [
            prefix + file for prefix, _, files in found for file in files
        ]


def walk(
    top: str, onerror: Callable[[OSError], None]
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield ``top`` and each folder below it: its path from ``top`` ("", "cat/", …),
    and its folders' and files' names.

    Links are followed, except to a folder that contains them.  ``onerror`` gets the
    error of listing a folder.
    """
    around = {top: {os.path.realpath(top)}}
    for folder, folders, files in os.walk(top, onerror=onerror, followlinks=True):
        here = around.pop(folder)
        places = {
            name: os.path.realpath(os.path.join(folder, name)) for name in folders
        }
        folders[:] = [name for name in folders if places[name] not in here]
        around |= {
            os.path.join(folder, name): {*here, places[name]} for name in folders
        }
        yield (
            "" if folder == top else os.path.join(os.path.relpath(folder, top), ""),
            folders,
            files,
        )


class ImageList(Pictures):
    """The pictures of a list of paths, or of pairs of path and label; or of a text file
    with one of these per line.

    Chainer's ``LabeledImageDataset`` and ``ImageDataset`` read the same text files.
    Without labels a sample is the picture. Paths are relative to ``root``; ``root`` or
    the paths may be URLs of a store that fsspec can read.

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
        if True in labelled:
            labels = np.array([label for _, label in items])
        else:
            labels = None
        names = (os.fspath(item if labels is None else item[0]) for item in items)
        super().__init__(root, names, labels, transform, options)


def _lines(path: Path) -> list[Any]:
    """Return the lines of a text file: as pairs of path and label if each ends with a
    whole number, else as paths.
    """
    # Names may be any bytes.
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = [line.strip() for line in file if line.strip()]
    if any("\0" in line for line in lines):
        raise OptionError(
            f"{os.fspath(path)} is no text file of paths; for a single picture pass a "
            "list, [path]."
        )
    bare = [line for line in lines if not re.search(r"\s[+-]?[0-9]+$", line)]
    if 0 < len(bare) < len(lines):
        line = f"line {bare[0]!r:.80} of {os.fspath(path)}"
        raise OptionError(
            f"{line} has no whole number at its end, as other lines have: their labels."
        )
    if bare:
        return lines
    return [
        (name, int(label)) for name, label in (line.rsplit(None, 1) for line in lines)
    ]


def bytes_at(source: str) -> bytes:
    """Return all bytes of the file that a path or a URL names; a pipe or a device,
    which may never end, is an error.
    """
    if "://" not in source:
        with open(
            source,
            "rb",
            opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK),
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "Not a regular file", source)
            return file.read()
    import fsspec  # of mpiter[staging]

    system, path = fsspec.core.url_to_fs(source)
    return bytes(system.cat_file(path))
