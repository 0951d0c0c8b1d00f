"""Rows of documents: how they are written in keys, and made in the workers.

A row's key has four numbers for each piece, one after the other: the document's key,
where the piece begins and stops, and the document's length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..datasets.columns import in_words
from ..errors import DocumentError, add_note

# A row's key.
Row = tuple[int, ...]
# It has so many numbers for each piece.
NUMBERS = 4
Layout = Literal["padded", "jagged"]
Array = NDArray[Any]
# The field of documents that are an array.
TOKENS = "tokens"
# The fields that rows have beside those of the documents.
ADDED = ("segment_ids", "positions", "cu_seqlens")


def pieces_in(row: Row) -> Iterator[tuple[int, int, int, int]]:
    """Yield the pieces of a row: key, begin, stop and the document's length."""
    numbers = iter(row)
    return zip(numbers, numbers, numbers, numbers, strict=True)


def sizes_of(row: Row) -> NDArray[np.int64]:
    """Return the number of tokens in each piece of a row."""
    return np.array(row[2::4], np.int64) - np.array(row[1::4], np.int64)


def made(dataset: Any, row: Row, capacity: int, layout: Layout) -> dict[str, Array]:
    """Return the row, whose documents are read from ``dataset``."""
    is_padded = layout == "padded"
    room = capacity
    if not is_padded:
        room = sum(row[2::4]) - sum(row[1::4])
    fields = dict[str, Array]()
    names = list[str]()
    positions = np.zeros(room, np.int32)
    segments = np.zeros(room, np.int32)
    numbers = counting(room)
    ends = [0]
    at = 0
    for key, begin, stop, length in pieces_in(row):
        end = at + stop - begin
        document = _read(dataset, key)
        names = names or [*document]
        for name, column in document.items():
            field = fields.get(name)
            if field is None or not _can_follow(field, column, length):
                column = _checked(dataset, key, name, column, length, names[0], field)
            if field is None:
                field = np.zeros((room, *column.shape[1:]), column.dtype)
                fields[name] = field
            field[at:end] = column[begin:stop]
        if len(document) != len(names) or len(fields) != len(names):
            raise wrong(
                dataset, key, f"has the fields {[*document]}, and others {names}"
            )
        positions[at:end] = numbers[: end - at]
        segments[at:end] = len(ends)
        ends.append(end)
        at = end
    found = {**fields, "positions": positions}
    if is_padded:
        found["segment_ids"] = segments
    else:
        found["cu_seqlens"] = np.array(ends, np.int32)
    return found


# As many numbers as were asked for so far.
_numbers: NDArray[np.int32] = np.empty(0, np.int32)


def counting(tokens: int) -> NDArray[np.int32]:
    """Return 0, 1, 2, …: making them anew for each piece takes longer than a copy."""
    global _numbers
    numbers = _numbers
    if len(numbers) < tokens:
        numbers = np.arange(tokens, dtype=np.int32)
        _numbers = numbers
    return numbers[:tokens]


def _read(dataset: Any, key: int) -> Mapping[str, Any]:
    """Return a document as it comes, as the field of its tokens if it has none."""
    try:
        document = dataset[key]
    except Exception as error:
        add_note(error, f"mpiter: document {in_words(dataset, key)} of a packed row.")
        raise
    # Most are arrays.  Asking whether one is a mapping takes as long as reading it.
    if type(document) is np.ndarray or not isinstance(document, Mapping):
        return {TOKENS: document}
    return document


def _can_follow(field: Array, column: Any, length: int) -> bool:
    """True if a document's field of ``length`` elements fits in those of its row."""
    return (
        type(column) is np.ndarray
        and column.dtype == field.dtype
        and column.shape[1:] == field.shape[1:]
        and len(column) == length
    )


def _checked(
    dataset: Any,
    key: int,
    name: str,
    column: Any,
    length: int,
    first: str,
    field: Array | None,
) -> Array:
    """Return a document's field as an array of ``length`` elements.

    Raise a DocumentError if it can't follow what the row has in ``field``, if anything.
    ``first`` is the name of the document's first field.
    """
    try:
        array = np.asarray(column)
    except ValueError as error:
        why = f"has a {type(column).__name__} in its field {name!r}, and no array"
        raise wrong(dataset, key, why) from error
    why = ""
    if array.dtype.kind in "SU":
        why = (
            f"has text in its field {name!r}; make tokens of it, which are numbers "
            "(np.frombuffer(text, 'uint8') makes some of bytes)"
        )
    elif not array.ndim:
        why = f"has no tokens in its field {name!r}"
    elif name in ADDED:
        why = f"has a field {name!r}, which Pack adds itself"
    elif len(array) != length and name != first:
        why = (
            f"has {len(array)} tokens in its field {name!r}, and {length} in "
            f"{first!r}; all its fields must be as long"
        )
    elif len(array) != length:
        why = (
            f"has {len(array)} tokens in its field {name!r}, and its length was told "
            f"to be {length}; measure the lengths anew"
        )
    elif field is not None and not _can_follow(field, array, length):
        why = (
            f"has {array.dtype} of shape {array.shape[1:]} in its field {name!r}, and "
            f"others in the row {field.dtype} of shape {field.shape[1:]}; give all "
            "documents one type"
        )
    if why:
        raise wrong(dataset, key, why)
    return array


def wrong(dataset: Any, key: int, why: str) -> DocumentError:
    return DocumentError(f"document {in_words(dataset, key)} {why}.")
