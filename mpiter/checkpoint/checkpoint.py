"""``Checkpoint``: saves loaders, model and other parts of a training loop in one file, between two steps.

Signals are held back until a step is finished: within it the loader is ahead of the model.  Guarantees that a file
holds the last finished step; that what follows an epoch's last step is done again if it was interrupted; and that a
signal is delivered at once wherever nothing would be lost.
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
from types import FrameType
from typing import Any, Self

from ..engine import describing
from ..engine.options import flag, seconds, whole
from ..errors import OptionError, StateError, warn
from ..samples.jsonable import encoded
from ..typevars import T
from ..worker.seeding import give_back, state_of
from . import file
from .kept import Keeping
from .parts import apart, check_part, filled, generators, gives_batches, place_in
from .saver import Saver

# What is written while the tail of an epoch runs, so that less than a second is left to do when a signal comes.
_SOON = 1 << 28  # bytes


class _State(Enum):
    """Where the training loop is, which says when a signal is delivered."""

    OUTSIDE = "the block hasn't begun, or has ended"
    SAFE = "nothing has come since what is saved, or is held ready to be saved: at once"
    BETWEEN = "a step has ended; whether another one has begun isn't known: after that"
    STEP = "a step of steps() isn't finished: after that"
    WAITING = "steps() waits for a batch between two steps, so that all parts can be saved: at once"


class Checkpoint:
    """A ``with`` block whose training loop can be interrupted, and resumes where it was when the program is run again.

    Args:
        path: the file, which no other process may use; it is loaded when the block begins, or written if missing.
        parts: what is saved and loaded: each loader of the loop, and any object with ``state_dict()`` and
            ``load_state_dict()``; or a dict of values, arrays, tensors and more dicts, which is filled in place.
        named: further parts, with names: ``model=model``.
        every_s: seconds between two saves; None not to save by time.
        every_steps: steps between two saves; None not to save by steps.
        keep: how many saved files are kept beside the latest, as ``run-000002000.npz`` after step 2,000.
        keep_every: files of steps that are multiples of it are saved, and kept for ever.
        background: write in a thread, from a copy that is made between two steps; this takes the memory of all parts
            once more. False: the training waits until the file is written.
        strict: refuse a file with parts that aren't passed; False leaves them out.

    ``epochs(n)`` goes around the loop, since only its count is saved: ``range(n)`` would begin at 0 again on resuming.
    ``steps(loader, until=n)`` trains for a number of steps instead, over as many epochs as it takes.
    A step of ``steps(loader)`` is finished when the loop asks for the next batch or is left; if a step takes several
    batches, loop over the loader and call ``step()`` at its end.

    Ctrl-C, SIGTERM and SIGHUP are held back until a step is finished (not while ``steps()`` waits for a further batch
    from workers). Then all is saved, with the global random generators, and the signal's original handler is called.
    After the last step of an epoch of ``epochs()`` they are delivered at once: all is saved as it was after that step,
    and what follows it in the body of that loop is done again on resuming. A second Ctrl-C isn't held back; like an
    error, it loses what came since the last save. The end of the block, also by ``break`` or ``return``, saves the last
    finished step.

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
        **named: Any,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            kind = type(path).__name__
            raise OptionError(f"the path of the file comes first, not a {kind}: Checkpoint('run.npz', loader, …).")
        seconds("every_s", every_s)
        whole("every_steps", every_steps, least=1, optional=True)
        whole("keep", keep, least=0)
        whole("keep_every", keep_every, least=1, optional=True)
        flag("background", background)
        flag("strict", strict)
        self._every_s = math.inf if every_s is None else every_s
        self._periods = [int(period) for period in (every_steps, keep_every) if period is not None]  # in steps
        self._strict = bool(strict)
        self.path = Path(path).expanduser().absolute()
        self.finished = 0  # steps, including those before this block began
        self.epoch = 0  # the number of complete epochs of epochs()
        self._parts = {str(number): part for number, part in enumerate(parts)} | named
        for name, part in self._parts.items():
            check_part(name, part)
        if len(set(map(id, self._parts.values()))) < len(self._parts):
            raise OptionError(f"one object was passed twice among the parts {', '.join(self._parts)}: pass each once.")
        self._loaders = {name: part for name, part in self._parts.items() if hasattr(part, "is_new_epoch")}
        self._places: dict[str, Any] = {}  # of the loaders, after the last finished step
        self._numbers: dict[str, int] = {}  # of the loaders' passes, after the last finished step
        self._passes: dict[str, int] = {}  # the first in which a loader gave steps in this epoch of epochs()
        self._has_warned = False  # of a loop that can't be resumed
        self._state = _State.OUTSIDE
        self._counts_epochs = False
        self._saver = Saver(Keeping(self.path, int(keep), keep_every), bool(background))
        self._held: file.Snapshot | None = None  # of an epoch's last step; not yet written
        self._ended: list[str] = []  # loaders whose pass has ended, while what follows it isn't done
        self._saved_at = 0.0  # the time
        self._saved_step = 0  # the steps that were finished
        self._is_asked = False  # save() was called within a step
        self._heard: int | None = None  # the signal that is held back
        self._handlers: dict[int, Any] = {}  # as they were before the block

    def __repr__(self) -> str:
        """Say in one line what is saved, and how far the training is."""
        return describing.in_a_line(self, type(self).__name__, self._facts)

    def _facts(self) -> describing.Facts:
        parts = ", ".join(f"{name} ({type(part).__name__})" for name, part in self._parts.items())
        done = f"epoch {self.epoch}, {self.finished:,} steps finished"
        return [str(self.path), parts, done] + ["not in use"] * (self._state is _State.OUTSIDE)

    def __enter__(self) -> Self:
        """Load the file; or write it if it is missing, which shows at once whether all parts can be saved."""
        if self._state is not _State.OUTSIDE:
            raise StateError("this Checkpoint is in use already; make another one.")
        self._heard, self._handlers = None, {}
        self._passes, self._has_warned = {}, False
        self._counts_epochs, self._is_asked, self._held = False, False, None
        self._note_places()
        if self.path.exists():
            self._load()
            if self.finished:
                _say(f"continues from {self.path}: epoch {self.epoch}, {self.finished:,} steps finished")
        else:
            self._saver.save(self._snapshot(), keeps=False)
        self._note_saved()
        self._state = _State.BETWEEN
        if threading.current_thread() is threading.main_thread():  # Python handles signals in no other thread
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN):
                    self._handlers[number] = handler
                    signal.signal(number, self._hear)
        self._state = _State.SAFE
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if kind is None:
                if self._state is _State.STEP:
                    self._finish()
                self._saver.save(self._snapshot(), keeps=self.finished > self._saved_step)
                self._warn_without_steps(self._moved())
            else:
                # An error must not hide another, and what was begun before it is saved.
                self._saver.wait()
        finally:
            self._state = _State.OUTSIDE
            self._stop_hearing()
        if kind is None or issubclass(kind, Exception):
            self._deliver()

    def steps(self, batches: Iterable[T], until: int | None = None) -> Iterator[T]:
        """Yield a loader's batches; each is a step.

        The loader may be wrapped by what doesn't read ahead. Other iterables have no place that could be saved, and are
        refused: call ``step()`` in a loop over them. With ``until``, go on with the loader's next epoch until so many
        steps are finished, those of earlier runs included; then leave out ``epochs()``.
        """
        whole("until", until, least=1, optional=True)
        if hasattr(batches, "is_new_epoch") and not any(part is batches for part in self._loaders.values()):
            what = f"this {type(batches).__name__} is not among the checkpoint's parts, so its place would not be saved"
            raise OptionError(f"{what}: pass it to Checkpoint as well.")
        if until is None:
            yield from self._one_pass(batches, math.inf)
            return
        if self._counts_epochs:
            raise StateError("c.steps(loader, until=…) goes over the epochs by itself: leave out c.epochs().")
        # The pass that a resumed program goes on with may have no batches left; no other one may be without any.
        had_some = True
        while self.finished < until:
            before = self.finished
            yield from self._one_pass(batches, until)
            if self.finished == before and not had_some:
                raise StateError(
                    f"{type(batches).__name__} gives no more batches after {self.finished} steps of {until}: pass a "
                    f"loader, which begins anew, or an iterator without an end."
                )
            had_some = self.finished > before
            self._end_passes(are_more=False)
            self._note_places()

    def _one_pass(self, batches: Iterable[T], until: float) -> Iterator[T]:
        if self._state is _State.STEP:  # the last one of an earlier loop, which was left by break
            self._end_step(None)
        self._check_inside()
        may_wait = not getattr(batches, "fetches_here", True)  # in a fetch within next() the parts don't agree
        before, is_first = self._now(), True
        try:
            for batch in batches:
                if is_first:
                    self._check_givers(batches, before)
                    is_first = False
                self._go_to(_State.STEP)
                yield batch
                if self._state is _State.STEP and self._end_step(batches) and may_wait:  # not if step() was called
                    self._go_to(_State.WAITING)
                if self.finished >= until:
                    return
        finally:
            if self._state is _State.WAITING:
                self._state = _State.BETWEEN
        if self._counts_epochs and self._state is _State.BETWEEN:
            self._hold([*self._passes])  # of a stream it shows only now that its epoch is over

    def step(self) -> None:
        """Finish a step, once the model and all else that belongs to it have been updated."""
        self._go_to(_State.STEP)
        self._end_step(None)

    def save(self) -> None:
        """Save after the present step; or now, if none is under way.

        Before something that takes long, such as a validation within an epoch, it has signals delivered at once until
        the next step begins.
        """
        self._check_inside()
        self._is_asked = True
        if self._state is not _State.STEP and not self._moved():
            self._pause()

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, up to ``total``; the first may have been begun before."""
        whole("total", total, least=0)
        self._check_inside()
        self._counts_epochs = True
        while self.epoch < total:
            yield self.epoch
            self.epoch += 1
            self._end_passes(are_more=self.epoch < total)
            moved = self._moved()
            self._finish()
            self._warn_without_steps(moved)
            self._pause()

    @staticmethod
    def read(path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the states in a file by the names of their parts, which are "0", "1", … for parts without one."""
        return file.read(Path(path))["parts"]  # type: ignore[no-any-return]

    # -- where a step ends -------------------------------------------------------------------------------------------

    def _check_inside(self) -> None:
        if self._state is _State.OUTSIDE:
            raise StateError("steps belong into the block: with mpiter.Checkpoint(…) as c: …")

    def _go_to(self, state: _State) -> None:
        self._check_inside()
        self._state = state

    def _finish(self) -> None:
        """Count the step, if one has begun, and note the loaders' states, before they are ahead of the model again."""
        self.finished += self._state is _State.STEP
        self._go_to(_State.BETWEEN)
        self._held, self._ended = None, []
        self._note_places()

    def _end_step(self, batches: Any) -> bool:
        """Finish the step, then save and handle a signal if needed; after an epoch's last step, have all held ready.

        Return True if a signal needn't be held back until the next batch is handed out.
        """
        moved = self._moved()
        # A loader for validation is gone through between two steps; one that is trained on is in one pass at both.
        self._check_passes([name for name in moved if self._pass_of(name) == self._numbers.get(name)])
        loaders = {name: part for name, part in self._loaders.items() if part is batches} or self._loaders
        ended = [name for name in moved if name in loaders and loaders[name].is_new_epoch]
        self._finish()
        if not self._counts_epochs or not ended:
            self._pause()
            return self._state is _State.BETWEEN
        if self._can_stay(ended):
            self._ended = ended
            self._pause()
            self._hold(ended)
        return False

    def _can_stay(self, ended: list[str]) -> bool:
        """True if the loaders, resumed at the end of their pass, stay there, so that what follows it can be done again.

        An iterator without an end goes on with the next epoch's batches.
        """
        return bool(ended) and all(getattr(self._loaders[name], "has_passes", False) for name in ended)

    def _hold(self, ended: list[str]) -> None:
        """Have all parts as they are now held ready to be saved, while what follows the last step may change them."""
        if not self._can_stay(ended) or (self._saved_step == self.finished and self._state is _State.SAFE):
            return
        self._ended = ended
        snapshot = self._saver.copy(self._snapshot())
        if snapshot.nbytes >= _SOON:
            self._saver.begin_copy(snapshot)
        else:
            self._held = snapshot
        self._state = _State.SAFE

    def _note_places(self) -> None:
        self._places = self._now()
        self._numbers = {name: self._pass_of(name) for name in self._loaders}

    def _now(self) -> dict[str, Any]:
        return {name: loader.state_dict() for name, loader in self._loaders.items()}

    def _moved(self, before: dict[str, Any] | None = None) -> list[str]:
        """Return the names of the loaders that have handed out batches since ``before``, or the last finished step."""
        places = self._places if before is None else before
        return [name for name, state in self._now().items() if place_in(state) != place_in(places[name])]

    def _pass_of(self, name: str) -> int:
        return getattr(self._loaders[name], "passes", 0)

    # -- loops that can't be resumed ---------------------------------------------------------------------------------

    def _end_passes(self, are_more: bool) -> None:
        """Have loaders whose last batch was handed out begin a new pass on resuming, as in the loop that goes on.

        Warn of one that has given steps and is still within its pass, since a resumed program would go on there.
        """
        unfinished = []
        for name, loader in self._loaders.items():
            has_ended = not hasattr(loader, "end_pass") or loader.end_pass()
            if not has_ended and self._passes.get(name) == self._pass_of(name):
                unfinished.append(name)
        # A loop may well be left because a signal has come: the program ends here.
        if unfinished and are_more and self._heard is None and not self._has_warned:
            self._has_warned = True
            warn(
                "a loop over c.steps(loader) was left before its end, so the next epoch begins another pass over the "
                "loader, where a program that is resumed goes on in this one.  Let the loop come to its end; to do "
                "something after each 100 steps, say, look at c.finished within one loop over an iterator without end."
            )
        self._passes.clear()

    def _check_givers(self, batches: Any, before: dict[str, Any]) -> None:
        """Raise an OptionError if no part has given the first batch of ``steps(batches)``, since it was ``before``."""
        givers = self._moved(before)
        if not givers and not any(part is batches or gives_batches(part) for part in self._parts.values()):
            raise OptionError(
                f"no part of this checkpoint has given the batch of c.steps({type(batches).__name__}), so its place "
                f"would not be saved: make a loader of mpiter (mpiter.torch.DataLoader for torch's), pass it to "
                f"Checkpoint, and write  for x in c.steps(loader): …  If no loader is needed, call c.step() after each "
                f"step instead."
            )
        self._check_passes(givers)

    def _check_passes(self, givers: list[str]) -> None:
        """Warn if all that have given a step are in a later pass than the first of this epoch: how many are left?"""
        later = []
        for name in givers:
            number = self._pass_of(name)
            if self._passes.setdefault(name, number) != number:
                later.append(name)
        if later and later == givers and not self._has_warned:
            self._has_warned = True
            within = "within one epoch of c.epochs()" if self._counts_epochs else "outside of c.epochs()"
            warn(
                f"another pass over a loader has begun {within}, so nothing saved says how many are left, and a "
                f"program that is resumed would make too many.  Write  for epoch in c.epochs(n):  around  for x in "
                f"c.steps(loader): …; to train for a number of steps, write  for x in c.steps(loader, until=n): …"
            )

    def _warn_without_steps(self, moved: list[str]) -> None:
        """Warn if the loaders ``moved`` have handed out batches though the program has never finished a step."""
        if moved and not self.finished and not self._has_warned:
            self._has_warned = True
            warn(
                "no step has been finished, so nothing can be saved within an epoch: write  for x in c.steps(loader): "
                "…  in place of  for x in loader: …, or call c.step() after each step."
            )

    # -- saving, and signals -----------------------------------------------------------------------------------------

    def _pause(self) -> None:
        """Save if a save is due or a signal was held back, and call that signal's original handler."""
        try:
            self._saver.raise_error()
            if self._heard is None and self._is_due():
                snapshot = self._snapshot()
                self._note_saved()
                self._saver.begin(snapshot, keeps=True)
                self._state = _State.SAFE
        except OSError as error:
            self._tell(error)
        if self._heard is not None:
            self._save_now()
            self._deliver()

    def _is_due(self) -> bool:
        """True if a save is due after the present step."""
        if self._is_asked:
            return True
        is_new = self.finished > self._saved_step
        if is_new and any(self.finished % period == 0 for period in self._periods):
            return True
        return time.monotonic() - self._saved_at >= self._every_s and not self._saver.is_busy

    def _note_saved(self) -> None:
        self._saved_at, self._saved_step, self._is_asked = time.monotonic(), self.finished, False

    def _tell(self, error: OSError) -> None:
        """Raise the error of a full disk, which stays full; warn of any other, and try again when a save is due."""
        self._saved_at = time.monotonic()
        if file.has_no_space(error):
            raise error
        warn(f"nothing could be saved after {self.finished} steps ({error}); the training goes on.")

    def _save_now(self) -> None:
        """Save the last finished step: what is held ready, or all parts as they are."""
        if self._held is not None:
            self._saver.save(self._held, keeps=False)
            self._held = None
        elif self._state is _State.SAFE:
            self._saver.wait()
            self._saver.raise_error()
        else:
            self._saver.save(self._snapshot(), keeps=True)
        self._note_saved()
        _say(f"saved: {self.path}")

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == self._heard == signal.SIGINT:
            return self._deliver(frame)
        self._heard = number
        if self._state is _State.WAITING:
            self._state = _State.BETWEEN
        elif self._state is not _State.SAFE:
            more = "; Ctrl-C once more, and it ends at once" if number == signal.SIGINT else ""
            if self._state is _State.BETWEEN and not self.finished:
                more += "; only c.steps(loader) or c.step() tell where a step ends"
            return _say(f"{signal.Signals(number).name} waits for the end of this step, to save all{more}.")
        self._save_now()
        self._deliver(frame)

    def _deliver(self, frame: FrameType | None = None) -> None:
        """Call the original handler of the signal that was held back, if any; most handlers raise."""
        number, self._heard = self._heard, None
        if number is None:
            return
        handler = self._handlers[number]
        # Most handlers raise, and that may be before the ``with`` statement has begun its body, and will call __exit__.
        self._stop_hearing()
        if not callable(handler):  # SIG_DFL: it would end the process without `finally`
            raise SystemExit(128 + number)
        handler(number, frame)
        if self._state is not _State.OUTSIDE:
            for other in self._handlers:
                signal.signal(other, self._hear)

    def _stop_hearing(self) -> None:
        for number, handler in reversed(self._handlers.items()):  # Ctrl-C's last: it could interrupt this loop
            signal.signal(number, handler)

    def _snapshot(self) -> file.Snapshot:
        """Return the states of all parts, of the loaders those after the last finished step."""
        parts = {name: part if type(part) is dict else part.state_dict() for name, part in self._parts.items()}
        states_of_generators = {name: state_of(generator) for name, generator in generators().items()}
        now = {name: encoded(state) for name, state in states_of_generators.items()}
        places = {name: apart(state, now) for name, state in self._places.items()}
        states: dict[str, Any] = {"steps": self.finished, "epoch": self.epoch, "passes": self._passes}
        states["ended"] = self._ended
        states |= {"parts": parts | places, "generators": states_of_generators}
        return file.snapshot_of(self.finished, states)

    def _load(self) -> None:
        states = file.read(self.path)
        saved_parts = states["parts"]
        for name, part in self._parts.items():
            saved = saved_parts.get(name, {})
            if type(part) is dict and type(saved) is not dict:
                raise StateError(f"{self.path} holds {saved!r:.80} as part {name}, which is a dict here.")
        if self._strict and (missing := saved_parts.keys() - self._parts.keys()):
            theirs, ours = ", ".join(saved_parts), ", ".join(self._parts)
            raise StateError(
                f"{self.path} holds {theirs}, but was given {ours}: pass {', '.join(sorted(missing))} too, or another "
                f"path, or strict=False to go on without."
            )
        names = sorted(self._parts.keys() & saved_parts.keys(), key=lambda name: name not in self._loaders)
        for name in names:
            part, state = self._parts[name], saved_parts[name]  # loaders first: they raise before anything changes
            if type(part) is dict:
                filled(part, state, name)
                continue
            try:
                part.load_state_dict(state)
            except StateError as error:
                text = f"part {name} of {self.path}: {error}  To begin anew, pass another path, or delete this file."
                raise StateError(text) from error
        if new := self._parts.keys() - saved_parts.keys():
            warn(f"{self.path} doesn't hold {', '.join(sorted(new))}: taken as it is, and saved from now on.")
        self.finished, self.epoch, self._passes = states["steps"], states["epoch"], states["passes"]
        for name in states["ended"]:
            if hasattr(self._parts.get(name), "stay_at_end"):
                self._parts[name].stay_at_end()
        for name, generator in generators().items():
            if name in states["generators"]:
                try:
                    give_back(generator, states["generators"][name])
                except Exception as error:  # generators raise any type for a wrong state
                    what = f"{self.path} holds no state of the random generator {name}"
                    raise StateError(f"{what}: {type(error).__name__}: {error}.") from error
        self._note_places()


def _say(text: str) -> None:
    """Write to standard error; not by print(), which a signal handler mustn't call in the midst of another print()."""
    with contextlib.suppress(OSError):
        os.write(2, f"mpiter: {text}\n".encode())
