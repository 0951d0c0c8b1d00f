"""Ctrl-C, SIGTERM and SIGHUP held back until it suits: a signal that comes in the midst of a step waits for its end.

Runs in the main thread; in any other, which Python tells of no signal, nothing is held back.  Guarantees that a second
Ctrl-C isn't held back, that handlers are put back as they were, and that they are called after the step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_SAYS = "{} waits for the end of this step, or of what follows an epoch, to save all"


class Held:
    """Who has been heard, and what was done about signals before."""

    def __init__(self) -> None:
        self.heard: signal.Signals | None = None
        self._was_interrupted = False  # by Ctrl-C
        self._before: dict[signal.Signals, Any] = {}

    def begin(self) -> None:
        """Hold them back from here on."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):  # None: somebody's who is no Python
                self._before[number] = before
                signal.signal(number, self._hear)

    def end(self) -> None:
        """As they were; Ctrl-C last, so that it can't come in between and leave the others to us."""
        for number in reversed(_SIGNALS):
            if number in self._before:
                signal.signal(number, self._before[number])

    def deliver(self) -> None:
        """Do now what the signal that was heard asks for; most raise."""
        heard, self.heard = self.heard, None
        if heard is not None:
            self._call_earlier_handler(heard, None)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        number = signal.Signals(number)
        if number is signal.SIGINT:
            if self._was_interrupted:
                self.heard = None
                self._call_earlier_handler(number, frame)
                return
            self._was_interrupted = True
            self.say(_SAYS.format("Ctrl-C") + "; once more, and it ends at once.")
        elif self.heard in (None, signal.SIGINT):
            self.say(_SAYS.format(number.name) + ".")
        if self.heard in (None, signal.SIGINT):
            self.heard = number

    def say(self, text: str) -> None:
        """To whoever looks: not by print(), in whose midst a signal may come."""
        with contextlib.suppress(OSError):
            os.write(2, f"mpiter: {text}\n".encode())

    def _call_earlier_handler(self, number: signal.Signals, frame: FrameType | None) -> None:
        before = self._before[number]
        if callable(before):
            before(number, frame)
        else:  # the system's own way: without any word to those who would put things away
            raise SystemExit(128 + number)
