"""Rows of documents: how they are written in keys, and made in the workers.

A row's key has four numbers for each piece, one after the other: the document's key,
where the piece begins and stops, and the document's length.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DocumentError, add_note

# A row's key.
Row = tuple[int, ...]
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
    fields = dict[str, Array]()
    ends = [0]
    room = capacity
    if layout == "jagged":
        room = int(sizes_of(row).sum())
    positions = np.zeros(room, np.int32)
    for key, begin, stop, length in pieces_in(row):
        at = ends[-1]
        end = at + stop - begin
        document = _read(dataset, key, length)
        if not fields:
            for name, column in document.items():
                shape = (room, *column.shape[1:])
                fields[name] = np.zeros(shape, column.dtype)
        if fields.keys() != document.keys():
            raise _wrong(
                dataset, key, f"has the fields {[*document]}, and others {[*fields]}"
            )
        for name, column in document.items():
            field = fields[name]
            if field.dtype != column.dtype or field.shape[1:] != column.shape[1:]:
                raise _wrong(
                    dataset,
                    key,
                    f"has {column.dtype} of shape {column.shape[1:]} in its field "
                    f"{name!r}, and others in the row {field.dtype} of shape "
                    f"{field.shape[1:]}; give all documents one type",
                )
            field[at:end] = column[begin:stop]
        positions[at:end] = np.arange(end - at)
        ends.append(end)
    found = {**fields, "positions": positions}
    if layout == "jagged":
        found["cu_seqlens"] = np.array(ends, np.int32)
        return found
    segments = np.zeros(room, np.int32)
    for number, (at, end) in enumerate(itertools.pairwise(ends), 1):
        segments[at:end] = number
    found["segment_ids"] = segments
    return found


def _read(dataset: Any, key: int, length: int) -> Mapping[str, Array]:
    """Return the fields of a document, arrays of ``length`` elements."""
    try:
        document = dataset[key]
    except Exception as error:
        add_note(error, f"mpiter: document {_told(dataset, key)} of a packed row.")
        raise
    if not isinstance(document, Mapping):
        document = {TOKENS: document}
    fields = dict[str, Array]()
    for name, column in document.items():
        try:
            array = np.asarray(column)
        except ValueError as error:
            why = f"has a {type(column).__name__} in its field {name!r}, and no array"
            raise _wrong(dataset, key, why) from error
        if array.dtype.kind in "SU":
            raise _wrong(
                dataset,
                key,
                f"has text in its field {name!r}; make tokens of it, which are "
                "numbers (np.frombuffer(text, 'uint8') makes some of bytes)",
            )
        if not array.ndim:
            raise _wrong(dataset, key, f"has no tokens in its field {name!r}")
        if name in ADDED:
            raise _wrong(dataset, key, f"has a field {name!r}, which Pack adds itself")
        if len(array) != length and fields:
            [first, *_] = fields
            raise _wrong(
                dataset,
                key,
                f"has {len(array)} tokens in its field {name!r}, and {length} in "
                f"{first!r}; all its fields must be as long",
            )
        if len(array) != length:
            raise _wrong(
                dataset,
                key,
                f"has {len(array)} tokens in its field {name!r}, and its length was "
                f"told to be {length}; measure the lengths anew",
            )
        fields[name] = array
    return fields


def _told(dataset: Any, key: int) -> str:
    """Return a document's key in words, with the component that it is from."""
    source = getattr(dataset, "source", None)
    if source is None:
        return f"{key}"
    name, inner = source(key)
    return f"{inner} of component {name!r}"


def _wrong(dataset: Any, key: int, why: str) -> DocumentError:
    return DocumentError(f"document {_told(dataset, key)} {why}.")
