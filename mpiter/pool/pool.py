"""A Pool of processes with ``map_async``, a pair of pipes for each, and no thread.

``Pool`` runs in the thread that uses it, ``_work`` in each worker.  Guarantees that the
end of a worker doesn't affect the others: no other uses its pipes, the answers that it
sent count, and it can be replaced while they work; that killing never hits another
process which has got the same pid; and that each block gets an answer or an error.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from ..bell import Bell
from ..errors import RemoteTraceback, SampleError
from ..worker import home
from ..worker.ahead import ahead
from ..worker.block import Block, Fields, Lost
from . import starting
from .pipes import READY, Answer, PoolEnd, WorkerEnd
from .workers import NAME, Event, State, Work, Worker, Workers

# Multiprocessing's exit code for a process whose fork server has died.
VANISHED = 255
# The time that an idle worker has to end, so that its libraries can clean up.
_TO_LEAVE_S = 0.5
# The time that a worker with a block has.  A block mostly takes milliseconds.
_TO_FINISH_S = 0.1
# The time that a process has to exit after its last block.
_FOR_AN_EXIT_S = 1
# The time that the fork server has to report a dead worker's exit code.
_FOR_A_CODE_S = 1.0


@dataclass(eq=False, kw_only=True)
class Member(Worker):
    process: BaseProcess
    pid: int
    end: PoolEnd
    # A descriptor that becomes readable when it dies.
    death: int
    is_pidfd: bool

    def kill(self) -> None:
        self.is_doomed = True
        with contextlib.suppress(ProcessLookupError):
            if self.is_pidfd:
                # Another process may have got the pid by now, but not the descriptor.
                signal.pidfd_send_signal(self.death, signal.SIGKILL)
            else:
                self.process.kill()

    def part_with(self) -> float:
        """Tell the worker that no more blocks come, or kill it if that fails.

        Return the seconds that it may take to end.
        """
        if not self.is_doomed:
            # A worker that retires has been told already.
            is_told = self.state is State.RETIRING or self.end.send(0, b"")
            if is_told:
                return _TO_FINISH_S if self.out else _TO_LEAVE_S
        self.kill()
        return 0.0

    def is_gone(self, end: float) -> bool:
        """True if the process is dead, or dies before the time ``end``."""
        left_s = max(0.0, end - time.monotonic())
        return bool(connection.wait([self.death], left_s))

    def let_go(self) -> None:
        self.end.close()
        if self.is_pidfd:
            os.close(self.death)

    def reap(self, most_s: float = _FOR_A_CODE_S) -> int:
        """Return the exit code of a dead process.

        The fork server may report it up to ``most_s`` seconds later.
        """
        # Even for a process whose code is known, ``join`` would wait for a pipe that
        # the worker's children keep open.
        if self.process.exitcode is None:
            self.process.join(max(0.0, min(_FOR_A_CODE_S, most_s)))
        code = self.process.exitcode
        if code is None:
            return VANISHED
        self.process.close()
        return code


class Pool(Workers):
    """Worker processes, made from the arguments of ``multiprocessing.Pool``.

    Ringing ``bell`` ends ``wait``.
    """

    _workers: dict[int, Member]

    def __init__(
        self,
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[object, ...],
        *,
        context: BaseContext,
        bell: Bell,
    ) -> None:
        super().__init__(bell)
        self._context = context
        self._begin = (initializer, initargs)
        self._poll = select.poll()
        self._poll.register(bell, select.POLLIN)
        # The workers by the descriptors that ``wait`` polls.
        self._places: dict[int, Member] = {}
        try:
            starting.start_tracker()
            for number in range(workers):
                self.start(number)
        except BaseException:
            self.close()
            raise

    def map_async(
        self,
        func: Work,
        blocks: Iterable[Block],
    ) -> None:
        for block in blocks:
            chosen: Member = self._least_busy()
            # A plain tuple takes less time than a block.
            task = pickle.dumps((func, block[:]), 5)
            chosen.out[block.number] = block
            # If the pipe is full, ``wait`` writes the rest once it takes more.
            if not chosen.end.send(block.number, task):
                self._look_at(chosen.end.down, chosen, select.POLLOUT)

    def _look_at(
        self,
        place: int,
        worker: Member,
        what: int = select.POLLIN,
    ) -> None:
        """Have ``wait`` poll a descriptor of a worker's."""
        self._places[place] = worker
        self._poll.register(place, what)

    def _ignore(self, place: int) -> None:
        if self._places.pop(place, None) is not None:
            self._poll.unregister(place)

    def wait(self, timeout: float | None = None) -> list[Event]:
        timeout_ms: float | None = None
        if self._events:
            timeout_ms = 0
        elif timeout is not None:
            timeout_ms = 1e3 * timeout
        for place, _ in self._poll.poll(timeout_ms):
            worker = self._places.get(place)
            if worker is None:
                # It is the bell's, or that of a worker whose end was handled earlier in
                # this loop.
                if place == self._bell.fileno():
                    self._bell.hush()
                continue
            if place == worker.end.up:
                self._hear(worker)
            elif place == worker.death:
                worker.is_doomed = True
                # The answers that it sent before it died count; only what it hasn't
                # answered then is lost.
                self._hear(worker)
                self._forget(worker, worker.reap())
            elif worker.end.flush():
                self._ignore(place)
        events = self._events
        self._events = []
        return events

    def _hear(self, worker: Member) -> None:
        """Read what a worker has sent, and note an event for each answer."""
        try:
            for answer in worker.end.receive():
                number = answer[0]
                if number == READY:
                    worker.is_ready()
                else:
                    block = worker.out.pop(number)
                    self._events.append(_opened(answer, block))
        except Exception as error:
            # There may have been no memory for an answer.  Where in the pipe the next
            # one begins is then unknown, so this worker can't be read from any more: it
            # is killed, and its blocks count as lost.
            worker.kill()
            for block in worker.out.values():
                self._events.append(Lost(block.number, error))
            worker.out.clear()
        # The pipe is at its end, so the worker is dead, or will end when it tries to
        # answer.  The system calls such a pipe readable at each look, so the loop would
        # never sleep until the death is dealt with.
        if worker.end.has_ended:
            self._ignore(worker.end.up)

    def start(self, number: int) -> None:
        assert number not in self._workers
        with contextlib.ExitStack() as undo:
            ends = [
                *self._context.Pipe(duplex=False),
                *self._context.Pipe(duplex=False),
            ]
            for pipe in ends:
                undo.callback(pipe.close)
            their_tasks, tasks, answers, their_answers = ends
            # A forked worker has our ends of its own pipes and of all others, which
            # would stay open after us.
            inherited = []
            if self._context.get_start_method() == "fork":
                inherited = [tasks, answers]
                for member in self._workers.values():
                    inherited += [member.end.tasks, member.end.answers]
            arguments = (their_tasks, their_answers, inherited, *self._begin, number)
            # The types of the standard library lack it in the base class.
            make: type[BaseProcess] = self._context.Process  # type: ignore[attr-defined]
            process = make(
                target=_work,
                args=arguments,
                name=f"{NAME}{number}",
                daemon=True,
            )
            starting.start(process)
            undo.pop_all()
        # While we had these open, the worker's end wouldn't close the pipes.
        their_tasks.close()
        their_answers.close()
        pid = process.pid
        assert pid is not None
        end = PoolEnd(tasks, answers)
        # Multiprocessing's sentinel is a pipe, which children of the worker may keep
        # open.  A pidfd isn't, but there is none outside of Linux, on an old kernel, or
        # if the worker has died already.
        death = process.sentinel
        with contextlib.suppress(AttributeError, OSError):
            death = os.pidfd_open(pid)
        worker = Member(
            number=number,
            process=process,
            pid=pid,
            end=end,
            death=death,
            is_pidfd=death != process.sentinel,
        )
        self._workers[number] = worker
        self._look_at(end.up, worker)
        self._look_at(death, worker)

    def retire(self, number: int) -> None:
        worker = self._workers.get(number)
        if worker is not None and worker.state is not State.RETIRING:
            worker.state = State.RETIRING
            if not worker.end.send(0, b""):
                self._look_at(worker.end.down, worker, select.POLLOUT)

    def kill(self, number: int) -> None:
        if number in self._workers:
            self._workers[number].kill()

    def abandon(self, number: int) -> None:
        worker = self._workers.get(number)
        if worker is not None:
            starting.forget([worker.process])
            self._forget(worker, None)
            self._bell.ring()

    def _forget(
        self,
        worker: Member,
        code: int | None,
    ) -> None:
        del self._workers[worker.number]
        end = worker.end
        for place in (end.down, end.up, worker.death):
            self._ignore(place)
        worker.let_go()
        self._events.append(worker.died(worker.pid, code))

    @property
    def pids(self) -> dict[int, int]:
        found = {}
        for number, worker in sorted(self._workers.items()):
            found[number] = worker.pid
        return found

    def close(self, timeout: float = 5.0) -> bool:
        """End all workers: ask them, and kill those that don't end soon.

        Return False if one hasn't ended in time.
        """
        now = time.monotonic()
        end = now + timeout
        # All are asked before any is waited for, so that they end side by side.
        leaving = []
        for worker in self._workers.values():
            until = min(end, now + worker.part_with())
            leaving.append((worker, until))
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
        starting.end_servers()
        self._workers.clear()
        return not left


