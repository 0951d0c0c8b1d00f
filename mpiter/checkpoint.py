"""``Checkpoint``: saves loaders, model and other parts of a training loop in one file, between two steps.

Signals are held back until a step is finished: within it the loader is ahead of the model.  Guarantees that a file
holds the last finished step, is written completely or not at all, and isn't unpickled.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Self

import numpy as np

from . import machine
from .engine import describing
from .engine.options import seconds
from .errors import OptionError, StateError, warn
from .order.state import number_of, typed
from .samples.jsonable import decoded, encoded
from .typevars import T
from .worker.seeding import give_back, global_generators, state_of

_REMEDY = "pass another path, or delete the file if it is a damaged one."


class _State(Enum):
    """Where the training loop is.  A signal that comes while it is WAITING is delivered at once."""

    OUTSIDE = "the block hasn't begun, or has ended"
    BETWEEN = "no step of steps() has begun"
    STEP = "a step of steps() isn't finished"
    WAITING = "steps() waits for a batch between two steps, so that all parts can be saved"


class Checkpoint:
    """A ``with`` block whose training loop can be interrupted, and resumes where it was when the program is run again.

    Args:
        path: the file, which no other process may use; it is loaded when the block begins, or written if missing.
        parts: what is saved and loaded: each loader of the loop, and any object with ``state_dict()`` and
            ``load_state_dict()``; or a dict of values, arrays, tensors and more dicts, which is filled in place.
        named: further parts, with names: ``model=model``.
        every_s: seconds between two saves; None to save at the end only.

    ``epochs(n)`` goes around the loop, since only its count is saved: ``range(n)`` would begin at 0 again on resuming.
    A step of ``steps(loader)`` is finished when the loop asks for the next batch or is left; if a step takes several
    batches, loop over the loader and call ``step()`` at its end. Ctrl-C, SIGTERM and SIGHUP are held back until a step
    is finished (not while ``steps()`` waits for a further batch from workers); in the last step of an epoch of
    ``epochs()``, until the body of that loop is done. Then all is saved, with the global random generators, and the
    signal's original handler is called. A second Ctrl-C isn't held back; like an error, it loses what came since the
    last save. The end of the block, also by ``break`` or ``return``, saves the last finished step.

    >>> import mpiter, tempfile
    >>> loader, model = mpiter.DataLoader(range(6), batch_size=2), {"sum": 0}
    >>> with mpiter.Checkpoint(tempfile.mkdtemp() + "/run.npz", loader, model=model) as c:
    ...     for epoch in c.epochs(2):
    ...         for x in c.steps(loader):
    ...             model["sum"] += int(x.sum())
    >>> c.finished, model
    (6, {'sum': 30})
    """

    def __init__(self, path: str | os.PathLike[str], *parts: Any, every_s: float | None = 600.0, **named: Any) -> None:
        seconds("every_s", every_s)
        if not isinstance(path, (str, os.PathLike)):
            kind = type(path).__name__
            raise OptionError(f"the path of the file comes first, not a {kind}: Checkpoint('run.npz', loader, …).")
        self._every_s = math.inf if every_s is None else every_s
        self.path = Path(path).expanduser().absolute()
        self.finished = 0  # steps, including those before this block began
        self.epoch = 0  # the number of complete epochs of epochs()
        self._parts = {str(number): part for number, part in enumerate(parts)} | named
        for name, part in self._parts.items():
            if isinstance(part, type):
                raise OptionError(f"part {name} is the class {part.__name__}: pass an object of it.")
            if type(part) is not dict and not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                what = f"part {name} is of type {type(part).__name__}, which has no state_dict() and load_state_dict()"
                raise OptionError(f"{what}: pass a dict, or mpiter.torch.DataLoader for torch's.")
        self._loaders = {name: part for name, part in self._parts.items() if hasattr(part, "is_new_epoch")}
        self._places: dict[str, Any] = {}  # of the loaders, after the last finished step
        self._numbers: dict[str, int] = {}  # of the loaders' passes, after the last finished step
        self._passes: dict[str, int] = {}  # the first in which a loader gave steps in this epoch of epochs()
        self._has_warned = False  # of a loop that can't be resumed
        self._state, self._counts_epochs, self._saved_at = _State.OUTSIDE, False, 0.0
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
        self._note_places()
        self._load() if self.path.exists() else self._save()
        self._state, self._counts_epochs, self._saved_at = _State.BETWEEN, False, time.monotonic()
        if threading.current_thread() is threading.main_thread():  # Python handles signals in no other thread
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN):
                    self._handlers[number] = handler
                    signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if kind is None:
                if self._state is _State.STEP:
                    self._finish()
                self._save()
                self._warn_without_steps(self._moved())
        finally:
            self._state = _State.OUTSIDE
            for number, handler in reversed(self._handlers.items()):  # Ctrl-C's last: it could interrupt this loop
                signal.signal(number, handler)
        if kind is None or issubclass(kind, Exception):
            self._deliver()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield a loader's batches; each is a step.

        The loader may be wrapped by what doesn't read ahead. Other iterables have no place that could be saved, and are
        refused: call ``step()`` in a loop over them.
        """
        if hasattr(batches, "is_new_epoch") and not any(part is batches for part in self._loaders.values()):
            what = f"this {type(batches).__name__} is not among the checkpoint's parts, so its place would not be saved"
            raise OptionError(f"{what}: pass it to Checkpoint as well.")
        if self._state is _State.STEP:  # the last one of an earlier loop, which was left by break
            self._end_step(None)
        self._go_to(_State.BETWEEN)
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
        finally:
            if self._state is _State.WAITING:
                self._state = _State.BETWEEN

    def step(self) -> None:
        """Finish a step, once the model and all else that belongs to it have been updated."""
        self._go_to(_State.STEP)
        self._end_step(None)

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, up to ``total``; the first may have been begun before."""
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
        return _read(Path(path))["parts"]  # type: ignore[no-any-return]

    def _go_to(self, state: _State) -> None:
        if self._state is _State.OUTSIDE:
            raise StateError("steps belong into the block: with mpiter.Checkpoint(…) as c: …")
        self._state = state

    def _finish(self) -> None:
        """Count the step, if one has begun, and note the loaders' states, before they are ahead of the model again."""
        self.finished += self._state is _State.STEP
        self._go_to(_State.BETWEEN)
        self._note_places()

    def _note_places(self) -> None:
        self._places = self._now()
        self._numbers = {name: self._pass_of(name) for name in self._loaders}

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

    def _now(self) -> dict[str, Any]:
        return {name: loader.state_dict() for name, loader in self._loaders.items()}

    def _moved(self, before: dict[str, Any] | None = None) -> list[str]:
        """Return the names of the loaders that have handed out batches since ``before``, or the last finished step."""
        places = self._places if before is None else before
        return [name for name, state in self._now().items() if _place_in(state) != _place_in(places[name])]

    def _pass_of(self, name: str) -> int:
        return getattr(self._loaders[name], "passes", 0)

    def _check_givers(self, batches: Any, before: dict[str, Any]) -> None:
        """Raise an OptionError if no part has given the first batch of ``steps(batches)``, since it was ``before``."""
        givers = self._moved(before)
        if not givers and not any(part is batches or _gives_batches(part) for part in self._parts.values()):
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
                f"c.steps(loader): …; to train for a number of steps, loop over an iterator, which has no end."
            )

    def _warn_without_steps(self, moved: list[str]) -> None:
        """Warn if the loaders ``moved`` have handed out batches though the program has never finished a step."""
        if moved and not self.finished and not self._has_warned:
            self._has_warned = True
            warn(
                "no step has been finished, so nothing can be saved within an epoch: write  for x in c.steps(loader): "
                "…  in place of  for x in loader: …, or call c.step() after each step."
            )

    def _end_step(self, batches: Any) -> bool:
        """Finish the step, then save and handle a signal if needed; after an epoch's last step ``epochs()`` does so.

        Return True if a signal needn't be held back until the next batch is handed out.
        """
        moved = self._moved()
        # A loader for validation is gone through between two steps; one that is trained on is in one pass at both.
        self._check_passes([name for name in moved if self._pass_of(name) == self._numbers.get(name)])
        loaders = {name: part for name, part in self._loaders.items() if part is batches} or self._loaders
        has_ended = any(name in loaders and loaders[name].is_new_epoch for name in moved)
        self._finish()
        if may_pause := not (self._counts_epochs and has_ended):
            self._pause()
        return may_pause

    def _pause(self) -> None:
        """Save if a save is due or a signal was held back, and call that signal's original handler."""
        if self._heard is not None:
            self._save()
            _say(f"saved: {self.path}")
            self._deliver()
        elif time.monotonic() - self._saved_at >= self._every_s:
            try:
                self._save()
            except OSError as error:
                self._saved_at = time.monotonic()
                warn(f"nothing could be saved after {self.finished} steps ({error}); the training goes on.")

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == self._heard == signal.SIGINT:
            return self._deliver(frame)
        self._heard = number
        if self._state is _State.WAITING:
            self._state = _State.BETWEEN
            return self._pause()
        more = "; Ctrl-C once more, and it ends at once" if number == signal.SIGINT else ""
        if self._state is _State.BETWEEN and not self.finished:
            more += "; only c.steps(loader) or c.step() tell where a step ends"
        _say(f"{signal.Signals(number).name} waits for the end of this step or epoch, to save all{more}.")

    def _deliver(self, frame: FrameType | None = None) -> None:
        """Call the original handler of the signal that was held back, if any; most handlers raise."""
        number, self._heard = self._heard, None
        if number is not None:
            if not callable(handler := self._handlers[number]):  # SIG_DFL: it would end the process without `finally`
                raise SystemExit(128 + number)
            handler(number, frame)

    def _save(self) -> None:
        """Write all parts: arrays and tensors as numbered arrays of the file, everything else as JSON."""
        parts = {name: part if type(part) is dict else part.state_dict() for name, part in self._parts.items()}
        generators = {name: state_of(generator) for name, generator in _generators().items()}
        now = {name: encoded(state) for name, state in generators.items()}
        places = {name: _apart(state, now) for name, state in self._places.items()}
        states = {"steps": self.finished, "epoch": self.epoch, "parts": parts | places, "generators": generators}
        states["passes"] = self._passes
        arrays: list[Any] = []
        plain = json.dumps(encoded(states, arrays), allow_nan=False).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(self.path) as file:
            np.savez(file, states=np.frombuffer(plain, np.uint8), **{str(at): array for at, array in enumerate(arrays)})
        self._saved_at = time.monotonic()

    def _load(self) -> None:
        states = _read(self.path)
        for name, part in self._parts.items():
            saved = states["parts"].get(name, {})
            if type(part) is dict and type(saved) is not dict:
                raise StateError(f"{self.path} holds {saved!r:.80} as part {name}, which is a dict here.")
        if states["parts"].keys() != self._parts.keys():
            theirs, ours = ", ".join(states["parts"]), ", ".join(self._parts)
            raise StateError(f"{self.path} holds {theirs}, but was given {ours}: pass the same parts, or another path.")
        for name in sorted(self._parts, key=lambda name: name not in self._loaders):
            part, state = self._parts[name], states["parts"][name]  # loaders first: they raise before anything changes
            _filled(part, state, name) if type(part) is dict else part.load_state_dict(state)
        self.finished, self.epoch, self._passes = states["steps"], states["epoch"], states["passes"]
        for name, generator in _generators().items():
            if name in states["generators"]:
                try:
                    give_back(generator, states["generators"][name])
                except Exception as error:  # generators raise any type for a wrong state
                    what = f"{self.path} holds no state of the random generator {name}"
                    raise StateError(f"{what}: {type(error).__name__}: {error}.") from error
        self._note_places()


