"""``Checkpoint`` saves all parts of a training loop in one file, between two steps.

The parts are its loaders, its model, and whatever else has a state.  Runs in the thread
of the training loop; a ``Saver`` may write beside it.  Signals are held back until a
step is finished, since within it the loader is ahead of the model.  Guarantees that a
file holds the last finished step; that what follows an epoch's last step is done again
if it was interrupted; that a signal is delivered at once wherever nothing would be
lost; and that all ranks of a training save, and end, after one step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from ..engine import describing
from ..engine.options import flag, whole
from ..errors import OptionError, StateError
from ..typevars import T
from . import file
from .agreement import Agreement, Moment, Wish
from .ending import Ending
from .parts import OfRank, Parts, States
from .plan import plan_of
from .progress import Progress
from .ranks import OneRank, ranks_of_training
from .saving import How, Saving
from .saying import say, say_if


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

    A signal leads from WAITING to BETWEEN, and so do, from SAFE, a save and the end of
    an epoch of epochs().  The end of the block leads from any state to OUTSIDE.
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
    the same step: the present one, or the next. So does rank 0's full disk, which each
    of them names. Random generators are saved of each rank.

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
        self._plan = plan_of(path, every_s, every_steps, keep, keep_every, background)
        flag("strict", strict)
        flag("alone", alone)
        self.path = self._plan.path
        self._strict = bool(strict)
        numbered = {str(number): part for number, part in enumerate(parts)}
        self._parts = Parts(numbered | named)
        self._progress = Progress(self._parts)
        self._is_alone = bool(alone)
        self._state = _State.OUTSIDE
        self._begin_with(Agreement(OneRank()))

    def _begin_with(self, ranks: Agreement) -> None:
        """Set what holds for one block."""
        self._ranks = ranks
        self._saving = Saving(self._plan, ranks, self._progress)
        self._ending = Ending(self.path, ranks)
        self._counts_epochs = False
        # True if the last step was one of steps(), so that we notice when the next one
        # begins.
        self._tells_beginnings = False

    @property
    def finished(self) -> int:
        """The number of finished steps, those of earlier runs included."""
        return self._progress.finished

    @property
    def epoch(self) -> int:
        """The number of complete epochs of ``epochs()``."""
        return self._progress.epoch

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
        self._begin()
        self._saving.note_saved()
        # While handlers are being set, a signal is held back: its original handler
        # would raise in the midst, where __exit__ isn't called.
        self._state = _State.BETWEEN
        self._ending.listen(self._react)
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
        if self._ending.is_forked:
            self._state = _State.OUTSIDE
            self._ending.stop()
            return
        try:
            if kind is None:
                self._save_last()
            else:
                is_safe = self._state is _State.SAFE
                self._saving.save_what_can_be(is_safe)
        finally:
            self._state = _State.OUTSIDE
            self._ending.stop()
            self._ending.leave_out_our_frames(error)
            self._ranks.close()
        # A signal that is still held back must end the program after all, unless what
        # has ended the block (KeyboardInterrupt, say) does so by itself.
        if kind is None or issubclass(kind, Exception):
            self._ending.deliver()

    def _save_last(self) -> None:
        """Save the last finished step at the end of the block."""
        # The loop over steps() was left by break or return, and the step that did so is
        # finished.
        if self._state is _State.STEP:
            self._finish()
        was_left_in_tail = bool(self._progress.ended) and self._state is _State.SAFE
        # All parts are saved below, and a signal waits until they are.
        if not was_left_in_tail:
            self._state = _State.BETWEEN
        self._agree(Moment.EXIT, Wish(self._ending.number))
        if was_left_in_tail:
            # The body of the epoch's loop was left after the last step, so what follows
            # that step is done again on resuming.  The parts may have changed since, so
            # what was held ready is saved.
            self._saving.save_held_together()
        else:
            self._saving.save(How.NOW, keeps=self._saving.is_new())
        if self._progress.moved() and not self.finished:
            self._progress.passes.warn_without_steps()

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
            self._progress.passes.end(are_more=False)
            self._progress.note()

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
                    givers = self._progress.moved(before)
                    self._progress.passes.check_source(batches, givers)
                    self._progress.passes.note(givers, self._counts_epochs)
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
            self._end_pass([*self._progress.passes.first])

    def _wait_for_batch(self) -> None:
        self._go_to(_State.WAITING)
        # A signal that came just before was held back, and would wait for as long as
        # the batch takes.
        self._react_late()

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
        self._saving.is_asked = True
        # A plain loop doesn't tell that a step has begun, but its loader has moved
        # then.
        if self._state is not _State.STEP and not self._progress.moved():
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
            self._progress.epoch += 1
            # If a signal is held back, the program ends here, and a loop over steps()
            # may well have been left because of it: then a warning that the next epoch
            # would begin another pass is beside the point.
            are_more = self.epoch < total and not self._ending.number
            self._progress.passes.end(are_more)
            has_moved = bool(self._progress.moved())
            # What is held ready is good until the next step begins, if we notice that.
            # Several ranks have it in their file by now, and must end together, after
            # the next step.
            stays_safe = (
                self._state is _State.SAFE
                and self._tells_beginnings
                and not self._ranks.are_several
            )
            held = self._saving.held
            self._finish()
            if has_moved and not self.finished:
                self._progress.passes.warn_without_steps()
            if not self._pause(Moment.EPOCH) and stays_safe:
                # Until the next step begins, workers start, or a last evaluation
                # follows.  That may take long, and a signal needn't wait for it.
                self._saving.held = held
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
            self._progress.finished += 1
        self._go_to(_State.BETWEEN)
        self._saving.held = None
        self._progress.ended = []
        self._progress.note()

    def _end_step(self, batches: Iterable[object] | None) -> bool:
        """Finish the step, then save and handle a signal if needed.

        After an epoch's last step, have all parts held ready to be saved.  Return True
        if a signal needn't be held back until the next batch is handed out.
        """
        self._tells_beginnings = batches is not None
        moved = self._progress.moved()
        # A loader for validation begins a pass and ends it between two steps.  One that
        # is trained on is in the same pass after both of them.
        givers = self._progress.in_one_pass(moved)
        self._progress.passes.note(givers, self._counts_epochs)
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

    def _end_pass(self, ended: list[str]) -> None:
        """Save all parts as they are now, or have them held ready to be saved.

        What follows an epoch's last step may change them.  From here until the next
        step begins, a signal is delivered at once.
        """
        if not self._parts.can_stay(ended):
            return
        self._progress.ended = ended
        if not self._pause(Moment.PASS):
            self._saving.save(How.READY, keeps=False)
            self._state = _State.SAFE
        self._react_late()

    # -- saving, and signals -----------------------------------------------------------

    def _agree(self, moment: Moment, wish: Wish) -> Wish:
        """Return what all ranks together wish for here.

        A signal that another rank has heard is treated as if this one had heard it.
        Most steps need no waiting for the others.
        """
        # The answer of after_step() may be that of the step before.  The steps after
        # which to save are known in advance, and must be saved after exactly that step.
        if moment is Moment.STEP and not self._saving.is_kept():
            agreed = self._ranks.after_step(self.finished, wish)
        else:
            agreed = self._ranks.at_once(moment, self.finished, wish)
        if agreed.signal:
            self._ending.agree(agreed.signal)
        return agreed

    def _pause(self, moment: Moment) -> bool:
        """Save if a save is due, or if a signal was held back.

        Then call that signal's original handler.  Return True if a save was due,
        whether it succeeded or not: all ranks must go on alike.
        """
        self._saving.tell_errors()
        fails = self._saving.problem is not None
        wish = Wish(self._ending.number, self._saving.is_due(), fails)
        agreed = self._agree(moment, wish)
        if agreed.signal:
            self._ending.end(self._save_now)
            return True
        if agreed.fails:
            self._ranks.check(self._saving.take_problem())
        if not agreed.saves and not self._saving.is_kept():
            return False
        # What was held ready is given up for this, so a signal waits until it is done.
        self._state = _State.BETWEEN
        self._saving.save(How.BESIDE)
        self._state = _State.SAFE
        return True

    def _save_now(self) -> None:
        self._saving.save(How.NOW)

    def _react_late(self) -> None:
        """Deliver a signal that came before that could be done, if one did.

        It was held back, but waits for nothing any more, and what follows may take
        long.
        """
        if self._ending.is_waiting and self._state in (_State.SAFE, _State.WAITING):
            self._react(None)

    def _react(self, frame: FrameType | None) -> None:
        """Save, and deliver the signal that has come, if that can be done here.

        Otherwise say that it waits.
        """
        if self._state is _State.WAITING:
            self._state = _State.BETWEEN
            self._ending.end(self._save_now, frame)
        elif self._state is _State.SAFE:
            self._ending.end(self._saving.save_held, frame)
        else:
            hint = ""
            # The loop may go over the loader itself, whose steps nobody tells us.
            if self._state is _State.BETWEEN and not self.finished:
                hint = "; only c.steps(loader) or c.step() tell where a step ends"
            self._ending.say_it_waits(hint)

    # -- where a training begins -------------------------------------------------------

    def _begin(self) -> None:
        """Have all ranks go on from one file; it is written if it is missing."""
        waits = (
            f"{self.path} waits for the other ranks of this training: each must come "
            "to a Checkpoint of this file."
        )
        ranks = ranks_of_training(self._is_alone, lambda: say(waits))
        self._begin_with(Agreement(ranks))
        names = ", ".join(self._parts.by_name)
        self._ranks.check_same("paths differ", str(self.path))
        self._ranks.check_same("parts differ", names)
        periods = str([*self._plan.periods])
        self._ranks.check_same("every_steps or keep_every differ", periods)
        self._progress.begin()
        is_new = self._saving.begin()
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
            say_if(self._ranks.is_leader, f"continues from {self.path}: {done}")

    def _load(self, states: States) -> None:
        parts = states["parts"]
        self._parts.check(parts, self.path, self._strict)
        rank = self._ranks.rank
        size = self._ranks.size
        own = OfRank(states["ranks"], rank, size, self.path)
        own.refuse_own_orders(parts)
        self._parts.load(parts | own.places, self.path)
        self._progress.load(states)
        own.give_back_generators(self.finished)
        self._progress.note()
