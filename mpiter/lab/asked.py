"""What can be asked for on the command line: numbers within bounds, and how to ask for the same again.

Pure.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any


def at_least(bound: int) -> Callable[[str], int]:
    """Whole numbers from `bound` on."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < bound:
            raise argparse.ArgumentTypeError(f"{value} must be at least {bound}")
        return value

    return whole


def above_zero(text: str) -> float:
    """Numbers above zero, of seconds and minutes."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be above 0, and finite")
    return value


def command_again(experiment: str, settings: Mapping[str, Any]) -> str:
    """The command line that measures the same once more, every setting spelt out."""
    words = ["mpiter", "lab", experiment]
    for name, value in settings.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words += map(str, value if isinstance(value, list) else [value])
    return shlex.join(words)
