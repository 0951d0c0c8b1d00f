"""Samples under way: those that one worker reads at the same time.

Where samples wait for a store, a worker begins several of them, also those of the
blocks that come next.  Threads call a plain ``__getitem__``; an event loop runs one
that is ``async def``.  The worker's own thread takes the samples in the order of their
rows, and writes each as if it had just read it: so order, errors, and what is left out
are the same as one by one.  Each sample has a frame of its own, by which its random
draws depend on its place only.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from ..datasets.columns import InBatches, users
from ..errors import OptionError
from ..samples.copying import Look, Refilled
from . import home
from .here import Frame, WorkerInfo, here

# Samples that one worker has under way if its dataset is ``async`` and no number given.
ASYNC = 16
# Rows that are whole batches, and that are made at the same time.  While the last
# samples of one are waited for, those of the next are begun.
ROWS = 2


def is_async(dataset: object) -> bool:
    """True if the dataset's ``__getitem__`` is ``async def``."""
    read = getattr(type(users(dataset)), "__getitem__", None)
    return inspect.iscoroutinefunction(read)


def refuse_async(dataset: object, name: str, reader: str) -> None:
    """Raise an OptionError if ``reader`` would get coroutines from ``dataset``."""
    if is_async(dataset):
        raise OptionError(
            f"{name} has `async def __getitem__`, which {reader} doesn't await: write "
            "a plain one, and pass concurrency=."
        )


def refuse_async_within(dataset: object) -> None:
    """Raise an OptionError if a dataset hands out the coroutines of another one."""
    within = getattr(users(dataset), "dataset", None)
    if within is not None and is_async(within) and not is_async(dataset):
        raise OptionError(_NOT_ASYNC.format(type(users(dataset)).__qualname__))


class Closed(BaseException):
    """The iterator was closed, so that a sample which was waited for isn't wanted."""


class _Missed:
    """Keeps the failures of samples within a row that is made of several."""

    def __init__(self) -> None:
        self.parts = list[tuple[BaseException, object, int]]()
        self._born = home.generation

    def part(self, error: BaseException, key: object, at: int) -> None:
        self.let_pass(error)
        self.parts.append((error, key, at))

    def let_pass(self, error: BaseException) -> None:
        # The dataset has forked this process, which isn't the worker; or the row itself
        # isn't wanted any more.
        if home.generation != self._born or isinstance(error, Closed):
            raise error


class Reading:
    """A sample that is being read, or was, or will be."""

    def __init__(
        self,
        dataset: Any,
        key: object,
        frame: Frame,
        missed: _Missed | None = None,
        looks: bool = False,
    ) -> None:
        self._dataset = dataset
        # Others are read before this sample is written.  If one of these uses its
        # memory again, that is noticed.
        self._looks = looks
        self._look: Look | None = None
        self._key = key
        self.frame = frame
        # What failed within the sample, if it is made of several.
        self.missed = missed or _Missed()
        self._future: Future[Any] = Future()
        # Processor time that it took.
        self.cpu_s = 0.0

    def run(self) -> None:
        """Read the sample in this thread."""
        if not self._future.set_running_or_notify_cancel():
            return
        here.now = self.frame
        began = time.thread_time()
        try:
            sample = self._dataset[self._key]
            if inspect.iscoroutine(sample):
                sample.close()
                raise TypeError(_NOT_ASYNC.format(type(self._dataset).__qualname__))
            self._have_come(sample)
        except BaseException as error:
            self.cpu_s = time.thread_time() - began
            self._future.set_exception(error)
        else:
            self.cpu_s = time.thread_time() - began
            self._future.set_result(sample)

    async def run_in_loop(
        self, spent: Callable[[], float], is_over: threading.Event
    ) -> None:
        """Read the sample in an event loop.

        ``spent`` returns the processor time of the loop since its last call.
        ``is_over`` is set when samples under way are cancelled.
        """
        if not self._future.set_running_or_notify_cancel():
            return
        # Tasks that the sample begins inherit this.
        here.now = self.frame
        try:
            sample = self._dataset[self._key]
            if inspect.isawaitable(sample):
                sample = await sample
            self._have_come(sample)
        except BaseException as error:
            self.cpu_s = spent()
            self._future.set_exception(Closed() if is_over.is_set() else error)
        else:
            self.cpu_s = spent()
            self._future.set_result(sample)

    def cancel(self) -> None:
        """Don't begin it, if it wasn't begun."""
        self._future.cancel()

    def close(self) -> None:
        """Don't begin it: what waits for it gets ``Closed``."""
        if self._future.set_running_or_notify_cancel():
            self._future.set_exception(Closed())

    def wait(self) -> None:
        """Wait for its end, whatever that is."""
        if not self._future.cancelled():
            self._future.exception()

    def _have_come(self, sample: object) -> None:
        if self._looks:
            self._look = Look(sample)

    def result(self) -> Any:
        """Wait for the sample and return it, or raise what was raised for it.

        Raise Refilled if its memory was used for another one meanwhile.
        """
        sample = self._future.result()
        if self._look is not None and self._look.has_changed():
            raise Refilled
        return sample


