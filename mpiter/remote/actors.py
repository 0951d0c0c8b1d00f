"""Workers that are Ray's actors: one each, with two blocks at most, and each death a matter of its own.

``Actors`` runs in the consumer process, in the thread that waits; Ray calls back in threads of its own, which only
leave word and ring the bell.  ``_Actor`` runs in a process that Ray starts wherever there is room.  Guarantees that an
actor's end, its node's included, is told once, with what it had been asked and has not answered; that an actor which
finds no place in the cluster becomes an error; and that nothing is left in the cluster.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import ray

from ..bell import Bell
from ..errors import SharedMemoryFull, WorkerCrashed, WorkerStartError
from ..pool.anypool import comes_back
from ..pool.workers import State, Worker, Workers
from ..worker.block import Block, Lost
from ..worker.board import Cell
from ..worker.worker import Setup, begin

_MOST_OUT = 2  # blocks with one actor
_LOOK_S = 1.0  # between two looks at what actors do, unless a timeout wants to know sooner


class _Actor:
    """A worker, in the cluster."""

    def __init__(self, setup: Setup, number: int, path: list[str]) -> None:
        self._setup, self._number = setup, number
        sys.path += [place for place in path if place not in sys.path and os.path.exists(place)]  # the program's own

    def arrive(self) -> tuple[int, str]:
        """Tell which process it has got, and on what machine."""
        return os.getpid(), socket.gethostname()

    def begin(self) -> None:
        begin(self._setup, self._number)

    def work(self, func: Callable[[Any], Any], block: Block) -> Any:
        return func(block)

    def look(self) -> bytes:
        """Give its line of the board; asked while it works."""
        return bytes(self._setup.board.cells(self._number))


@dataclass(eq=False, kw_only=True)
class _Member(Worker):
    """An actor, and the blocks that it has."""

    actor: Any
    since: float  # when a place was asked for
    pid: int = 0  # 0: it has no place yet
    machine: str = ""
    is_looked_at: bool = False

    def room(self, most: int, block: Block | None = None) -> int:
        """Count how many more blocks it may have, or how many like this one.

        A block of single rows has its actor to itself: it may end it, and answers with it that are still on their way.
        """
        is_alone = any(other.singly for other in [*self.out.values(), block] if other is not None)
        return int(not self.out) if is_alone else most - len(self.out)


class Actors(Workers):
    """Ray's actors behind our Pool interface.

    ``options`` are Ray's for an actor, ``patience`` the seconds in which the first of them must have a process.
    """

    def __init__(
        self,
        options: dict[str, Any],
        patience: float,
        workers: int,
        initializer: Any,
        initargs: tuple[Setup],
        *,
        bell: Bell,
    ) -> None:
        super().__init__(bell)
        (setup,) = initargs
        self._board, self._setup = setup.board, ray.put(setup)
        self._options, self._patience = options, patience
        self._class = ray.remote(**options, max_restarts=0, concurrency_groups={"looks": 1})(_Actor)
        self._backlog: deque[tuple[Any, Block]] = deque()
        self._looked = 0.0
        for number in range(workers):
            self.start(number)

    def map_async(self, func: Any, blocks: Iterable[Block]) -> None:
        """Ask for blocks; ``wait`` gives what comes of them."""
        self._backlog.extend((func, block) for block in blocks)
        self._assign()

    def vacancies(self, most: int) -> int:
        """The number of further blocks for the actors, if each may have ``most``."""
        return sum(max(0, member.room(most)) for member in self._able) - len(self._backlog)

    @property
    def _able(self) -> list[_Member]:
        return [member for member in self._workers.values() if member.takes_blocks]

    def _assign(self) -> None:
        """Hand out what waits, each block to the actor that has least to do."""
        while self._backlog:
            func, block = self._backlog[0]
            chosen = max(self._able, key=lambda member: member.room(_MOST_OUT, block), default=None)
            if chosen is None or chosen.room(_MOST_OUT, block) < 1:
                return
            self._be_connected()
            answer = chosen.actor.work.remote(func, block)
            self._backlog.popleft()
            chosen.out[block.number] = block
            self._then(answer, chosen, partial(self._answered, chosen, block))

    def _then(self, answer: Any, member: _Member, do: Callable[[Any], object]) -> None:
        """Have ``wait`` call ``do`` with the answer; if there will be none, the actor has ended."""
        answer.future().add_done_callback(partial(self._post, member, do))

    def _post(self, *word: Any) -> None:
        """Add an event, in a thread of Ray's, unless the actor's end was reported already."""
        if self._workers.get(word[0].number) is word[0]:
            super()._post(*word)

    def _hear(self, member: _Member, do: Callable[[Any], object], future: Any) -> None:
        if self._workers.get(member.number) is not member:
            return
        error = future.exception()
        if error is None or isinstance(error, ray.exceptions.RayTaskError):  # what was called has raised
            do(future)
        else:
            self._lose(member, f"was lost by Ray ({_why(error)})")

    def _answered(self, member: _Member, block: Block, future: Any) -> None:
        del member.out[block.number]
        error = future.exception()
        self._events.append(future.result() if error is None else Lost(block.number, error))
        self._end_if_retired(member)
        self._assign()

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait until something happens, and ask the actors now and then what they do."""
        look_s = _LOOK_S if timeout is None else min(timeout, _LOOK_S)
        if time.monotonic() - self._looked >= look_s:
            self._look()
        return super().wait(look_s)

    def _look(self) -> None:
        """Ask all actors what they do."""
        self._be_connected()
        self._looked = time.monotonic()
        for member in self._workers.values():
            if not member.pid:
                self._wait_for_a_place(member)
            elif not member.is_looked_at:
                member.is_looked_at = True
                look = member.actor.look.options(concurrency_group="looks").remote()
                self._then(look, member, partial(self._saw, member))

    def _saw(self, member: _Member, future: Any) -> None:
        member.is_looked_at = False
        self._board.cells(member.number)[:] = memoryview(future.result()).cast("q")

    def _wait_for_a_place(self, member: _Member) -> None:
        """Let a worker wait for room without an error, as long as another has a place."""
        self._board.cells(member.number)[Cell.SINCE] = time.monotonic_ns()  # it isn't stuck
        others = any(other.pid for other in self._workers.values())
        if not others and time.monotonic() - member.since >= self._patience:
            member.since = time.monotonic()  # another attempt waits as long again
            raise _no_place(self._options, self._patience)

    def _be_connected(self) -> None:
        """Refuse to ask after the end of Ray, which would start another cluster."""
        if not ray.is_initialized():
            raise WorkerCrashed("Ray was shut down, and the workers with it; call ray.shutdown() after close().")

    def start(self, number: int) -> None:
        """Have Ray start an actor, wherever there is room."""
        self._be_connected()
        actor = self._class.remote(self._setup, number, sys.path)
        member = self._workers[number] = _Member(number=number, actor=actor, since=time.monotonic())
        self._then(actor.arrive.remote(), member, partial(self._has_place, member))
        self._then(actor.begin.remote(), member, partial(self._is_ready, member))

    def _has_place(self, member: _Member, future: Any) -> None:
        member.pid, member.machine = future.result()

    def _is_ready(self, member: _Member, future: Any) -> None:
        member.is_ready()
        self._board.cells(member.number)[Cell.READY] = 1  # what it does we hear only when we look
        self._assign()

    def retire(self, number: int) -> None:
        """End an actor after its last block."""
        if number in self._workers:
            self._workers[number].state = State.RETIRING
            self._end_if_retired(self._workers[number])

    def _end_if_retired(self, member: _Member) -> None:
        if member.state is State.RETIRING and not member.out:
            self._lose(member, "")

    def kill(self, number: int) -> None:
        """Kill an actor; answers that still come are dropped."""
        if number in self._workers:
            self._lose(self._workers[number], "was ended")

    def _lose(self, member: _Member, how: str) -> None:
        """Report an actor's end."""
        del self._workers[member.number]
        _end(member)
        where = f" on {member.machine}" if member.machine else ""
        self._events.append(member.died(member.pid, 0)._replace(how=f"{how}{where}"))
        self._bell.ring()

    def close(self, timeout: float = 5.0) -> bool:
        """End all actors without waiting for what they do."""
        members = list(self._workers.values())
        self._workers.clear()
        self._backlog.clear()
        self._arrived.clear()
        comes_back(lambda: deque(map(_end, members)), timeout)
        self._setup = None
        return True


