"""Ctrl-C and SIGTERM held back until it suits: a signal that comes in the midst of a step waits for its end.

Runs in the main thread; in any other, which Python tells of no signal, nothing is held back.  Guarantees that a second
Ctrl-C isn't, that handlers are put back as they were, and that whoever had one is called when the time has come.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = signal.SIGINT, signal.SIGTERM
_SAYS = {
    signal.SIGINT: b"mpiter: this step is finished and saved first; Ctrl-C once more ends it at once.\n",
    signal.SIGTERM: b"mpiter: SIGTERM: this step is finished and saved first.\n",
}


class Held:
    """Who has been heard, and what was done about signals before."""

    def __init__(self) -> None:
        self.heard: signal.Signals | None = None
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
        """As they were; Ctrl-C last, so that it can't come in between and leave SIGTERM to us."""
        for number in reversed(_SIGNALS):
            if number in self._before:
                signal.signal(number, self._before[number])

    def deliver(self) -> None:
        """Do now what the signal that was heard asks for; most raise."""
        heard, self.heard = self.heard, None
        if heard is not None:
            self._do(heard, None)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        number = signal.Signals(number)
        if self.heard is not None and number is signal.SIGINT:
            self._do(number, frame)
        elif self.heard is None:
            self.heard = number
            with contextlib.suppress(OSError):  # not print(), in whose midst we may have come
                os.write(2, _SAYS[number])

    def _do(self, number: signal.Signals, frame: FrameType | None) -> None:
        before = self._before[number]
        if callable(before):
            before(number, frame)
        else:  # the system's own way: without any word to those who would put things away
            raise SystemExit(128 + number)
