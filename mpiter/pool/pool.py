"""A Pool of processes with ``multiprocessing.Pool``'s ``map_async``, a pair of pipes
for each worker, and no thread.

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
from typing import Any

from ..bell import Bell
from ..errors import RemoteTraceback, SampleError
from ..worker import home
from ..worker.block import Block, Lost
from . import starting
from .pipes import READY, Answer, PoolEnd, WorkerEnd
from .workers import NAME, State, Worker, Workers

# Multiprocessing's exit code for a process whose fork server has died.
VANISHED = 255
# The time that an idle worker has to end, so that its libraries can clean up…
_TO_LEAVE_S = 0.5
# …and one with a block, which mostly takes milliseconds.
_TO_FINISH_S = 0.1
# The time that a process has to exit after its last block.
_FOR_AN_EXIT_S = 1
# The time that the fork server has to report a dead worker's exit code.
_FOR_A_CODE_S = 1.0


@dataclass(eq=False, kw_only=True)
class Member(Worker):
    process: Any
    pid: int
    end: PoolEnd
    # A descriptor that becomes readable when it dies.
    death: int
    is_pidfd: bool

    def kill(self) -> None:
        self.is_doomed = True
        with contextlib.suppress(ProcessLookupError):
            if self.is_pidfd:
                # Never another process with the same pid.
                signal.pidfd_send_signal(self.death, signal.SIGKILL)
            else:
                self.process.kill()

    def part_with(self) -> float:
        """Tell the worker that no more blocks come, or kill it if that fails; return
        the seconds that it may take.
        """
        if not self.is_doomed and (
            self.state is State.RETIRING or self.end.send(0, b"")
        ):
            return _TO_FINISH_S if self.out else _TO_LEAVE_S
        self.kill()
        return 0.0

    def is_gone(self, end: float) -> bool:
        """True if the process is dead, or dies before the time ``end``."""
        return bool(connection.wait([self.death], max(0.0, end - time.monotonic())))

    def let_go(self) -> None:
        self.end.close()
        if self.is_pidfd:
            os.close(self.death)

    def reap(self, most_s: float = _FOR_A_CODE_S) -> int:
        """Return the exit code of a dead process; the fork server may report it up to
        ``most_s`` seconds later.
        """
        # Else ``join`` would wait for a pipe that the worker's children keep open.
        if self.process.exitcode is None:
            self.process.join(max(0.0, min(_FOR_A_CODE_S, most_s)))
        code: int | None = self.process.exitcode
        if code is None:
            return VANISHED
        self.process.close()
        return code


class Pool(Workers):
    """Worker processes, made from the arguments of ``multiprocessing.Pool``; ringing
    ``bell`` ends ``wait``.
    """

    _workers: dict[int, Member]

    def __init__(
        self,
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Any, ...],
        *,
        context: Any,
        bell: Bell,
    ) -> None:
        super().__init__(bell)
        self._context = context
        self._begin = (initializer, initargs)
        self._poll = select.poll()
        self._poll.register(bell, select.POLLIN)
        # Workers by the descriptors that ``wait`` polls.
        self._places: dict[int, Member] = {}
        try:
            starting.start_tracker()
            for number in range(workers):
                self.start(number)
        except BaseException:
            self.close()
            raise

    def map_async(self, func: Callable[[Any], Any], blocks: Iterable[Block]) -> None:
        for block in blocks:
            chosen: Member = self._least_busy()
            task = pickle.dumps((func, block[:]), 5)  # plain tuples take less time
            chosen.out[block.number] = block
            if not chosen.end.send(block.number, task):
                self._look_at(chosen.end.down, chosen, select.POLLOUT)

    def _look_at(self, place: int, worker: Member, what: int = select.POLLIN) -> None:
        """Have ``wait`` poll a descriptor of a worker's."""
        self._places[place] = worker
        self._poll.register(place, what)

    def _ignore(self, place: int) -> None:
        if self._places.pop(place, None) is not None:
            self._poll.unregister(place)

    def wait(self, timeout: float | None = None) -> list[Any]:
        for place, _ in self._poll.poll(
            0 if self._events else None if timeout is None else 1e3 * timeout
        ):
            worker = self._places.get(place)
            if worker is None:
                if place == self._bell.fileno():
                    self._bell.hush()
                # Of a worker whose end was handled earlier in this loop.
                continue
            if place == worker.end.up:
                self._hear(worker)
            elif place == worker.death:
                worker.is_doomed = True
                self._hear(worker)  # the answers that it sent before
                self._forget(worker, worker.reap())
            elif worker.end.flush():
                self._ignore(place)
        events = self._events
        self._events = []
        return events

    def _hear(self, worker: Member) -> None:
        try:
            for answer in worker.end.receive():
                if answer[0] == READY:
                    worker.is_ready()
                else:
                    self._events.append(_opened(answer, worker.out.pop(answer[0])))
        except Exception as error:
            # No memory for an answer, say: the rest of the pipe can't be read any more.
            worker.kill()
            self._events.extend(
                Lost(block.number, error) for block in worker.out.values()
            )
            worker.out.clear()
        if worker.end.has_ended:
            # It is dead, or ends when it tries to answer.
            self._ignore(worker.end.up)

    def start(self, number: int) -> None:
        assert number not in self._workers
        with contextlib.ExitStack() as undo:
            ends = [
                *self._context.Pipe(duplex=False),
                *self._context.Pipe(duplex=False),
            ]
            for end in ends:
                undo.callback(end.close)
            their_tasks, tasks, answers, their_answers = ends
            inherited = []
            if self._context.get_start_method() == "fork":
                others = [member.end for member in self._workers.values()]
                inherited = [
                    tasks,
                    answers,
                    *(one for end in others for one in (end.tasks, end.answers)),
                ]
            arguments = their_tasks, their_answers, inherited, *self._begin, number
            process = self._context.Process(
                target=_work, args=arguments, name=f"{NAME}{number}", daemon=True
            )
            starting.start(process)
            undo.pop_all()
        their_tasks.close()
        their_answers.close()
        # A pipe, which children of the worker may keep open.
        end = PoolEnd(tasks, answers)
        death = process.sentinel
        # Not Linux, or an old kernel, or it has died already.
        with contextlib.suppress(AttributeError, OSError):
            death = os.pidfd_open(process.pid)
        is_pidfd = death != process.sentinel
        worker = Member(
            number=number,
            process=process,
            pid=process.pid,
            end=end,
            death=death,
            is_pidfd=is_pidfd,
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
        if (worker := self._workers.get(number)) is not None:
            starting.forget([worker.process])
            self._forget(worker, None)
            self._bell.ring()

    def _forget(self, worker: Member, code: int | None) -> None:
        del self._workers[worker.number]
        for place in (worker.end.down, worker.end.up, worker.death):
            self._ignore(place)
        worker.let_go()
        self._events.append(worker.died(worker.pid, code))

    @property
    def pids(self) -> dict[int, int]:
        return {number: worker.pid for number, worker in sorted(self._workers.items())}

    def close(self, timeout: float = 5.0) -> bool:
        """End all workers: ask them, and kill those that don't end soon; return False
        if one hasn't ended in time.
        """
        now = time.monotonic()
        end = now + timeout
        leaving = [
            (worker, min(end, now + worker.part_with()))
            for worker in self._workers.values()
        ]
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
    """Return a worker's answer when the function failed, or its result can't be
    pickled.
    """
    # Works even if its ``__str__`` fails.
    summary = "".join(traceback.format_exception_only(error)).strip()
    return RemoteTraceback(traceback.format_exc(), what + summary)


def _opened(answer: Answer, block: Any) -> Any:
    """Return a worker's answer to a block, or Lost if it failed or can't be
    unpickled.
    """
    _, pickled, buffers = answer
    try:
        value = pickle.loads(pickled, buffers=buffers)
    except BaseException as problem:
        return Lost(block.number, problem)
    if type(value) is not RemoteTraceback:
        return value
    error = SampleError(value.args[1])
    error.__cause__ = value
    return Lost(block.number, error)


def _work(
    tasks: Any,
    answers: Any,
    others: list[Any],
    initializer: Any,
    initargs: Any,
    number: int,
) -> None:
    """Run a worker process: the initializer, which also gets the worker's number, then
    one task after the other.
    """
    # The ends of other pipes, inherited by fork.
    for theirs in others:
        theirs.close()
    end = WorkerEnd(tasks, answers)
    home.ties.append(end.cut)
    initializer(*initargs, number)
    end.send(READY, None)
    while (task := end.receive()) is not None:
        block: Any = None
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
            end.send(
                task[0], _failed(f"{reprlib.repr(answer)} cannot be pickled: ", problem)
            )
        del task, block, answer
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Even if the dataset's threads are still running.
    signal.alarm(_FOR_AN_EXIT_S)
