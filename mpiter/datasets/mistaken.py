"""What is passed in place of a dataset by mistake: an error says what was meant.

Runs in the consumer, when an iterator or loader is made.  Guarantees that whatever
could serve as a dataset passes: what has ``[]`` or ``__getitems__`` or can be iterated
over, and gives samples.
"""

from __future__ import annotations

import inspect
import os
from itertools import islice
from numbers import Integral
from typing import Any

from ..errors import OptionError

# How files are opened, by their endings.  Some are folders.
_OPENED_BY = {
    ".csv": "pandas.read_csv(path)",
    ".npy": "numpy.load(path, mmap_mode='r')",
    ".npz": "numpy.load(path)",
    ".parquet": "mpiter.files.Parquet(path)",
    ".tar": "mpiter.files.Tar(path)",
    ".zarr": "an array of zarr.open(path)",
}
# At most so many folders within a folder are looked into.
_FOLDERS = 20
# At most so many names of arrays are shown in an error.
_FEW = 4


def refuse_mistaken(
    data: object,
    batch_size: object = None,
    by_key: bool = False,
) -> None:
    """Raise an OptionError if ``data`` is no dataset, and it is plain what was meant.

    ``batch_size``: what was passed as such, which may be a further column.  ``by_key``:
    samples are read by a sampler's keys, which may be names.
    """
    problem = _as_if_readable(data, by_key)
    if problem is None and not _can_be_read(data):
        problem = _unreadable(data)
    # Arrays passed one by one, as in (X, y): the second is taken for the batch size.
    has_length = hasattr(type(batch_size), "__len__")
    is_text = isinstance(batch_size, (str, bytes))
    if problem is None and has_length and not is_text:
        kind = type(batch_size).__name__
        problem = (
            f"batch_size is of type {kind}: arrays go together, as one dataset (X, y), "
            "then the batch size."
        )
    if problem is not None:
        raise OptionError(problem)


def refuse_no_sampler(**given: object) -> None:
    """Raise an OptionError if one of the samplers ``given`` can't be iterated over."""
    for name, sampler in given.items():
        if sampler is None or _can_be_read(sampler):
            continue
        if inspect.isclass(sampler):
            raise OptionError(
                f"{name}={sampler.__name__} is a class: pass an object of it, "
                f"{sampler.__name__}(…)."
            )
        raise OptionError(
            f"{name}={sampler!r:.60} is no iterable: pass a list of keys, or what "
            "yields them."
        )


def _can_be_read(value: object) -> bool:
    kind = type(value)
    return hasattr(kind, "__getitem__") or hasattr(kind, "__iter__")


def _as_if_readable(data: object, by_key: bool) -> str | None:
    """Say what was meant if ``data`` seems to have ``[]``, but not for samples."""
    kind = type(data)
    package = kind.__module__.partition(".")[0]
    if isinstance(data, (str, bytes, bytearray)):
        return _text(data)
    if isinstance(data, Integral):
        return f"{data} is no dataset: the dataset comes first, then the batch size."
    if package == "zarr" and hasattr(kind, "array_keys") and not by_key:
        return _group(data)
    if package == "polars" and kind.__name__ == "LazyFrame":
        return "a LazyFrame of polars has no rows yet: pass frame.collect()."
    return None


def _unreadable(data: object) -> str | None:
    if inspect.isclass(data):
        return (
            f"{data.__name__} is a class: pass a dataset made of it, "
            f"{data.__name__}(…)."
        )
    if inspect.isroutine(data):
        return (
            f"{data.__name__} is a function: pass an object with __getitem__ and "
            "__len__, or what it returns."
        )
    if isinstance(data, os.PathLike):
        return _path(os.fsdecode(data))
    # This is the method that torch's loader calls.
    if hasattr(data, "__getitems__"):
        return None
    return (
        f"a dataset has [] or can be iterated over, and {type(data).__name__} has "
        "neither."
    )


def _text(data: str | bytes | bytearray) -> str:
    if isinstance(data, str):
        has_ending = os.path.splitext(data)[1] in _OPENED_BY
        if has_ending or os.sep in data or os.path.exists(data):
            return _path(data)
    what = f"{data!r:.40} is {type(data).__name__}"
    return f"{what}: its samples would be single letters; pass a dataset."


def _path(path: str) -> str:
    ending = os.path.splitext(path)[1]
    is_folder = os.path.isdir(path)
    if is_folder and ending not in _OPENED_BY:
        endings: set[str] = set()
        # A table may be divided into folders, such as year=2024.
        for _, _, names in islice(os.walk(path), _FOLDERS):
            endings |= {os.path.splitext(name)[1] for name in names}
        for kind in (".parquet", ".tar"):
            if kind in endings:
                ending = kind
    if ending in _OPENED_BY:
        remedy = f"pass {_OPENED_BY[ending]}"
    elif is_folder:
        remedy = (
            "for pictures pass mpiter.images.ImageFolder(path), else an object that "
            "reads the files"
        )
    else:
        remedy = "open it, and pass what it holds"
    there = ""
    # Parquet and Tar take patterns and addresses.
    is_file = "*" not in path and "://" not in path
    if is_file and not os.path.exists(path):
        there = " (nothing lies there)"
    return f"{path!r:.80} is a path{there}, not a dataset: {remedy}."


def _group(group: Any) -> str:
    names = [f"{name!r:.40}" for name in islice(group.array_keys(), _FEW)]
    if names:
        remedy = f"pass group[{names[0]}]"
    else:
        remedy = "pass an array that lies in it"
    if len(names) > 1:
        columns = ", ".join(f"{name}: group[{name}]" for name in names)
        remedy += f", or for columns {{{columns}}}"
    return f"a group of zarr has no rows, but arrays by name: {remedy}."
