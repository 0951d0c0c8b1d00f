"""What can be asked for on the command line: numbers within bounds.

Pure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

_MOST, _LARGEST = 1e9, 1 << 53


def at_least(bound: int) -> Callable[[str], int]:
    """Whole numbers from `bound` on."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is no whole number") from None
        if not bound <= value <= _LARGEST:
            raise argparse.ArgumentTypeError(f"{text:.40} must be at least {bound}, and at most 2^53")
        return value

    return whole


def above_zero(text: str) -> float:
    """Numbers above zero, of seconds and minutes: no more than one can sleep."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value <= _MOST:
        raise argparse.ArgumentTypeError(f"{text} must be above 0, and at most {_MOST:g}")
    return value
