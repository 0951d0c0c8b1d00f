"""``Checkpoint``: the loader's place, the model and whatever else goes with them, saved in one go, between two steps.

Runs in the consumer's thread.  What makes a resumed run another one than the uninterrupted is an interrupt within a
step: the loader is a batch ahead of the model, or the schedule a step behind it.  So signals wait until the loop asks
for its next batch, where all agree.  Guarantees that what is saved is of the last finished step, and is there whole or
not at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from ..engine.options import seconds, whole
from ..errors import OptionError, StateError, warn
from ..iterators.iterator import DatasetIterator
from ..typevars import T
from ..worker.seeding import global_generators, globals_state, restore_globals
from . import files
from .feeding import Feeding
from .filling import fill
from .held import Held


class Checkpoint:
    """A ``with`` block whose training loop may be interrupted, and goes on where it was.

    Args:
        folder: where the files are; the block begins with the newest of them, if there is one.
        parts: what is saved and loaded: anything with ``state_dict()`` and ``load_state_dict()`` (loaders, iterators,
            torch's models, optimisers and schedulers), or a dict of values, arrays, tensors and more dicts (JAX's
            parameters, say), which is filled: arrays and tensors of one shape and dtype stay where they are.
        named: more of them, with names: ``model=model``.
        keep: how many of the last files stay.
        every_s: seconds between two of them; None for no such limit.
        every_steps: steps between two of them; None for no such limit.
        generators: save the states of the global random generators too: Python's, NumPy's, torch's with the GPUs'.

    Loop over ``steps(loader)``: what the loop does with a batch is a step, and it is finished when the loop asks for
    the next batch or is left.  Within the block Ctrl-C, SIGTERM and SIGHUP wait until then, or until the end of an
    epoch of ``epochs()``: there all is saved, and they do what they would have done.  A second Ctrl-C doesn't wait, and
    loses what came since the last file; so do ``sys.exit()`` and errors of yours.  The end of the block, also by
    ``break`` or ``return``, saves the last finished step.  ``finished`` counts them.

    Where a step takes several batches (gradients are accumulated), loop over the loader itself and call ``step()``
    where the model is updated, on whatever line: the step is finished when the loop asks for the batch after that.
    A batch for which ``step()`` was not called is of no finished step, and comes again.

    One block holds all that belongs to a loop: several loaders, for validation too, which may be gone through within a
    step.  Several processes need a folder each.  Nothing that is loaded is unpickled; ``Checkpoint.read(folder)``
    returns the newest states by their names.

    >>> import tempfile, mpiter
    >>> folder, model = tempfile.mkdtemp(), {"sum": 0}
    >>> def train(steps):
    ...     loader = mpiter.DataLoader(range(6), batch_size=2)
    ...     with mpiter.Checkpoint(folder, loader, model=model) as c:
    ...         for epoch in c.epochs(2):
    ...             for x in c.steps(loader):
    ...                 model["sum"] += int(x.sum())
    ...                 if c.finished + 1 == steps:
    ...                     return
    >>> train(steps=4)
    >>> model["sum"] = 0  # as in another process
    >>> train(steps=None)
    >>> model
    {'sum': 30}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *parts: Any,
        keep: int = 2,
        every_s: float | None = 600.0,
        every_steps: int | None = None,
        generators: bool = True,
        **named: Any,
    ) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise OptionError(f"the first argument is the folder, not a {type(folder).__name__}.")
        whole("keep", keep, least=1)
        whole("every_steps", every_steps, least=1, optional=True)
        seconds("every_s", every_s)
        self.folder = Path(folder).expanduser().absolute()
        self._parts = {str(number): part for number, part in enumerate(parts)} | named
        if len(self._parts) < len(parts) + len(named):
            raise OptionError("parts without a name are called 0, 1 and so on; give the named ones other names.")
        if not self._parts:
            raise OptionError("there is nothing to save: pass the loader, the model, the optimizer.")
        for name, part in self._parts.items():
            if type(part) is not dict and not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise OptionError(
                    f"part {name} is of type {type(part).__name__}, which has no state_dict() and load_state_dict(); "
                    f"{_instead(name, part)}."
                )
        self.keep, self.every_s, self.every_steps = keep, every_s, every_steps
        self.finished = 0  # steps, those before this block began included
        self.epoch = 0  # complete, of epochs()
        self._generators = generators
        self._loaders = {name: part for name, part in self._parts.items() if hasattr(part, "is_new_epoch")}
        self._places: dict[str, Any] = {}  # of the loaders, after the last finished step
        self._is_open = False
        self._counts_epochs = False  # is epochs() under way?
        self._to_count: int | None = None  # for the step that the next batch finishes; None: there is none
        self._feeding = Feeding(list(self._loaders.values()), self._end_step)
        self._held = Held()
        self._saved = 0, 0  # the steps and epochs of the newest file
        self._saved_at = time.monotonic()

    def __repr__(self) -> str:
        return f"<Checkpoint in {self.folder}: {self.finished} steps finished, {self._saved[0]} of them saved>"

    def __enter__(self) -> Self:
        """Begin with the newest file, if there is one."""
        if self._is_open:
            raise StateError("this Checkpoint is in use already; make another one.")
        self._note()
        files.prepare(self.folder, self._states)
        if (found := files.newest(self.folder)) is not None:
            self._load(*found)
            self._note()
        self._saved, self._saved_at = self._here, time.monotonic()
        self._is_open, self._to_count = True, None
        self._held.begin()
        self._feeding.begin()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._is_open = False
        self._feeding.end()
        try:
            if kind is None:
                self._feeding.warn_of_no_step()
                if self._to_count is not None:
                    self._finish()
                if self._is_worth_saving():
                    self._save()
        finally:
            self._held.end()
        if kind is None or issubclass(kind, Exception):
            self._held.deliver()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches of a loader, each of them a step; also of what wraps one, if that doesn't read ahead.

        What reads ahead tells its own place, or has none: a DevicePrefetcher is the block's part instead of its loader.
        An error that leaves the loop leaves its step unfinished, unless the block catches it: that finishes it.
        """
        self._refuse_if_not_open("steps()")
        if self._feeding.is_off:
            raise StateError("steps() within a step: loop over the inner loader itself, which is part of the step.")
        self._end_step(is_left=True)
        for batch in batches:
            self._to_count = 1
            self._feeding.is_off = self._feeding.has_stepped = True
            try:
                yield batch
            finally:
                self._feeding.is_off = False
            self._end_step()

    def step(self) -> None:
        """The model has been updated: the step is finished when the loop asks for the next batch.

        Where no loader of this block has given a batch for it, it is finished here.
        """
        self._refuse_if_not_open("step()")
        if self._feeding.is_off:
            raise StateError("steps() finishes each step by itself: leave step() out, or loop over the loader itself.")
        self.finished += 1
        self._to_count, self._feeding.has_stepped = 0, True
        if self._feeding.loader is None:
            self._end_step()

    def epochs(self, total: int) -> Iterator[int]:
        """The numbers of the epochs from where it stands to ``total``; the first may be the rest of one."""
        self._refuse_if_not_open("epochs()")
        for name, loader in self._loaders.items():
            if isinstance(loader, DatasetIterator) and (count := loader.epochs_of_a_pass) != 1:
                raise OptionError(
                    f"part {name} gives {'no end of' if count is None else count} epochs to each for loop, so epochs() "
                    f"would count something else; pass epochs=1 (repeat=False), or leave epochs() out."
                )
        self._counts_epochs = True
        try:
            while self.epoch < total:
                self._feeding.forget()
                yield self.epoch
                self.epoch += 1
                self._finish()
                self._pause()
        finally:
            self._counts_epochs = False

    def save(self) -> Path:
        """Save now; to be called between two steps."""
        self._refuse_if_not_open("save()")
        self._finish()
        return self._save()

    def _end_step(self, is_left: bool = False) -> None:
        """The loop asks for the next batch, or has been left: a signal is delivered, and what may be saved is saved.

        At the end of an epoch that waits for what comes after the last step, and is done when ``epochs()`` goes on.
        """
        if self._to_count is not None:
            loader = self._feeding.loader
            self._finish()
            if not (self._counts_epochs and (is_left or (loader is not None and loader.is_new_epoch))):
                self._pause()

    def _finish(self) -> None:
        self.finished += self._to_count or 0
        self._to_count = None
        self._note()

    def _refuse_if_not_open(self, what: str) -> None:
        if not self._is_open:
            raise StateError(f"{what} belongs into the block: with mpiter.Checkpoint(…) as c: …")

    def _note(self) -> None:
        """Here a step is finished: from the next batch on the loaders are ahead of the model."""
        self._places = {name: loader.state_dict() for name, loader in self._loaders.items()}

    @property
    def _states(self) -> dict[str, Any]:
        parts = {name: part for name, part in self._parts.items() if name not in self._places}
        return {
            "steps": self.finished,
            "epoch": self.epoch,
            "kinds": self._kinds,
            "parts": self._places
            | {name: part if type(part) is dict else part.state_dict() for name, part in parts.items()},
            "generators": _generators() if self._generators else {},
        }

    def _save(self) -> Path:
        path = files.write(self.folder, self.finished, self._states, self.keep)
        self._saved, self._saved_at = self._here, time.monotonic()
        return path

    @staticmethod
    def read(folder: str | os.PathLike[str]) -> dict[str, Any]:
        """The states in the newest file by the names of their parts, "0", "1" and so on for those without one."""
        found = files.newest(Path(folder))
        if found is None:
            raise StateError(f"there is no checkpoint in {folder}.")
        states: dict[str, Any] = found[1]["parts"]
        return states

    @property
    def _kinds(self) -> dict[str, str]:
        return {name: type(part).__qualname__ for name, part in self._parts.items()}

    @property
    def _here(self) -> tuple[int, int]:
        return self.finished, self.epoch

    def _is_worth_saving(self) -> bool:
        return self._saved != self._here and not self._feeding.is_without_step

    def _pause(self) -> None:
        """Between two steps: save if it is time to, and deliver a signal that was held back."""
        if self._held.heard is not None:
            if self._is_worth_saving():
                self._held.say(f"saved: {self._save()}")
            self._held.deliver()
        elif self._is_due():
            try:
                self._save()
            except OSError as error:
                self._saved_at = time.monotonic()
                warn(f"nothing could be saved after {self.finished} steps ({error}); the training goes on.")

    def _is_due(self) -> bool:
        steps = self.finished - self._saved[0]
        if self.every_steps is not None and steps >= self.every_steps:
            return True
        return self.every_s is not None and steps > 0 and time.monotonic() - self._saved_at >= self.every_s

    def _load(self, path: Path, states: dict[str, Any]) -> None:
        saved, mine = states["kinds"], self._kinds
        if saved != mine:
            raise StateError(
                f"{path} holds {_listed(saved)}, but this Checkpoint was given {_listed(mine)}.  Pass the same parts, "
                f"or take another folder."
            )
        for name, part in sorted(self._parts.items(), key=lambda named: named[0] not in self._loaders):
            state = states["parts"][name]  # loaders come first: they refuse before anything is changed
            try:
                if type(part) is dict:
                    fill(part, state, name)
                else:
                    part.load_state_dict(state)
            except Exception as error:
                error.add_note(f"This was part {name} ({mine[name]}) of the checkpoint {path}.")
                raise
        self.finished, self.epoch = states["steps"], states["epoch"]
        if self._generators:
            _give_back(states["generators"])


def _listed(kinds: dict[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in kinds.items())


def _instead(name: str, part: Any) -> str:
    if any(kind.__module__ == "torch.utils.data.dataloader" for kind in type(part).__mro__):
        return "torch's loader knows no place to go on from: pass an mpiter.torch.DataLoader, which takes its arguments"
    near = get_close_matches(name, ("keep", "every_s", "every_steps", "generators"), 1)
    return "pass a dict, {'w': array, …}" + (f"; or do you mean the option {near[0]}=?" if near else "")


def _generators() -> dict[str, Any]:
    """The states of the global random generators."""
    torch = global_generators().get("torch")
    cuda = torch.cuda if torch is not None and torch.cuda.is_initialized() else None
    return globals_state() | ({"cuda": cuda.get_rng_state_all()} if cuda is not None else {})


def _give_back(states: dict[str, Any]) -> None:
    here = global_generators()
    restore_globals({name: state for name, state in states.items() if name in here})
    if "cuda" in states and "torch" in here and here["torch"].cuda.is_available():
        here["torch"].cuda.set_rng_state_all(states["cuda"][: here["torch"].cuda.device_count()])
