"""Columns as a dataset, and how the samples of any dataset are read.

``as_dataset`` finds out what the user's data is: columns of one length, whose rows are
the samples, or samples.  Columns are ``(X, y)``, a dict of arrays, a data frame.  Data
that could be either is refused, and the message has the spelling of both.  A row has
the same container as the columns.

``reader_of`` finds out once, in a worker, how a dataset reads many samples at once: by
the ``mpiter_reader`` of ours, torch's ``__getitems__``, by NumPy's indexing with
arrays, or by that of Chainer's ``TupleDataset`` and ``DictDataset`` of arrays.  If
such a reading raises, or draws random numbers (which must depend on each sample's
position), the samples are read one by one.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from ..errors import OptionError
from ..samples import jax_arrays
from ..samples.rows import Rows, container

# A list of at most so many parts may be columns: few datasets are so small.
_FEW = 4
# Types that may be columns if another column is an array.
_SEQUENCES = (list, tuple, range)
# Packages whose ``[]`` takes labels, or returns objects.
_FRAMES = ("pandas", "polars", "pyarrow")
# The types of their columns of whole numbers, as text.
_WHOLE = re.compile(r"u?int\d", re.IGNORECASE)
_SPELLINGS = (
    "For columns, each row of which is a sample, pass arrays of one length in a tuple "
    "or a dict; for samples, whatever they are, mpiter.Packed(samples)."
)
_Indices = np.ndarray[Any, np.dtype[np.int64]]
# Columns of one length: arrays, or lists beside them.
_Columns = tuple[Any, ...] | dict[Any, Any]


class Table:
    """A dataset whose samples are the rows of columns of one length.

    The columns are in a tuple, a named tuple or a dict.
    """

    def __init__(self, columns: _Columns) -> None:
        lengths = [(name, _length(column)) for name, column in _named(columns)]
        (one, length), *others = lengths
        for other, rows in others:
            if rows != length:
                raise OptionError(
                    f"columns differ in length: {one} has {length} rows, {other} "
                    f"{rows}.  {_SPELLINGS}"
                )
        self.columns = columns
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: object) -> Any:
        return container(self.columns, lambda column: column[index])

    def __getitems__(self, indices: Sequence[int] | _Indices) -> Rows:
        """Return the samples with these indices, read column by column."""
        # A copy, since torch refuses read-only arrays.
        wanted = np.array(indices)
        columns = container(self.columns, lambda column: _part(column, wanted))
        return Rows(columns, len(wanted))


def as_dataset(data: Any, by_key: bool = False) -> Any:
    """Return ``data`` as a dataset; columns become a ``Table``.

    With ``by_key``, a dict may hold samples by key.
    """
    data = _taken_from_frame(data)
    if not _is_container(data):
        # An object that is a dataset itself.
        return data
    if isinstance(data, Mapping):
        rows = {*map(_rows, data.values())}
        are_samples = all(isinstance(name, int) for name in data)
        # With ``by_key``, a dict has columns only if all values are as long and one is
        # an array.
        if by_key:
            has_arrays = any(map(_is_array, data.values()))
            are_samples |= 0 in rows or len(rows) != 1 or not has_arrays
        if are_samples:
            return data
        return _brought_by(data, _table(dict(data)))
    # A list of more parts has samples, whatever they are, so they aren't looked at.
    if len(data) <= _FEW:
        rows = {*map(_rows, data)}
    else:
        rows = {0}
    may_be_columns = len(data) > 1 and 0 not in rows
    are_long = len(rows) == 1 and max(rows) > len(data)
    if not any(map(_is_array, data)):
        # A tuple of a few long lists may be either.  Any other without arrays has
        # samples.
        if isinstance(data, tuple) and may_be_columns and are_long:
            _refuse(data, "a dict of them")
    elif isinstance(data, list):
        # A list of arrays may be either if these are longer than the list, or differ in
        # type or dimensions.  Any other list has samples.
        kinds = set[tuple[type, int]]()
        if may_be_columns:
            for part in data:
                dimensions = len(getattr(part, "shape", ()))
                kinds.add((type(part), dimensions))
        differ = len(kinds) > 1 and max(rows) > 1
        if may_be_columns and (are_long or differ):
            _refuse(data, "a tuple, (X, y),")
    # A tuple with an array has columns.  One with more parts than rows may be either.
    elif len(data) > _FEW and len(data) >= _rows(data[0]):
        _refuse(data, "a dict of them")
    else:
        # Samples of a class that is derived from tuple would be sent as objects.
        if not hasattr(data, "_fields"):
            return _brought_by(data, _table(tuple(data)))
        return _brought_by(data, _table(data))
    return data


def _brought_by(data: object, table: Table) -> Table:
    """Return the table with what the class of its columns brings, such as an order."""
    for name in ("mpiter_order", "mpiter_hook"):
        if hasattr(type(data), name):
            setattr(table, name, getattr(data, name))
    return table


def _is_container(data: object) -> bool:
    """Return True if ``data`` is a list, tuple, dict or mapping of arrays.

    Those with indexing of their own, neither Python's nor NumPy's, are datasets.
    """
    for kind in (list, tuple, dict):
        if isinstance(data, kind):
            return type(data).__getitem__ is kind.__getitem__
    # NumPy's archive is a mapping.  Other libraries' mappings are datasets.
    return isinstance(data, Mapping) and _package(data) == "numpy"


def _refuse(data: Sequence[Any], columns: str) -> NoReturn:
    kind = type(data).__name__
    told = ", ".join(map(_told, data[:_FEW]))
    if len(data) > _FEW:
        told += ", …"
    raise OptionError(
        f"a {kind} of {told} may be {len(data)} samples or {len(data)} columns.  "
        f"Pass {columns} for columns, or mpiter.Packed({kind}) for samples."
    )


def _told(part: object) -> str:
    size = ""
    if hasattr(part, "shape"):
        size = f" {tuple(part.shape)}"
    elif hasattr(part, "__len__"):
        size = f" of {len(part)}"
    return type(part).__name__ + size


def _table(columns: _Columns) -> Table:
    for name, part in _named(columns):
        if isinstance(part, Mapping):
            raise OptionError(
                f"columns can't be nested, and {name} is {type(part).__name__}: pass "
                "each as a column."
            )
        if not (_is_array(part) or isinstance(part, _SEQUENCES)):
            raise OptionError(
                f"columns are arrays or lists, and {name} is {type(part).__name__}.  "
                f"{_SPELLINGS}"
            )
        if isinstance(part, tuple) and any(map(_is_array, part)):
            raise OptionError(
                f"columns can't be nested, and {name} is a tuple of arrays: pass each "
                "as a column."
            )
        _refuse_gaps(name, part)
    return Table(container(columns, _as_column))


def _refuse_gaps(name: str, part: Any) -> None:
    """Refuse whole numbers of a frame with missing ones among them.

    As floats they would lose digits above 2**53.
    """
    package = _package(part)
    attribute = "type" if package == "pyarrow" else "dtype"
    kind = str(getattr(part, attribute, ""))
    if package not in _FRAMES or not _WHOLE.match(kind):
        return
    if package == "pandas":
        missing = part.isna().sum()
    else:
        missing = part.null_count
    # It is a method of polars, and an attribute of pyarrow.
    if callable(missing):
        missing = missing()
    count = int(missing)
    if count:
        raise OptionError(
            f"{name} has whole numbers ({kind}), {count} of them missing, which no "
            "array of NumPy can be: fill or drop these, or make it a column of "
            "floats, where they are NaN."
        )


def _rows(part: object) -> int:
    """Return the number of rows of a column; 0 for anything else."""
    if _is_array(part) or isinstance(part, _SEQUENCES):
        return _length(part)
    return 0


def _is_array(part: object) -> bool:
    """Return True for what has rows and can be indexed.

    That is arrays, tensors, series and the like.
    """
    try:
        shape: object = getattr(part, "shape", None)
    except RuntimeError:
        # A nested tensor has no shape.
        return False
    # torch.Size is a tuple, too.
    if isinstance(shape, tuple):
        return bool(shape) and hasattr(type(part), "__getitem__")
    return _package(part) == "pyarrow" and hasattr(part, "to_numpy")


def _as_column(part: Any) -> Any:
    """Return a column that can be indexed by a row number.

    If possible it can be indexed by an array of them, too.
    """
    if isinstance(part, tuple):
        return list(part)
    if _package(part) in _FRAMES:
        return np.asarray(part.to_numpy())
    return _of_numpy(part)


def _of_numpy(data: object) -> object:
    """Return an array of JAX's as one of NumPy's; anything else unchanged.

    Its rows are then read fifty times as fast.
    """
    array = jax_arrays.as_array(data)
    if array is None:
        return data
    return array


def _taken_from_frame(data: Any) -> Any:
    """Return a data frame as a dict of its columns, and a series as an array.

    An array of JAX's becomes one of NumPy's, and anything else is returned unchanged.
    """
    if _package(data) not in _FRAMES:
        return _of_numpy(data)
    attribute = "column_names" if _package(data) == "pyarrow" else "columns"
    # The class is asked, since a series of pandas has its labels as attributes.
    if hasattr(type(data), attribute):
        names = getattr(data, attribute)
        twice = [repr(name) for name, times in Counter(names).items() if times > 1]
        if twice:
            raise OptionError(
                f"the frame has several columns named {', '.join(twice):.200}: rename "
                "them."
            )
        return {name: data[name] for name in names}
    if hasattr(data, "to_numpy"):
        _refuse_gaps("the column", data)
        return _as_column(data)
    return data


def _package(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _part(column: Any, indices: _Indices) -> object:
    if isinstance(column, (list, range)):
        return [column[index] for index in indices.tolist()]
    part = column[indices]
    if type(part) is np.memmap:
        return np.asarray(part)
    return part


def _length(column: Any) -> int:
    if _is_array(column) and hasattr(column, "shape"):
        return int(column.shape[0])
    return len(column)


def _named(columns: _Columns) -> Iterator[tuple[str, Any]]:
    if isinstance(columns, dict):
        return ((f"{name!r:.40}", column) for name, column in columns.items())
    return ((f"column {at}", column) for at, column in enumerate(columns))


# Reads the samples with the indices in an array, as a sequence.  A ``__getitems__`` of
# the user's gets keys in a tuple as well.
Reader = Callable[[Any], Any]


class Wrapping:
    """The base class of our wrappers around a dataset of the user's."""

    dataset: Any


