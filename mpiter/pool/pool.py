"""A Pool of processes with ``multiprocessing.Pool``'s ``map_async``, a pair of pipes for each worker, and no thread.

``Pool`` runs in the thread that uses it, ``_work`` in each worker.  Guarantees that one worker's end is no concern of
the others: its pipes are its own, what it sent counts, and its place is filled beside them; that a process that is
killed is the one meant, whichever has its number by then; and that what a function returns comes back, or why there is
nothing.  A block is with the ready worker that has least to do.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import reprlib
import select
import signal
import time
import traceback
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import connection, get_context
from typing import Any, NamedTuple

from ..bell import Bell
from ..errors import RemoteTraceback, SampleError
from ..worker import home
from ..worker.block import Lost, from_short, short
from . import starting
from .pipes import READY, Answer, PoolEnd, WorkerEnd
from .workers import NAME, State, Worker, Workers

VANISHED = 255  # the exit code that multiprocessing makes up when the fork server is gone and can't tell
_TO_LEAVE_S = 0.5  # that a worker with nothing to do may take to end: what its libraries have made is then given back…
_TO_FINISH_S = 0.1  # …and one that has something, which in most cases is a matter of milliseconds
_FOR_AN_EXIT_S = 1  # that one has to leave when it has done its last block
_FOR_A_CODE_S = 1.0  # that a dead worker's exit code may take to come from the fork server


@dataclass(eq=False, kw_only=True)
class Member(Worker):
    """A process, and what it has been asked."""

    process: Any
    pid: int
    end: PoolEnd
    death: int  # a descriptor that becomes readable when it dies
    is_pidfd: bool
    is_full: bool = False  # its pipe: something waits to be sent
    func: Any = None  # that it was sent last

    def kill(self) -> None:
        self.is_doomed = True
        with contextlib.suppress(ProcessLookupError):
            if self.is_pidfd:
                signal.pidfd_send_signal(self.death, signal.SIGKILL)  # nothing else, whatever has its number by now
            else:
                self.process.kill()

    def part_with(self) -> float:
        """Tell it that no more blocks come; return the seconds that it may take to end.  Kill it if it can't be told.

        One that is starting is told too: what its ``worker_init`` has made is then given back.
        """
        if not self.is_doomed and (self.state is State.RETIRING or self.end.send(0, b"")):
            return _TO_FINISH_S if self.out else _TO_LEAVE_S
        self.kill()
        return 0.0

    def is_gone(self, end: float) -> bool:
        """Has it died, or does it by then?"""
        return bool(connection.wait([self.death], max(0.0, end - time.monotonic())))

    def let_go(self) -> None:
        """Close what leads to it."""
        self.end.close()
        if self.is_pidfd:
            os.close(self.death)

    def reap(self, most_s: float = _FOR_A_CODE_S) -> int:
        """Its exit code, which the fork server may tell a moment later; to be asked once it has died."""
        code: int | None = self.process.exitcode  # first: ``join`` waits for the sentinel, which its children keep open
        if code is None:
            self.process.join(max(0.0, min(_FOR_A_CODE_S, most_s)))
            code = self.process.exitcode
        if code is None:
            return VANISHED
        self.process.close()
        return code


class Pool(Workers):
    """Worker processes that call functions.

    Args:
        processes, initializer, initargs, context: as ``multiprocessing.Pool`` has them.
        bell: what wakes ``wait``.
        imports_main: do workers that aren't forked import the caller's script?

    >>> from mpiter.bell import Bell
    >>> pool = Pool(1, bell=Bell())
    >>> while not pool.vacancies(1):
    ...     assert pool.wait() == []
    >>> pool.map_async(abs, [-1])
    >>> pool.wait()
    [1]
    >>> pool.close()
    True
    """

    _workers: dict[int, Member]

    def __init__(
        self,
        processes: int,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        context: Any = None,
        bell: Bell,
        imports_main: bool = True,
    ) -> None:
        super().__init__(bell)
        self._context: Any = context or get_context()
        self._begin = initializer, tuple(initargs)
        self._imports_main = imports_main
        self._numbers = 0
        self._poll = select.poll()
        self._poll.register(bell, select.POLLIN)
        self._places: dict[int, Member] = {}  # the workers that ``wait`` looks at, by descriptor
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, os.getpid())
        self._finalizer.atexit = False  # multiprocessing ends its daemons itself
        try:
            starting.start_tracker()
            for number in range(processes):
                self.start(number)
        except BaseException:
            self.close()
            raise

    # -- blocks --------------------------------------------------------------------------------------------------

    def map_async(self, func: Callable[[Any], Any], blocks: Iterable[Any]) -> None:
        for block in blocks:
            chosen: Member = self._least_busy()
            self._numbers += 1
            task = short(block) if chosen.func is func else None
            if task is None:
                task, chosen.func = pickle.dumps((func, block), 5), func
            chosen.out[self._numbers] = block
            if not chosen.end.send(self._numbers, task):
                self._wait_for_room(chosen, True)

    def _wait_for_room(self, worker: Member, wanted: bool) -> None:
        """Have ``wait`` look out for room in its pipe, or no longer."""
        if wanted and not worker.is_full:
            self._look_at(worker.end.down, worker, select.POLLOUT)
        elif worker.is_full and not wanted:
            self._ignore(worker.end.down)
        worker.is_full = wanted

    def _look_at(self, place: int, worker: Member, what: int = select.POLLIN) -> None:
        """Have ``wait`` see to this descriptor of a worker's."""
        self._places[place] = worker
        self._poll.register(place, what)

    def _ignore(self, place: int) -> None:
        if self._places.pop(place, None) is not None:
            self._poll.unregister(place)

    # -- what happens --------------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> list[Any]:
        for place, _ in self._poll.poll(0 if self._events else None if timeout is None else 1e3 * timeout):
            worker = self._places.get(place)
            if worker is None:
                if place == self._bell.fileno():
                    self._bell.hush()
                continue  # of a worker's end we may be told before we are told of what came before
            if place == worker.end.up:
                self._hear(worker)
            elif place == worker.death:
                worker.is_doomed = True
                self._hear(worker)  # what it said before
                self._forget(worker, worker.reap())
            else:
                self._wait_for_room(worker, not worker.end.flush())
        events, self._events = self._events, []
        return events

    def _hear(self, worker: Member) -> None:
        """Read the answers of a worker."""
        try:
            for answer in worker.end.receive():
                if answer[0] == READY:
                    worker.is_ready()
                else:
                    event = _opened(answer, worker.out.pop(answer[0]))
                    if type(event) is Lost:
                        worker.func = None  # it may not know it: it couldn't read the task, perhaps
                    self._events.append(event)
        except Exception as error:  # there is no memory for what it sends, say: the rest makes no sense any more
            worker.kill()
            self._events.extend(Lost(block.number, error) for block in worker.out.values())
            worker.out.clear()
        if worker.end.has_ended:
            self._ignore(worker.end.up)  # it is dead, or dies when it answers

    # -- workers come and go -------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        assert number not in self._workers
        with contextlib.ExitStack() as undo:
            ends = [*self._context.Pipe(duplex=False), *self._context.Pipe(duplex=False)]
            for end in ends:
                undo.callback(end.close)
            their_tasks, tasks, answers, their_answers = ends
            inherited = []
            if self._context.get_start_method() == "fork":
                others = [member.end for member in self._workers.values()]
                inherited = [tasks, answers, *(one for end in others for one in (end.tasks, end.answers))]
            arguments = their_tasks, their_answers, *self._begin, inherited
            process = self._context.Process(target=_work, args=arguments, name=f"{NAME}{number}", daemon=True)
            starting.start(process, self._imports_main)
            undo.pop_all()
        their_tasks.close()
        their_answers.close()
        death, is_pidfd = _death_of(process)
        end = PoolEnd(tasks, answers)
        worker = Member(number=number, process=process, pid=process.pid, end=end, death=death, is_pidfd=is_pidfd)
        self._workers[number] = worker
        self._look_at(end.up, worker)
        self._look_at(death, worker)

    def retire(self, number: int) -> None:
        worker = self._workers.get(number)
        if worker is not None and worker.state is not State.RETIRING:
            worker.state = State.RETIRING
            self._wait_for_room(worker, not worker.end.send(0, b""))

    def kill(self, number: int) -> None:
        if number in self._workers:
            self._workers[number].kill()

    def abandon(self, number: int) -> None:
        if (worker := self._workers.get(number)) is not None:
            starting.forget([worker.process])
            self._forget(worker, None)
            self._bell.ring()

    def _forget(self, worker: Member, code: int | None) -> None:
        del self._workers[worker.number]
        self._wait_for_room(worker, wanted=False)
        for place in (worker.end.up, worker.death):
            self._ignore(place)
        worker.let_go()
        self._events.append(worker.died(worker.pid, code))

    @property
    def pids(self) -> dict[int, int]:
        return {number: worker.pid for number, worker in sorted(self._workers.items())}

    def close(self, timeout: float = 5.0) -> bool:
        """End all workers, the ordinary way if they take it at once; False if one would not die in time."""
        now = time.monotonic()
        end = now + timeout
        leaving = [(worker, min(end, now + worker.part_with())) for worker in self._workers.values()]
        for worker, until in leaving:
            if not worker.is_gone(until):
                worker.kill()
        left = []
        for worker, _ in leaving:
            is_gone = worker.is_gone(end)
            worker.let_go()
            if is_gone:
                worker.reap(end - time.monotonic())
            else:
                left.append(worker.process)
        starting.forget(left)
        self._workers.clear()
        self._finalizer.detach()
        self._places.clear()
        return not left