def _gives_batches(part: Any) -> bool:
    """True for a part that may be another library's loader; torch's modules, of which some can be iterated, are not."""
    is_ours_or_model = hasattr(part, "is_new_epoch") or hasattr(part, "parameters")
    return type(part) is not dict and hasattr(part, "__iter__") and not is_ours_or_model


def _place_in(state: Any) -> str:
    """Return what a loader's state tells of its place; the global generators in it may be drawn from by anyone."""
    return repr({**state, "generators": None})


def _apart(state: Any, now: dict[str, Any]) -> Any:
    """Return a loader's state without generators equal to the global ones ``now``, from which its next epoch draws."""
    own = {name: held for name, held in state.get("generators", {}).items() if held != now.get(name)}
    return {**state, "generators": own} if "generators" in state else state


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file in a ``with`` block; it replaces ``path`` once it is complete and on the disk.

    An error leaves the old file. So does a kill, and the unfinished file, ``.NAME-unfinished``, until the next.
    """
    unfinished = path.with_name(f".{path.name}-unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        with open(unfinished, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    machine.sync_folder(path.parent)


def _say(text: str) -> None:
    """Write to standard error; not by print(), which a signal handler mustn't call in the midst of another print()."""
    with contextlib.suppress(OSError):
        os.write(2, f"mpiter: {text}\n".encode())


