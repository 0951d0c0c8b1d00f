"""How the last finished step of a training gets into its file, in all ranks.

Runs in the thread of the training loop; a ``Saver`` may write beside it.  Guarantees
that ranks save together; that rank 0's errors reach them all, so that none waits for a
rank which has left; and that a copy which is held ready is never of an older step than
the file.
"""

from __future__ import annotations

import enum
import time

from ..errors import warn
from . import file
from .agreement import Agreement
from .kept import Keeping
from .plan import Plan
from .progress import Progress
from .saver import Saver
from .saying import say

# After an epoch's last step, a copy that is as large as this is written at once, while
# the body of the epoch's loop goes on.  A smaller one takes less than a second, so it
# can wait for a signal.
_SOON = 1 << 28  # bytes


class How(enum.Enum):
    """How a step is saved."""

    NOW = "it is written, and all ranks wait until that is done"
    BESIDE = "it is written beside the training, if the options allow that"
    READY = (
        "it is copied, to be written if a signal comes; and written beside the "
        "training if that would take too long then"
    )


class Saving:
    """The saves of one block."""

    def __init__(self, plan: Plan, ranks: Agreement, progress: Progress) -> None:
        self._plan = plan
        self._ranks = ranks
        self._progress = progress
        keeping = Keeping(plan.path, plan.keep, plan.keep_every)
        self._saver = Saver(keeping)
        # A copy of all parts after an epoch's last step, which isn't written yet.
        self.held: file.Snapshot | None = None
        # Why rank 0 can't save, from then until all ranks have agreed to end by it.
        self.problem: Exception | None = None
        self._saved_at = 0.0  # seconds of time.monotonic()
        self._saved_step = 0  # steps
        # True once save() was called within a step, whose end it waits for.
        self.is_asked = False

    def begin(self) -> bool:
        """Write a first file if there is none, and return whether that was done.

        Raise a RankError if the ranks don't all see the same file.
        """
        path = self._plan.path
        # Only rank 0 looks whether there is a file, and tells the others.  On a network
        # a file system remembers for a while that a file was missing, so a rank that
        # looks before rank 0 writes the file may not see it afterwards.
        told = ""
        if self._ranks.is_leader and not path.exists():
            told = "new"
        is_new = self._ranks.gathered(told)[0] == "new"
        if is_new:
            self.save(How.NOW, keeps=False)
        # One rank alone has nothing to compare the file's mark with, so it needn't read
        # it.
        if self._ranks.are_several:
            differ = f"files differ, so {path} is not one that all see"
            self._ranks.check_same(differ, file.mark_of(path))
        return is_new

    def is_due(self) -> bool:
        """Return True if this rank wishes for a save now."""
        # Only rank 0's clock counts.  Each rank's own would have all of them save again
        # and again, a step apart.
        return self.is_asked or (self._ranks.is_leader and self._is_time_up())

    def is_new(self) -> bool:
        """Return True if the last finished step isn't saved yet."""
        return self._progress.finished > self._saved_step

    def is_kept(self) -> bool:
        """Return True if a save is due after the last step by its number."""
        # It may have been saved already, by save() for example.
        if not self.is_new():
            return False
        step = self._progress.finished
        return any(step % period == 0 for period in self._plan.periods)

    def note_saved(self) -> None:
        self._saved_at = time.monotonic()
        self._saved_step = self._progress.finished
        self.is_asked = False

    def save(self, how: How, keeps: bool = True) -> None:
        """Save the last finished step of all ranks.

        If it ``keeps``, the file gets its second name, as far as the options say.  A
        step that can't be written beside the training is held ready.
        """
        of_ranks = self._ranks.gathered(self._progress.own())
        if how is How.BESIDE:
            self.note_saved()
        problem: Exception | None = None
        if self._ranks.is_leader:
            try:
                states = self._progress.states(of_ranks)
                snapshot = file.snapshot_of(self._progress.finished, states)
                self._write(snapshot, how, keeps)
            except Exception as error:
                problem = error
        if how is How.NOW:
            # The others wait here until rank 0 has written the file: a launcher may
            # kill it as soon as one of them has ended.
            self._ranks.check(problem)
            self.note_saved()
            # What could not be written before is of no use any more.
            self.problem = None
        elif problem is not None:
            self._tell(problem)

    def save_held(self) -> None:
        """Save what is held ready, which is of the last finished step.

        It may be being written already: then wait until that is done.
        """
        self._write_held(is_safe=True)
        self._saver.raise_error()
        if self.problem is not None:
            raise self.problem

    def save_held_together(self) -> None:
        """Save what is held ready, and wait until that is done in all ranks."""
        problem: Exception | None = None
        try:
            self.save_held()
        except Exception as error:
            problem = error
        self._ranks.check(problem)

    def save_what_can_be(self, is_safe: bool) -> None:
        """Save what is held ready when an error ends the block.

        That error must not be hidden by another one.  The step ``is_safe`` if it is
        held ready or being written in rank 0.
        """
        try:
            self._write_held(is_safe)
        except OSError as problem:
            say(f"the last finished step could not be saved: {problem}")

    def take_problem(self) -> Exception | None:
        """Return why this rank can't save, for all ranks to end by it, once."""
        problem = self.problem
        self.problem = None
        return problem

    def tell_errors(self) -> None:
        """Tell of the error of what was saved beside the training, if any."""
        try:
            self._saver.raise_error()
        except OSError as error:
            self._tell(error)

    def _write(self, snapshot: file.Snapshot, how: How, keeps: bool) -> None:
        # What is held ready is older than this snapshot, and lies in memory that the
        # next copy overwrites: a signal must not have it saved any more.
        self.held = None
        match how:
            case How.NOW:
                self._saver.save(snapshot, keeps)
            case How.BESIDE if self._plan.background:
                self._saver.begin(self._saver.copy(snapshot), keeps)
            case How.BESIDE:
                try:
                    self._saver.save(snapshot, keeps)
                except OSError:
                    # A signal has it tried again.
                    self.held = self._saver.copy(snapshot)
                    raise
            case How.READY:
                copied = self._saver.copy(snapshot)
                # If it can't be written now, a signal has it tried again.
                self.held = copied
                # Only a small copy of a single rank waits for a signal: a launcher may
                # kill this rank as soon as another one has ended, and a large copy
                # takes too long to write then.
                if not self._ranks.are_several and copied.nbytes < _SOON:
                    return
                if self._plan.background:
                    self._saver.begin(copied, keeps)
                else:
                    self._saver.save(copied, keeps)
                # It is written, or being written.
                self.held = None

    def _write_held(self, is_safe: bool) -> None:
        if self.held is not None:
            held = self.held
            self.held = None
            self._saver.save(held, keeps=False)
            self.problem = None
        elif self._ranks.is_leader:
            self._saver.wait()
        elif is_safe:
            # Rank 0 is writing this step.  If this rank ended before that is done, a
            # launcher might kill rank 0.
            file.wait_for(self._plan.path, self._progress.finished)

    def _tell(self, problem: Exception) -> None:
        """Warn of what may pass; end the training by a full disk, which stays full."""
        # The next try comes when a save is due by time.  Otherwise each step would try
        # again, and warn.
        self._saved_at = time.monotonic()
        if isinstance(problem, OSError) and not file.has_no_space(problem):
            steps = self._progress.finished
            warn(
                f"nothing could be saved after {steps} steps ({problem}); the training "
                "goes on."
            )
            return
        if not self._ranks.are_several:
            raise problem
        # If this rank left now, the others would wait for its next message.
        self.problem = problem

    def _is_time_up(self) -> bool:
        waited_s = time.monotonic() - self._saved_at
        return waited_s >= self._plan.every_s and not self._saver.is_busy
