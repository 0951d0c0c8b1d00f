"""``Checkpoint`` saves all parts of a training loop in one file, between two steps.

The parts are its loaders, its model, and whatever else has a state.  Runs in the thread
of the training loop; a ``Saver`` may write beside it.  Signals are held back until a
step is finished, since within it the loader is ahead of the model.  Guarantees that a
file holds the last finished step; that what follows an epoch's last step is done again
if it was interrupted; that a signal is delivered at once wherever nothing would be
lost; and that all ranks of a training save, and end, after one step.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from ..engine import describing
from ..engine.options import flag, seconds, whole
from ..errors import OptionError, StateError, warn
from ..typevars import T
from . import file
from .agreement import Agreement, Moment, Wish
from .kept import Keeping
from .parts import OfRank, Parts, States, place_in
from .passes import Passes
from .ranks import OneRank, ranks_of_training
from .saver import Saver

# After an epoch's last step, a copy that is as large as this is written at once, while
# the body of the epoch's loop goes on.  A smaller one takes less than a second, so it
# can wait for a signal.
_SOON = 1 << 28  # bytes

# A launcher passes a Ctrl-C on to ranks that have already heard it from the terminal,
# so one that comes within this time after the first is taken for the same.
_SAME_CTRL_C_S = 2.0


class _State(Enum):
    """Where the training loop is, which decides when a signal is delivered.

    ::

        OUTSIDE ─────► SAFE ──────────────► STEP ◄───────────────┐
            the block   ▲  a batch comes    │  ▲ a batch comes   │ a batch comes
            begins      │                   │  │                 │
                        │     the step ends ▼  │                 │
                        └────────────────── BETWEEN ◄────────► WAITING
                           all is saved,             steps() waits
                           or held ready             for workers

    A signal leads from SAFE to SAVING and back, and from WAITING to BETWEEN.  The end
    of an epoch of epochs() leads from SAFE to BETWEEN, the end of the block from any
    state to OUTSIDE.
    """

    OUTSIDE = "The block hasn't begun, or has ended: signals aren't ours."
    SAFE = (
        "The last finished step is saved, or held ready to be saved: a signal is "
        "delivered at once."
    )
    BETWEEN = (
        "A step has ended, and whether another one has begun isn't known: a signal "
        "waits for the end of the next step."
    )
    STEP = "A step isn't finished: a signal waits for its end."
    WAITING = (
        "steps() waits for a batch between two steps, when all parts can be saved: a "
        "signal is delivered at once."
    )
    SAVING = (
        "A signal came while the state was SAFE, and what is held ready is being "
        "saved: a further signal waits until that is done."
    )


class Checkpoint:
    """A ``with`` block whose training loop can be interrupted and resumed.

    When the program is run again, the loop goes on where it was.

    Args:
        path: the file, which no other process may use; it is loaded when the block
            begins, or written if missing.
        parts: what is saved and loaded: each loader of the loop, and any object with
            ``state_dict()`` and ``load_state_dict()``; or a dict of values, arrays,
            tensors and more dicts, which is filled in place.
        named: further parts, with names: ``model=model``.
        every_s: seconds between two saves; None not to save by time.
        every_steps: steps between two saves; None not to save by steps.
        keep: how many saved files are kept beside the latest, as ``run-000002000.npz``
            after step 2,000.
        keep_every: files of steps that are multiples of it are saved, and kept for
            ever.
        background: write in a thread, from a copy that is made between two steps; this
            takes the memory of all parts once more. False: the training waits until the
            file is written.
        strict: refuse a file with parts that aren't passed; False leaves them out.
        alone: this process is a training of its own, with a file of its own, though a
            launcher has started it as one of several ranks.

    ``epochs(n)`` goes around the loop, since only its count is saved: ``range(n)``
    would begin at 0 again on resuming. ``steps(loader, until=n)`` trains for a number
    of steps instead, over as many epochs as it takes. A step of ``steps(loader)`` is
    finished when the loop asks for the next batch or is left; if a step takes several
    batches, loop over the loader and call ``step()`` at its end.

    Ctrl-C, SIGTERM and SIGHUP are held back until a step is finished (not while
    ``steps()`` waits for a further batch from workers). Then all is saved, with the
    global random generators, and the signal's original handler is called. After the
    last step of an epoch of ``epochs()`` they are delivered at once: all is saved as it
    was after that step, and what follows it in the body of that loop is done again on
    resuming, also if it was left by ``break``. A second Ctrl-C isn't held back; like an
    error, it loses what came since the last save. The end of the block, also by
    ``break`` or ``return``, saves the last finished step.

    Ranks that train together (they are found as by ``shard="auto"``) each make a
    ``Checkpoint`` with the same path, parts and options. Rank 0 writes; all load. They
    save after the same step, and a signal that any of them hears ends all of them after
    the same step: the present one, or the next. Random generators are saved of each
    rank.

    >>> import mpiter, tempfile
    >>> loader = mpiter.DataLoader(range(6), batch_size=2)
    >>> model = {"sum": 0}
    >>> path = tempfile.mkdtemp() + "/run.npz"
    >>> with mpiter.Checkpoint(path, loader, model=model) as c:
    ...     for epoch in c.epochs(2):
    ...         for x in c.steps(loader):
    ...             model["sum"] += int(x.sum())
    >>> c.finished, model
    (6, {'sum': 30})
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *parts: object,
        every_s: float | None = 600.0,
        every_steps: int | None = None,
        keep: int = 0,
        keep_every: int | None = None,
        background: bool = True,
        strict: bool = True,
        alone: bool = False,
        **named: object,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            kind = type(path).__name__
            raise OptionError(
                f"the path of the file comes first, not a {kind}: "
                "Checkpoint('run.npz', loader, …)."
            )
        seconds("every_s", every_s)
        whole("every_steps", every_steps, least=1, optional=True)
        whole("keep", keep, least=0)
        whole("keep_every", keep_every, least=1, optional=True)
        flag("background", background)
        flag("strict", strict)
        flag("alone", alone)
        self._every_s = math.inf if every_s is None else every_s
        self._periods: list[int] = []  # steps
        for period in (every_steps, keep_every):
            if period is not None:
                self._periods.append(int(period))
        self._strict = bool(strict)
        self.path = Path(path).expanduser().absolute()
        # Finished steps are counted through all runs of the training, so those before
        # this block began are among them.
        self.finished = 0
        # Only complete epochs of epochs() are counted.
        self.epoch = 0
        numbered = {str(number): part for number, part in enumerate(parts)}
        self._parts = Parts(numbered | named)
        self._is_alone = bool(alone)
        self._ranks = Agreement(OneRank())
        # The loaders' states after the last finished step are what is saved of them:
        # their present ones may be a batch ahead of the model.
        self._places: States = {}
        # The numbers of the loaders' passes, also after the last finished step.
        self._numbers: dict[str, int] = {}
        self._passes = Passes(self._parts)
        self._state = _State.OUTSIDE
        self._counts_epochs = False
        # True if the last step was one of steps(), so that we notice when the next one
        # begins.
        self._tells_beginnings = False
        keeping = Keeping(self.path, int(keep), keep_every)
        self._saver = Saver(keeping, bool(background))
        # A copy of all parts after an epoch's last step, which isn't written yet.
        self._held: file.Snapshot | None = None
        # The names of loaders whose pass has ended, while what follows it isn't done.
        self._ended: list[str] = []
        self._saved_at = 0.0  # seconds of time.monotonic()
        self._saved_step = 0  # steps
        # True once save() was called within a step, whose end it waits for.
        self._is_asked = False
        # Processes that the program forks within the block inherit our handlers, and
        # know by this number that they aren't the one that trains.
        self._pid = 0
        # The signal that is held back.
        self._heard: int | None = None
        self._heard_at = 0.0  # seconds of time.monotonic()
        # What a signal's original handler has raised.
        self._raised: BaseException | None = None
        # The original handlers, which were there before the block began.
        self._handlers: dict[int, Any] = {}

    def __repr__(self) -> str:
        """Say in one line what is saved, and how far the training is."""
        return describing.in_a_line(self, type(self).__name__, self._facts)

    def _facts(self) -> describing.Facts:
        parts = []
        for name, part in self._parts.by_name.items():
            parts.append(f"{name} ({type(part).__name__})")
        done = f"epoch {self.epoch}, {self.finished:,} steps finished"
        facts = [str(self.path), ", ".join(parts), done]
        if self._state is _State.OUTSIDE:
            facts.append("not in use")
        return facts

    def __enter__(self) -> Self:
        """Load the file, or write it if it is missing.

        Writing it shows at once whether all parts can be saved.
        """
        if self._state is not _State.OUTSIDE:
            raise StateError("this Checkpoint is in use already; make another one.")
        self._heard = None
        self._handlers = {}
        self._pid = os.getpid()
        self._passes = Passes(self._parts)
        self._counts_epochs = False
        self._is_asked = False
        self._held = None
        self._tells_beginnings = False
        self._ended = []
        self._begin()
        self._note_saved()
        # While handlers are being set, a signal is held back: its original handler
        # would raise in the midst, where __exit__ isn't called.
        self._state = _State.BETWEEN
        # Python sets and calls handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                # A signal that the program ignores, as nohup has it ignore SIGHUP, must
                # not end the training.
                if handler not in (None, signal.SIG_IGN):
                    self._handlers[number] = handler
                    signal.signal(number, self._hear)
        self._state = _State.SAFE
        # A signal that came after its handler was set, but before the state was SAFE,
        # was held back, and would wait for the end of the first step.
        self._react_late()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A process that was forked within the block must neither write the file nor
        # speak to the other ranks: that is for the process that trains.
        if self._is_forked():
            self._state = _State.OUTSIDE
            self._stop_hearing()
            return
        try:
            if kind is None:
                # The loop over steps() was left by break or return, and the step that
                # did so is finished.
                if self._state is _State.STEP:
                    self._finish()
                was_left_in_tail = self._ended and self._state is _State.SAFE
                # All parts are saved below, and a signal waits until they are.
                if not was_left_in_tail:
                    self._state = _State.BETWEEN
                self._agree(Moment.EXIT)
                if was_left_in_tail:
                    # The body of the epoch's loop was left after the last step, so
                    # what follows that step is done again on resuming.  The parts may
                    # have changed since, so what was held ready is saved.
                    self._save_held_together()
                else:
                    self._save_together(keeps=self.finished > self._saved_step)
                if self._moved() and not self.finished:
                    self._passes.warn_without_steps()
            else:
                self._save_what_can_be()
        finally:
            self._state = _State.OUTSIDE
            self._stop_hearing()
            # The user asked for this interrupt, and looks for the line of the program
            # that it met.
            if self._raised is not None and self._raised is error:
                _leave_out_our_frames(self._raised)
            self._raised = None
            self._ranks.close()
        # A signal that is still held back must end the program after all, unless what
        # has ended the block (KeyboardInterrupt, say) does so by itself.
        if kind is None or issubclass(kind, Exception):
            self._deliver()

    def steps(self, batches: Iterable[T], until: int | None = None) -> Iterator[T]:
        """Yield a loader's batches; each is a step.

        The loader may be wrapped by what doesn't read ahead. Other iterables have no
        place that could be saved, and are refused: call ``step()`` in a loop over them.
        With ``until``, go on with the loader's next epoch until so many steps are
        finished, those of earlier runs included; then leave out ``epochs()``.
        """
        whole("until", until, least=1, optional=True)
        is_loader = hasattr(batches, "is_new_epoch")
        is_part = any(part is batches for part in self._parts.loaders.values())
        if is_loader and not is_part:
            what = (
                f"this {type(batches).__name__} is not among the checkpoint's parts, "
                "so its place would not be saved"
            )
            raise OptionError(f"{what}: pass it to Checkpoint as well.")
        if until is None:
            yield from self._one_pass(batches, math.inf)
            return
        if self._counts_epochs:
            raise StateError(
                "c.steps(loader, until=…) goes over the epochs by itself: leave out "
                "c.epochs()."
            )
        # The pass with which a resumed program goes on may have no batches left.  Every
        # later pass must have some, or this loop would go round for ever.
        had_some = True
        goes_on = False
        while self.finished < until:
            before = self.finished
            yield from self._one_pass(batches, until, goes_on)
            goes_on = True
            if self.finished == before and not had_some:
                raise StateError(
                    f"{type(batches).__name__} gives no more batches after "
                    f"{self.finished} steps of {until}: pass a loader, which begins "
                    "anew, or an iterator without an end."
                )
            had_some = self.finished > before
            self._passes.end(are_more=False)
            self._note_places()

    def _one_pass(
        self, batches: Iterable[T], until: float, goes_on: bool = False
    ) -> Iterator[T]:
        """Yield the batches of a pass.

        With ``goes_on``, the program has done nothing since the pass before.
        """
        # An earlier loop over steps() was left by break, so nothing has finished its
        # last step yet.
        if self._state is _State.STEP:
            self._end_step(None)
        self._check_inside()
        # Without workers, next() itself fetches samples.  In the midst of that the
        # parts don't agree with each other, so they can't be saved for a signal.
        may_wait = not getattr(batches, "fetches_here", True)
        before = self._parts.places()
        is_first = True
        # Several ranks must end after the same step, so none of them ends while it
        # waits.
        may_wait_now = goes_on and may_wait and not self._ranks.are_several
        try:
            if may_wait_now and self._state is _State.BETWEEN:
                self._wait_for_batch()
            for batch in batches:
                if is_first:
                    givers = self._moved(before)
                    self._passes.check_source(batches, givers)
                    self._passes.note(givers, self._counts_epochs)
                    is_first = False
                self._go_to(_State.STEP)
                yield batch
                # If the program has called step() for this batch, the step is finished
                # already, and must not be counted twice.
                if self._state is _State.STEP and self._end_step(batches) and may_wait:
                    self._wait_for_batch()
                if self.finished >= until:
                    return
        finally:
            # No batch has come, and from here on the program may change the parts, so a
            # signal must not be delivered at once any more.
            if self._state is _State.WAITING:
                self._state = _State.BETWEEN
        # A stream doesn't know which batch is its last, so that its epoch is over shows
        # only now.
        if self._counts_epochs and self._state is _State.BETWEEN:
            self._end_pass([*self._passes.first])

    def _wait_for_batch(self) -> None:
        self._go_to(_State.WAITING)
        # A signal that came just before was held back, and would wait for as long as
        # the batch takes.
        if self._heard is not None:
            self._react(self._heard, None)

    def step(self) -> None:
        """Finish a step, once the model and all else that it changes are updated."""
        self._go_to(_State.STEP)
        self._end_step(None)

    def save(self) -> None:
        """Save after the present step, or now if none is under way.

        After an epoch's last step, save at the end of the body of the epochs' loop.
        Within a step one of several ranks may ask for it, and it may be done after the
        next step; elsewhere all must. Before something that takes long, such as a
        validation within an epoch, it has signals delivered at once until the next step
        begins.
        """
        self._check_inside()
        self._is_asked = True
        # A plain loop doesn't tell that a step has begun, but its loader has moved
        # then.
        if self._state is not _State.STEP and not self._moved():
            self._pause(Moment.SAVE)
            self._react_late()

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, up to ``total``.

        The first of them may have been begun by an earlier run of the program.
        """
        whole("total", total, least=0)
        self._check_inside()
        self._counts_epochs = True
        while self.epoch < total:
            yield self.epoch
            self.epoch += 1
            # If a signal is held back, the program ends here, and a loop over steps()
            # may well have been left because of it: then a warning that the next epoch
            # would begin another pass is beside the point.
            are_more = self.epoch < total and self._heard is None
            self._passes.end(are_more)
            has_moved = bool(self._moved())
            # What is held ready is good until the next step begins, if we notice that.
            # Several ranks have it in their file by now, and must end together, after
            # the next step.
            stays_safe = (
                self._state is _State.SAFE
                and self._tells_beginnings
                and not self._ranks.are_several
            )
            held = self._held
            self._finish()
            if has_moved and not self.finished:
                self._passes.warn_without_steps()
            if not self._pause(Moment.EPOCH) and stays_safe:
                # Until the next step begins, workers start, or a last evaluation
                # follows.  That may take long, and a signal needn't wait for it.
                self._held = held
                self._state = _State.SAFE
                self._react_late()

    @staticmethod
    def read(path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the states in a file by the names of their parts.

        Parts without a name are called "0", "1", ….
        """
        return file.read(Path(path))["parts"]  # type: ignore[no-any-return]

    # -- where a step ends -------------------------------------------------------------

    def _check_inside(self) -> None:
        if self._state is _State.OUTSIDE:
            raise StateError(
                "steps belong into the block: with mpiter.Checkpoint(…) as c: …"
            )

    def _go_to(self, state: _State) -> None:
        self._check_inside()
        self._state = state

    def _finish(self) -> None:
        """Count the step, if one has begun, and note the loaders' states.

        They are noted now, before the next batch puts them ahead of the model again.
        """
        if self._state is _State.STEP:
            self.finished += 1
        self._go_to(_State.BETWEEN)
        self._held = None
        self._ended = []
        self._note_places()

    def _end_step(self, batches: Iterable[object] | None) -> bool:
        """Finish the step, then save and handle a signal if needed.

        After an epoch's last step, have all parts held ready to be saved.  Return True
        if a signal needn't be held back until the next batch is handed out.
        """
        self._tells_beginnings = batches is not None
        moved = self._moved()
        # A loader for validation begins a pass and ends it between two steps.  One that
        # is trained on is in the same pass after both of them.
        givers = []
        for name in moved:
            if self._parts.pass_of(name) == self._numbers.get(name):
                givers.append(name)
        self._passes.note(givers, self._counts_epochs)
        # If steps() goes over a loader itself, only that one's last batch ends the
        # epoch.  Behind a wrapper, or with step(), each loader that has moved may do
        # so.
        is_direct = any(part is batches for part in self._parts.loaders.values())
        ended = []
        for name in moved:
            loader = self._parts.loaders[name]
            if (loader is batches or not is_direct) and loader.is_new_epoch:
                ended.append(name)
        self._finish()
        if not self._counts_epochs or not ended:
            self._pause(Moment.STEP)
            return self._state is _State.BETWEEN and not self._ranks.are_several
        self._end_pass(ended)
        return False

    def _can_stay(self, ended: list[str]) -> bool:
        """Return True if the loaders, resumed at the end of their pass, stay there.

        Then what follows the pass can be done again, without a batch before it.  An
        iterator without an end goes on with the next epoch's batches.
        """
        for name in ended:
            loader = self._parts.loaders[name]
            if not getattr(loader, "has_passes", False):
                return False
        return bool(ended)

    def _end_pass(self, ended: list[str]) -> None:
        """Save all parts as they are now, or have them held ready to be saved.

        What follows an epoch's last step may change them.  From here until the next
        step begins, a signal is delivered at once.
        """
        if not self._can_stay(ended):
            return
        self._ended = ended
        if not self._pause(Moment.PASS):
            self._hold_ready()
        self._react_late()

    def _hold_ready(self) -> None:
        """Copy all parts, to be saved when a signal comes, or beside the training."""
        snapshot = self._snapshot()
        if snapshot is not None:
            copied = self._saver.copy(snapshot)
            self._held = copied
            # A launcher may kill this rank as soon as another one has ended, which
            # leaves no time to write; and a large copy takes too long to write then.
            if self._ranks.are_several or copied.nbytes >= _SOON:
                try:
                    self._saver.begin_copy(copied)
                    self._held = None
                except OSError as error:
                    # The copy is still held, so a signal has it tried again.
                    self._tell(error)
        self._state = _State.SAFE

    def _note_places(self) -> None:
        self._places = self._parts.places()
        numbers = {}
        for name in self._parts.loaders:
            numbers[name] = self._parts.pass_of(name)
        self._numbers = numbers

    def _moved(self, before: States | None = None) -> list[str]:
        """Return the names of the loaders that have handed out batches since then.

        ``before`` has their states of that time; without it, since the last finished
        step.
        """
        places = self._places if before is None else before
        moved = []
        now = self._parts.places()
        for name, state in now.items():
            if place_in(state) != place_in(places[name]):
                moved.append(name)
        return moved

    # -- saving, and signals -----------------------------------------------------------

    def _agree(self, moment: Moment) -> Wish:
        """Return what all ranks together wish for here.

        A signal that another rank has heard is treated as if this one had heard it.
        Most steps need no waiting for the others.
        """
        # Only rank 0's clock counts.  Each rank's own would have all of them save again
        # and again, a step apart.
        saves = self._is_asked or (self._ranks.is_leader and self._is_time_up())
        wish = Wish(self._heard or 0, saves)
        # The answer of after_step() may be that of the step before.  The steps after
        # which to save are known in advance, and must be saved after exactly that step.
        if moment is Moment.STEP and not self._is_step_kept():
            agreed = self._ranks.after_step(self.finished, wish)
        else:
            agreed = self._ranks.at_once(moment, self.finished, wish)
        if agreed.signal:
            self._heard = agreed.signal
        return agreed

    def _pause(self, moment: Moment) -> bool:
        """Save if a save is due, or if a signal was held back.

        Then call that signal's original handler.  Return True if a save was due,
        whether it succeeded or not: so all ranks return the same.
        """
        self._tell_errors()
        agreed = self._agree(moment)
        if agreed.signal:
            self._save_together(keeps=True)
            _say_if(self._ranks.is_leader, f"saved: {self.path}")
            self._deliver()
            return True
        if not agreed.saves and not self._is_step_kept():
            return False
        snapshot = self._snapshot()
        # What is held ready lies in the memory that the next copy overwrites, so a
        # signal must not have it saved any more.
        self._held = None
        self._note_saved()
        try:
            if snapshot is not None:
                self._saver.begin(snapshot, keeps=True)
            self._state = _State.SAFE
        except OSError as error:
            self._tell(error)
        return True

    def _is_step_kept(self) -> bool:
        """Return True if a save is due after the present step by its number."""
        # It may have been saved already, by save() for example.
        if self.finished <= self._saved_step:
            return False
        return any(self.finished % period == 0 for period in self._periods)

    def _is_time_up(self) -> bool:
        waited_s = time.monotonic() - self._saved_at
        return waited_s >= self._every_s and not self._saver.is_busy

    def _note_saved(self) -> None:
        self._saved_at = time.monotonic()
        self._saved_step = self.finished
        self._is_asked = False

    def _tell_errors(self) -> None:
        """Raise or warn of the error of what was saved beside the training, if any."""
        try:
            self._saver.raise_error()
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        """Raise the error if the disk is full, which it stays; warn of any other."""
        # The next try comes when a save is due by time.  Otherwise each step would try
        # again, and warn.
        self._saved_at = time.monotonic()
        if file.has_no_space(error):
            raise error
        warn(
            f"nothing could be saved after {self.finished} steps ({error}); the "
            "training goes on."
        )

    def _save_together(self, keeps: bool) -> None:
        """Save the last finished step of all ranks, and wait until that is done."""
        of_ranks = self._ranks.gathered(self._parts.of_rank(self._places))
        problem: Exception | None = None
        if self._ranks.is_leader:
            try:
                self._saver.save(self._snapshot_of(of_ranks), keeps)
            except Exception as error:
                problem = error
        # The others wait here until rank 0 has written the file: a launcher may kill it
        # as soon as one of them has ended.
        self._ranks.check(problem)
        self._note_saved()

    def _save_held_together(self) -> None:
        """Save what is held ready, and wait until that is done in all ranks."""
        problem: Exception | None = None
        try:
            self._save_held()
            self._saver.raise_error()
        except OSError as error:
            problem = error
        self._ranks.check(problem)

    def _save_what_can_be(self) -> None:
        """Save what is held ready when an error ends the block.

        That error must not be hidden by another one.
        """
        try:
            self._save_held()
        except OSError as problem:
            _say(f"the last finished step could not be saved: {problem}")

    def _save_held(self) -> None:
        """Save what is held ready, or wait for what is being written.

        Both are of the last finished step.
        """
        if self._held is not None:
            held = self._held
            self._held = None
            self._saver.save(held, keeps=False)
        elif self._ranks.is_leader:
            self._saver.wait()
        elif self._state in (_State.SAFE, _State.SAVING):
            # Rank 0 is writing this step.  If this rank ended before that is done, a
            # launcher might kill rank 0.
            file.wait_for(self.path, self.finished)

    def _is_forked(self) -> bool:
        """Return True in a process that was forked within the block.

        It has inherited our handlers of signals, but has nothing to save.
        """
        return os.getpid() != self._pid

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._is_forked():
            return self._hear_in_fork(number)
        now = time.monotonic()
        if number == self._heard == signal.SIGINT:
            # A second Ctrl-C ends the program.  In one of several ranks it may be the
            # launcher's copy of the first, which must not.  The time counts from the
            # first and not from the latest, or pressing Ctrl-C on and on would never
            # end the program.
            if not self._ranks.are_several or now - self._heard_at >= _SAME_CTRL_C_S:
                self._deliver(frame)
            return
        self._heard_at = now
        self._heard = number
        # Launchers send a signal twice, and the second must not end the saving.  Once
        # that is done, the signal is delivered anyhow.
        if self._state is not _State.SAVING:
            self._react(number, frame)

    def _hear_in_fork(self, number: int) -> None:
        """Have the signal do what it would do without this block.

        The first Ctrl-C is left to the training: a terminal sends it to both, and the
        training may need this process until the step is finished.
        """
        if number == signal.SIGINT != self._heard:
            self._heard = number
            return
        self._stop_hearing()
        signal.raise_signal(number)

    def _react_late(self) -> None:
        """Deliver a signal that came before the state was SAFE, if one did.

        It was held back, but waits for nothing any more, and what follows may take
        long.
        """
        if self._heard is not None and self._state is _State.SAFE:
            self._react(self._heard, None)

    def _react(self, number: int, frame: FrameType | None) -> None:
        """Save, and deliver the signal that has come, if that can be done here.

        Otherwise say that it waits.
        """
        if self._state is _State.WAITING:
            # A second signal must not begin to save again in the midst of saving.
            self._state = _State.BETWEEN
            self._save_together(keeps=True)
        elif self._state is _State.SAFE:
            self._state = _State.SAVING
            try:
                self._save_held()
                self._saver.raise_error()
            finally:
                self._state = _State.SAFE
        else:
            more = ""
            if number == signal.SIGINT:
                more = "; Ctrl-C once more, and it ends at once"
            # The loop may go over the loader itself, whose steps nobody tells us.
            if self._state is _State.BETWEEN and not self.finished:
                more += "; only c.steps(loader) or c.step() tell where a step ends"
            name = signal.Signals(number).name
            return _say_if(
                self._ranks.is_leader,
                f"{name} waits for the end of this step, to save all{more}.",
            )
        _say_if(self._ranks.is_leader, f"saved: {self.path}")
        self._deliver(frame)

    def _deliver(self, frame: FrameType | None = None) -> None:
        """Call the original handler of the signal that was held back, if any."""
        number = self._heard
        self._heard = None
        if number is None:
            return
        handler = self._handlers.get(number, signal.SIG_DFL)
        # Most handlers raise.  If that happens before the ``with`` statement has begun
        # its body, nothing will call __exit__, and our handlers would stay.
        self._stop_hearing()
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
        if self._state is not _State.OUTSIDE:
            for other in self._handlers:
                signal.signal(other, self._hear)

    def _stop_hearing(self) -> None:
        # Ctrl-C's handler comes last: once it is back, a Ctrl-C could interrupt this
        # loop, and some of our handlers would stay.
        for number, handler in reversed(self._handlers.items()):
            signal.signal(number, handler)

    def _snapshot(self) -> file.Snapshot | None:
        """Return the states after the last finished step in rank 0, else None.

        It waits until all ranks have sent it what they keep for themselves.
        """
        of_ranks = self._ranks.gathered(self._parts.of_rank(self._places))
        if self._ranks.is_leader:
            return self._snapshot_of(of_ranks)
        return None

    def _snapshot_of(self, of_ranks: list[str]) -> file.Snapshot:
        states: States = {
            "steps": self.finished,
            "epoch": self.epoch,
            "passes": self._passes.first,
            "ended": self._ended,
        }
        states |= self._parts.states(self._places, of_ranks)
        return file.snapshot_of(self.finished, states)

    # -- where a training begins -------------------------------------------------------

    def _begin(self) -> None:
        """Have all ranks go on from one file; it is written if it is missing."""
        waits = (
            f"{self.path} waits for the other ranks of this training: each must come "
            "to a Checkpoint of this file."
        )
        ranks = ranks_of_training(self._is_alone, lambda: _say(waits))
        self._ranks = Agreement(ranks)
        names = ", ".join(self._parts.by_name)
        self._ranks.check_same("paths differ", str(self.path))
        self._ranks.check_same("parts differ", names)
        self._ranks.check_same("every_steps or keep_every differ", str(self._periods))
        self._note_places()
        is_new = self._write_first()
        # One rank alone needn't look into the file before it reads it.
        if self._ranks.are_several:
            differ = f"files differ, so {self.path} is not one that all see"
            self._ranks.check_same(differ, file.mark_of(self.path))
        problem: Exception | None = None
        try:
            if not is_new:
                self._load(file.read(self.path))
            elif not self._ranks.is_leader:
                # Each rank may have begun with weights of its own.
                states = file.read(self.path)["parts"]
                self._parts.load_all_but_loaders(states, self.path)
        except Exception as error:
            problem = error
        self._ranks.check(problem)
        if self.finished:
            done = f"epoch {self.epoch}, {self.finished:,} steps finished"
            _say_if(self._ranks.is_leader, f"continues from {self.path}: {done}")

    def _write_first(self) -> bool:
        """Write the file if it is missing; return True then."""
        # Only rank 0 looks for the file.  If another rank looked before it is written,
        # a network's file system might go on telling that rank that it is missing.
        told = ""
        if self._ranks.is_leader and not self.path.exists():
            told = "new"
        is_new = self._ranks.gathered(told)[0] == "new"
        if is_new:
            self._save_together(keeps=False)
        return is_new

    def _load(self, states: States) -> None:
        parts = states["parts"]
        self._parts.check(parts, self.path, self._strict)
        rank = self._ranks.rank
        size = self._ranks.size
        own = OfRank(states["ranks"], rank, size, self.path)
        own.refuse_own_orders(parts)
        self._parts.load(parts | own.places, self.path)
        self.finished = states["steps"]
        self.epoch = states["epoch"]
        self._passes.first = states["passes"]
        self._ended = []
        for name in states["ended"]:
            if name in self._parts.loaders:
                self._ended.append(name)
        # What follows the epoch's last step is done again, and the loop over steps()
        # before it must give no batches then.
        for name in self._ended:
            loader = self._parts.loaders[name]
            if hasattr(loader, "stay_at_end"):
                loader.stay_at_end()
        own.give_back_generators(self.finished)
        self._note_places()