class InBatches(Wrapping):
    """The base class of those whose rows are whole batches."""

    @property
    def samples_each(self) -> int | None:
        """How many samples a batch has at the most; None if that isn't known."""
        raise NotImplementedError


def users(dataset: object) -> Any:
    """Return the user's dataset, without our wrappers."""
    while isinstance(dataset, Wrapping):
        dataset = dataset.dataset
    return dataset


def offered(dataset: object, name: str) -> Callable[..., Any] | None:
    """Return a dataset's optional method ``name``; None if it isn't defined.

    A ``__getattr__`` that makes up any name doesn't define it.
    """
    if inspect.getattr_static(dataset, name, None) is None:
        return None
    found: Callable[..., Any] = getattr(dataset, name)
    return found


def in_words(dataset: object, key: object) -> str:
    """Return which sample a key stands for: in the dataset's words, if it has any.

    Its optional method ``mpiter_words(key)`` returns them.
    """
    tell = offered(dataset, "mpiter_words")
    if tell is None:
        return f"{key!r:.60}"
    return str(tell(key))


def reader_of(dataset: Any) -> Reader | None:
    """Return a function that reads many samples at once.

    None if they must be read one by one.
    """
    kind = type(dataset)
    chainer = sys.modules.get("chainer")
    if kind is Table:
        return lambda indices: dataset.__getitems__(indices)
    if kind in (np.ndarray, np.memmap):
        return lambda indices: np.asarray(dataset[indices])
    # A dataset of ours, which says itself how.
    if brings_reader(kind):
        found: Reader | None = dataset.mpiter_reader()
        return found
    if callable(getattr(kind, "__getitems__", None)):
        return partial(_by_getitems, dataset)
    if chainer is None:
        return None
    if kind in (chainer.datasets.TupleDataset, chainer.datasets.DictDataset):
        parts = dataset._datasets
        columns = parts.values() if isinstance(parts, dict) else parts
        if all(type(column) is np.ndarray for column in columns):
            # The dataset itself gathers the rows as a tuple or a dict of columns.
            return lambda indices: Rows(dataset[indices], len(indices))
    return None


