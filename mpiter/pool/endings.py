"""How workers end, in words, and how one that is stuck is ended without holding up the others.

``End`` is what the engine hears of a worker that is no more.  An ``Eviction`` runs in the prefetch thread, a step at
each look: the worker is asked for its stack, killed, and given up if it would not die.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..worker.block import Block
from ..worker.board import BlackBox, Line, is_stopped, thread_stack
from ..worker.home import CUT_OFF
from .pool import VANISHED

STEP_S = 0.01  # between two looks at a worker that is being ended
_FOR_A_STACK_S = 0.5  # that a stuck worker has to show it: a stopped one never does
_FOR_DYING_S = 2.0  # once it is killed: more, and it sits in the kernel

_CAUSES = {
    "SIGKILL": "the out-of-memory killer, or kill -9",
    "SIGSEGV": "a crash in native code, a decoder for example",
    "SIGBUS": "a mapped file that has become shorter, or a file system that is full",
    "SIGABRT": "native code that gave up",
    "SIGFPE": "a division by zero in native code",
    "SIGILL": "a library built for another processor",
    "SIGTERM": "it was asked to end",
}


@dataclass(frozen=True, slots=True)
class End:
    """The end of a worker: what it was doing, and the blocks that it had."""

    worker: int
    line: Line
    how: str  # "was killed by SIGKILL"
    cause: str = ""  # likely, if anything is known
    stack: str = ""  # the Python stack, where one could be had
    blocks: tuple[int, ...] = ()  # their numbers
    is_gone: bool = True  # if not, it may still write into the rooms that it was given
    was_asked: bool = False  # to end, after its last block
    was_stuck: bool = False  # and ended for that
    is_proven: bool = True  # a worker in its place has been ready before
    others_work: bool = True  # some worker has answered

    @property
    def was_starting(self) -> bool:
        return not self.line.ready

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"worker {self.worker} (pid {self.line.pid}) {self.how}{cause}"


class Eviction:
    """Ends a worker that has made no progress for too long."""

    def __init__(self, worker: int, line: Line, limit: float, box: BlackBox | None, is_here: bool) -> None:
        """``is_here``: it runs on this machine."""
        doing = "made no progress" if line.ready else "was not ready to work"
        stands = is_here and is_stopped(line.pid)
        self.how, self.cause = f"{doing} for {limit:g} s", "it is stopped, SIGSTOP" if stands else ""
        self.stack = "" if box or not is_here else thread_stack(line.pid)
        self._worker, self._box, self._came = worker, box, ""
        self._asked = self._killed = 0.0
        if box is not None and not stands:  # else it would not answer
            box.turn_over()
            box.ask(line.pid)
            self._asked = time.monotonic()

    def go_on(self, pool: Any) -> None:
        """The next step, if it is time for it."""
        now = time.monotonic()
        if not self._killed:
            if self._box is not None and now - self._asked < _FOR_A_STACK_S:
                came, self._came = self._came, self._box.read()
                if not came or came != self._came:  # it has not come to rest
                    return
            self.stack = self.stack or self._came
            self._killed = now
            pool.kill(self._worker)
        elif now - self._killed > _FOR_DYING_S:
            pool.abandon(self._worker)


def in_hand(blocks: Sequence[Block], told: Line, stood_still: bool) -> Line:
    """The line of a worker elsewhere that had the first of these blocks in hand, and told us another line before."""
    if not blocks or (stood_still and told.active == 1 and told.block == blocks[0].number):
        return told
    is_sure = blocks[0].singly and blocks[0].rows == 1
    return told._replace(block=blocks[0].number, row=0, active=1 if is_sure else 2)


def ended(code: int) -> str:
    """Say how a process with this exit code ended."""
    if code == VANISHED:
        return "vanished, perhaps with the fork server that had started it"
    return f"was killed by {_name(-code)}" if code < 0 else f"exited with code {code}"


def cause(code: int, out_of_memory: bool) -> str:
    """Say the likely cause."""
    if code == -signal.SIGKILL and out_of_memory:
        return "the out-of-memory killer: use fewer workers, or smaller samples"
    if code == CUT_OFF:
        return "its dataset has closed descriptors that are not its own, os.closerange() for example"
    if code == 1:
        return "an exception that was not caught; see what it printed"
    if code >= 0:
        return "" if code == VANISHED else "code that called os._exit, or a library that did"
    return _CAUSES.get(_name(-code), "")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
