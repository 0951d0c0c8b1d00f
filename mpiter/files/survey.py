"""What the footers of Parquet files tell together: the columns and the row groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from ..errors import DamagedFile, OptionError
from .footers import bytes_of, check_schema, footer_of, measured
from .grouped import Groups
from .hive import Divided, divided_by
from .paths import File

if TYPE_CHECKING:
    import pyarrow as pa

# Footers are small, and a store takes long for each.
_AT_ONCE = 16


class Survey(NamedTuple):
    """What some files have of the columns that are read."""

    files: Sequence[File]
    # The type of each column, in words.
    types: dict[str, str]
    # Those of the columns that folders have in their names, and those in the files.
    by_folders: dict[str, Divided]
    in_files: list[str]
    # The row groups that have rows.
    groups: Groups
    # The file of each of them, and its number in that.
    lies: list[tuple[int, int]]


def survey(files: Sequence[File], columns: Sequence[str] | None) -> Survey:
    """Read the footers of some files; ``columns`` are those that are read."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        footers = list(pool.map(footer_of, files))
    schema = footers[0].schema.to_arrow_schema()
    folders: dict[str, Divided] = {}
    for name, column in divided_by(files).items():
        # What the files have counts.
        if name not in schema.names:
            folders[name] = column
    types: dict[str, str] = {}
    for name in _chosen([*schema.names, *folders], columns, files[0]):
        if name in folders:
            types[name] = folders[name].kind
        else:
            types[name] = str(schema.field(name).type)
    by_folders = {name: folders[name] for name in types if name in folders}
    in_files = [name for name in types if name not in by_folders]
    wanted = frozenset(in_files)
    counts: list[int] = []
    sizes: list[int] = []
    lies: list[tuple[int, int]] = []
    for number, footer in enumerate(footers):
        file = files[number]
        its = footer.schema.to_arrow_schema()
        check_schema(file, its, files[0], schema, in_files)
        _check_folders(file, its, by_folders)
        each = sum(bytes_of(column.values[number]) for column in by_folders.values())
        for group in range(footer.num_row_groups):
            told = footer.row_group(group)
            size = measured(file, group, told, footer.schema, wanted)
            # An empty one needn't be decoded.
            if told.num_rows:
                counts.append(told.num_rows)
                sizes.append(size + each * told.num_rows)
                lies.append((number, group))
    if not counts:
        raise OptionError(f"{files[0].path} and the other files have no rows.")
    return Survey(files, types, by_folders, in_files, Groups(counts, sizes), lies)


def _check_folders(file: File, its: pa.Schema, by_folders: Collection[str]) -> None:
    """Raise an error if a file has a column that folders have in their names."""
    for name in by_folders:
        if name in its.names:
            raise DamagedFile(
                f"{file.path} has a column {name!r}, which other files have in the "
                "names of their folders alone: leave the column out by columns=."
            )


def _chosen(
    names: Sequence[str], columns: Sequence[str] | None, file: File
) -> list[str]:
    """Return the names of the columns that are read."""
    times = Counter(names)
    # It may be a generator.
    columns = [*times] if columns is None else [*map(str, columns)]
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
    return columns