_NOT_ASYNC = (
    "{0}[key] returned a coroutine, and {0}.__getitem__ isn't `async def`: write "
    "`async def __getitem__` in the class of the dataset that is loaded from, and "
    "`await` the other dataset there."
)


class _Runner(Protocol):
    """Begins readings, as many at a time as it may.

    Once it is closed, which any thread may do, it closes those that weren't begun.
    """

    def start(self, reading: Reading) -> None: ...

    def close(self) -> None: ...


class _Threads:
    """Threads, started as they are needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inbox: SimpleQueue[Reading | None] = SimpleQueue()
        # The garbage collector may close it in a thread that has the lock.
        self._lock = threading.RLock()
        # guarded by _lock:
        self._is_over = False
        self._started = 0

    def start(self, reading: Reading) -> None:
        with self._lock:
            if self._is_over:
                reading.close()
                return
            self._inbox.put(reading)
            if self._started < self._most:
                self._started += 1
                threading.Thread(
                    target=_run_readings,
                    args=(self._inbox,),
                    name=f"mpiter-reading-{self._started}",
                    daemon=True,
                ).start()

    def close(self) -> None:
        with self._lock:
            self._is_over = True
            with contextlib.suppress(Empty):
                while True:
                    reading = self._inbox.get_nowait()
                    if reading is not None:
                        reading.close()
            for _ in range(self._started):
                self._inbox.put(None)


def _run_readings(inbox: SimpleQueue[Reading | None]) -> None:
    born = home.generation
    while True:
        reading = inbox.get()
        if reading is None:
            return
        reading.run()
        if home.generation != born:
            raise RuntimeError(
                "a dataset has forked this process, which returned from it as if it "
                "were the worker. End it with os._exit() or sys.exit()."
            )
        # While this waits, the sample shouldn't stay.
        del reading


class _Loop:
    """An event loop in a thread of its own, started when it is needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None
        # The garbage collector may close it in a thread that has the lock.
        self._lock = threading.RLock()
        # guarded by _lock: nothing is sent to the loop behind the order to stop.
        self._is_over = threading.Event()
        # In the loop's thread only: the tasks that run, and readings that wait.
        self._tasks = set[asyncio.Task[None]]()
        self._waiting = deque[Reading]()
        self._spent = 0.0

    def start(self, reading: Reading) -> None:
        with self._lock:
            if self._is_over.is_set():
                reading.close()
                return
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_loop,
                    args=(self._loop, self._is_over),
                    name="mpiter-event-loop",
                    daemon=True,
                ).start()
            self._loop.call_soon_threadsafe(self._begin, reading)

    def _begin(self, reading: Reading) -> None:
        if self._is_over.is_set():
            reading.close()
            return
        if len(self._tasks) >= self._most:
            self._waiting.append(reading)
            return
        assert self._loop is not None
        task = self._loop.create_task(
            reading.run_in_loop(self._cpu_since, self._is_over)
        )
        # The loop itself refers to its tasks weakly.
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            self._begin(self._waiting.popleft())

    def _cpu_since(self) -> float:
        now = time.thread_time()
        before = self._spent
        self._spent = now
        return now - before

    def close(self) -> None:
        with self._lock:
            if self._is_over.is_set():
                return
            self._is_over.set()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        for reading in self._waiting:
            reading.close()
        self._waiting.clear()
        assert self._loop is not None
        self._loop.stop()