def reads_together(dataset: object) -> bool:
    """Return True if many samples are read at once, and none in a thread of its own.

    In place of a user's ``__getitems__`` the user may ask for single samples.
    """
    return reader_of(dataset) is not None and not has_getitems(dataset)


def brings_reader(kind: type) -> bool:
    """True if a class of ours says how many samples are read at once.

    A class derived from it may read them in another way, by a ``[]`` of its own.
    """
    for one in kind.__mro__:
        if "mpiter_reader" in vars(one):
            return True
        if "__getitem__" in vars(one):
            return False
    return False


def has_getitems(dataset: object) -> bool:
    """Return True if many samples are read by a ``__getitems__`` of the user's."""
    kind = type(dataset)
    if kind is Table or brings_reader(kind):
        return False
    return callable(getattr(kind, "__getitems__", None))


def takes_any_key(dataset: object) -> bool:
    """Return True if many samples can be read at once by keys that aren't numbers."""
    kind = type(dataset)
    if brings_reader(kind):
        return bool(getattr(kind, "takes_any_key", False))
    return has_getitems(dataset)


def _by_getitems(dataset: Any, keys: _Indices | tuple[Any, ...]) -> Any:
    if isinstance(keys, tuple):
        return _in_order(dataset.__getitems__(list(keys)))
    return _in_order(dataset.__getitems__(keys.tolist()))


def _in_order(samples: Any) -> Any:
    """Return the samples as a sequence or an array; () for a mapping.

    The samples of a mapping are read one by one.
    """
    if isinstance(samples, Mapping):
        return ()
    if isinstance(samples, (Sequence, np.ndarray)):
        return samples
    return list(samples)
