"""What all iterators are: Chainer's contract on the outside, the prefetch loop within.

Runs in the consumer's thread.  Guarantees that constructing starts no worker (the fork server at most); that
attributes and ``state_dict()`` describe what has been handed out, never what is prefetched; that ``close()`` works from
any thread, in any state, any number of times, and ends in bounded time, as do dropping the iterator and leaving the
interpreter.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from . import checkpoint, lifetime
from .adjustable import Adjustable
from .awake import interval_for
from .batch import Batch
from .checkpoint import Surroundings
from .communicator import Terminated
from .course import Course, Delivery
from .crew import Crew, Muster
from .cursor import Cursor, Plans
from .errors import IteratorClosed
from .options import Options
from .order import Given, Listed, Order, Sampled, SamplerOfTheMoment, Sequential, Shuffled
from .prefetch import _PrefetchLoop
from .seeding import seed_for
from .starting import interrupts_later
from .stats import Stats
from .transport import Contents
from .watch import Patience


class DatasetIterator(Adjustable):
    """What all iterators are: a place in the epochs, and a loop that fetches from there on."""

    class TimeoutWarning(RuntimeWarning):
        """A batch has been longer in coming than ``dataset_timeout``."""

    _opens: Callable[[Contents], Any] = Batch
    _revives = False  # may be used again after close()
    _passing: tuple[type[BaseException], ...] = (TimeoutWarning,)  # after which what is on its way may still come

    def __init__(self, options: Options) -> None:
        subclass_attributes = frozenset(self.__dict__)
        self._options = options
        options.prepare()
        self._sampling = SamplerOfTheMoment(options.order_sampler)
        self._seed = seed_for(draws=options.shuffles) if options.seed is None else options.seed
        self._loop: _PrefetchLoop | None = None
        self._letting_go: Any = None
        self._generation = 0
        self._in_hand: Delivery | None = None  # taken from the loop, not yet handed out
        self._handed_out = 0  # deliveries of this course
        self._one_at_a_time = threading.RLock()  # next() may be called by several threads
        self._patience = Patience(options.dataset_timeout)
        self._closed = False
        self._last_stats = Stats()
        self._place(Cursor(0, 0, False, self._first_order()))
        self._own = frozenset(self.__dict__) - subclass_attributes | {"_own"}  # what a copy makes anew

    # -- handing out ---------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        with self._one_at_a_time:
            if self._exhausted:
                self._over()
            loop = self._running_loop()
            if self._in_hand is None:
                self._in_hand = self._wait_for(loop)
            loop.mail.deliver()  # a warning may be an error to the user: the batch then stays in hand
            delivery, self._in_hand = self._in_hand, None
            return self._hand_out(loop, delivery)

    def _wait_for(self, loop: _PrefetchLoop) -> Delivery:
        began, glance_s = time.perf_counter(), interval_for(self._options.dataset_timeout)
        try:
            delivery = loop.get(self._stalled, glance_s)
            while delivery.number != self._handed_out:  # Ctrl-C has taken one between the queue and the user
                loop.restart(self._course())
                delivery = loop.get(self._stalled, glance_s)
            return delivery
        except BaseException as error:
            self._interrupted(error)
            raise
        finally:
            loop.tally.wait_s += time.perf_counter() - began

    def next(self) -> Any:
        return self.__next__()

    def _hand_out(self, loop: _PrefetchLoop, delivery: Delivery) -> Any:
        if not delivery.counts:
            self._loop_has_stopped = True
        if delivery.contents is None:
            self._advance(delivery)
            if delivery.error is not None:
                raise delivery.error
            self._over()
        contents: Any = delivery.contents
        try:
            batch = self._opens(contents)
        except Exception:  # samples that cannot be stacked; unlike Ctrl-C, they would come again
            self._advance(delivery)
            raise
        loop.tally.batches += 1
        loop.tally.samples += contents.rows - len(contents.failed)
        self._advance(delivery)
        return batch

    def _advance(self, delivery: Delivery) -> None:
        """In this order: whatever Ctrl-C leaves undone, the next ``next()`` then goes on from the cursor."""
        if delivery.counts:
            self._cursor = delivery.after
        self._handed_out += 1

    def _over(self) -> None:
        self._exhausted = True
        self._cursor = self._cursor._replace(previous_epoch_detail=self._cursor.epoch_detail)
        raise StopIteration

    def _interrupted(self, error: BaseException) -> None:
        """next() was left by Ctrl-C or the end of the loop: nothing has been handed out."""
        if isinstance(error, self._passing):
            return  # what is on its way may still come
        if isinstance(error, Terminated):
            raise IteratorClosed("the iterator was closed while next() waited.") from None
        self._loop_has_stopped = True

    def _stalled(self, seconds: float) -> None:
        """Warn once a batch has been overdue for too long."""
        loop = self._loop
        if loop is not None and self._patience.ends(seconds, loop.is_starting):
            warnings.warn(
                f"no batch for {seconds:.0f} s (dataset_timeout={self._options.dataset_timeout:g}); "
                f"{loop.doings() or 'the dataset may be stuck'}.",
                self.TimeoutWarning,
                stacklevel=4,
            )

    # -- the loop ------------------------------------------------------------------------------------------------

    def _running_loop(self) -> _PrefetchLoop:
        if self._closed:
            if not self._revives:
                raise IteratorClosed("the iterator is closed; make a new one.")
            self._closed = False
        if self._loop is not None and self._loop.pid != os.getpid():
            self._loop = None  # the parent's: this process has been forked
        self._patience.begin()
        if self._loop is None:
            if self._is_at_its_end():
                self._over()
            self._launch()
        elif self._loop_has_stopped:
            self._loop.restart(self._course())
        self._loop_has_stopped = False
        assert self._loop is not None
        return self._loop

    def _is_at_its_end(self) -> bool:
        epochs = self._options.pace.epochs
        return epochs is not None and (self._cursor.epoch >= epochs or len(self._cursor.order) == 0)

    def _launch(self) -> None:
        options = self._options
        rules = options.rules
        transport = options.make_transport()
        muster = Muster(
            backend=options.backend,
            transport=transport,
            workers=options.workers,
            batch_size=self.batch_size,
            reserve=rules.reserve,
            as_samples=self._opens is Batch,
            cargo=options.cargo,
            seed=self._seed,
            sample_timeout=options.sample_timeout if options.has_workers else None,
            max_samples=options.max_samples if options.has_workers else None,
        )
        loop = _PrefetchLoop(rules, transport, partial(Crew, muster))
        self._letting_go = lifetime.end_with(self, loop)
        with interrupts_later():  # Ctrl-C finds either nothing started or everything owned
            try:
                loop.launch(self._course(), threaded=options.has_workers)
            except BaseException:
                self._letting_go.detach()
                loop.stop()
                loop.join()
                raise
            self._loop = loop
        if self._closed:  # meanwhile, by another thread
            self.close()
            raise IteratorClosed("the iterator was closed while next() waited.")

    @property
    def _plans(self) -> Plans:
        return self._options.pace

    def _course(self) -> Course:
        self._generation += 1
        self._handed_out = 0
        return Course(self._generation, self._cursor, self._seed, self._plans)

    def _place(self, cursor: Cursor) -> None:
        """Go on from ``cursor``; whatever is on its way is dropped."""
        self._cursor = cursor
        self._in_hand = None
        self._exhausted = False
        self._loop_has_stopped = False
        if self._loop is not None and self._loop.pid == os.getpid():
            self._loop.restart(self._course())

    def _first_order(self) -> Order:
        sampler, length = self._sampling.sampler, len(self.dataset)
        if sampler is None:
            return self._order_of(0)
        return Sampled(sampler(np.arange(length), 0), self._sampling)

    # -- ending and starting over --------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers and give everything back; batches already handed out stay valid."""
        self._closed = True
        loop, self._loop = self._loop, None
        if loop is not None and loop.pid == os.getpid():
            self._letting_go.detach()
            self._last_stats = loop.stats()
            loop.stop()
            loop.join()

    def finalize(self) -> None:
        """Chainer's name for ``close``."""
        self.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _go_on_with(self, options: Options, cursor: Cursor) -> None:
        """From here on under other options: the workers of before are ended, others begin with the next batch."""
        was_closed = self._closed
        self.close()
        self._closed, self._options = was_closed, options
        self._patience = Patience(options.dataset_timeout)
        self._place(cursor)

    def reset(self) -> None:
        """Start over, from the first epoch."""
        if self._closed and not self._revives:
            raise IteratorClosed("a closed iterator cannot be reset; make a new one.")
        now = self._cursor.order
        order = now.over_again(len(self.dataset)) if isinstance(now, Sampled) else self._first_order()
        self._place(Cursor(0, 0, False, order))

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch handed out, as JSON-able values."""
        return checkpoint.save(self._cursor, self._seed, self._surroundings())

    def load_state_dict(self, state: Any) -> None:
        """Go on from where ``state`` was saved, whatever number of workers it was saved with."""
        if self._closed and not self._revives:
            raise IteratorClosed("a closed iterator cannot load a state; make a new one.")
        cursor, seed = checkpoint.load(state, self._surroundings())
        self._seed = seed
        self._place(cursor)

    def _surroundings(self) -> Surroundings:
        return Surroundings(self._options.pace, len(self.dataset), self._cursor.order)

    def __copy__(self) -> Any:
        other = type(self).__new__(type(self))
        other.__setstate__(self.__getstate__())
        return other

    def __getstate__(self) -> dict[str, Any]:
        sampler = self._sampling.sampler
        shuffle = self._options.shuffle if sampler is None else None
        options = replace(self._options, order_sampler=sampler, shuffle=shuffle, seed=self._seed)
        extra = {name: value for name, value in self.__dict__.items() if name not in self._own}
        indices = self._cursor.order.array() if isinstance(self._cursor.order, Listed) else None
        place = (self._cursor.position, self._cursor.epoch, self._cursor.is_new_epoch)
        return {
            "options": options,
            "extra": extra,
            "place": (*place, self._cursor.previous_epoch_detail),
            "indices": indices,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        DatasetIterator.__init__(self, replace(state["options"], order_sampler=None))
        self._options = state["options"]
        self._sampling.sampler = self._options.order_sampler
        self.__dict__.update(state["extra"])
        position, epoch, is_new_epoch, detail = state["place"]
        self._place(Cursor(position, epoch, is_new_epoch, self._order_of(epoch, state["indices"]), detail))

    def _order_of(self, epoch: int, indices: Any = None) -> Order:
        """The order of an epoch; ``indices`` where they don't follow from the seed."""
        if self._sampling.sampler is not None:
            now = self._cursor.order
            return now.instead(indices) if isinstance(now, Sampled) else Sampled(indices, self._sampling)
        length = len(self.dataset)
        if not self._options.shuffles:
            return Sequential(length)
        if indices is None:
            return Shuffled(length, self._seed, epoch)
        return Given(indices, Shuffled(length, self._seed, epoch + 1))

    # -- what Chainer's trainers read ----------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """What the order and the samples' randomness are drawn from."""
        return self._seed

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The worker processes of the moment; others after they have been replaced."""
        return () if self._loop is None else self._loop.pids

    def stats(self) -> Stats:
        """A snapshot of the counters."""
        return self._last_stats if self._loop is None else self._loop.stats()
