"""``Parquet``: the rows of Parquet files as a dataset, by number."""

from __future__ import annotations

import errno
import hashlib
import itertools
import operator
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..amounts import size_of
from ..datasets.columns import Reader
from ..errors import DamagedFile, OptionError
from ..order.order import Indices
from ..samples.rows import Rows
from ..worker.here import get_worker_info, here
from .group import Group, gathered, read, write
from .grouped import GroupedOrder, Groups
from .hive import Divided, divided_by
from .paths import File, Paths, Watched, files_of, version_of
from .places import Door
from .shelf import Shelf
from .uneven import Which

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

__all__ = ["Parquet"]

# Footers are small, and a store takes long for each.
_AT_ONCE = 16
# Bytes of a value in memory, by its type in the file.
_WIDTHS = {
    "BOOLEAN": 1,
    "INT32": 4,
    "INT64": 8,
    "INT96": 8,
    "FLOAT": 4,
    "DOUBLE": 8,
}
_DECIMAL = 16
# Bytes for each text beside its letters: in memory a view and a NUL, in a file its
# length.
_BORDER = 17
_BORDER_IN_FILE = 4
# Bytes of a page's header beside its least and greatest value, and values of a page, as
# Arrow writes them.
_HEADER = 40
_PAGE = 20_000
# With some bits as many texts are numbered, or half as many.
_OF_THESE = 0.7
# Numbers of values in a dictionary have at most so many bytes; values themselves have
# more on average.
_NUMBER = 3


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
            footers = list(pool.map(_footer, self.files))
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
            _check_schema(self.files[number], its, self.files[0], schema, inner)
            each = sum(_bytes_of(one.values[number]) for one in self._divided.values())
            for group in range(footer.num_row_groups):
                told = footer.row_group(group)
                counts.append(told.num_rows)
                measured = _measured(
                    self.files[number], group, told, footer.schema, wanted
                )
                sizes.append(measured + each * told.num_rows)
                self._lies.append((number, group))
        self._groups = Groups(counts, sizes)
        if not self._groups.samples:
            raise OptionError(f"{self.files[0].path} and the other files have no rows.")
        self._began = threading.Lock()
        self._shelf: Shelf[Group] | None = None
        self._door: Door | None = None
        # The order of the rows that are read now, by seed and epoch.
        self._order: tuple[tuple[int, int], GroupedOrder] | None = None
        # Rows come in another order than the dataset's own.
        self._is_strange = False

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
        first, last = self._groups.holding(least, most)
        shelf = self._opened_shelf()
        # A single row doesn't show how others are read.
        in_order = count == most - least + 1 > 1 and bool((keys[1:] > keys[:-1]).all())
        if first == last:
            coming: Sequence[int] = ()
            if count > 1:
                coming = self._coming([first], in_order)
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
        groups = shelf.take(wanted, in_order, self._coming(wanted, in_order))
        return Rows(gathered(self.columns, groups, rows, back), count)

    def _coming(self, groups: Sequence[int], in_order: bool) -> Sequence[int]:
        """Return the row groups that will be needed after these.

        They follow from the dataset's own order.  Where rows come in another one, none
        are decoded ahead, which would be in vain.
        """
        at = here.now.at
        if at is None or self._is_strange:
            return ()
        info = here.now.worker
        if in_order:
            # Each worker decodes another one.
            count = 1 if info is None else info.num_workers
            return self._groups.behind(groups[-1], self.window)[:count]
        seed, epoch, _ = at()
        if self._order is None or self._order[0] != (seed, epoch):
            order = GroupedOrder(self._groups, self.window, seed, True, epoch)
            self._order = (seed, epoch), order
        coming = self._order[1].window_after(groups)
        if coming is None:
            self._is_strange = True
            return ()
        return coming

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
                    _Decoder(
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


class _Decoder:
    """Decodes row groups into memory."""

    def __init__(
        self,
        files: Sequence[File],
        lies: Sequence[tuple[int, int]],
        counts: Indices,
        types: Mapping[str, str],
        divided: Mapping[str, Divided],
    ) -> None:
        self._files = files
        self._lies = lies
        # What the row groups had when the dataset was made.
        self._counts = counts
        self._types = types
        self._divided = divided
        # The footers of files that were read from, and the versions of these.
        self._footers: dict[int, tuple[object, pq.FileMetaData]] = {}
        # Why row groups can't be decoded, and the version of the file of each.
        self._damaged: dict[int, tuple[object, str]] = {}

    def __call__(self, group: int, descriptor: int, in_order: bool) -> None:
        number, inner = self._lies[group]
        file = self._files[number]
        table = self._decoded(group)
        types = {field.name: str(field.type) for field in table.schema}
        rows = int(self._counts[group])
        if len(table) != rows or types != self._types:
            raise DamagedFile(
                f"{file.path} has changed: its row group {inner} had {rows:,} rows "
                f"when the dataset was made, and now has {len(table):,}, or columns of "
                "other types.  Make the dataset again."
            )
        write(table.combine_chunks(), descriptor, in_order)

    def _decoded(self, group: int) -> pa.Table:
        """Return a row group, or raise an error that names it."""
        import pyarrow as pa

        number, inner = self._lies[group]
        file = self._files[number]
        version = file.version_now()
        known, why = self._damaged.get(group, (None, ""))
        # Its rows are asked for one by one, and each would take as long as all.
        if why and known == version:
            raise DamagedFile(why)
        watched: Watched | None = None
        try:
            with file.open() as opened:
                watched = Watched(opened)
                return self._read(number, inner, watched, version_of(opened))
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            _raise_if_not_the_files(error)
            why = f"row group {inner} of {file.path} can't be read: {error}"
            # What a store refuses it may hand out later.  pyarrow raises OSError of
            # what it can't decode, too.
            has_all = watched is not None and not watched.has_failed
            if has_all and not isinstance(error, MemoryError):
                self._damaged[group] = version, why
            raise DamagedFile(why) from error

    def _read(
        self, number: int, inner: int, opened: Watched, version: object
    ) -> pa.Table:
        """Return the columns of a row group of a file."""
        import pyarrow as pa
        from pyarrow import parquet

        # A worker has one core.
        info = get_worker_info()
        in_threads = info is None or info.backend == "serial"
        footer: pq.FileMetaData | None = None
        if number in self._footers:
            known, footer = self._footers[number]
            # A file that was replaced has another footer.
            if known != version:
                footer = None
        reader = parquet.ParquetFile(opened, metadata=footer)
        self._footers[number] = version, reader.metadata
        names = [name for name in self._types if name not in self._divided]
        table = reader.read_row_group(inner, columns=names, use_threads=in_threads)
        table = table.select(names)
        for name, column in self._divided.items():
            value = pa.scalar(column.values[number], column.kind)
            table = table.append_column(name, pa.repeat(value, len(table)))
        return table.select([*self._types])


def _footer(file: File) -> pq.FileMetaData:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise OptionError(
            "Parquet files are read by pyarrow: pip install 'mpiter[parquet]'"
        ) from error
    try:
        with file.open() as opened:
            return parquet.read_metadata(opened)
    except (pa.ArrowException, OSError) as error:
        _raise_if_not_the_files(error)
        raise DamagedFile(
            f"the footer of {file.path} can't be read: {error}"
        ) from error


def _raise_if_not_the_files(error: Exception) -> None:
    """Raise an error again that says nothing of the file, such as want of memory."""
    theirs = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)
    if isinstance(error, OSError) and error.errno in theirs:
        raise error


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


