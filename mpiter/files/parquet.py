"""``Parquet``: the rows of Parquet files as a dataset, by number."""

from __future__ import annotations

import hashlib
import itertools
import operator
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..amounts import size_of
from ..datasets.columns import Reader
from ..errors import OptionError
from ..order.order import Indices
from ..samples.rows import Rows
from ..worker.here import here
from .footers import bytes_of, check_schema, footer_of, measured
from .forecast import Forecast
from .group import Group, gathered, read
from .grouped import GroupedOrder, Groups
from .hive import Divided, divided_by
from .paths import File, Paths, files_of
from .places import Door
from .rowgroups import RowGroups
from .shelf import Shelf
from .uneven import Which

__all__ = ["Parquet"]

# Footers are small, and a store takes long for each.
_AT_ONCE = 16


class Parquet:
    """A dataset whose samples are the rows of Parquet files, as dicts.

    Numbers, dates and times are NumPy's, lists of numbers are arrays, structs are
    dicts, text is str, binary is bytes.  A null is None, but NaN among floats and NaT
    among dates and times.  Lists of anything else, and lists of whole numbers with a
    null among them, are Python's, and so is what is in them.  What a value becomes
    depends on its column and itself alone.

    It brings its order: row groups come in random order, and rows are shuffled within a
    window of some of them; with ``shuffle=False`` they come in the order of the files.
    Each row group is decoded once for all processes of a machine that read these
    files, and kept in memory while its window lasts.

    Folders with names such as ``year=2024``, below one that is given or in the path of
    a file, are columns too, unless the files have one of that name: of whole numbers if
    all are, else of text.

    Args:
        paths: a file, a pattern, a folder, an address that fsspec opens, or a list of
            such; files are sorted by name.
        columns: the names of those that are read; None for all.
        window: the size of the row groups among which rows are shuffled, as they are
            when decoded: bytes, or text such as "64MB".  It is estimated from what the
            footers tell.

    >>> import os, tempfile
    >>> import pyarrow as pa
    >>> from pyarrow import parquet
    >>> folder = tempfile.TemporaryDirectory()
    >>> table = pa.table({"x": [0.5, 1.5, 2.5], "word": ["a", "b", "c"]})
    >>> parquet.write_table(table, os.path.join(folder.name, "a.parquet"))
    >>> rows = Parquet(folder.name)
    >>> len(rows), rows[1]
    (3, {'x': np.float64(1.5), 'word': 'b'})
    >>> folder.cleanup()
    """

    def __init__(
        self,
        paths: Paths,
        columns: Sequence[str] | None = None,
        window: int | str = "64MB",
    ) -> None:
        if isinstance(columns, str):
            raise OptionError(
                f"columns={columns!r:.60} is one text; pass a list of names."
            )
        self.files = files_of(paths, ".parquet")
        self.window = size_of("window", window)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            footers = list(pool.map(footer_of, self.files))
        schema = footers[0].schema.to_arrow_schema()
        # The columns that folders have in their names.
        divided: dict[str, Divided] = {}
        for name, column in divided_by(self.files).items():
            if name not in schema.names:
                divided[name] = column
        self.columns = _chosen([*schema.names, *divided], columns, self.files[0])
        self._divided = {
            name: divided[name] for name in self.columns if name in divided
        }
        inner = [name for name in self.columns if name not in divided]
        # The types of the columns, in words.
        self._types: dict[str, str] = {}
        for name in self.columns:
            if name in divided:
                self._types[name] = divided[name].kind
            else:
                self._types[name] = str(schema.field(name).type)
        wanted = frozenset(inner)
        counts: list[int] = []
        sizes: list[int] = []
        # The file of each row group, and its number in that.
        self._lies: list[tuple[int, int]] = []
        for number, footer in enumerate(footers):
            its = footer.schema.to_arrow_schema()
            check_schema(self.files[number], its, self.files[0], schema, inner)
            each = sum(bytes_of(one.values[number]) for one in self._divided.values())
            for group in range(footer.num_row_groups):
                told = footer.row_group(group)
                counts.append(told.num_rows)
                inside = measured(
                    self.files[number], group, told, footer.schema, wanted
                )
                sizes.append(inside + each * told.num_rows)
                self._lies.append((number, group))
        self._groups = Groups(counts, sizes)
        if not self._groups.samples:
            raise OptionError(f"{self.files[0].path} and the other files have no rows.")
        self._began = threading.Lock()
        self._shelf: Shelf[Group] | None = None
        self._door: Door | None = None
        self._forecast = Forecast(self._groups, self.window)

    def __len__(self) -> int:
        return self._groups.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = self.rows([operator.index(index)])[0]
        return row

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows with these numbers."""
        return [*self.rows(indices)]

    def mpiter_reader(self) -> Reader:
        return self.rows

    def rows(self, indices: Sequence[int] | Indices) -> Rows:
        """Return the rows with these numbers, column by column."""
        count = len(indices)
        if not count:
            return Rows({name: [] for name in self.columns}, 0)
        keys: Indices = np.asarray(indices)
        if keys.dtype.kind not in "iu":
            raise TypeError(f"{indices!r:.60} aren't whole numbers")
        keys = keys.astype(np.int64, copy=False)
        least = int(keys.min())
        most = int(keys.max())
        for key in (least, most):
            if not 0 <= key < len(self):
                raise IndexError(f"{key} isn't from 0 to before {len(self)}")
        first = self._groups.holding(least)
        last = self._groups.holding(most)
        shelf = self._opened_shelf()
        # A single row doesn't show how others are read.
        in_order = count == most - least + 1 > 1 and bool((keys[1:] > keys[:-1]).all())
        if first == last:
            coming: Sequence[int] = ()
            if count > 1:
                coming = self._coming([first], int(keys[0]), in_order)
            [group] = shelf.take([first], in_order, coming)
            begin = int(self._groups.begins[first])
            which: Which = keys - begin
            if in_order:
                which = slice(least - begin, most - begin + 1)
            return Rows(gathered(self.columns, [group], [which]), count)
        # Rows are taken group by group, and then put back where they belong.
        by_key = np.argsort(keys)
        back = np.empty_like(by_key)
        back[by_key] = np.arange(count)
        sorted_keys = keys[by_key]
        begins = self._groups.begins[first : last + 2]
        borders = np.searchsorted(sorted_keys, begins).tolist()
        wanted: list[int] = []
        rows: list[Indices] = []
        for at, (start, stop) in enumerate(itertools.pairwise(borders)):
            if start < stop:
                wanted.append(first + at)
                rows.append(sorted_keys[start:stop] - begins[at])
        coming = self._coming(wanted, int(keys[0]), in_order)
        groups = shelf.take(wanted, in_order, coming)
        return Rows(gathered(self.columns, groups, rows, back), count)

    def _coming(self, groups: Sequence[int], key: int, in_order: bool) -> Sequence[int]:
        """Return the row groups that will be needed after those of a batch."""
        place = here.now.at
        if place is None:
            return ()
        info = here.now.worker
        workers = 1 if info is None else info.num_workers
        return self._forecast.after(groups, key, place(), in_order, workers)

    def mpiter_order(self, seed: int, shuffle: bool | None) -> GroupedOrder:
        """Return the order of the first epoch."""
        # Workers that are forked inherit it.
        self._opened_shelf()
        return GroupedOrder(self._groups, self.window, seed, shuffle is not False)

    def decodes(self) -> NDArray[np.int64]:
        """Return how often each row group was decoded on this machine.

        All programs count that read these files now.
        """
        return self._opened_shelf().decodes()

    def __repr__(self) -> str:
        return (
            f"Parquet({len(self.files):,} files: {len(self):,} rows in "
            f"{len(self._groups):,} row groups, {', '.join(self.columns):.60})"
        )

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_door": self._opened_shelf().door}
        # Each process has its own.
        del state["_shelf"], state["_began"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._began = threading.Lock()
        self._shelf = None

    def _opened_shelf(self) -> Shelf[Group]:
        with self._began:
            if self._shelf is None:
                told = repr((self.files, self.columns)).encode()
                self._shelf = Shelf(
                    hashlib.blake2b(told, digest_size=8).hexdigest(),
                    self._groups.sizes,
                    self.window,
                    RowGroups(
                        self.files,
                        self._lies,
                        self._groups.counts,
                        self._types,
                        self._divided,
                    ),
                    read,
                    self._door,
                )
            return self._shelf


def _chosen(
    names: Sequence[str], columns: Sequence[str] | None, file: File
) -> tuple[str, ...]:
    """Return the names of the columns that are read."""
    times = Counter(names)
    # It may be a generator.
    columns = [*times] if columns is None else [*columns]
    missing = [name for name in columns if name not in times]
    if missing:
        raise OptionError(
            f"{file.path} has no column {missing[0]!r}; it has "
            f"{', '.join(map(repr, times)):.200}."
        )
    if not columns:
        raise OptionError("columns=[] reads nothing; leave it out to read all.")
    for name in columns:
        if times[name] > 1:
            raise OptionError(
                f"{file.path} has {times[name]} columns named {name!r}, and a row is a "
                "dict: leave them out by columns=, or rename them."
            )
    return tuple(columns)
