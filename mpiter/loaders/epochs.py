"""One pass over a loader's dataset: the iterator that the user holds, and who works for it.

Runs in the consumer process.  An *epoch* is what ``iter(loader)`` returns, a *pass* the way through it, a pump goes
it, and *home* is where the pump rests until the next.  Guarantees that an epoch which is dropped halfway gives its
pump back, in whatever thread the garbage collector runs.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Generic, Self

from ..errors import SampleError
from ..order.cursor import Cursor, Pace
from ..order.order import Order
from ..typevars import B_co
from .drawing import Drawn
from .place import Place

_FEW = 4  # batches that a sampler is asked for at once, until it is known how many are needed


class Pass:
    """One epoch under way."""

    aside: Any = None  # where the sampler's generators are not those that all others draw from
    pump: Any = None  # None: nothing goes on with it
    batches = 0  # that have been handed out
    left_out = 0  # …and that were skipped on the way
    has_ended = False
    _skipped = 0  # samples that the pump had left out when the epoch began
    _has_come = False  # a batch, or an error in its place

    def __init__(
        self, place: Place, plans: Pace | Drawn, seed: int, order: Order, generators: dict[str, Any], most: int
    ) -> None:
        self.epoch, self.begun, self.position = place.epoch, place.position, place.position
        self.plans, self.generators = plans, generators
        self._seed, self._order, self._most = seed, order, most
        self._ahead = min(_FEW, most)  # batches that are drawn beyond those handed out, for now
        if isinstance(plans, Drawn):  # as far as when the last of them was handed out
            plans.go_to(place, generators)
            plans.draw(self.position, self._ahead - (place.drawn > 0))

    def go(self) -> None:
        """Have the batches from here on fetched."""
        self._skipped = self.pump.skipped
        self.pump.go(Cursor(self.position, self.epoch, False, self._order), self.plans, self._seed)
        with contextlib.suppress(StopIteration):  # it is plain that nothing comes
            self.pump.start()

    def skip(self, positions: int) -> None:
        """Leave some out."""
        self.position += positions
        if isinstance(self.plans, Drawn):
            with self.aside or contextlib.nullcontext():
                self.plans.skip(self.position)
                self.plans.draw(self.position, self._ahead)
        self.go()

    def place(self) -> Place:
        """Where it could go on."""
        known = self.plans.place(self.position) if isinstance(self.plans, Drawn) else Place(self.epoch)
        return known._replace(position=self.position, generators=self.generators)

    def next(self) -> Any:
        """The next batch."""
        pump = self.pump
        if pump is None:
            raise StopIteration
        self._go_on()
        try:
            batch = pump.next(passed=self._go_on)
            self._has_come = True
            self.batches += 1
            return batch
        except StopIteration:
            if not (self._has_come or self.begun or self.left_out) and pump.skipped > self._skipped:
                self._has_come = True
                raise SampleError("on_error='skip' has left out a whole epoch: stats().skips has the first.") from None
            raise
        except Exception as error:
            self._has_come = True
            if isinstance(self.plans, Drawn):
                self.plans.forget_error(error)
            raise
        finally:
            self._note()

    def _note(self) -> None:
        """Where the pump is."""
        here = self.pump.cursor
        self.position = here.position if here.epoch == self.epoch else len(self._order)

    def _go_on(self) -> None:
        """Ask for what comes next, in the consumer's thread, whose the sampler is."""
        self._note()
        if isinstance(self.plans, Drawn):
            if self.pump.was_hungry():  # one more each time, so that nothing waits for many
                self._ahead = min(self._ahead + 1, self._most)
            with self.aside or contextlib.nullcontext():
                self.plans.draw(self.position, self._ahead)
            self.pump.wake()


class Home:
    """Where workers stay between epochs."""

    def __init__(self, persistent: bool) -> None:
        self.persistent, self.closed = persistent, False
        self.going: weakref.WeakSet[Any] = weakref.WeakSet()  # the pumps that have been sent out
        self.under_way: weakref.WeakSet[Epoch[Any]] = weakref.WeakSet()
        self.resting: Any = None  # the pump that waits for the next epoch

    def take_back(self, current: Any) -> None:
        """The rest of this epoch isn't wanted.  Called by the garbage collector too, so nothing is waited for: a pump
        that nothing holds ends by itself."""
        pump, current.pump = current.pump, None
        if self.persistent and not self.closed and self.resting is None:
            self.resting = pump

    def close(self) -> None:
        """End all pumps."""
        self.closed = True
        for pump in list(self.going):
            pump.close()
        for epoch in list(self.under_way):  # what an error has come by (its traceback holds them) need not be kept
            epoch.end.detach()


class Epoch(Generic[B_co]):
    """An iterator over the batches of one epoch: what ``iter(loader)`` returns."""

    def __init__(self, loader: Any, current: Any, home: Home) -> None:
        self._loader, self.current, self._home = loader, current, home
        self._one_at_a_time = threading.RLock()
        self.end = weakref.finalize(self, home.take_back, current)
        self.end.atexit = False
        home.under_way.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._loader.told_of(self.current)}>"

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """The batches that it gives: after a resume, those that are left."""
        return self._loader.length_of(self.current)  # type: ignore[no-any-return]

    def __next__(self) -> B_co:
        with self._one_at_a_time:
            pump = self.current.pump
            try:
                batch: B_co = self.current.next()
            except StopIteration:
                self.current.has_ended = self.current.has_ended or pump is not None
                self.end()
                if pump is not None and not self._home.persistent:
                    pump.close()
                if pump is not None and not self.current.position:
                    self._loader._count(0)
                raise
            self._loader._count(self.current.position)
        return batch
