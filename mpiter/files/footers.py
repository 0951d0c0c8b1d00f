"""What the footers of Parquet files tell: columns, rows, and bytes in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..errors import DamagedFile, OptionError
from .paths import File, raise_if_not_the_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

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


def footer_of(file: File) -> pq.FileMetaData:
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
        raise_if_not_the_files(error)
        raise DamagedFile(
            f"the footer of {file.path} can't be read: {error}"
        ) from error


def check_schema(
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


def bytes_of(value: int | str | None) -> int:
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


def measured(
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
