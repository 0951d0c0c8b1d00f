"""Reads row groups of Parquet files, and names those that can't be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import DamagedFile, OptionError
from ..worker.here import get_worker_info
from .group import write
from .paths import Watched, raise_if_not_the_files, version_of
from .survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

_MOST = (1 << 31) - 1


class RowGroups:
    """Decodes row groups into memory."""

    def __init__(self, survey: Survey) -> None:
        # What the files had when the dataset was made.
        self._survey = survey
        # The footers of files that were read from, and the versions of these.
        self._footers: dict[int, tuple[object, pq.FileMetaData]] = {}
        # Why row groups can't be decoded, and the version of the file of each.
        self._damaged: dict[int, tuple[object, str]] = {}

    def __call__(self, group: int, descriptor: int, in_order: bool) -> None:
        number, inner = self._survey.lies[group]
        file = self._survey.files[number]
        table = self._decoded(group)
        types = {field.name: str(field.type) for field in table.schema}
        rows = int(self._survey.groups.counts[group])
        if len(table) != rows or types != self._survey.types:
            raise DamagedFile(
                f"{file.path} has changed: its row group {inner} had {rows:,} rows "
                f"when the dataset was made, and now has {len(table):,}, or columns of "
                "other types.  Make the dataset again."
            )
        write(_in_one_piece(table), descriptor, in_order)

    def _decoded(self, group: int) -> pa.Table:
        """Return a row group, or raise an error that names it."""
        import pyarrow as pa

        number, inner = self._survey.lies[group]
        file = self._survey.files[number]
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
            raise_if_not_the_files(error)
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
        reader = parquet.ParquetFile(
            opened, metadata=footer, page_checksum_verification=True
        )
        self._footers[number] = version, reader.metadata
        names = self._survey.in_files
        table = reader.read_row_group(inner, columns=names, use_threads=in_threads)
        table = table.select(names)
        for name, column in self._survey.by_folders.items():
            value = pa.scalar(column.values[number], column.kind)
            table = table.append_column(name, pa.repeat(value, len(table)))
        return table.select([*self._survey.types])


def _in_one_piece(table: pa.Table) -> pa.Table:
    """Return a table each of whose columns is a single array.

    Arrow's usual types count the bytes of a column's texts in 31 bits.
    """
    import pyarrow as pa

    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    for at, column in enumerate(table.columns):
        if column.nbytes > _MOST and column.type in large:
            column = column.cast(large[column.type])
            table = table.set_column(at, table.column_names[at], column)
    table = table.combine_chunks()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.num_chunks > 1:
            raise OptionError(
                f"column {name!r} has more than 2 GB in a row group: write the files "
                "with smaller ones, or leave it out by columns=."
            )
    return table
