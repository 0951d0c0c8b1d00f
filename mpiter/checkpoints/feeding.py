"""Which loader feeds the steps of a training loop, and when the loop asks it for the next batch.

Runs in the thread of the ``with`` block; what other threads ask for is no business of the loop.  A loop within the
step, for validation say, asks its own loader; the loader of the step is the one that gave the first batch for it, as
long as the iterator that gave it is there.  Assumes CPython, where a ``for`` that is left drops its iterator at once.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from .. import asks
from ..errors import warn

_WITHOUT_STEP_S = 1.0  # that a loop may go on for before it is told that it finishes no step


class Feeding:
    """Calls ``ends_step(is_left)`` when the loop asks for its next batch; ``is_left``: another one does, after it."""

    def __init__(self, loaders: list[Any], ends_step: Callable[[bool], None]) -> None:
        self._loaders, self._ends_step = loaders, ends_step
        self._from: tuple[Any, weakref.ref[Any]] | None = None  # the loader of the step's batch, and its iterator
        self._first_batch: float | None = None  # when it came
        self._is_warned = False
        self._thread = 0
        self.has_stepped = False
        self.is_off = False  # within steps(), where whatever is asked for belongs to the step

    def begin(self) -> None:
        self._thread, self._from, self.is_off = threading.get_ident(), None, False
        asks.listeners.append(self)

    def end(self) -> None:
        if self in asks.listeners:
            asks.listeners.remove(self)

    @property
    def loader(self) -> Any:
        """The loader of the step's batch; None where no loop will ask it for the next one."""
        return None if self._from is None or self._from[1]() is None else self._from[0]

    def forget(self) -> None:
        """The next batch begins a step, whatever loader it is of."""
        self._from = None

    def asked(self, source: object) -> None:
        loader = self.loader
        if self._is_ours(source) and (loader is None or loader is source):
            self.warn_of_no_step()
            self._ends_step(loader is None)
            self.forget()

    def given(self, source: object, iterator: object) -> None:
        if self._is_ours(source) and self.loader is None:
            self._from = source, weakref.ref(iterator)
            self._first_batch = self._first_batch or time.monotonic()

    def _is_ours(self, source: object) -> bool:
        is_here = threading.get_ident() == self._thread and not self.is_off
        return is_here and any(source is loader for loader in self._loaders)

    @property
    def is_without_step(self) -> bool:
        """Have batches come, and nobody has told of a step?"""
        return self._first_batch is not None and not self.has_stepped

    def warn_of_no_step(self) -> None:
        began = self._first_batch
        if self.has_stepped or self._is_warned or began is None or time.monotonic() - began < _WITHOUT_STEP_S:
            return
        self._is_warned = True
        warn(
            "no step has been finished since the first batch came, so nothing is saved and Ctrl-C waits: loop over "
            "c.steps(loader), or call c.step() where the model is updated."
        )
