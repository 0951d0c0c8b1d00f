"""Mail: what workers print, log and warn, sent to the caller's process along with their answers.

A *letter* is one print, log record or warning.  The outbox collects letters in the worker, and each answer takes those
that are there.  The inbox, in the consumer process, delivers them: prints to ``sys.stdout`` and ``sys.stderr`` (a
notebook's cell, a test's capture), log records to the logger of the same name, warnings, equal ones once, to the
caller's filters.
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

_STREAMS = {"stdout": 1, "stderr": 2}
Letters = tuple[tuple[Any, ...], ...]


class _Tape(io.RawIOBase):
    """A worker's stdout or stderr, which turns what any thread writes into letters."""

    def __init__(self, name: str, letters: list[tuple[Any, ...]]) -> None:
        self._stream, self._letters = name, letters

    def write(self, data: Any) -> int:
        self._letters.append((self._stream, bytes(data).decode(errors="replace")))
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return _STREAMS[self._stream]


class Outbox(logging.Handler):
    """Collects a worker's mail: replaces stdout, stderr, log handlers and the display of warnings of the process."""

    def __init__(self) -> None:
        super().__init__()
        self._letters: list[tuple[Any, ...]] = []
        for name in _STREAMS:
            setattr(sys, name, io.TextIOWrapper(_Tape(name, self._letters), encoding="utf-8", errors="replace"))
        self._streams: Any = sys.stdout, sys.stderr
        root = logging.getLogger()
        for handler in root.handlers[:]:  # inherited by fork; the caller's own will show the record
            root.removeHandler(handler)
        root.addHandler(self)
        warnings.showwarning = self._warned
        util.Finalize(None, self._end, exitpriority=-100)  # before the process prints the error that ends it

    def take(self) -> Letters:
        """Return and forget the mail since the last call."""
        for stream in self._streams:
            stream.flush()
        taken = tuple(self._letters)
        del self._letters[: len(taken)]  # another thread may have added more meanwhile
        return taken

    def emit(self, record: logging.LogRecord) -> None:
        """Add a log record, as plain values and with its message formatted."""
        text = record.exc_text
        if record.exc_info and not text:
            text = logging.Formatter().formatException(record.exc_info)
        plain = {
            name: value for name, value in vars(record).items() if isinstance(value, (str, int, float, type(None)))
        }
        plain |= {"msg": record.getMessage(), "args": None, "exc_info": None, "exc_text": text}
        self._letters.append(("log", plain))

    def _warned(
        self, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        name = f"{category.__module__}:{category.__qualname__}"
        self._letters.append(("warning", str(message), name, filename, lineno))

    def _end(self) -> None:
        """Print the remaining mail directly, as later output will be, because the process ends."""
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        for kind, *content in self.take():
            if kind in _STREAMS:
                os.write(_STREAMS[kind], content[0].encode(errors="replace"))


class Inbox:
    """The mail of all workers of one iterator, until it is delivered in the caller's process."""

    def __init__(self) -> None:
        self._letters: deque[tuple[Any, ...]] = deque()
        self._heard: set[tuple[Any, ...]] = set()  # warnings that were given already

    def post(self, letters: Letters) -> None:
        """Add a worker's mail; may be called from any thread."""
        self._letters.extend(letters)

    def warn(self, text: str) -> None:
        """Add a warning of mpiter's own."""
        self._letters.append(("notice", text))

    def deliver(self) -> None:
        """Print, log and warn what is in the mail; if a warning raises, the rest stays for the next call."""
        while self._letters:
            kind, *content = self._letters.popleft()
            if kind == "log":
                record = logging.makeLogRecord(content[0])
                logging.getLogger(record.name).handle(record)
            elif kind == "notice":
                warn(content[0])
            elif kind in _STREAMS:
                stream = getattr(sys, kind)
                if stream is not None:  # a program without a console
                    stream.write(content[0])
                    stream.flush()
            elif tuple(content) not in self._heard:
                self._heard.add(tuple(content))
                text, category, filename, lineno = content
                if filename.startswith(OURS):
                    warn(text, _category(category))
                else:
                    warnings.warn_explicit(text, _category(category), filename, lineno)


def _category(name: str) -> type[Warning]:
    """Return the class of a warning, if this process has imported it, else RuntimeWarning."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Warning) else RuntimeWarning
