"""Columns that files have in the names of their folders, such as ``year=2024``.

This is how Hive, Spark and others divide a table.  Names and values are percent-encoded
where they have letters of another meaning.  As with pyarrow, a column has whole numbers
if all its values are such of 32 bits, and otherwise text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import OptionError
from .paths import File

_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile("-?[0-9]+")
_LEAST = -(1 << 31)
_MOST = (1 << 31) - 1


class Divided(NamedTuple):
    """A column that folders have in their names."""

    # Arrow's type.
    kind: str
    # The value of each file; None where it has none.
    values: Sequence[int | str | None]


def divided_by(files: Sequence[File]) -> dict[str, Divided]:
    """Return the columns that the folders of some files have in their names."""
    texts: dict[str, list[str | None]] = {}
    for number, file in enumerate(files):
        for name, value in _told_by(file).items():
            column = texts.setdefault(name, [None] * len(files))
            column[number] = value
    return {name: _column(values) for name, values in texts.items()}


def _told_by(file: File) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for folder in file.folders.split("/"):
        name, sign, value = folder.partition("=")
        if not name or not sign:
            continue
        try:
            name = unquote(name, errors="strict")
            told = None if value == _NULL else unquote(value, errors="strict")
        except UnicodeDecodeError as error:
            raise OptionError(
                f"the folder {folder!r} of {file.path} isn't UTF-8 once it is decoded."
            ) from error
        # Of two folders with one name the outer one counts.
        found.setdefault(name, told)
    return found


def _column(texts: Sequence[str | None]) -> Divided:
    present = [text for text in texts if text is not None]
    are_whole = bool(present)
    for text in present:
        if not (_WHOLE.fullmatch(text) and _LEAST <= int(text) <= _MOST):
            are_whole = False
    if not are_whole:
        return Divided("string", texts)
    return Divided("int32", [None if text is None else int(text) for text in texts])