def _leave_out_our_frames(error: BaseException) -> None:
    """Have the traceback of an interrupt end where the program was interrupted.

    Its last frames would be those of our handler, which are of no use to a reader.
    """
    frames = list[TracebackType]()
    here = error.__traceback__
    while here is not None:
        frames.append(here)
        here = here.tb_next
    while frames and frames[-1].tb_frame.f_code.co_filename == __file__:
        frames.pop()
    shorter: TracebackType | None = None
    for one in reversed(frames):
        shorter = TracebackType(shorter, one.tb_frame, one.tb_lasti, one.tb_lineno)
    error.__traceback__ = shorter


_is_silent = False


@contextlib.contextmanager
def in_silence() -> Iterator[None]:
    """Have no checkpoint of this process say what it does."""
    global _is_silent
    before = _is_silent
    _is_silent = True
    try:
        yield
    finally:
        _is_silent = before


def _say(text: str) -> None:
    """Write a line to standard error.

    print() wouldn't do: a signal's handler mustn't call it in the midst of another.
    """
    if _is_silent:
        return
    with contextlib.suppress(OSError):
        os.write(2, f"mpiter: {text}\n".encode())


def _say_if(speaks: bool, text: str) -> None:
    """Say it in the rank that speaks for all."""
    if speaks:
        _say(text)
