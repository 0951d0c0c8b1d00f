"""``Checkpoint``: saves loaders, model and other parts of a training loop in one file,
between two steps.

Signals are held back until a step is finished: within it the loader is ahead of the
model.  Guarantees that a file holds the last finished step; that what follows an
epoch's last step is done again if it was interrupted; that a signal is delivered at
once wherever nothing would be lost; and that all ranks of a training save, and end,
after one step.
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
from .agreement import Agreement, Place, Wish
from .kept import Keeping
from .parts import OfRank, Parts, place_in
from .passes import Passes
from .ranks import OneRank, ranks_of_training
from .saver import Saver

# What is written while the tail of an epoch runs, so that less than a second is left to
# do when a signal comes.
_SOON = 1 << 28  # bytes

# Launchers pass a Ctrl-C on to ranks that have heard it from the terminal.
_SAME_CTRL_C_S = 2.0


class _State(Enum):
    """Where the training loop is, which says when a signal is delivered."""

    OUTSIDE = "the block hasn't begun, or has ended"
    SAFE = "nothing has come since what is saved, or is held ready to be saved: at once"
    BETWEEN = "a step has ended; whether another one has begun isn't known: after that"
    STEP = "a step of steps() isn't finished: after that"
    WAITING = (
        "steps() waits for a batch between two steps, so that all parts can be saved: "
        "at once"
    )
    SAVING = (
        "a signal has come where it is delivered at once, and what is held ready is "
        "being saved: after that"
    )


class Checkpoint:
    """A ``with`` block whose training loop can be interrupted, and resumes where it was
    when the program is run again.

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
    >>> loader, model = mpiter.DataLoader(range(6), batch_size=2), {"sum": 0}
    >>> with mpiter.Checkpoint(tempfile.mkdtemp() + "/run.npz", loader, model=model) as c:
    ...     for epoch in c.epochs(2):
    ...         for x in c.steps(loader):
    ...             model["sum"] += int(x.sum())
    >>> c.finished, model
    (6, {'sum': 30})
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *parts: Any,
        every_s: float | None = 600.0,
        every_steps: int | None = None,
        keep: int = 0,
        keep_every: int | None = None,
        background: bool = True,
        strict: bool = True,
        alone: bool = False,
        **named: Any,
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
        # In steps
        self._periods = [
            int(period) for period in (every_steps, keep_every) if period is not None
        ]
        self._strict = bool(strict)
        self.path = Path(path).expanduser().absolute()
        # Steps, including those before this block began.
        self.finished = 0
        # The number of complete epochs of epochs()
        self.epoch = 0
        self._parts = Parts(
            {str(number): part for number, part in enumerate(parts)} | named
        )
        self._is_alone = bool(alone)
        self._ranks = Agreement(OneRank())
        # Of the loaders, after the last finished step.
        self._places: dict[str, Any] = {}
        # Of the loaders' passes, after the last finished step.
        self._numbers: dict[str, int] = {}
        self._passes = Passes(self._parts)
        self._state = _State.OUTSIDE
        self._counts_epochs = False
        # True if the last step was one of steps(), so that it shows when the next
        # begins
        self._tells_beginnings = False
        self._saver = Saver(Keeping(self.path, int(keep), keep_every), bool(background))
        # Of an epoch's last step; not yet written.
        self._held: file.Snapshot | None = None
        # Loaders whose pass has ended, while what follows it isn't done.
        self._ended: list[str] = []
        self._saved_at = 0.0  # the time
        self._saved_step = 0  # the steps that were finished
        self._is_asked = False  # save() was called within a step
        # Of the process that trains; others may be forked from it within the block.
        self._pid = 0
        self._heard: int | None = None  # the signal that is held back
        self._heard_at = 0.0
        self._raised: BaseException | None = None  # by a signal's handler
        self._handlers: dict[int, Any] = {}  # as they were before the block

    def __repr__(self) -> str:
        """Say in one line what is saved, and how far the training is."""
        return describing.in_a_line(self, type(self).__name__, self._facts)

    def _facts(self) -> describing.Facts:
        parts = ", ".join(
            f"{name} ({type(part).__name__})"
            for name, part in self._parts.by_name.items()
        )
        done = f"epoch {self.epoch}, {self.finished:,} steps finished"
        return [str(self.path), parts, done] + ["not in use"] * (
            self._state is _State.OUTSIDE
        )

    def __enter__(self) -> Self:
        """Load the file; or write it if it is missing, which shows at once whether
        all parts can be saved.
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
        self._state = _State.BETWEEN
        # Python handles signals in no other thread.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN):
                    self._handlers[number] = handler
                    signal.signal(number, self._hear)
        self._state = _State.SAFE
        # A signal may have come since it is heard.
        self._react_late()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._is_forked():
            self._state = _State.OUTSIDE
            self._stop_hearing()
            return
        try:
            if kind is None:
                if self._state is _State.STEP:
                    self._finish()
                was_left_in_tail = self._ended and self._state is _State.SAFE
                if not was_left_in_tail:
                    self._state = _State.BETWEEN
                self._agree(Place.EXIT)
                if was_left_in_tail:
                    # It is done again, from what the epoch's last step has left.
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
            if self._raised is not None and self._raised is error:
                _leave_out_our_frames(self._raised)
            self._raised = None
            self._ranks.close()
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
        if hasattr(batches, "is_new_epoch") and not any(
            part is batches for part in self._parts.loaders.values()
        ):
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
        # The pass that a resumed program goes on with may have no batches left; no
        # other one may be without any.
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
        """Yield the batches of a pass; ``goes_on``: nothing of the program has come
        since the one before.
        """
        # The last one of an earlier loop, which was left by break.
        if self._state is _State.STEP:
            self._end_step(None)
        self._check_inside()
        # In a fetch within next() the parts don't agree.
        may_wait = not getattr(batches, "fetches_here", True)
        before = self._parts.places()
        is_first = True
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
                # Not if step() was called.
                if self._state is _State.STEP and self._end_step(batches) and may_wait:
                    self._wait_for_batch()
                if self.finished >= until:
                    return
        finally:
            if self._state is _State.WAITING:
                self._state = _State.BETWEEN
        if self._counts_epochs and self._state is _State.BETWEEN:
            # Of a stream it shows only now that its epoch is over.
            self._end_pass([*self._passes.first])

    def _wait_for_batch(self) -> None:
        self._go_to(_State.WAITING)
        # One that came just before would wait as long as the batch does.
        if self._heard is not None:
            self._react(self._heard, None)

    def step(self) -> None:
        """Finish a step, once the model and all else that belongs to it have been
        updated.
        """
        self._go_to(_State.STEP)
        self._end_step(None)

    def save(self) -> None:
        """Save after the present step; or now, if none is under way; after an epoch's
        last step, at the body's end.

        Within a step one of several ranks may ask for it, and it may be done after the
        next step; elsewhere all must. Before something that takes long, such as a
        validation within an epoch, it has signals delivered at once until the next step
        begins.
        """
        self._check_inside()
        self._is_asked = True
        if self._state is not _State.STEP and not self._moved():
            self._pause(Place.SAVE)
            self._react_late()

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, up to ``total``; the first
        may have been begun before.
        """
        whole("total", total, least=0)
        self._check_inside()
        self._counts_epochs = True
        while self.epoch < total:
            yield self.epoch
            self.epoch += 1
            # A loop may well be left because a signal has come: the program ends here.
            self._passes.end(are_more=self.epoch < total and self._heard is None)
            has_moved = bool(self._moved())
            # Several ranks have it in the file by now, and end together after the next
            # step.
            stays_safe = (
                self._state is _State.SAFE
                and self._tells_beginnings
                and not self._ranks.are_several
            )
            held = self._held
            self._finish()
            if has_moved and not self.finished:
                self._passes.warn_without_steps()
            if not self._pause(Place.EPOCH) and stays_safe:
                # What is held of the last step is good until the next one begins, which
                # may take long: workers start, or a last evaluation follows.
                self._held = held
                self._state = _State.SAFE
                self._react_late()

    @staticmethod
    def read(path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the states in a file by the names of their parts, which are "0",
        "1", … for parts without one.
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
        """Count the step, if one has begun, and note the loaders' states, before
        they are ahead of the model again.
        """
        self.finished += self._state is _State.STEP
        self._go_to(_State.BETWEEN)
        self._held = None
        self._ended = []
        self._note_places()

    def _end_step(self, batches: Any) -> bool:
        """Finish the step, then save and handle a signal if needed; after an epoch's
        last step, have all held ready.

        Return True if a signal needn't be held back until the next batch is handed out.
        """
        self._tells_beginnings = batches is not None
        moved = self._moved()
        # A loader for validation is gone through between two steps; one that is trained
        # on is in one pass at both.
        givers = [
            name
            for name in moved
            if self._parts.pass_of(name) == self._numbers.get(name)
        ]
        self._passes.note(givers, self._counts_epochs)
        loaders = {
            name: part for name, part in self._parts.loaders.items() if part is batches
        } or self._parts.loaders
        ended = [
            name for name in moved if name in loaders and loaders[name].is_new_epoch
        ]
        self._finish()
        if not self._counts_epochs or not ended:
            self._pause(Place.STEP)
            return self._state is _State.BETWEEN and not self._ranks.are_several
        self._end_pass(ended)
        return False

    def _can_stay(self, ended: list[str]) -> bool:
        """True if the loaders, resumed at the end of their pass, stay there, so that
        what follows it can be done again.

        An iterator without an end goes on with the next epoch's batches.
        """
        return bool(ended) and all(
            getattr(self._parts.loaders[name], "has_passes", False) for name in ended
        )

    def _end_pass(self, ended: list[str]) -> None:
        """Have all parts as they are now saved or held ready, while what follows an
        epoch's last step may change them.

        From here until the next step begins, a signal is delivered at once.
        """
        if not self._can_stay(ended):
            return
        self._ended = ended
        if not self._pause(Place.PASS):
            self._hold_ready()
        self._react_late()

    def _hold_ready(self) -> None:
        """Take a copy of all parts, and save it when a signal comes, or beside the
        training.
        """
        snapshot = self._snapshot()
        if snapshot is not None:
            copied = self._saver.copy(snapshot)
            self._held = copied
            # With other ranks this one may be killed as soon as one of them has ended.
            if self._ranks.are_several or copied.nbytes >= _SOON:
                try:
                    self._saver.begin_copy(copied)
                    self._held = None
                except OSError as error:
                    # A signal has it tried again.
                    self._tell(error)
        self._state = _State.SAFE

    def _note_places(self) -> None:
        self._places = self._parts.places()
        self._numbers = {
            name: self._parts.pass_of(name) for name in self._parts.loaders
        }

    def _moved(self, before: dict[str, Any] | None = None) -> list[str]:
        """Return the names of the loaders that have handed out batches since
        ``before``, or the last finished step.
        """
        places = self._places if before is None else before
        return [
            name
            for name, state in self._parts.places().items()
            if place_in(state) != place_in(places[name])
        ]

    # -- saving, and signals -----------------------------------------------------------

    def _agree(self, place: Place) -> Wish:
        """Return what this rank and all others wish for here; a signal that another one
        has heard is as good as heard.

        Most steps need no waiting.
        """
        saves = self._is_asked or (self._ranks.is_leader and self._is_time_up())
        wish = Wish(self._heard or 0, saves)
        if place is Place.STEP and not self._is_step_kept():
            agreed = self._ranks.after_step(self.finished, wish)
        else:
            agreed = self._ranks.at_once(place, self.finished, wish)
        if agreed.signal:
            self._heard = agreed.signal
        return agreed

    def _pause(self, place: Place) -> bool:
        """Save if a save is due or a signal was held back, and call that signal's
        original handler.

        Return True if a save was due, whether it succeeded or not: the same in all
        ranks.
        """
        self._tell_errors()
        agreed = self._agree(place)
        if agreed.signal:
            self._save_together(keeps=True)
            _say_if(self._ranks.is_leader, f"saved: {self.path}")
            self._deliver()
            return True
        if not agreed.saves and not self._is_step_kept():
            return False
        snapshot = self._snapshot()
        # Its memory is taken for the next copy.
        self._held = None
        self._note_saved()
        try:
            if snapshot is not None:
                self._saver.begin(snapshot, keeps=True)
            self._state = _State.SAFE
        except OSError as error:
            self._tell(error)
        # That of the one before, which the present one may have waited for
        self._tell_errors()
        return True

    def _is_step_kept(self) -> bool:
        """True if the present step is one after which to save, and nothing has been
        saved after it yet.
        """
        is_new = self.finished > self._saved_step
        return is_new and any(self.finished % period == 0 for period in self._periods)

    def _is_time_up(self) -> bool:
        return (
            time.monotonic() - self._saved_at >= self._every_s
            and not self._saver.is_busy
        )

    def _note_saved(self) -> None:
        self._saved_at = time.monotonic()
        self._saved_step = self.finished
        self._is_asked = False

    def _tell_errors(self) -> None:
        """Tell the error of what was saved beside the training, if any."""
        try:
            self._saver.raise_error()
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        """Raise the error of a full disk, which stays full; warn of any other, and
        try again when a save is due.
        """
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
        # A launcher may kill rank 0 once another one has ended, so that one waits here.
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
        """Save what is held ready when an error ends the block, which must not be
        hidden by another one.
        """
        try:
            self._save_held()
        except OSError as problem:
            _say(f"the last finished step could not be saved: {problem}")

    def _save_held(self) -> None:
        """Save what is held ready; or wait for what is being written, which is the
        last finished step's as well.
        """
        if self._held is not None:
            held = self._held
            self._held = None
            self._saver.save(held, keeps=False)
        elif self._ranks.is_leader:
            self._saver.wait()
        elif self._state in (_State.SAFE, _State.SAVING):
            file.wait_for(self.path, self.finished)

    def _is_forked(self) -> bool:
        """True in a process that was forked within the block: it inherits the
        handlers, and nothing to save.
        """
        return os.getpid() != self._pid

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._is_forked():
            return self._hear_in_fork(number)
        now = time.monotonic()
        if number == self._heard == signal.SIGINT:
            # Counted from the first, so that pressing it on and on ends the program.
            if not self._ranks.are_several or now - self._heard_at >= _SAME_CTRL_C_S:
                self._deliver(frame)
            return
        self._heard_at = now
        self._heard = number
        # Launchers send a signal twice: the second one must not end the saving.
        if self._state is not _State.SAVING:
            self._react(number, frame)

    def _hear_in_fork(self, number: int) -> None:
        """Have the signal do what it would do without this block; but the first Ctrl-C
        is left to the training.

        A terminal sends it to both, and the training may need this process until the
        step is finished.
        """
        if number == signal.SIGINT != self._heard:
            self._heard = number
            return
        self._stop_hearing()
        signal.raise_signal(number)

    def _react_late(self) -> None:
        """Deliver a signal that has come while a copy was made: what follows may
        take long.
        """
        if self._heard is not None and self._state is _State.SAFE:
            self._react(self._heard, None)

    def _react(self, number: int, frame: FrameType | None) -> None:
        """Save, and deliver the signal that has come, if that can be done here; else
        say that it waits.
        """
        if self._state is _State.WAITING:
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
            more = (
                "; Ctrl-C once more, and it ends at once"
                if number == signal.SIGINT
                else ""
            )
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
        """Call the original handler of the signal that was held back, if any; most
        handlers raise.
        """
        number = self._heard
        self._heard = None
        if number is None:
            return
        handler = self._handlers.get(number, signal.SIG_DFL)
        # Most handlers raise, and that may be before the ``with`` statement has begun
        # its body, and will call __exit__.
        self._stop_hearing()
        try:
            # SIG_DFL: it would end the process without `finally`
            if not callable(handler):
                raise SystemExit(128 + number)
            handler(number, frame)
        except BaseException as raised:
            self._raised = raised
            raise
        if self._state is not _State.OUTSIDE:
            for other in self._handlers:
                signal.signal(other, self._hear)

    def _stop_hearing(self) -> None:
        # Ctrl-C's last: it could interrupt this loop.
        for number, handler in reversed(self._handlers.items()):
            signal.signal(number, handler)

    def _snapshot(self) -> file.Snapshot | None:
        """Return the states after the last finished step in rank 0, once all ranks
        have sent it theirs; else None.
        """
        of_ranks = self._ranks.gathered(self._parts.of_rank(self._places))
        if self._ranks.is_leader:
            return self._snapshot_of(of_ranks)
        return None

    def _snapshot_of(self, of_ranks: list[str]) -> file.Snapshot:
        states: dict[str, Any] = {
            "steps": self.finished,
            "epoch": self.epoch,
            "passes": self._passes.first,
        }
        states["ended"] = self._ended
        return file.snapshot_of(
            self.finished, states | self._parts.states(self._places, of_ranks)
        )

    # -- where a training begins -------------------------------------------------------

    def _begin(self) -> None:
        """Have all ranks go on from one file; it is written if it is missing."""
        waits = (
            f"{self.path} waits for the other ranks of this training: each must come "
            "to a Checkpoint of this file."
        )
        self._ranks = Agreement(ranks_of_training(self._is_alone, lambda: _say(waits)))
        self._ranks.check_same("paths differ", str(self.path))
        self._ranks.check_same("parts differ", ", ".join(self._parts.by_name))
        self._ranks.check_same("every_steps or keep_every differ", str(self._periods))
        self._note_places()
        is_new = self._write_first()
        self._ranks.check_same(
            f"files differ, so {self.path} is not one that all see",
            file.mark_of(self.path),
        )
        problem: Exception | None = None
        try:
            if not is_new:
                self._load(file.read(self.path))
            elif not self._ranks.is_leader:
                self._parts.load_all_but_loaders(
                    file.read(self.path)["parts"], self.path
                )
        except Exception as error:
            problem = error
        self._ranks.check(problem)
        if self.finished:
            done = f"epoch {self.epoch}, {self.finished:,} steps finished"
            _say_if(self._ranks.is_leader, f"continues from {self.path}: {done}")

    def _write_first(self) -> bool:
        """Write the file if it is missing, which shows at once whether all parts can
        be saved; return True then.
        """
        # The others must not look before: a file that was missing may stay so for them,
        # on a network's file system.
        if self._ranks.is_leader and not self.path.exists():
            told = "new"
        else:
            told = ""
        is_new = self._ranks.gathered(told)[0] == "new"
        if is_new:
            self._save_together(keeps=False)
        return is_new

    def _load(self, states: dict[str, Any]) -> None:
        self._parts.check(states["parts"], self.path, self._strict)
        own = OfRank(states["ranks"], self._ranks.rank, self._ranks.size, self.path)
        self._parts.load(states["parts"] | own.places, self.path)
        self.finished = states["steps"]
        self.epoch = states["epoch"]
        self._passes.first = states["passes"]
        self._ended = [name for name in states["ended"] if name in self._parts.loaders]
        for name in self._ended:
            loader = self._parts.loaders[name]
            if hasattr(loader, "stay_at_end"):
                loader.stay_at_end()
        own.give_back_generators(self.finished)
        self._note_places()


def _leave_out_our_frames(error: BaseException) -> None:
    """Have the traceback of an interrupt end where the user's program was
    interrupted, not in our handling of it.
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
    """Write to standard error; not by print(), which a signal handler mustn't call
    in the midst of another print().
    """
    if _is_silent:
        return
    with contextlib.suppress(OSError):
        os.write(2, f"mpiter: {text}\n".encode())


def _say_if(speaks: bool, text: str) -> None:
    """Say it in the rank that speaks for all."""
    if speaks:
        _say(text)
