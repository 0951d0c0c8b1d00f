"""One pass over a loader's dataset: the iterator that the user holds, and who works for it.

Runs in the consumer process.  An *epoch* is what ``iter(loader)`` returns, a *pass* the way through it, a pump goes
it, and *home* is where the pump rests until the next.  Guarantees that an epoch which is dropped halfway gives its
pump back, in whatever thread the garbage collector runs.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Self

from ..errors import SampleError
from ..order.cursor import Cursor
from ..order.order import Order
from ..typevars import B_co
from .drawing import Drawn, Sliced
from .resuming import Place
from .streams import StreamPass


@dataclass
class Pass:
    """One epoch under way."""

    epoch: int
    plans: Sliced | Drawn
    seed: int
    order: Order
    generators: dict[str, Any]  # what the sampler's draws depended on when the epoch began
    batches: int  # handed out, or left out
    ahead: int  # batches that are drawn beyond these, for now
    most: int  # …and may be
    aside: Any = None  # where the sampler's generators are not everybody's
    left_out: int = 0  # batches that its iterator doesn't give
    samples: int = 0  # of the epoch that came before the first batch
    is_shared: bool = False  # by ranks, whose place is a number of samples
    pump: Any = None  # None: nobody goes on with it
    skipped: int = 0  # samples that the pump had left out when the epoch began
    has_come: bool = False  # a batch, or an error in its place
    has_ended: bool = False

    def draw(self) -> None:
        """Ask the sampler for what may soon be fetched."""
        with self.aside or contextlib.nullcontext():
            self.plans.draw(self.batches + self.ahead)

    def go(self) -> None:
        """Have the batches from here on fetched."""
        assert self.pump is not None
        here = Cursor(self.batches, self.epoch, False, self.order)
        self.skipped = self.pump.skipped
        self.pump.go(here, self.plans, self.seed)
        self.pump.start()

    def skip(self, batches: int) -> None:
        """Leave some out."""
        self.batches += batches
        self.draw()
        self.go()

    def place(self) -> Place:
        """Where it could go on."""
        if isinstance(self.plans, Sliced) and (self.is_shared or self.samples):
            samples = min(self.plans.samples(self.batches), len(self.order))
            return Place(self.epoch, 0, 0, self.generators, samples=samples)
        drawn, since = self.plans.checksum(self.batches), self.plans.since(self.batches)
        return Place(self.epoch, self.batches, drawn, self.generators, samples=self.samples, since=since)

    def next(self) -> Any:
        """The next batch."""
        pump = self.pump
        if pump is None:
            raise StopIteration
        self._go_on()
        try:
            batch = pump.next(passed=self._go_on)
            self.has_come = True
            return batch
        except StopIteration:
            if not (self.has_come or self.left_out or self.samples) and pump.skipped > self.skipped:
                self.has_come = True
                raise SampleError("on_error='skip' has left out a whole epoch: stats().skips has the first.") from None
            raise
        except Exception as error:
            self.has_come = True
            self.plans.forget_error(error)
            raise
        finally:
            self._note()

    def _note(self) -> None:
        """Where the pump is."""
        self.batches = self.pump.cursor.position
        self.plans.forget(self.batches)

    def _go_on(self) -> None:
        """Ask for what comes next, in the consumer's thread, whose the sampler is."""
        self._note()
        if self.pump.was_hungry():  # one more each time, so that nobody waits for many
            self.ahead = min(self.ahead + 1, self.most)
        self.draw()
        self.pump.wake()


def known(length: int | None) -> int:
    """The batches of an epoch, for ``len()``."""
    if length is None:
        raise TypeError("nobody knows how many batches come: the sampler has no length.")
    return length


def how_far(current: Pass | StreamPass) -> str:
    """Which epoch, and how much of it."""
    return f"epoch {current.epoch}, {current.batches} batch{'es' * (current.batches != 1)} handed out"


class Home:
    """Where workers stay between epochs."""

    def __init__(self, persistent: bool) -> None:
        self.persistent = persistent
        self.closed = False
        self.going: weakref.WeakSet[Any] = weakref.WeakSet()  # who has been sent out
        self.under_way: weakref.WeakSet[Epoch[Any]] = weakref.WeakSet()
        self.resting: Any = None  # who waits for the next epoch

    def leave(self) -> Any:
        """Somebody to go on the next epoch, if there is anybody."""
        pump, self.resting = self.resting, None
        return pump

    def take_back(self, current: Pass | StreamPass) -> None:
        """Nobody wants the rest of this epoch.  Called by the garbage collector too, so nothing is waited for: a
        pump that nobody holds ends by itself."""
        pump, current.pump = current.pump, None
        if self.persistent and not self.closed and self.resting is None:
            self.resting = pump

    def close(self) -> None:
        """End everybody."""
        self.closed = True
        for pump in list(self.going):
            pump.close()
        for epoch in list(self.under_way):
            epoch.forget()


class Epoch(Generic[B_co]):
    """An iterator over the batches of one epoch: what ``iter(loader)`` returns."""

    def __init__(
        self,
        current: Pass | StreamPass,
        home: Home,
        length: Callable[[], int | None],
        count: Callable[[int], None],
        task: Callable[[], str],
        loader: object,
    ) -> None:
        self._pass, self._home, self._length, self._count, self._task = current, home, length, count, task
        self._loader = loader
        self._one_at_a_time = threading.RLock()
        self._end = weakref.finalize(self, home.take_back, current)
        self._end.atexit = False
        home.under_way.add(self)

    def forget(self) -> None:
        """There is nobody to be taken back: what an error has come by (its traceback holds us) need not be kept."""
        self._end.detach()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._task()}: {how_far(self._pass)}>"

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """The batches that it gives: after a resume, those that are left."""
        return max(0, known(self._length()) - self._pass.left_out)

    def __next__(self) -> B_co:
        with self._one_at_a_time:
            pump = self._pass.pump
            try:
                batch: B_co = self._pass.next()
            except StopIteration:
                self._pass.has_ended = self._pass.has_ended or pump is not None
                self._end()
                if pump is not None and not self._home.persistent:
                    pump.close()
                if pump is not None and not self._pass.batches:
                    self._count(0)
                raise
            self._count(self._pass.batches)
        return batch
