"""Workers that aren't processes of ours: threads, and those of another library's Pool.

mpi4py has such a Pool.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, Protocol

from ..bell import Bell
from ..errors import OptionError, WorkerCrashed
from ..worker import home
from ..worker.ahead import ahead
from ..worker.block import Block, Lost
from ..worker.board import Line
from .numbers import Numbers, begin_with_number
from .workers import NAME, State, Work, Worker, Workers

# This is queued for a thread that is to end.
_END = (None, None)


def _exit_for(error: BaseException) -> NoReturn:
    """End this process as ``error`` would if it reached the top of a program.

    But leave native libraries alone: their handlers at exit may wait for threads that a
    forked process doesn't have.
    """
    code = 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif error.code is None or isinstance(error.code, int):
        code = error.code or 0
    else:
        print(error.code, file=sys.stderr)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code)


def _block_of(task: Any) -> Block | None:
    block: Block | None = task[1]
    return block


@dataclass(eq=False, kw_only=True)
class _Threaded(Worker):
    thread: threading.Thread
    inbox: SimpleQueue[Any]


class Threads(Workers):
    """A Pool of threads, with a queue of blocks for each.

    ``initializer`` also gets the thread's number.  A thread can't be ended: one that is
    stuck in a dataset is abandoned, and its later answers are ignored.
    """

    def __init__(
        self,
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Any, ...],
        *,
        bell: Bell,
    ) -> None:
        super().__init__(bell)
        self._begin = (initializer, initargs)
        for number in range(workers):
            self.start(number)

    def start(self, number: int) -> None:
        inbox: SimpleQueue[Any] = SimpleQueue()
        thread = threading.Thread(
            target=self._work,
            args=(number, inbox),
            name=f"{NAME}{number}",
            daemon=True,
        )
        self._workers[number] = _Threaded(
            number=number,
            thread=thread,
            inbox=inbox,
        )
        thread.start()

    def _work(self, number: int, inbox: SimpleQueue[Any]) -> None:
        initializer, arguments = self._begin
        initializer(*arguments, number)
        self._post(number, inbox, None, State.READY)
        receive = ahead(inbox.get, _block_of)
        while True:
            func, block = receive()
            if func is None:
                break
            born = home.generation
            try:
                value = func(block)
            except BaseException as error:
                # The dataset has forked this process, where no thread but this one is
                # left.  Nobody waits for its answer, and nothing else would end it.
                if home.generation != born:
                    _exit_for(error)
                value = Lost(block.number, error)
            self._post(number, inbox, block, value)
        self._post(number, inbox, None, None)

    def map_async(self, func: Work, blocks: Iterable[Block]) -> None:
        for block in blocks:
            chosen = self._least_busy()
            chosen.out[block.number] = block
            chosen.inbox.put((func, block))

    def _hear(
        self,
        number: int,
        inbox: SimpleQueue[Any],
        block: Block | None,
        value: Any,
    ) -> None:
        # A thread that was abandoned may still answer, when another has its number and
        # its blocks.
        worker = self._workers.get(number)
        if worker is None or worker.inbox is not inbox:
            return
        if value is State.READY:
            worker.is_ready()
        elif block is None:
            self._forget(number, 0)
        else:
            del worker.out[block.number]
            self._events.append(value)

    def _forget(self, number: int, code: int | None) -> None:
        worker = self._workers.pop(number)
        thread_id = worker.thread.native_id or 0
        self._events.append(worker.died(thread_id, code))

    def retire(self, number: int) -> None:
        worker = self._workers.get(number)
        if worker is not None and worker.state is not State.RETIRING:
            worker.state = State.RETIRING
            worker.inbox.put(_END)

    def kill(self, number: int) -> None:
        """Abandon a thread, since threads can't be ended."""
        if number in self._workers:
            # If the thread ever returns from the dataset, it finds this and ends.
            self._workers[number].inbox.put(_END)
            self._forget(number, None)
            self._bell.ring()

    def close(self, timeout: float = 5.0) -> bool:
        """End all threads, each after its current block.

        Return False if one hasn't ended in time.
        """
        end = time.monotonic() + timeout
        workers = list(self._workers.values())
        self._workers.clear()
        for worker in workers:
            # The blocks that the thread hasn't begun are dropped.
            with contextlib.suppress(Empty):
                while True:
                    worker.inbox.get_nowait()
            worker.inbox.put(_END)
        for worker in workers:
            left_s = end - time.monotonic()
            worker.thread.join(max(0.0, left_s))
        return not any(worker.thread.is_alive() for worker in workers)


