"""Standard error beside a drawing: what is written there comes to stand above it, not in the middle of it.

Guarantees that nothing is held back, and that ``sys.stderr`` and the handlers of ``logging`` have in the end the stream
that they had, unless somebody has given them another meanwhile.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO


class Beside:
    """Standard error, whose writer first has the drawing lifted: ``lift`` is told what is about to be written."""

    def __init__(self, lift: Callable[[str], object]) -> None:
        self._stream, self._lift = sys.stderr, lift

    def begin(self) -> None:
        self._pass(self._stream, self)

    def end(self) -> None:
        self._pass(self, self._stream)

    def write(self, text: str) -> int:
        self._lift(text)
        count = self._stream.write(text)
        self._stream.flush()
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @staticmethod
    def _pass(one: TextIO | Beside, other: TextIO | Beside) -> None:
        """Whoever writes to the one writes to the other from now on."""
        if sys.stderr is one:
            sys.stderr = other
        for handler in _handlers():
            if handler.stream is one:
                handler.setStream(other)


def _handlers() -> Iterator[logging.StreamHandler[Any]]:
    loggers = [logging.root, *list(logging.root.manager.loggerDict.values())]
    for logger in loggers:
        for handler in list(getattr(logger, "handlers", ())):
            if isinstance(handler, logging.StreamHandler):
                yield handler
