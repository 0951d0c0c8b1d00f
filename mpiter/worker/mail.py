"""What a worker says on the side (prints, log records, warnings), and how the caller hears of it.

The outbox collects in the worker; each ticket takes along what is in it.  The inbox is the consumer process's:
prints go to its ``sys.stdout`` and ``sys.stderr`` (a notebook's cell, a test's capture), log records to the logger of
the same name, warnings through the caller's filters, equal ones once.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections import deque
from multiprocessing import util
from typing import Any

from ..errors import OURS, warn

_MOST_TEXT = 1 << 20  # characters kept for the next ticket; a dataset that prints more is cut


class Outbox:
    """A worker's outgoing mail."""

    def __init__(self) -> None:
        self._letters: list[tuple[Any, ...]] = []
        self._streams: tuple[io.TextIOWrapper, ...] = ()

    def open(self) -> None:
        """Take over stdout, stderr, logging and warnings of this process."""
        sys.stdout, sys.stderr = self._streams = _stream(self, "stdout"), _stream(self, "stderr")
        root = logging.getLogger()
        level = root.level
        for handler in root.handlers[:]:  # inherited by fork; the caller's own will show the record
            root.removeHandler(handler)
        root.addHandler(_LogPost(self))
        root.setLevel(level)
        warnings.showwarning = self._warned
        util.Finalize(None, self._close, exitpriority=-100)  # before the process prints what it dies of

    def add(self, *letter: Any) -> None:
        self._letters.append(letter)

    def say(self, stream: str, text: str) -> None:
        """Add to what has been printed; a dataset that prints without end is cut."""
        said = sum(len(letter[1]) for letter in self._letters if letter[0] == stream)
        if said <= _MOST_TEXT:
            self.add(stream, text if said + len(text) <= _MOST_TEXT else text[:1000] + "\n… (cut: too much printed)\n")

    def take(self) -> tuple[Any, ...]:
        """Everything said since the last time."""
        for stream in self._streams:
            stream.flush()
        if not self._letters:
            return ()
        taken, self._letters = tuple(self._letters), []
        return taken

    def _warned(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        name = f"{category.__module__}:{category.__qualname__}"
        self.add("warning", str(message), name, filename, lineno)

    def _close(self) -> None:
        """Say what is left directly, as from now on."""
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        for kind, *content in self.take():
            if kind in ("stdout", "stderr"):
                os.write(1 if kind == "stdout" else 2, content[0].encode(errors="replace"))


class _Tape(io.RawIOBase):
    """What a worker's stdout or stderr ends in: letters."""

    def __init__(self, outbox: Outbox, name: str) -> None:
        self._outbox, self._stream = outbox, name

    def write(self, data: Any) -> int:
        self._outbox.say(self._stream, bytes(data).decode(errors="replace"))
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1 if self._stream == "stdout" else 2


def _stream(outbox: Outbox, name: str) -> io.TextIOWrapper:
    """A stream as real as any: it has a buffer, an encoding, a descriptor."""
    return io.TextIOWrapper(io.BufferedWriter(_Tape(outbox, name)), encoding="utf-8", errors="replace")


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
                warn(content[0])
            elif kind != "warning":
                _print(getattr(sys, kind), content[0])
            elif tuple(content) not in self._heard:
                self._heard.add(tuple(content))
                text, category, filename, lineno = content
                if filename.startswith(OURS):
                    warn(text, _category(category))
                else:
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
