"""How a signal ends a training: it is heard, all is saved, and then it is delivered.

Runs in the main thread, mostly in a signal's handler.  Guarantees that the program's
own handlers are back before one of them is called, and at the block's end whatever
ends it; and that what is being saved is interrupted by a second Ctrl-C only.  Assumes
that its owner knows where the training can be saved.
"""

from __future__ import annotations

import enum
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from .agreement import Agreement
from .saying import say_if

# A launcher passes a Ctrl-C on to ranks that have already heard it from the terminal,
# so one that comes within this time after the first is taken for the same.
_SAME_CTRL_C_S = 2.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OUR_FOLDER = os.path.dirname(__file__) + os.sep

React = Callable[[FrameType | None], None]


class Stage(enum.Enum):
    """What has become of a signal."""

    DEAF = "the block hasn't begun, or has ended: the program's own handlers are set"
    QUIET = "no signal has come since the block began or the last one was delivered"
    HEARD = "a signal has come, and waits until all can be saved"
    DECIDED = (
        "the training ends here, as all ranks have agreed or as this one may by "
        "itself: all is being saved, and a further signal waits until that is done"
    )
    DELIVERED = (
        "the signal's own handler was called: it ends the program, or returns and the "
        "training goes on"
    )


class Ending:
    """What happens once a signal has come while a block is under way.

    ::

            listen()    a signal       end() or agree()       all is saved
        DEAF ───► QUIET ────────► HEARD ───────────────► DECIDED ────────► DELIVERED
                   ▲ │              ▲                     ▲   │                │
                   │ │              └── it can't be saved ┼───┘                │
                   │ └─ agree(): another rank's signal ───┘                    │
                   └────────────────── its handler returns ────────────────────┘

    A second Ctrl-C leads from HEARD and from DECIDED to DELIVERED, the end of the block
    from each of them to DEAF.  There a signal that is still held back is delivered.
    """

    def __init__(self, path: Path, ranks: Agreement) -> None:
        self._path = path
        self._ranks = ranks
        self._react: React = _only_wait
        self._stage = Stage.DEAF
        # The signal that is held back; 0 for none.
        self.number = 0
        self._heard_at = 0.0  # seconds of time.monotonic()
        # Processes that the program forks within the block inherit our handlers, and
        # know by this number that they aren't the one that trains.
        self._pid = os.getpid()
        # What a signal's original handler has raised.
        self._raised: BaseException | None = None
        # The original handlers, which were there before the block began.
        self._handlers: dict[int, Any] = {}

    @property
    def is_forked(self) -> bool:
        """True in a process that was forked within the block.

        It has inherited our handlers of signals, but has nothing to save.
        """
        return os.getpid() != self._pid

    @property
    def is_waiting(self) -> bool:
        """True if a signal has come that can't be delivered before all is saved."""
        return self._stage is Stage.HEARD

    def listen(self, react: React) -> None:
        """Set our handlers.

        A signal calls ``react``, which must call ``end`` where all can be saved, and
        ``say_it_waits`` elsewhere.
        """
        self._react = react
        self._stage = Stage.QUIET
        # Python sets and calls handlers in the main thread only.
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            # A signal that the program ignores, as nohup has it ignore SIGHUP, must not
            # end the training.  None stands for a handler that was set in C, and can't
            # be set again.
            if handler not in (None, signal.SIG_IGN):
                self._handlers[number] = handler
                signal.signal(number, self._hear)

    def stop(self) -> None:
        """Set the program's own handlers again."""
        self._stage = Stage.DEAF
        self._give_back_handlers()
        # It would keep the loaders, and with them their workers, until the garbage
        # collector comes.
        self._react = _only_wait

    def agree(self, number: int) -> None:
        """Treat a signal that all ranks end by as if this one had heard it."""
        # The launcher's copy of a Ctrl-C that another rank has heard comes late.
        if number != self.number:
            self._heard_at = time.monotonic()
        self.number = number
        self._stage = Stage.DECIDED

    def end(self, save: Callable[[], None], frame: FrameType | None = None) -> None:
        """Save all, say so, and deliver the signal."""
        self._stage = Stage.DECIDED
        try:
            save()
        except BaseException:
            # A second Ctrl-C may have been delivered in the midst of it.
            if self._stage is Stage.DECIDED:
                self._stage = Stage.HEARD
            raise
        say_if(self._ranks.is_leader, f"saved: {self._path}")
        self.deliver(frame)

    def say_it_waits(self, hint: str) -> None:
        """Say that the signal waits, and add what may help the user."""
        more = ""
        if self.number == signal.SIGINT:
            more = "; Ctrl-C once more, and it ends at once"
        name = signal.Signals(self.number).name
        say_if(
            self._ranks.is_leader,
            f"{name} waits for the end of this step, to save all{more}{hint}.",
        )

    def deliver(self, frame: FrameType | None = None) -> None:
        """Call the original handler of the signal that was held back, if any."""
        number = self.number
        self.number = 0
        if not number:
            return
        handler = self._handlers.get(number, signal.SIG_DFL)
        goes_on = self._stage is not Stage.DEAF
        if goes_on:
            self._stage = Stage.DELIVERED
        # Most handlers raise.  If that happens before the ``with`` statement has begun
        # its body, nothing will call __exit__, and our handlers would stay.
        self._give_back_handlers()
        try:
            # SIG_DFL would end the process at once, and no ``finally`` of the program
            # would run.
            if not callable(handler):
                raise SystemExit(128 + number)
            handler(number, frame)
        except BaseException as raised:
            self._raised = raised
            raise
        # A handler that returns lets the training go on, so further signals must be
        # held back as before.
        if goes_on:
            # Another signal may have come just before our handlers were taken away.
            self._stage = Stage.HEARD if self.number else Stage.QUIET
            for other in self._handlers:
                signal.signal(other, self._hear)

    def leave_out_our_frames(self, error: BaseException | None) -> None:
        """Have an interrupt's traceback end where the program was interrupted.

        The user asked for this interrupt, and looks for the line of the program that it
        met.  Other errors stay as they are.
        """
        if error is not None and error is self._raised:
            _leave_out_our_frames(error)
        self._raised = None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.is_forked:
            return self._hear_in_fork(number)
        now = time.monotonic()
        if number == self.number == signal.SIGINT:
            # A second Ctrl-C ends the program.  In one of several ranks it may be the
            # launcher's copy of the first, which must not.  The time counts from the
            # first and not from the latest, or pressing Ctrl-C on and on would never
            # end the program.
            if not self._ranks.are_several or now - self._heard_at >= _SAME_CTRL_C_S:
                self.deliver(frame)
            return
        self._heard_at = now
        self.number = number
        # Launchers send a signal twice, and the second must not end the saving.  Once
        # that is done, or once the block has ended, the signal is delivered anyhow.
        if self._stage in (Stage.DECIDED, Stage.DEAF):
            return
        self._stage = Stage.HEARD
        self._react(frame)

    def _hear_in_fork(self, number: int) -> None:
        """Have the signal do what it would do without this block.

        The first Ctrl-C is left to the training: a terminal sends it to both, and the
        training may need this process until the step is finished.
        """
        if number == signal.SIGINT != self.number:
            self.number = number
            return
        self.stop()
        signal.raise_signal(number)

    def _give_back_handlers(self) -> None:
        # Ctrl-C's handler comes last: once it is back, a Ctrl-C could interrupt this
        # loop, and some of our handlers would stay.
        for number, handler in reversed(self._handlers.items()):
            signal.signal(number, handler)


def _only_wait(frame: FrameType | None) -> None:
    """React to a signal that comes while no block is under way."""


def _leave_out_our_frames(error: BaseException) -> None:
    """Cut a traceback's last frames, those of this package.

    They are of no use to a reader.
    """
    frames = list[TracebackType]()
    here = error.__traceback__
    while here is not None:
        frames.append(here)
        here = here.tb_next
    while frames and frames[-1].tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        frames.pop()
    shorter: TracebackType | None = None
    for one in reversed(frames):
        shorter = TracebackType(shorter, one.tb_frame, one.tb_lasti, one.tb_lineno)
    error.__traceback__ = shorter