def _run_loop(loop: asyncio.AbstractEventLoop, is_over: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    try:
        while not is_over.is_set():
            # A task that a sample has begun, and that raises SystemExit or Ctrl-C,
            # stops the loop with that.  The task keeps it for the sample, which gets it
            # once the loop goes on.  A sample may also stop the loop.
            with contextlib.suppress(BaseException):
                loop.run_forever()
        # The iterator was closed.  What is under way isn't wanted any more.
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class Arriving:
    """Samples under way as a dataset: ``arriving[row]`` waits for that one.

    Rows are asked for one after the other.  ``begins`` yields their readings, of which
    ``most`` are begun at first, and one more as each is taken: a batch may have
    countless rows.
    """

    def __init__(
        self,
        begins: Iterator[Reading],
        start: Callable[[Reading], None],
        most: int,
        spent: Callable[[float], None],
    ) -> None:
        self._begins = begins
        self._start = start
        self._spent = spent
        self._begun = deque[Reading]()
        for reading in islice(begins, most):
            self._begun.append(reading)
            start(reading)

    def __getitem__(self, row: int) -> Any:
        reading = self._begun.popleft()
        try:
            return reading.result()
        finally:
            for following in islice(self._begins, 1):
                self._begun.append(following)
                self._start(following)
            self._spent(reading.cpu_s)
            # This thread's frame tells of what came up, and hears of what failed within
            # the row.
            frame = here.now
            frame.notices += reading.frame.notices
            if frame.hearer is not None:
                for part in reading.missed.parts:
                    frame.hearer.part(*part)

    def cancel(self) -> list[Reading]:
        """Begin no more; return the readings that were begun and not taken."""
        for reading in self._begun:
            reading.cancel()
        return [*self._begun]


class _OneByOne:
    """A dataset that is ``async``, of which one sample at a time is under way."""

    def __init__(self, dataset: Any, start: Callable[[Reading], None]) -> None:
        self._dataset = dataset
        self._start = start

    def __getitem__(self, key: object) -> Any:
        # In the frame of this thread: it has the place, what is seeded, and the hearer.
        reading = Reading(self._dataset, key, here.now)
        self._start(reading)
        return reading.result()


# The place of a row: seed, epoch, position.
_Place = tuple[int, int, int]
# A row's place and key.
Placed = tuple[_Place, object]


class UnderWay:
    """The samples that a worker has under way, by the numbers of their blocks."""

    def __init__(self, dataset: Any, info: WorkerInfo, most: int) -> None:
        self._dataset = dataset
        self._info = info
        self._is_async = is_async(dataset)
        # As many samples again as may be under way are begun when one of those ends.
        self._ahead = 2 * most
        self._samples: _Runner
        if self._is_async:
            self._samples = _Loop(most)
        else:
            self._samples = _Threads(most)
        self._rows = self._samples
        runners = [self._samples]
        self._makes_batches = isinstance(dataset, InBatches)
        if self._makes_batches:
            self._rows = _Threads(ROWS)
            runners.append(self._rows)
        self._begun = dict[int, Arriving]()
        # Blocks that have come and whose rows are to be read with nothing beside them.
        self.alone = set[int]()
        # Held by the thread that begins blocks ahead, while it looks whether it may.
        self.ahead = threading.Lock()
        self._cpu_s = 0.0
        self._close = weakref.finalize(self, _close, runners)
        self._close.atexit = False

    def close(self) -> None:
        """Read nothing more; any thread may call this.

        Coroutines are cancelled, and what waits for a sample gets ``Closed``.  Threads
        end once they have read what they read now.
        """
        self._close()

    def begin(self, number: int, rows: Iterator[Placed]) -> Arriving:
        """Begin to read the rows of a block, unless they were begun; return them."""
        arriving = self._begun.get(number)
        if arriving is None:
            arriving = Arriving(
                self._readings(rows), self._rows.start, self._ahead, self._spend
            )
            self._begun[number] = arriving
        return arriving

    def _readings(self, rows: Iterator[Placed]) -> Iterator[Reading]:
        for place, key in rows:
            at = partial(_same, place)
            looks = not self._makes_batches
            reading = self._reading(self._dataset, key, at, looks)
            if self._makes_batches:
                reading.frame.reading = self._within
            yield reading

    def drop(self, number: int) -> None:
        """Forget a block; of its rows those that weren't begun won't be."""
        arriving = self._begun.pop(number, None)
        if arriving is not None:
            arriving.cancel()

    def settle(self) -> None:
        """Wait until nothing is under way any more."""
        # What forbids another block to be begun was set before.
        with self.ahead:
            pass
        for number in [*self._begun]:
            for reading in self._begun.pop(number).cancel():
                reading.wait()

    def singly(self, frame: Frame) -> Any:
        """Return the dataset as one whose samples are read one by one."""
        if not self._is_async:
            return self._dataset
        if not self._makes_batches:
            return _OneByOne(self._dataset, self._samples.start)
        frame.reading = self._one_within
        return self._dataset

    def take_cpu_s(self) -> float:
        """Return the processor time of the samples that were taken; begin anew."""
        found = self._cpu_s
        self._cpu_s = 0.0
        return found

    def _spend(self, cpu_s: float) -> None:
        self._cpu_s += cpu_s

    def _reading(
        self, dataset: Any, key: object, at: Callable[[], _Place], looks: bool = False
    ) -> Reading:
        """Return a reading with a frame of its own."""
        missed = _Missed()
        frame = Frame()
        frame.worker = self._info
        frame.at = at
        frame.hearer = missed
        return Reading(dataset, key, frame, missed, looks)

    def _within(self, dataset: Any, keys: Sequence[object]) -> Arriving:
        """Begin to read the samples of a row that is a whole batch."""
        readings = self._parts(dataset, keys, here.now)
        return Arriving(readings, self._samples.start, self._ahead, self._spend)

    def _parts(
        self, dataset: Any, keys: Sequence[object], row: Frame
    ) -> Iterator[Reading]:
        assert row.at is not None
        for number, key in enumerate(keys):
            reading = self._reading(dataset, key, row.at)
            reading.frame.beyond = number
            yield reading

    def _one_within(self, dataset: Any, keys: Sequence[object]) -> Any:
        """Return the samples of such a row, each read when it is asked for."""
        read = _OneByOne(dataset, self._samples.start)
        return _Later(read, keys)


class _Later:
    """The samples with some keys, each read when it is asked for."""

    def __init__(self, dataset: Any, keys: Sequence[object]) -> None:
        self._dataset = dataset
        self._keys = keys

    def __getitem__(self, row: int) -> Any:
        return self._dataset[self._keys[row]]


def _same(place: _Place) -> _Place:
    return place


def _close(runners: Sequence[_Runner]) -> None:
    for runner in runners:
        runner.close()