class StockPool(Protocol):
    """What mpiter calls of another library's Pool: two verbs of multiprocessing's."""

    def map_async(
        self,
        func: Work,
        items: list[Any],
        chunksize: int,
        callback: Callable[[list[Any]], object],
        error_callback: Callable[[BaseException], object],
    ) -> object:
        """Have workers call ``func`` with each of ``items``, and return at once.

        Then call ``callback`` with the list of what they returned, or
        ``error_callback`` with the error, from any thread.  There is one item a call.
        A ``concurrent.futures.BrokenExecutor``, passed on or raised, says that the Pool
        has ended with one of its workers: another is made.
        """

    def terminate(self) -> object:
        """End the workers, or let each end after the item that it has."""


# Makes a Pool from the number of workers, the function that each calls first, and its
# arguments.
MakesPool = Callable[[int, Callable[..., object], tuple[Any, ...]], StockPool]


class AnyPool(Workers):
    """Adapts another library's Pool, made by ``make``.

    Single workers can't be started or ended, only the whole Pool; what happens when a
    worker dies is up to it.
    """

    def __init__(
        self,
        make: MakesPool,
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Any, ...],
        *,
        bell: Bell,
    ) -> None:
        super().__init__(bell)
        self._count = workers
        # A subclass may know that the Pool has more.
        self._most = workers
        self._out: dict[int, Block] = {}
        # The Pool doesn't tell its workers their numbers.
        self._numbers = Numbers(workers)
        try:
            begin = (initializer, self._numbers, initargs)
            self._pool = make(workers, begin_with_number, begin)
        except BaseException:
            self._numbers.close()
            raise

    def start(self, number: int) -> None:
        """Do nothing: the Pool starts its workers itself."""

    def kill(self, number: int) -> None:
        """Raise the error that ends the run, since the Pool ends no single worker."""
        raise WorkerCrashed(
            f"no worker has answered for sample_timeout, with {len(self._out)} "
            "unfinished blocks: one is lost or stuck in a sample, and the backend's "
            "Pool replaces none. Make the iterator anew and load its last state, or "
            "pass a longer sample_timeout."
        )

    def map_async(self, func: Work, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self._out[block.number] = block
            # It gets a list of one answer, or an error.
            post = partial(self._post, block)
            try:
                self._pool.map_async(func, [block], 1, post, post)
            except BrokenExecutor as error:
                # It broke between two answers, so that only this call tells of it.
                self._hear(block, error)
            except BaseException:
                del self._out[block.number]
                raise

    def _hear(self, block: Block, value: Any) -> None:
        # After ``close`` nobody asks for it any more.
        if self._out.pop(block.number, None) is None:
            return
        if isinstance(value, BrokenExecutor):
            value = _died(value)
        if not isinstance(value, BaseException):
            # An answer is a tuple of its own class.
            is_list = isinstance(value, list) and len(value) == 1
            if is_list and isinstance(value[0], tuple):
                self._events.append(value[0])
                return
            value = OptionError(
                f"the backend's Pool called callback with {value!r:.60}; it must be a "
                "list of what func returned for the one item."
            )
        self._events.append(Lost(block.number, value))

    def vacancies(self, most: int) -> int:
        """Return how many more blocks may be sent, at most ``most`` a worker."""
        # The Pool gives blocks to any of its workers.  If some are to idle, each of the
        # others has one block, as a second one would go to a worker that is to idle.
        if self._count != self._most:
            most = 1
        return max(0, most * self._count - len(self._out))

    def out(self, number: int) -> int:
        """Return the number of all unanswered blocks.

        It isn't known which worker has which.
        """
        return len(self._out)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        """Return the workers that are at work, as far as their lines say."""
        working = {number for number, line in lines.items() if line.active}
        # Some worker has the unanswered blocks even if no line says so, and whoever has
        # them may be stuck.
        if not working and self._out:
            return set(lines)
        return working

    def close(self, timeout: float = 5.0) -> bool:
        self._out.clear()
        self._numbers.close()
        return comes_back(self._pool.terminate, timeout)


def _died(error: BrokenExecutor) -> WorkerCrashed:
    """Return the error for a Pool that answers nothing more, since a worker has died.

    All executors like the standard library's have an error of this type for it.
    """
    crashed = WorkerCrashed(
        "a worker has died, and with it the backend's Pool. Look at what it printed; "
        "without workers (n_processes=0, num_workers=0) the dataset is loaded here. "
        "The following next() goes on from the same place with a new Pool. What the "
        f"Pool says: {type(error).__name__}: {error}"
    )
    crashed.__cause__ = error
    return crashed


def comes_back(step: Callable[[], object], timeout: float) -> bool:
    """Call ``step``; return False if it takes longer than ``timeout`` seconds.

    It might never return, so it is called in a thread.
    """
    thread = threading.Thread(
        target=step,
        name="mpiter-ending",
        daemon=True,
    )
    try:
        thread.start()
    except RuntimeError:
        # From Python 3.12 on no thread starts while the interpreter exits.
        return False
    thread.join(max(0.0, timeout))
    return not thread.is_alive()
