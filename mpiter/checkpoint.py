"""``Checkpoint``: the loader's place, the model and whatever goes with them, saved in one file, between two steps.

Runs in the consumer's thread.  An interrupt within a step would leave the loader a batch ahead of the model, or the
schedule a step behind it, so signals wait until the step is finished.  Guarantees that a file is of the last finished
step and is there whole or not at all, and that nothing of it is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np

from . import machine
from .engine.options import seconds, whole
from .errors import OptionError, StateError, warn
from .samples.jsonable import decoded, encoded
from .typevars import T
from .worker.seeding import global_generators, globals_state, restore_globals

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Checkpoint:
    """A ``with`` block whose training loop may be interrupted, and goes on where it was.

    Args:
        folder: where the files are; the block begins with the newest of them, if there is one.
        parts: what is saved and loaded: each loader of the loop, and whatever else has ``state_dict()`` and
            ``load_state_dict()``; or a dict of values, arrays, tensors and more dicts, which is filled in place.
        named: more of them, with names: ``model=model``.
        keep: how many of the last files stay.
        every_s: seconds between two files; None for no such limit.
        every_steps: steps between two files; None for no such limit.

    Loop over ``steps(loader)``: what the loop does with a batch is a step, which is finished when the loop asks for the
    next batch or is left.  Where a step takes several batches, loop over the loader itself and call ``step()`` as the
    last thing that a step does.  Ctrl-C, SIGTERM and SIGHUP wait until then, or until the end of an epoch of
    ``epochs()``: there all is saved, the global random generators too, and they do what they would have done.  A second
    Ctrl-C doesn't wait, and loses what came since the last file, as errors do.  The end of the block, also by ``break``
    or ``return``, saves the last finished step; ``finished`` counts them.  Several processes need a folder each.

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
        **named: Any,
    ) -> None:
        whole("keep", keep, least=1)
        whole("every_steps", every_steps, least=1, optional=True)
        seconds("every_s", every_s)
        self.folder = Path(folder).expanduser().absolute()
        self._parts = {str(number): part for number, part in enumerate(parts)} | named
        for name, part in self._parts.items():
            if type(part) is not dict and not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise OptionError(
                    f"part {name} is of type {type(part).__name__}, which has no state_dict() and load_state_dict(): "
                    f"pass a dict, or mpiter.torch.DataLoader for torch's; help(mpiter.Checkpoint) lists the options."
                )
        self.keep, self.every_s, self.every_steps = keep, every_s, every_steps
        self.finished = 0  # steps, those before this block began included
        self.epoch = 0  # complete, of epochs()
        self._loaders = {name: part for name, part in self._parts.items() if hasattr(part, "is_new_epoch")}
        self._places: dict[str, Any] = {}  # of the loaders, after the last finished step
        self._is_open = self._is_within_step = self._counts_epochs = False
        self._begun = 0  # 1 while a step of steps() isn't finished
        self._saved, self._saved_at = (0, 0), 0.0
        self._heard: int | None = None  # the signal that waits
        self._handlers: dict[int, Any] = {}  # as they were before the block

    def __repr__(self) -> str:
        return f"<Checkpoint in {self.folder}: {self.finished} steps finished, {self._saved[0]} of them saved>"

    def __enter__(self) -> Self:
        """Begin with the newest file; find out now whether all can be saved, and delete what was left unfinished."""
        if self._is_open:
            raise StateError("this Checkpoint is in use already; make another one.")
        self._begun, self._heard = 0, None
        self._finish()
        self._as_arrays()
        self.folder.mkdir(parents=True, exist_ok=True)
        machine.new_name(self.folder / ".step-").touch(exist_ok=False)
        for left in self.folder.glob(".step-*"):
            left.unlink(missing_ok=True)
        if files := _files(self.folder):
            self._load(files[-1])
        self._saved, self._saved_at, self._is_open = self._here, time.monotonic(), True
        if threading.current_thread() is threading.main_thread():  # Python tells no other of signals
            for number in _SIGNALS:
                if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN):
                    self._handlers[number] = handler
                    signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._is_open = False
        try:
            if kind is None:
                if self._begun:
                    self._finish()
                if self._here != self._saved:
                    self._save()
                elif self._here == (0, 0) and any(map(self._has_moved, self._loaders)):
                    warn("no step has been finished: loop over c.steps(loader), or call c.step() after each step.")
        finally:
            for number in reversed(_SIGNALS):  # Ctrl-C's last, so that it can't leave the others to us
                if number in self._handlers:
                    signal.signal(number, self._handlers[number])
        if kind is None or issubclass(kind, Exception):
            self._deliver(self._heard, None)

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches of a loader, each of them a step; also of what wraps a loader, if that doesn't read ahead."""
        self._check_use("steps()")
        if self._begun:  # a loop that was left
            self._finish()
            if not self._counts_epochs:
                self._pause()
        for batch in batches:
            self._begun, self._is_within_step = 1, True
            try:
                yield batch
            finally:
                self._is_within_step = False
            self._end_step(batches)

    def step(self) -> None:
        """The step is finished: everything that belongs to it has been updated."""
        self._check_use("step()")
        self.finished += 1
        self._end_step(None)

    def epochs(self, total: int) -> Iterator[int]:
        """The numbers of the epochs from where it stands to ``total``; the first may be the rest of one."""
        self._check_use("epochs()")
        self._counts_epochs = True
        try:
            while self.epoch < total:
                yield self.epoch
                self.epoch += 1
                self._finish()
                self._pause()
        finally:
            self._counts_epochs = False

    @staticmethod
    def read(folder: str | os.PathLike[str]) -> dict[str, Any]:
        """The states in the newest file by the names of their parts, "0", "1" and so on for those without one."""
        if not (files := _files(Path(folder))):
            raise StateError(f"there is no checkpoint in {folder}.")
        states: dict[str, Any] = _read(files[-1])["parts"]
        return states

    def _check_use(self, what: str) -> None:
        if not self._is_open:
            raise StateError(f"{what} belongs into the block: with mpiter.Checkpoint(…) as c: …")
        if self._is_within_step:
            raise StateError(f"{what} within a step of steps(): it is finished when the loop asks for the next batch.")

    @property
    def _here(self) -> tuple[int, int]:
        return self.finished, self.epoch

    def _finish(self) -> None:
        """All parts agree here; from the next batch on the loaders are ahead of the model."""
        self.finished += self._begun
        self._begun = 0
        self._places = {name: loader.state_dict() for name, loader in self._loaders.items()}

    def _has_moved(self, name: str) -> bool:
        """Has a loader gone on since the last finished step?"""
        return repr(self._loaders[name].state_dict()) != repr(self._places[name])

    def _end_step(self, batches: Any) -> None:
        """Finish the step, and save what is to be saved; after an epoch's last one that is up to ``epochs()``.

        A file in between would go on with the empty rest of that epoch, and leave out what comes after it.
        """
        loaders = {name: part for name, part in self._loaders.items() if part is batches} or self._loaders
        has_ended = any(part.is_new_epoch and self._has_moved(name) for name, part in loaders.items())
        self._finish()
        if not (self._counts_epochs and has_ended):
            self._pause()

    def _pause(self) -> None:
        """Between two steps: save if it is time to, and deliver a signal that was held back."""
        if self._heard is not None:
            if self._here != self._saved:
                _say(f"saved: {self._save()}")
            self._deliver(self._heard, None)
        elif self._is_due():
            try:
                self._save()
            except OSError as error:
                self._saved_at = time.monotonic()
                warn(f"nothing could be saved after {self.finished} steps ({error}); the training goes on.")

    def _is_due(self) -> bool:
        if self.every_steps is not None and self.finished - self._saved[0] >= self.every_steps:
            return True
        is_late = self.every_s is not None and time.monotonic() - self._saved_at >= self.every_s
        return is_late and self._here != self._saved

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == self._heard == signal.SIGINT:
            self._deliver(number, frame)
        else:
            self._heard = number
            more = "; once more, and it ends at once" if number == signal.SIGINT else ""
            name = "Ctrl-C" if more else signal.Signals(number).name
            _say(f"{name} waits for the end of this step, or of what follows an epoch, to save all{more}.")

    def _deliver(self, number: int | None, frame: FrameType | None) -> None:
        """Call the handler that the signal had before; most raise."""
        self._heard = None
        if number is not None:
            if not callable(handler := self._handlers[number]):  # the system's own ends a process without any `finally`
                raise SystemExit(128 + number)
            handler(number, frame)

    def _as_arrays(self) -> dict[str, Any]:
        """What a file holds: the memory of arrays and tensors by numbers, and all else in JSON."""
        others = {name: part for name, part in self._parts.items() if name not in self._loaders}
        parts = {name: part if type(part) is dict else part.state_dict() for name, part in others.items()}
        states = {"steps": self.finished, "epoch": self.epoch, "parts": self._places | parts}
        arrays: list[Any] = []
        plain = json.dumps(encoded(states | {"generators": _generators()}, arrays), allow_nan=False).encode()
        return {"states": np.frombuffer(plain, np.uint8)} | {str(at): array for at, array in enumerate(arrays)}

    def _save(self) -> Path:
        path = self.folder / f"step-{self.finished:09d}"
        with machine.replacing(path) as file:
            np.savez(file, **self._as_arrays())
        for old in _files(self.folder)[: -self.keep]:
            old.unlink(missing_ok=True)
        self._saved, self._saved_at = self._here, time.monotonic()
        return path

    def _load(self, path: Path) -> None:
        states = _read(path)
        if states["parts"].keys() != self._parts.keys():
            raise StateError(
                f"{path} holds {', '.join(states['parts'])}, but this Checkpoint was given {', '.join(self._parts)}.  "
                f"Pass the same parts, or take another folder."
            )
        for name in sorted(self._parts, key=lambda name: name not in self._loaders):
            part, state = self._parts[name], states["parts"][name]  # loaders come first: they refuse before any change
            try:
                if type(part) is dict:
                    _filled(part, state, name)
                else:
                    part.load_state_dict(state)
            except Exception as error:
                error.add_note(f"This was part {name} of the checkpoint {path}.")
                raise
        self.finished, self.epoch = states["steps"], states["epoch"]
        _give_back(states["generators"])
        self._finish()


