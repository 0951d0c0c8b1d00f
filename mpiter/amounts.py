"""Amounts of memory, as users write them: numbers of bytes, or text such as "2GB"."""

from __future__ import annotations

import re
from numbers import Real
from typing import SupportsFloat

from .errors import OptionError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMGTP]?)(i?)B?\s*", re.IGNORECASE)


def size_of(name: str, value: str | SupportsFloat) -> int:
    """Return the argument ``name``, such as "200GB", as a number of bytes."""
    size: object = value
    if isinstance(value, str):
        found = _SIZE.fullmatch(value)
        if found:
            number, prefix, binary = found.groups("")
            base = 1024 if binary else 1000
            power = " kmgtp".index(prefix.lower() or " ")
            size = float(number) * base**power
    if not isinstance(size, Real) or not 1 <= float(size) < 1 << 62:
        raise OptionError(
            f"{name}={value!r:.60} is no size; use a number of bytes, or '200GB', "
            "'1.5TB', '64GiB'."
        )
    return int(float(size))
