"""What a worker says on the side (prints, log records, warnings), and how the caller hears of it.

The outbox collects in the worker; each ticket takes along what is in it.  The inbox is the consumer process's:
prints go to its ``sys.stdout`` and ``sys.stderr`` (a notebook's cell, a test's capture), log records to the logger of
the same name, warnings through the caller's filters, equal ones once.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
import warnings
from collections import deque
from typing import Any

_MOST_TEXT = 1 << 20  # characters kept for the next ticket; a dataset that prints more is cut


class Outbox:
    """A worker's outgoing mail."""

    def __init__(self) -> None:
        self._letters: list[tuple[Any, ...]] = []
        self._pid = os.getpid()

    def open(self) -> None:
        """Take over stdout, stderr, logging and warnings of this process."""
        sys.stdout, sys.stderr = _Tape(self, "stdout"), _Tape(self, "stderr")
        root = logging.getLogger()
        level = root.level
        for handler in root.handlers[:]:  # inherited by fork; the caller's own will show the record
            root.removeHandler(handler)
        root.addHandler(_LogPost(self))
        root.setLevel(level)
        warnings.showwarning = self._warned
        atexit.register(self._say_directly)

    def add(self, *letter: Any) -> None:
        self._letters.append(letter)

    def take(self) -> tuple[Any, ...]:
        """Everything said since the last time."""
        if not self._letters:
            return ()
        taken, self._letters = tuple(self._letters), []
        return taken

    def _warned(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        name = f"{category.__module__}:{category.__qualname__}"
        self.add("warning", str(message), name, filename, lineno)

    def _say_directly(self) -> None:
        for kind, *content in self._letters:
            if kind in ("stdout", "stderr"):
                os.write(1 if kind == "stdout" else 2, content[0].encode(errors="replace"))


class _Tape(io.TextIOBase):
    """A stdout that writes letters."""

    def __init__(self, outbox: Outbox, name: str) -> None:
        self._outbox, self._name, self._length = outbox, name, 0

    def write(self, text: str) -> int:
        letters = self._outbox._letters
        if letters and letters[-1][0] == self._name and len(letters[-1][1]) < _MOST_TEXT:
            letters[-1] = (self._name, letters[-1][1] + text)
        elif sum(len(letter[1]) for letter in letters if letter[0] == self._name) < _MOST_TEXT:
            self._outbox.add(self._name, text)
        return len(text)

    def fileno(self) -> int:
        return 1 if self._name == "stdout" else 2

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True


class _LogPost(logging.Handler):
    """Sends records as plain values, the message formatted."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        text = record.exc_text
        if record.exc_info and not text:
            text = logging.Formatter().formatException(record.exc_info)
        plain = {
            name: value
            for name, value in record.__dict__.items()
            if isinstance(value, (str, int, float, type(None))) and name not in ("msg", "args", "exc_info", "exc_text")
        }
        self._outbox.add("log", {**plain, "msg": record.getMessage(), "args": None, "exc_text": text})


class Inbox:
    """The caller's incoming mail, of all workers of one iterator."""

    def __init__(self) -> None:
        self._letters: deque[tuple[Any, ...]] = deque()
        self._heard: set[tuple[Any, ...]] = set()  # warnings, which are given once

    def post(self, letters: tuple[Any, ...]) -> None:
        """Bring mail, from any thread."""
        self._letters.extend(letters)

    def warn(self, text: str) -> None:
        """Say something to the user ourselves."""
        self._letters.append(("notice", text))

    def deliver(self) -> None:
        """Let the caller's process say what the workers said; a warning may raise, the rest is then kept."""
        while self._letters:
            kind, *content = self._letters.popleft()
            if kind == "log":
                record = logging.makeLogRecord(content[0])
                logging.getLogger(record.name).handle(record)
            elif kind == "notice":
                warnings.warn(content[0], RuntimeWarning, stacklevel=3)  # where the user calls next()
            elif kind != "warning":
                _print(getattr(sys, kind), content[0])
            elif tuple(content) not in self._heard:
                self._heard.add(tuple(content))
                text, category, filename, lineno = content
                warnings.warn_explicit(text, _category(category), filename, lineno)


def _print(stream: Any, text: str) -> None:
    if stream is not None:  # a program without a console
        stream.write(text)
        stream.flush()


def _category(name: str) -> type[Warning]:
    """The warning's class where the caller has it, else RuntimeWarning."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Warning) else RuntimeWarning