def _end(member: _Member) -> None:
    with contextlib.suppress(Exception):  # Ray has been shut down, say
        if ray.is_initialized():
            ray.kill(member.actor)


# -- the cluster ----------------------------------------------------------------------------------------------------


_TO_ANSWER_S = 5.0  # that a cluster may take to accept a connection
_LONGEST = 600  # characters of what Ray says of a death


def connect(address: str | None) -> None:
    """Connect to Ray, or start one."""
    if ray.is_initialized() and address in {None, "auto", ray.get_runtime_context().gcs_address}:
        return
    host, _, port = (address or "").rpartition(":")
    try:
        if host and port.isdigit():  # Ray would try for a minute, and print what it thinks of it
            socket.create_connection((host, int(port)), _TO_ANSWER_S).close()
        ray.init(address=address)
    except (OSError, RuntimeError, ValueError) as error:
        where = "here" if address is None else f"at {address}"
        raise WorkerStartError(f"there is no Ray to be had {where}: {error}. `ray start --head` starts one.") from error


class InStore:
    """Buffers of a dataset, in the object store."""

    maps_files: ClassVar = False

    def __init__(self, buffers: list[memoryview]) -> None:
        try:
            self._there: Any = ray.put([np.frombuffer(buffer, np.uint8) for buffer in buffers])
        except ray.exceptions.RayError as error:
            size = sum(buffer.nbytes for buffer in buffers)
            raise SharedMemoryFull(
                f"the dataset ({size / 1e6:.0f} MB) does not fit into Ray's object store: {error}. Start Ray with a "
                f"larger object_store_memory, or use np.memmap and files."
            ) from error

    def buffers(self, is_own: bool) -> list[Any]:
        """Read them on whatever node this is; the first worker there waits until they have come."""
        return list(ray.get(self._there))

    def close(self) -> None:
        self._there = None


def _why(error: BaseException) -> str:
    """Ray's explanation of a death, without the sentences that it adds to all of them."""
    text = " ".join(str(error).split()).partition(" Some common causes include")[0]
    return text[-_LONGEST:].rstrip(".") or type(error).__name__  # of a traceback the end tells most


def _no_place(options: dict[str, Any], seconds: float) -> WorkerStartError:
    """The error for a worker that wants what ``options`` say and has not been started."""
    has, free = ray.cluster_resources(), ray.available_resources()
    wanted = {"CPU": options["num_cpus"], **(options["resources"] or {})}
    told = ", ".join(f"{wanted[one]:g} {one} ({free.get(one, 0):g} of {has.get(one, 0):g} free)" for one in wanted)
    return WorkerStartError(
        f"Ray has found no place for a worker in {seconds:g} s; each wants {told}. Free some of it, add "
        f"nodes, or lower cpus_per_worker or resources of mpiter.remote.Ray; start_timeout says how long to wait. "
        f"Where there is room, no process starts: the logs of that node, in /tmp/ray/session_latest/logs, say why."
    )