def _read(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                if any(member.compress_type for member in arrays.zip.infolist()):
                    raise ValueError("it is compressed, as no checkpoint is: it could fill the memory")
                memory = [arrays[str(at)] for at in range(len(arrays) - 1)]
                states: Any = decoded(json.loads(bytes(arrays["states"])), memory)
        except Exception as error:
            what = f"{path} cannot be read as a checkpoint ({type(error).__name__})"
            raise StateError(f"{what}: {_REMEDY}") from error
    try:
        for name in ("steps", "epoch"):
            number_of(states, name)
        for name in ("parts", "generators", "passes"):
            if not all(type(key) is str for key in typed(states, name, dict)):
                raise StateError(f"the state's {name!r} has other keys than names.")
        for name in states["passes"]:
            number_of(states["passes"], name)
    except StateError as error:
        raise StateError(f"{path} cannot be read as a checkpoint ({str(error).removesuffix('.')}): {_REMEDY}") from None
    return states  # type: ignore[no-any-return]


def _generators() -> dict[str, Any]:
    """Return the global random generators by name, torch's of the GPU among them once CUDA is initialised."""
    here = global_generators()
    has_gpu = "torch" in here and here["torch"].cuda.is_initialized()
    return here | ({"gpu": here["torch"].cuda} if has_gpu else {})


def _filled(now: Any, saved: Any, path: str) -> Any:
    """Copy the saved values into the present dicts, arrays and tensors; return what to put in the place of ``now``."""
    if isinstance(now, dict) and isinstance(saved, dict):
        gone, new = (
            ", ".join(sorted(map(repr, one))) for one in (saved.keys() - now.keys(), now.keys() - saved.keys())
        )
        if gone and new:  # renamed: it would stay unfilled
            raise StateError(f"{path} had {gone:.200} when it was saved, and has {new:.200} now: rename it back.")
        for key, value in saved.items():
            now[key] = _filled(now.get(key), value, f"{path}[{key!r:.60}]")
        return now
    if isinstance(now, (list, tuple)) and isinstance(saved, (list, tuple)) and len(now) == len(saved):
        parts = [_filled(one, other, f"{path}[{at}]") for at, (one, other) in enumerate(zip(now, saved, strict=True))]
        return type(now)(*parts) if hasattr(now, "_fields") else type(saved)(parts)
    if isinstance(now, np.generic) or not hasattr(now, "shape"):
        return saved
    if not hasattr(saved, "shape") or (now.dtype, now.shape) != (saved.dtype, saved.shape):
        raise StateError(f"{path} was {saved!r:.80} when it was saved; it is of {now.dtype} and shape {now.shape} now.")
    if type(now).__module__.startswith("jaxlib"):
        return sys.modules["jax"].numpy.asarray(saved)
    (now if isinstance(now, np.ndarray) else now.detach())[...] = saved
    return now
