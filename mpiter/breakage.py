"""What has become of workers that died or were stuck, in words: what they were doing, what ended them, and why perhaps.

Pure values.  A *breakage* is the event that the prefetch loop hears of; a *report* is what is found out about it when
the workers have been ended; a *casualty* is one worker of it.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from .board import Line

VANISHED = 255  # the exit code that multiprocessing makes up when the fork server is gone and can't tell

_CAUSES = {
    "SIGKILL": "the out-of-memory killer, or somebody's kill -9",
    "SIGSEGV": "a crash in native code, a decoder for example",
    "SIGBUS": "a mapped file that has become shorter, or a file system that is full",
    "SIGABRT": "native code that gave up",
    "SIGFPE": "a division by zero in native code",
    "SIGILL": "a library built for another processor",
    "SIGTERM": "somebody asked it to end",
}


@dataclass(frozen=True, slots=True)
class Breakage:
    """Workers have died, or are stuck: the whole shift must be replaced."""

    shift: int
    stuck: tuple[int, ...] | None = None  # None: somebody died; empty: all stand still, nobody knows why
    error: Exception | None = None  # …or an answer could not be read


@dataclass(frozen=True, slots=True)
class Casualty:
    """A worker that died or was stuck, and what it was doing."""

    worker: int
    line: Line
    ended: str  # "was killed by SIGKILL"
    cause: str = ""  # likely, if anything is known
    stack: str = ""  # the Python stack, where one could be had

    @property
    def was_starting(self) -> bool:
        return not self.line.ready

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"worker {self.worker} (pid {self.line.pid}) {self.ended}{cause}"


@dataclass(frozen=True, slots=True)
class Report:
    """A shift of workers after its end."""

    casualties: tuple[Casualty, ...]
    is_clean: bool  # all have ended; if not, one may still write into the rooms that it was given
    has_answered: bool  # at least one of them has worked
    is_proven: bool  # this shift, or one before it, was ready in full

    @property
    def stacks(self) -> str:
        """What was on their stacks, each once."""
        return "\n\n".join(dict.fromkeys(one.stack for one in self.casualties if one.stack))


def ended(code: int) -> str:
    """How a process with this exit code ended."""
    if code == VANISHED:
        return "vanished, perhaps with the fork server that had started it"
    return f"was killed by {_name(-code)}" if code < 0 else f"exited with code {code}"


def cause(code: int, out_of_memory: bool) -> str:
    """Why, perhaps."""
    if code == -signal.SIGKILL and out_of_memory:
        return "the out-of-memory killer: use fewer workers, or smaller samples"
    if code == 1:
        return "an exception that nobody caught; see what it printed"
    if code >= 0:
        return "" if code == VANISHED else "code that called os._exit, or a library that did"
    return _CAUSES.get(_name(-code), "")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
