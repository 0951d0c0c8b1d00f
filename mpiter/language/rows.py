"""Rows of documents: how they are written in keys, and made in the workers.

A row's key has four numbers for each piece, one after the other: the document's key,
where the piece begins and stops, and the document's length.
"""

from __future__ import annotations

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
    fields = dict[str, list[Array]]()
    names = list[str]()
    for key, begin, stop, length in pieces_in(row):
        document = _read(dataset, key)
        names = names or [*document]
        for name, column in document.items():
            parts = fields.setdefault(name, [])
            if not parts or not _are_alike(parts[0], column) or len(column) != length:
                column = _checked(dataset, key, name, column, length, fields)
            parts.append(column[begin:stop])
        if len(document) != len(names) or len(fields) != len(names):
            raise wrong(
                dataset, key, f"has the fields {[*document]}, and others {names}"
            )
    sizes = sizes_of(row)
    ends = sizes.cumsum()
    end = int(ends[-1])
    is_padded = layout == "padded"
    room = capacity if is_padded else end
    found = dict[str, Array]()
    for name, parts in fields.items():
        first = parts[0]
        field = np.empty((room, *first.shape[1:]), first.dtype)
        np.concatenate(parts, out=field[:end])
        field[end:] = 0
        found[name] = field
    begins = (ends - sizes).astype(np.int32)
    positions = np.arange(room, dtype=np.int32)
    positions[:end] -= begins.repeat(sizes)
    positions[end:] = 0
    found["positions"] = positions
    if is_padded:
        segments = np.zeros(room, np.int32)
        numbers = np.arange(1, len(sizes) + 1, dtype=np.int32)
        segments[:end] = numbers.repeat(sizes)
        found["segment_ids"] = segments
    else:
        found["cu_seqlens"] = np.concatenate(([0], ends)).astype(np.int32)
    return found


def _read(dataset: Any, key: int) -> Mapping[str, Any]:
    """Return a document as it comes, as the field of its tokens if it has none."""
    try:
        document = dataset[key]
    except Exception as error:
        add_note(error, f"mpiter: document {told(dataset, key)} of a packed row.")
        raise
    # Most are arrays.  Asking whether one is a mapping takes as long as reading it.
    if type(document) is np.ndarray or not isinstance(document, Mapping):
        return {TOKENS: document}
    return document


def _are_alike(one: Array, other: Any) -> bool:
    """True if ``other`` is an array that can follow ``one`` in a row."""
    return (
        type(other) is np.ndarray
        and one.dtype == other.dtype
        and one.shape[1:] == other.shape[1:]
    )


def _checked(
    dataset: Any,
    key: int,
    name: str,
    column: Any,
    length: int,
    fields: Mapping[str, list[Array]],
) -> Array:
    """Return a document's field as an array of ``length`` elements.

    Raise a DocumentError if it can't follow what the row has of its ``fields``.
    """
    try:
        array = np.asarray(column)
    except ValueError as error:
        why = f"has a {type(column).__name__} in its field {name!r}, and no array"
        raise wrong(dataset, key, why) from error
    why = ""
    first, *_ = fields
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
    elif fields[name] and not _are_alike(fields[name][0], array):
        others = fields[name][0]
        why = (
            f"has {array.dtype} of shape {array.shape[1:]} in its field {name!r}, and "
            f"others in the row {others.dtype} of shape {others.shape[1:]}; give all "
            "documents one type"
        )
    if why:
        raise wrong(dataset, key, why)
    return array


def told(dataset: Any, key: int) -> str:
    """Return a document's key in words, with the component that it is from."""
    source = getattr(dataset, "source", None)
    if source is None:
        return f"{key}"
    name, inner = source(key)
    return f"{inner} of component {name!r}"


def wrong(dataset: Any, key: int, why: str) -> DocumentError:
    return DocumentError(f"document {told(dataset, key)} {why}.")
