"""``Parquet``: the rows of Parquet files as a dataset, by number."""

from __future__ import annotations

import hashlib
import itertools
import operator
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..amounts import size_of
from ..datasets.columns import Reader
from ..errors import OptionError
from ..order.order import Indices
from ..samples.rows import Rows
from ..worker.here import here
from .forecast import Forecast
from .group import Group, gathered, read
from .grouped import GroupedOrder
from .paths import Paths, files_of
from .places import Door
from .rowgroups import RowGroups
from .shelf import Shelf
from .survey import survey
from .uneven import Which

__all__ = ["Parquet"]


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
        self._survey = survey(self.files, columns)
        self.columns = tuple(self._survey.types)
        self._groups = self._survey.groups
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
        if keys.dtype.kind not in "iu" or keys.ndim != 1:
            raise TypeError(f"{indices!r:.60} aren't whole numbers")
        least = int(keys.min())
        most = int(keys.max())
        for key in (least, most):
            if not 0 <= key < len(self):
                raise IndexError(f"{key} isn't from 0 to before {len(self)}")
        keys = keys.astype(np.int64, copy=False)
        # A single row doesn't show how others are read.
        in_order = count == most - least + 1 > 1 and bool((keys[1:] > keys[:-1]).all())
        first = self._groups.holding(least)
        last = self._groups.holding(most)
        wanted = [first]
        rows: list[Which]
        back: Indices | None = None
        if first == last:
            rows = [self._within(first, keys, in_order)]
        else:
            wanted, rows, back = self._by_group(first, last, keys)
        coming: Sequence[int] = ()
        if count > 1:
            coming = self._coming(wanted, int(keys[0]), in_order)
        groups = self._opened_shelf().take(wanted, in_order, coming)
        return Rows(gathered(self.columns, groups, rows, back), count)

    def _within(self, group: int, keys: Indices, in_order: bool) -> Which:
        """Return rows of one row group, counted in that."""
        rows: Indices = keys - self._groups.begins[group]
        if in_order:
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return rows

    def _by_group(
        self, first: int, last: int, keys: Indices
    ) -> tuple[list[int], list[Which], Indices]:
        """Return row groups, the rows of each, and where these belong in the batch."""
        by_key = np.argsort(keys)
        back = np.empty_like(by_key)
        back[by_key] = np.arange(len(keys))
        sorted_keys = keys[by_key]
        begins = self._groups.begins[first : last + 2]
        borders = np.searchsorted(sorted_keys, begins).tolist()
        wanted: list[int] = []
        rows: list[Which] = []
        for at, (start, stop) in enumerate(itertools.pairwise(borders)):
            if start < stop:
                wanted.append(first + at)
                rows.append(sorted_keys[start:stop] - begins[at])
        return wanted, rows, back

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
        del state["_shelf"], state["_began"], state["_forecast"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._began = threading.Lock()
        self._shelf = None
        self._forecast = Forecast(self._groups, self.window)

    def _opened_shelf(self) -> Shelf[Group]:
        with self._began:
            if self._shelf is None:
                told = repr((self.files, self.columns)).encode()
                self._shelf = Shelf(
                    hashlib.blake2b(told, digest_size=8).hexdigest(),
                    self._groups.sizes,
                    self.window,
                    RowGroups(self._survey),
                    read,
                    self._door,
                )
            return self._shelf