def _failed(what: str, error: Exception) -> RemoteTraceback:
    """Return the answer for a call that failed, or whose result can't be pickled."""
    # This works even if the error's ``__str__`` fails.
    summary = "".join(traceback.format_exception_only(error)).strip()
    return RemoteTraceback(traceback.format_exc(), what + summary)


def _opened(
    answer: Answer,
    block: Block,
) -> Fields | Lost:
    """Return a worker's answer to a block, or Lost if it can't be unpickled."""
    _, pickled, buffers = answer
    try:
        value: Fields | RemoteTraceback = pickle.loads(pickled, buffers=buffers)
    except BaseException as problem:
        return Lost(block.number, problem)
    if not isinstance(value, RemoteTraceback):
        return value
    error = SampleError(value.args[1])
    error.__cause__ = value
    return Lost(block.number, error)


def _block_of(task: tuple[int, bytes] | None) -> Fields | None:
    if task is None:
        return None
    _, block = pickle.loads(task[1])
    found: Fields = block
    return found


def _work(
    tasks: Connection,
    answers: Connection,
    others: list[Connection],
    initializer: Callable[..., object],
    initargs: tuple[object, ...],
    number: int,
) -> None:
    """Run a worker process: the initializer, then one task after the other.

    The initializer also gets the worker's number.
    """
    # These ends of other pipes were inherited by fork.
    for theirs in others:
        theirs.close()
    end = WorkerEnd(tasks, answers)
    home.ties.append(end.cut)
    initializer(*initargs, number)
    end.send(READY, None)
    receive = ahead(end.receive, _block_of)
    while (task := receive()) is not None:
        block: Fields = ()
        try:
            func, block = pickle.loads(task[1])
            answer = func(block)
        except Exception as error:
            # An error in a process that the dataset has forked is nobody's answer: it
            # ends that process.
            if end.is_cut:
                raise
            answer = _failed("", error)
        try:
            end.send(task[0], answer)
        except Exception as problem:
            what = f"{reprlib.repr(answer)} cannot be pickled: "
            end.send(task[0], _failed(what, problem))
        # While this waits for the next task, the samples shouldn't fill the memory.
        del task, block, answer
    # Python waits for the dataset's threads when it exits, and they may run on without
    # end.  The alarm then ends the process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_FOR_AN_EXIT_S)
