"""Where workers leave the Python stack of their last moments: on a crash of their own accord, when stuck on demand.

One unnamed file for all workers of an iterator; ``arm`` runs in the worker, the rest in the consumer process.
Guarantees a stack also of a worker that holds the GIL for ever (a signal handler in C writes it); none of one that was
killed or stopped, and none where there are no real-time signals.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import traceback

from .. import machine
from ..transport.memory import SharedFile

_LONGEST = 20_000  # characters
_MOST_ROOM = 1 << 20  # bytes read


class BlackBox(SharedFile):
    """The file, from either side."""

    def __init__(self) -> None:
        super().__init__()
        self._read_to = 0

    def arm(self) -> None:
        """In a worker: from now on a crash leaves its stack here, and so does the signal of ``ask``."""
        faulthandler.enable(self.fd)
        if (ask := _signal()) is not None:
            faulthandler.register(ask, self.fd, all_threads=True, chain=False)

    def ask(self, pid: int) -> None:
        """Have a worker show what it is doing right now; ``read`` has it as soon as it answers."""
        ask = _signal()
        if ask is not None and pid > 0:  # 0 would be the signal for our own process group
            with contextlib.suppress(OSError):
                os.kill(pid, ask)

    def read(self) -> str:
        """Everything written since the last ``turn_over``."""
        text = os.pread(self.fd, _MOST_ROOM, self._read_to).decode(errors="replace").strip()
        return text if len(text) <= _LONGEST else text[:_LONGEST] + "\n…"

    def turn_over(self) -> None:
        """What was written so far has been read."""
        self._read_to = os.fstat(self.fd).st_size


def thread_stack(native_id: int) -> str:
    """What a thread of this very process is doing."""
    for thread in threading.enumerate():
        if thread.native_id == native_id and thread.ident in (frames := sys._current_frames()):
            return "".join(traceback.format_stack(frames[thread.ident]))[-_LONGEST:]
    return ""


def _signal() -> int | None:
    """One that nobody else uses."""
    last = getattr(signal, "SIGRTMAX", None)
    return None if last is None else int(last) - 3


_CONDITIONS = {"T": "it is stopped, SIGSTOP", "D": "it waits in the kernel, for a disk or a network drive"}


def condition(pid: int) -> str:
    """Why a worker may not move, seen from the outside."""
    letter, *_ = machine.stat_of(pid) or [""]
    return _CONDITIONS.get(letter, "")


def is_stopped(pid: int) -> bool:
    """Has somebody stopped it, with SIGSTOP most likely?"""
    return machine.stat_of(pid)[:1] == ["T"]
