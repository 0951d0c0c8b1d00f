"""One pass over a loader's dataset: the iterator that the user holds, and who works for it.

Runs in the consumer process.  An *epoch* is what ``iter(loader)`` returns, a *trip* the way through it, an engine goes
it, and *home* is where the engine rests until the next.  Guarantees that an epoch which is dropped halfway gives its
engine back, in whatever thread the garbage collector runs.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from .cursor import Cursor
from .drawing import Drawn, Sliced
from .order import Order
from .resuming import Place
from .streams import StreamTrip


@dataclass
class Trip:
    """One epoch under way."""

    epoch: int
    plans: Sliced | Drawn
    seed: int
    order: Order
    luck: dict[str, Any]  # what the sampler's draws depended on when the epoch began
    batches: int  # handed out, or left out
    ahead: int  # batches that are drawn beyond these, for now
    most: int  # …and may be
    aside: Any = None  # where the sampler's generators are not everybody's
    engine: Any = None  # None: nobody goes on with it
    has_ended: bool = False

    def draw(self) -> None:
        """Ask the sampler for what may soon be fetched."""
        with self.aside or contextlib.nullcontext():
            self.plans.draw(self.batches + self.ahead)

    def go(self) -> None:
        """Have the batches from here on fetched."""
        assert self.engine is not None
        self.engine.go(self.plans, Cursor(self.batches, self.epoch, False, self.order), self.seed)
        self.engine.start()

    def skip(self, batches: int) -> None:
        """Leave some out."""
        self.batches += batches
        self.draw()
        self.go()

    def place(self) -> Place:
        """Where it could go on."""
        return Place(self.epoch, self.batches, self.plans.checksum(self.batches), self.luck)

    def next(self) -> Any:
        """The next batch."""
        engine = self.engine
        if engine is None:
            raise StopIteration
        if engine.is_hungry:  # one more each time, so that nobody waits for many
            self.ahead = min(self.ahead + 1, self.most)
        self.draw()
        engine.wake()
        try:
            return next(engine)
        except Exception as error:
            self.plans.told(error)
            raise
        finally:
            self.batches = engine.batches
            self.plans.forget(self.batches)


class Home:
    """Where workers stay between epochs."""

    def __init__(self, persistent: bool) -> None:
        self.persistent = persistent
        self.closed = False
        self.going: weakref.WeakSet[Any] = weakref.WeakSet()  # who has been sent out
        self._resting: Any = None

    def leave(self) -> Any:
        """Somebody to go on the next epoch, if there is anybody."""
        engine, self._resting = self._resting, None
        return engine

    def take_back(self, trip: Trip | StreamTrip) -> None:
        """Nobody wants the rest of this epoch.  Called by the garbage collector too, so nothing is waited for: an
        engine that nobody holds ends by itself."""
        engine, trip.engine = trip.engine, None
        if self.persistent and not self.closed and self._resting is None:
            self._resting = engine

    @property
    def resting(self) -> Any:
        """Who waits for the next epoch."""
        return self._resting

    def close(self) -> None:
        """End everybody."""
        self.closed = True
        for engine in list(self.going):
            engine.close()


class Epoch:
    """An iterator over the batches of one epoch: what ``iter(loader)`` returns."""

    def __init__(self, trip: Trip | StreamTrip, home: Home, length: int | None, count: Any) -> None:
        self._trip, self._home, self._length, self._count = trip, home, length, count
        self._one_at_a_time = threading.RLock()
        self._end = weakref.finalize(self, home.take_back, trip)
        self._end.atexit = False

    def __iter__(self) -> Epoch:
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the sampler has no length, so neither has the epoch.")
        return self._length

    def __next__(self) -> Any:
        with self._one_at_a_time:
            engine = self._trip.engine
            try:
                batch = self._trip.next()
            except StopIteration:
                self._trip.has_ended = self._trip.has_ended or engine is not None
                self._end()
                if engine is not None and not self._home.persistent:
                    engine.close()
                raise
            self._count(self._trip.batches)
            return batch