def _say(text: str) -> None:
    """Tell the user: not by print(), in whose midst a signal may come."""
    with contextlib.suppress(OSError):
        os.write(2, f"mpiter: {text}\n".encode())


def _files(folder: Path) -> list[Path]:
    """The files of a folder, the oldest first."""
    return sorted(path for path in folder.glob("step-" + "[0-9]" * 9) if path.is_file())


def _read(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                if (damaged := arrays.zip.testzip()) is not None:
                    raise ValueError(f"the checksum of {damaged} differs")
                memory = [arrays[str(at)] for at in range(len(arrays) - 1)]
                states: dict[str, Any] = decoded(json.loads(bytes(arrays["states"])), memory)
        except Exception as error:
            raise StateError(
                f"{path} cannot be read ({error!r:.200}).  Delete it to go on from the one before it, if there is one."
            ) from error
    return states


def _generators() -> dict[str, Any]:
    """The states of the global random generators, and of the GPUs'."""
    torch = global_generators().get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return globals_state()
    return globals_state() | {"cuda": torch.cuda.get_rng_state_all()}


def _give_back(generators: dict[str, Any]) -> None:
    here = global_generators()
    restore_globals({name: state for name, state in generators.items() if name in here})
    if "cuda" in generators and "torch" in here and here["torch"].cuda.is_available():
        here["torch"].cuda.set_rng_state_all(generators["cuda"][: here["torch"].cuda.device_count()])


def _filled(now: Any, saved: Any, path: str) -> Any:
    """What was saved, in the dicts, arrays and tensors that there are now."""
    if isinstance(now, dict) and isinstance(saved, dict):
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
