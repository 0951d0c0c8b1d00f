"""A Pool with ``multiprocessing.Pool``'s interface, a pair of pipes for each worker, and no thread of its own.

Runs in the thread that uses it: only ``wait`` waits, for answers, ends of workers and its bell; callbacks run there
(``get`` and ``join`` call it).  Guarantees that one worker's end is no concern of the others: its pipes are its own,
what it sent counts, and its place is filled beside them.  A job is with the ready worker that has least to do, two with
each, so that none idles for a round trip.  Without ``ended`` a job lost with its worker fails with WorkerCrashed.
"""

from __future__ import annotations

import itertools
import os
import pickle
import selectors
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing import get_context
from typing import Any

from ..bell import Bell
from ..errors import WorkerCrashed, WorkerStartError, could_not_start
from . import starting
from .jobs import Job, Result, applied, chunks, taken
from .member import Exit, Member, State, end_all, kill_all, started
from .pipes import READY, Answer

MOST_OUT = 2  # jobs with one worker: one in hand, one in its pipe


class Pool:
    """Worker processes that call functions.

    Args:
        processes, initializer, initargs, context: as ``multiprocessing.Pool`` has them.
        bell: what wakes ``wait``, if it is to outlive this Pool.
        ended: is told of every worker that ended, with what it had been asked; ``start`` fills its place.
        destinations: says where the large buffers of an answer are to be read to, by the first item of its task.

    >>> with Pool(2) as pool:
    ...     pool.map_async(abs, [-1, 2]).get()
    [1, 2]
    """

    shares_fate = False  # one worker's end is one worker's matter

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        context: Any = None,
        bell: Bell | None = None,
        ended: Callable[[Exit], object] | None = None,
        destinations: Callable[[Any, Sequence[int]], Sequence[memoryview] | None] | None = None,
    ) -> None:
        if (count := os.cpu_count() or 1 if processes is None else processes) < 1:
            raise ValueError("Number of processes must be at least 1")
        self._context = context or get_context()
        self._begin = initializer, tuple(initargs)
        self._tell, self._destinations, self._is_alone = ended or self._replace, destinations, ended is None
        self._bell, self._owns_bell = bell or Bell(), bell is None
        self._workers: dict[int, Member] = {}
        self._jobs = itertools.count()
        self._backlog: deque[Job] = deque()
        self._happened: deque[Callable[[], object]] = deque()  # what wait() has still to deal with
        self._is_open, self._can_start = True, False  # can: somebody was ready since one ended at its start
        self._failure: Exception | None = None  # why there is no going on
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ, self._bell.hush)
        self._finalizer = weakref.finalize(self, kill_all, self._workers, os.getpid())
        self._finalizer.atexit = False  # multiprocessing ends its daemons itself
        try:
            starting.start_tracker()
            for number in range(count):
                self.start(number)
        except BaseException:
            self.terminate()
            raise

    # -- tasks ---------------------------------------------------------------------------------------------------

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[Any]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> Result:
        """``func`` of each item; ``callback`` gets the list of what it returned, or ``error_callback`` what it raised.

        Both are called by ``wait``.
        """
        items = iterable if isinstance(iterable, list) else list(iterable)
        result = Result(self.wait, len(items), callback, error_callback, single=False)
        for at, some in chunks(items, chunksize, len(self._workers)):
            self._enter(result, at, some, func)
        return result

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: dict[str, Any] | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> Result:
        """``func(*args, **kwds)``, likewise."""
        result = Result(self.wait, 1, callback, error_callback, single=True)
        self._enter(result, 0, [(func, tuple(args), kwds or {})], applied)
        return result

    def map(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None) -> list[Any]:
        """``map_async(…).get()``"""
        return list(self.map_async(func, iterable, chunksize).get())

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: dict[str, Any] | None = None) -> Any:
        """``apply_async(…).get()``"""
        return self.apply_async(func, args, kwds).get()

    def _enter(self, result: Result, at: int, items: list[Any], func: Any) -> None:
        if not self._is_open:
            raise self._failure or ValueError("Pool not running")
        job = Job(next(self._jobs), result, at, items)
        try:
            job.pickled = pickle.dumps((func, items), 5)
        except Exception as error:
            self._fail([job], error)
        else:
            self._backlog.append(job)
            self._assign()

    def _fail(self, jobs: Iterable[Job], error: BaseException) -> None:
        """They will not be answered."""
        self._happened.extend(partial(job.fail, error) for job in jobs)
        self._bell.ring()

    @property
    def vacancies(self) -> int:
        """How many more tasks would be with a worker at once, or with the first one that is ready."""
        free = [MOST_OUT - len(worker.out) for worker in self._workers.values() if worker.takes_tasks]
        return (sum(free) if free else 1) - len(self._backlog)

    @property
    def has_idle_worker(self) -> bool:
        """Has somebody who could work nothing to do?"""
        return any(worker.takes_tasks and not worker.out for worker in self._workers.values())

    def _assign(self) -> None:
        """Hand out what waits."""
        while self._backlog:
            able = [worker for worker in self._workers.values() if worker.takes_tasks]
            chosen = min(able, key=lambda worker: (len(worker.out), worker.latest), default=None)
            if chosen is None or len(chosen.out) >= MOST_OUT:
                return
            job = self._backlog.popleft()
            chosen.out[job.number], chosen.latest = job, job.number
            self._wait_for_room(chosen, not chosen.end.send(job.number, job.pickled))

    def _wait_for_room(self, worker: Member, wanted: bool) -> None:
        """Have ``wait`` look out for room in its pipe, or no longer."""
        if wanted and not worker.is_full:
            self._selector.register(worker.end.tasks, selectors.EVENT_WRITE, partial(self._go_on_sending, worker))
        elif worker.is_full and not wanted:
            self._selector.unregister(worker.end.tasks)
        worker.is_full = wanted

    def _go_on_sending(self, worker: Member) -> None:
        if self._has(worker):
            self._wait_for_room(worker, not worker.end.flush())

    # -- what happens --------------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> None:
        """Wait until something happens, and deal with it: callbacks run here, and raise here; the rest is kept."""
        if self._selector.get_map() is None:
            raise ValueError("Pool not running")
        if not self._happened:
            for key, _ in self._selector.select(timeout):
                key.data()
        while self._happened:
            self._happened.popleft()()

    def _has(self, worker: Member) -> bool:
        """Is it with us?  Of an end we may be told before we are told of what came before."""
        return self._workers.get(worker.number) is worker

    def _hear(self, worker: Member) -> None:
        """Read its answers."""
        if not self._has(worker):
            return
        try:
            for answer in worker.end.receive():
                if answer.number != READY:
                    self._happened.append(partial(self._answer, worker.out.pop(answer.number), answer))
                elif worker.state is State.STARTING:
                    worker.state = State.READY
                    self._can_start = True
        except BaseException as error:  # there is nowhere to put what it sends: the rest makes no sense any more
            worker.kill()
            if not isinstance(error, Exception):
                worker.error = WorkerCrashed("an interrupt cut a worker's answer short; ask again.")
                raise
            worker.error = error
        if worker.end.has_ended and worker.end.answers in self._selector.get_map():
            self._selector.unregister(worker.end.answers)  # it is dead, or dies when it answers
        self._assign()

    def _answer(self, job: Job, answer: Answer) -> None:
        values: Sequence[Any] = ()
        error: BaseException | None
        try:
            values, error = answer.open()
        except KeyboardInterrupt:  # which is not the answer's: it is opened when somebody waits again
            self._happened.appendleft(partial(self._answer, job, answer))
            raise
        except BaseException as problem:
            error = problem
        job.result.take(job.at, len(job.items), values, error)

    # -- workers come and go -------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start a worker in a place that is empty."""
        assert number not in self._workers
        worker = started(self._context, number, self._begin, self._workers.values(), self._destinations)
        self._workers[number] = worker
        self._selector.register(worker.end.answers, selectors.EVENT_READ, partial(self._hear, worker))
        self._selector.register(worker.death, selectors.EVENT_READ, partial(self._has_died, worker))

    def retire(self, number: int) -> None:
        """Have a worker end after the tasks that it has, unless it has ended already."""
        worker = self._workers.get(number)
        if worker is not None and worker.state is not State.RETIRING:
            worker.state = State.RETIRING
            self._wait_for_room(worker, not worker.end.send_end())

    def kill(self, number: int) -> None:
        """End a worker whatever it does; ``wait`` notices when it is gone."""
        self._workers[number].kill()

    def abandon(self, number: int) -> None:
        """Leave a worker that would not die to itself."""
        worker = self._workers[number]
        self._forget(worker)
        starting.leave_behind([worker.process])
        self._ended(worker, None)
        self._bell.ring()

    def _has_died(self, worker: Member) -> None:
        """A worker has died: take what it said before, and let go of it."""
        worker.is_doomed = True
        self._hear(worker)
        self._forget(worker)
        self._ended(worker, worker.reap())

    def _ended(self, worker: Member, code: int | None) -> None:
        jobs = taken(worker.out)
        items = tuple([item for job in jobs for item in job.items]) if worker.error is None else ()
        if self._is_alone or worker.error is not None:
            text = f"worker {worker.number} (pid {worker.pid}) ended with code {code} and has not answered this task."
            self._fail(jobs, worker.error or WorkerCrashed(text))
        self._happened.append(partial(self._tell, Exit(worker.number, worker.pid, code, worker.state, items)))

    def _replace(self, told: Exit) -> None:
        """What a Pool does that nobody looks after."""
        if told.state is State.STARTING and not self._can_start:
            text = f"worker {told.number} (pid {told.pid}) ended with code {told.code} at its start: see what it said."
            if not any(worker.takes_tasks for worker in self._workers.values()):  # they go on without it
                self._give_up(WorkerStartError(text))
        elif self._is_open or self._backlog:
            self._can_start = self._can_start and told.state is not State.STARTING
            try:
                self.start(told.number)
            except OSError as error:
                self._give_up(could_not_start(error))

    def _give_up(self, error: Exception) -> None:
        self._fail(self._backlog, error)
        self._backlog.clear()
        self._is_open, self._failure = False, error

    def _forget(self, worker: Member) -> None:
        self._workers.pop(worker.number, None)
        self._wait_for_room(worker, wanted=False)
        if worker.end.answers in self._selector.get_map():
            self._selector.unregister(worker.end.answers)
        self._selector.unregister(worker.death)
        worker.let_go()

    @property
    def pids(self) -> dict[int, int]:
        """The worker processes of the moment, by number."""
        return {number: worker.pid for number, worker in sorted(self._workers.items())}

    def out(self, number: int) -> int:
        """How many tasks a worker has."""
        worker = self._workers.get(number)
        return 0 if worker is None else len(worker.out)

    def busy(self, lines: Iterable[int]) -> set[int]:
        """Who of these has something to do."""
        return {number for number in lines if self.out(number)}

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more tasks; workers end after what there is to do."""
        self._is_open = False

    def join(self) -> None:
        """Wait until all is done and the workers have ended; ``close`` or ``terminate`` comes before."""
        if self._is_open:
            raise ValueError("Pool is still running")
        while self._workers or self._happened:
            if not self._backlog:
                for number in self._workers:
                    self.retire(number)
            self.wait()
        self._let_go()

    def dispose(self, timeout: float = 5.0) -> bool:
        """End all workers at once; False if one would not die in time, which is then left to itself."""
        self._is_open = False
        end = time.monotonic() + timeout
        workers = taken(self._workers)
        left = end_all(workers, end)
        for worker in workers:
            self._forget(worker)
            if worker not in left:
                worker.reap(end)
        starting.leave_behind([worker.process for worker in left])
        for job in [*self._backlog, *(job for worker in workers for job in worker.out.values())]:
            job.result.drop(ValueError("the Pool was terminated before this was answered"))
        self._backlog.clear()
        self._happened.clear()
        self._let_go()
        return not left

    def _let_go(self) -> None:
        self._finalizer.detach()
        self._selector.close()
        if self._owns_bell:
            self._bell.close()

    def terminate(self, *_: object) -> None:
        """End it all at once."""
        self.dispose()

    __exit__ = terminate

    def __enter__(self) -> Pool:
        return self