def _check_schema(
    file: File,
    its: pa.Schema,
    first_file: File,
    first: pa.Schema,
    names: Sequence[str],
) -> None:
    """Raise an error unless a file has the columns of the first one."""
    for name in names:
        at = its.get_field_index(name)
        has = "no such column" if at < 0 else str(its.field(at).type)
        wanted = str(first.field(name).type)
        if has != wanted:
            raise DamagedFile(
                f"column {name!r} is {wanted} in {first_file.path}, and "
                f"{file.path} has {has}: convert one, or leave the column out by "
                "columns=."
            )


def _bytes_of(value: int | str | None) -> int:
    """Return the bytes of a value that a folder has in its name."""
    return _BORDER if isinstance(value, int) else _BORDER + len(value or "")


def _texts(column: pq.ColumnChunkMetaData, levels: pq.ColumnSchema) -> int:
    """Return about how many bytes a column of texts has in memory.

    That is more than in the file where texts repeat: the file has each of them once, in
    a dictionary, and then their numbers.
    """
    count: int = column.num_values
    size: int = column.total_uncompressed_size
    as_they_are = size + count * (_BORDER - _BORDER_IN_FILE)
    if not column.has_dictionary_page or not count:
        return as_they_are
    # Numbers are about as long as they were before they were compressed.
    numbers: int = column.total_compressed_size
    numbers -= column.data_page_offset - column.dictionary_page_offset
    # Where a dictionary would be too large, a file has the texts as they are.
    if numbers > _NUMBER * count:
        return as_they_are
    dictionary = size - numbers
    longest: int = dictionary
    present = count
    told = column.statistics
    if told is not None and told.has_null_count:
        present -= told.null_count
    if told is not None and told.has_min_max:
        ends = (len(told.min_raw), len(told.max_raw))
        longest = max(ends)
        # Each page has them, too, in two forms.
        numbers -= (2 * sum(ends) + _HEADER) * (1 + count // _PAGE)
    # Beside the numbers, some bits tell what is null, and where lists begin.
    lists: int = levels.max_repetition_level
    if lists or present < count:
        bits = lists.bit_length() + int(levels.max_definition_level).bit_length()
        numbers -= count * bits // 8
    # A number has as many bits as that of the last text in the dictionary.
    bits_each = min(8 * max(0, numbers) / max(1, present), 8 * _NUMBER)
    texts = max(1.0, _OF_THESE * 2**bits_each)
    mean = min(longest, int(dictionary / texts))
    return max(size, present * mean + count * _BORDER)


def _measured(
    file: File,
    number: int,
    group: pq.RowGroupMetaData,
    schema: pq.ParquetSchema,
    names: Collection[str],
) -> int:
    """Return the bytes of some columns of a row group once they are decoded.

    Raise an error if it would lie beyond its file's end.
    """
    found = 0
    for at in range(group.num_columns):
        column = group.column(at)
        top, _, _ = column.path_in_schema.partition(".")
        if top in names or column.path_in_schema in names:
            # Values that repeat are short in the file, and each is whole in memory.
            width = _WIDTHS.get(column.physical_type)
            if schema.column(at).logical_type.type == "DECIMAL":
                width = _DECIMAL
            if width is None:
                found += _texts(column, schema.column(at))
            else:
                whole = width * column.num_values
                found += max(column.total_uncompressed_size, whole)
        begin = column.dictionary_page_offset or column.data_page_offset
        end = begin + column.total_compressed_size
        if begin < 0 or (file.size and end > file.size):
            raise DamagedFile(
                f"row group {number} of {file.path} lies from byte {begin:,} to "
                f"{end:,}, and the file has {file.size:,}: it is cut or damaged."
            )
    return found