class _Failed(NamedTuple):
    """What a worker answers if it has nothing else to say: why, in words."""

    summary: str
    trace: str


def _failed(what: str, error: Exception) -> _Failed:
    summary = "".join(traceback.format_exception_only(error)).strip()  # whatever its own ``__str__`` does
    return _Failed(what + summary, traceback.format_exc())


def _opened(answer: Answer, block: Any) -> Any:
    """Unpickle a worker's answer to a block."""
    _, pickled, buffers = answer
    if (done := from_short(pickled)) is not None:
        return done
    try:
        value = pickle.loads(pickled, buffers=buffers)
    except Exception as problem:
        return Lost(block.number, problem)
    if type(value) is not _Failed:
        return value
    error = SampleError(value.summary)
    error.__cause__ = RemoteTraceback(value.trace)
    return Lost(block.number, error)


def _kill_all(workers: dict[int, Member], owner: int) -> None:
    """End a Pool that was dropped, not closed."""
    if os.getpid() == owner:  # a fork of its process has the same Pool, but not the workers
        for worker in workers.values():
            worker.kill()
            worker.let_go()
        workers.clear()


def _death_of(process: Any) -> tuple[int, bool]:
    """A descriptor that becomes readable when the process dies, and whether it is a pidfd.

    A sentinel is a pipe, which children of the worker may keep open, and of the fork server's workers it ends with the
    server.
    """
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or an old one, or it has died already
        return os.pidfd_open(process.pid), True
    return process.sentinel, False


def _work(tasks: Any, answers: Any, initializer: Any, initargs: tuple[Any, ...], others: list[Any]) -> None:
    """The whole life of a worker process."""
    for theirs in others:  # which a forked process has inherited
        theirs.close()
    end, born = WorkerEnd(tasks, answers), home.generation
    home.watch(tasks.fileno(), answers.fileno())
    if initializer is not None:
        initializer(*initargs)
    home.end_child(born)
    end.send(READY, None)
    func: Any = None
    while (task := end.receive()) is not None:
        number, data = task
        answer: Any = None
        try:
            if (block := from_short(data)) is None:
                func, block = pickle.loads(data)
            answer = func(block)
        except Exception as error:
            answer = _failed("", error)
        home.end_child(born)
        home.look()
        try:
            end.send(number, answer)
        except Exception as problem:
            end.send(number, _failed(f"{reprlib.repr(answer)} cannot be pickled: ", problem))
        del task, data, block, answer
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_FOR_AN_EXIT_S)  # though threads of the dataset's own may wish to stay
