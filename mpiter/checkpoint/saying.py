"""What a checkpoint tells the user on standard error while it trains.

Runs in the thread of the training loop, also in a signal's handler.  Guarantees that a
line is written whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_is_silent = False


@contextlib.contextmanager
def in_silence() -> Iterator[None]:
    """Have no checkpoint of this process say what it does."""
    global _is_silent
    before = _is_silent
    _is_silent = True
    try:
        yield
    finally:
        _is_silent = before


def say(text: str) -> None:
    """Write a line to standard error.

    print() wouldn't do: a signal's handler mustn't call it in the midst of another.
    """
    if _is_silent:
        return
    with contextlib.suppress(OSError):
        os.write(2, f"mpiter: {text}\n".encode())


def say_if(speaks: bool, text: str) -> None:
    """Say it in the rank that speaks for all."""
    if speaks:
        say(text)
