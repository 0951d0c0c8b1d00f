"""One worker of a Pool: how it is started, what it does, what it has been asked, and how it ends.

``Member`` is the Pool's side: a process, a pair of pipes that are its own, and the descriptor that tells of its death;
``_work`` runs in the process.  Guarantees that a process that is killed is the one meant, whoever has its number by
then, and that what a function raises or returns comes back, or why it can't.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import reprlib
import signal
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing import connection
from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from ..errors import RemoteTraceback
from ..worker import forks, lifeline
from . import starting
from .pipes import READY, PoolEnd, WorkerEnd

NAME = "mpiter-worker-"  # processes are named so, and know their number by it
VANISHED = 255  # the exit code that multiprocessing makes up when the fork server is gone and can't tell
_TO_LEAVE_S = 0.5  # that who has nothing to do may take to end: what its libraries have made is then given back…
_TO_FINISH_S = 0.1  # …and who has something, which in most cases is a matter of milliseconds
_FOR_A_CODE_S = 1.0  # that a dead worker's exit code may take to come from the fork server


class State(Enum):
    """Of a worker."""

    STARTING = "its initializer runs"
    READY = "it takes blocks"
    RETIRING = "it takes no more blocks, and ends after its last"


class Died(NamedTuple):
    """A worker is no more."""

    number: int
    pid: int
    code: int | None  # as multiprocessing has it; None: it would not die, and was left to itself
    state: State  # that it was in
    blocks: tuple[Any, ...]  # that it had
    how: str = ""  # in words, where its code says nothing


@dataclass(eq=False)
class Member:
    """A process, and what it has been asked."""

    number: int
    process: Any
    pid: int
    end: PoolEnd
    death: int  # a descriptor that becomes readable when it dies
    is_pidfd: bool
    state: State = State.STARTING
    out: dict[int, Any] = field(default_factory=dict)  # blocks, by number
    is_full: bool = False  # its pipe: something waits to be sent
    is_doomed: bool = False  # it has been killed, and is still to die

    @property
    def takes_blocks(self) -> bool:
        return self.state is State.READY and not self.is_doomed

    def kill(self) -> None:
        self.is_doomed = True
        with contextlib.suppress(ProcessLookupError):
            if self.is_pidfd:
                signal.pidfd_send_signal(self.death, signal.SIGKILL)  # nobody else, whoever has its number by now
            else:
                self.process.kill()

    def part_with(self) -> float:
        """Have it end the ordinary way, if it listens: so many seconds it may take; else it is killed."""
        if self.takes_blocks and self.end.send_end():
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
        starting.let_go(self.process)
        return code


def started(context: Any, number: int, begin: tuple[Any, tuple[Any, ...]], others: Iterable[Member]) -> Member:
    """A new worker; ``begin`` are the initializer and its arguments."""
    with contextlib.ExitStack() as undo:
        pipes = []
        for _ in range(2):
            reader, writer = context.Pipe(duplex=False)
            undo.callback(reader.close)
            undo.callback(writer.close)
            pipes.append((reader, writer))
        (their_tasks, tasks), (answers, their_answers) = pipes
        inherited = [end for member in others for end in (member.end.tasks, member.end.answers)]
        process = context.Process(
            target=_work,
            args=(
                their_tasks,
                their_answers,
                *begin,
                [*inherited, tasks, answers] if context.get_start_method() == "fork" else [],
            ),
            name=f"{NAME}{number}",
            daemon=True,
        )
        starting.start(process)
        undo.pop_all()
    their_tasks.close()
    their_answers.close()
    return Member(number, process, process.pid, PoolEnd(tasks, answers), *_death_of(process))


def end_all(workers: Iterable[Member], end: float) -> list[Member]:
    """End them all, the ordinary way if they take it at once; who has not died by ``end``."""
    now = time.monotonic()
    leaving = [(worker, min(end, now + worker.part_with())) for worker in workers]
    for worker, until in leaving:
        if not worker.is_gone(until):
            worker.kill()
    return [worker for worker, _ in leaving if not worker.is_gone(end)]


def _death_of(process: Any) -> tuple[int, bool]:
    """A descriptor that becomes readable when the process dies, and whether it is a pidfd.

    A sentinel is a pipe, which children of the worker may keep open, and of the fork server's workers it ends with the
    server.
    """
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or an old one, or it has died already
        return os.pidfd_open(process.pid), True
    return process.sentinel, False


class _Raised:
    """An exception on its way from a worker, with the traceback that pickle leaves behind."""

    def __init__(self, error: BaseException) -> None:
        self._error, self._text = error, "".join(traceback.format_exception(error))

    def __repr__(self) -> str:
        return repr(self._error)

    def __reduce__(self) -> Any:
        return _chained, (pickle.dumps(self._error), repr(self._error), self._text)


def _chained(pickled: bytes, said: str, text: str) -> BaseException:
    try:
        error: BaseException = pickle.loads(pickled)
    except Exception:  # it says of itself what it was made from, and that is not true
        error = RuntimeError(f"a worker raised {said}, which cannot be unpickled")
    error.__cause__ = RemoteTraceback(text)
    return error


def _work(tasks: Any, answers: Any, initializer: Any, initargs: tuple[Any, ...], others: list[Any]) -> None:
    """What a worker does from its start to its end."""
    for theirs in others:  # which a forked process has inherited
        theirs.close()
    end, born = WorkerEnd(tasks, answers), forks.generation
    lifeline.watch(tasks.fileno(), answers.fileno())
    if initializer is not None:
        initializer(*initargs)
    forks.end_child(born)
    end.send(READY, None)
    while (task := end.receive()) is not None:
        number, pickled = task
        answer: Any = None
        try:
            func, block = pickle.loads(pickled)
            answer = func(block), None
        except Exception as error:
            answer = None, _Raised(error)
        forks.end_child(born)
        lifeline.look()
        try:
            end.send(number, answer)
        except Exception as problem:
            end.send(number, (None, MaybeEncodingError(problem, reprlib.repr(answer[0] or answer[1]))))  # not in full
        del task, pickled, answer
