"""Workers that are Ray's actors: each has at most two blocks (contiguous rows of a
batch) at a time.

Ray calls back in its own threads, which only add an event and ring the bell that wakes
the prefetch thread.  Guarantees that an actor's end, its node's included, is reported
once, with the blocks that it hasn't answered; and that an error is raised if the
cluster has no place for an actor.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import ray

from ..bell import Bell
from ..errors import SharedMemoryFull, WorkerCrashed, WorkerStartError
from ..pool.anypool import comes_back
from ..pool.workers import State, Worker, Workers
from ..worker.block import Block, Lost
from ..worker.board import CELL
from ..worker.worker import Setup, begin

_MOST_OUT = 2  # blocks that an actor may have
# Between two requests for the actors' lines of the board, unless a timeout is shorter.
_LOOK_S = 1.0


class _Actor:
    """Ray's actor: runs in a process of the cluster, and is one worker."""

    def __init__(
        self, setup: Setup, ended: Counter[int], number: int, path: list[str]
    ) -> None:
        self._setup = replace(setup, ended=ended)
        self._number = number
        # Of the program
        sys.path += [
            place for place in path if place not in sys.path and os.path.exists(place)
        ]

    def arrive(self) -> tuple[int, str]:
        """Return this actor's process id, and the name of its machine."""
        return os.getpid(), socket.gethostname()

    def begin(self) -> None:
        begin(self._setup, self._number)

    def work(self, func: Callable[[Any], Any], block: Block) -> Any:
        return func(block)

    def look(self) -> bytes:
        """Return its line of the board, which tells the row it is fetching; called in
        another thread than ``work``.
        """
        return bytes(self._setup.board.cells(self._number))


@dataclass(eq=False, kw_only=True)
class _Member(Worker):
    """An actor, as the consumer process knows it, and the blocks that it has."""

    actor: Any
    since: float  # when Ray was asked to start it
    # 0: it hasn't started yet.
    pid: int = 0
    machine: str = ""
    # Its line was asked for, and hasn't come yet.
    is_looked_at: bool = False

    def room(self, most: int, block: Block | None = None) -> int:
        """Return how many more blocks it may have, with at most ``most`` at a time; or
        how many like ``block``.

        A block that may kill its actor (``singly``) is sent to it alone: other answers
        would be lost with it.
        """
        is_alone = any(
            other.singly for other in [*self.out.values(), block] if other is not None
        )
        if is_alone:
            return int(not self.out)
        return most - len(self.out)


class Actors(Workers):
    """A Pool whose workers are Ray's actors.

    ``options`` are passed to Ray for each actor; the first actor must start within
    ``patience`` seconds.
    """

    def __init__(
        self,
        options: dict[str, Any],
        patience: float,
        workers: int,
        _: Any,
        initargs: tuple[Setup],
        *,
        bell: Bell,
    ) -> None:
        super().__init__(bell)
        (setup,) = initargs
        self._board, self._setup, self._ended = setup.board, ray.put(setup), setup.ended
        self._options = options
        self._patience = patience
        self._class = ray.remote(
            **options, max_restarts=0, concurrency_groups={"looks": 1}
        )(_Actor)
        self._backlog: deque[tuple[Any, Block]] = deque()
        self._looked = 0.0
        for number in range(workers):
            self.start(number)

    def map_async(self, func: Any, blocks: Iterable[Block]) -> None:
        self._backlog.extend((func, block) for block in blocks)
        self._assign()

    def vacancies(self, most: int) -> int:
        return sum(max(0, member.room(most)) for member in self._able) - len(
            self._backlog
        )

    @property
    def _able(self) -> list[_Member]:
        return [member for member in self._workers.values() if member.takes_blocks]

    def _assign(self) -> None:
        """Send the waiting blocks, each to the actor with the fewest, as far as actors
        can take them.
        """
        while self._backlog:
            func, block = self._backlog[0]
            chosen = max(
                self._able,
                key=lambda member: member.room(_MOST_OUT, block),
                default=None,
            )
            if chosen is None or chosen.room(_MOST_OUT, block) < 1:
                return
            self._be_connected()
            answer = chosen.actor.work.remote(func, block)
            self._backlog.popleft()
            chosen.out[block.number] = block
            self._then(answer, chosen, partial(self._answered, chosen, block))

    def _then(self, answer: Any, member: _Member, do: Callable[[Any], object]) -> None:
        """Have ``wait`` call ``do`` with Ray's future of ``answer``; if it can't come,
        report the actor's end.
        """
        answer.future().add_done_callback(partial(self._post, member, do))

    def _post(self, *word: Any) -> None:
        """Add an event, unless the actor's end was reported: it would keep an object in
        Ray's store after ``close``.
        """
        if self._workers.get(word[0].number) is word[0]:
            super()._post(*word)

    def _hear(self, member: _Member, do: Callable[[Any], object], future: Any) -> None:
        if self._workers.get(member.number) is not member:
            return
        error = future.exception()
        # The method that was called has raised.
        if error is None or isinstance(error, ray.exceptions.RayTaskError):
            do(future)
        else:
            # Which Ray adds to each.
            why = " ".join(str(error).split()).partition(" Some common causes include")[
                0
            ]
            # The end of a traceback tells most.
            self._lose(member, f"was lost by Ray ({why[-600:].rstrip('.')})")

    def _answered(self, member: _Member, block: Block, future: Any) -> None:
        del member.out[block.number]
        error = future.exception()
        self._events.append(
            future.result() if error is None else Lost(block.number, error)
        )
        self._end_if_retired(member)
        self._assign()

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait for events and return them; ask the actors for their lines of the board
        every ``_LOOK_S`` seconds.
        """
        if timeout is None:
            look_s = _LOOK_S
        else:
            look_s = min(timeout, _LOOK_S)
        if time.monotonic() - self._looked >= look_s:
            self._look()
        return super().wait(look_s)

    def _look(self) -> None:
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
        """Raise an error if no actor has found a place for too long; else let this one
        wait.
        """
        # So that it doesn't count as stuck.
        self._board.cells(member.number)[CELL.since] = time.monotonic_ns()
        others = any(other.pid for other in self._workers.values())
        if not others and time.monotonic() - member.since >= self._patience:
            # The next attempt waits as long again.
            member.since = time.monotonic()
            has = ray.cluster_resources()
            free = ray.available_resources()
            asks = {
                "CPU": self._options["num_cpus"],
                **(self._options["resources"] or {}),
            }
            told = ", ".join(
                f"{asks[one]:g} {one} ({free.get(one, 0):g} of {has.get(one, 0):g} "
                "free)"
                for one in asks
            )
            raise WorkerStartError(
                f"Ray has found no place for a worker in {self._patience:g} s; each "
                f"wants {told}. Free some of it, add nodes, or lower cpus_per_worker "
                "or resources of mpiter.remote.Ray. Where there is room, no process "
                "starts: the logs of that node, in /tmp/ray/session_latest/logs, say "
                "why."
            )

    def _be_connected(self) -> None:
        """Raise an error if Ray was shut down, because any call would start another
        cluster.
        """
        if not ray.is_initialized():
            raise WorkerCrashed(
                "Ray was shut down, and the workers with it; call ray.shutdown() "
                "after close()."
            )

    def start(self, number: int) -> None:
        self._be_connected()
        actor = self._class.remote(self._setup, self._ended, number, sys.path)
        member = self._workers[number] = _Member(
            number=number, actor=actor, since=time.monotonic()
        )
        self._then(actor.arrive.remote(), member, partial(self._has_place, member))
        self._then(actor.begin.remote(), member, partial(self._is_ready, member))

    def _has_place(self, member: _Member, future: Any) -> None:
        member.pid, member.machine = future.result()

    def _is_ready(self, member: _Member, future: Any) -> None:
        member.is_ready()
        # Its own line is known only when it's asked for.
        self._board.cells(member.number)[CELL.ready] = 1
        self._assign()

    def retire(self, number: int) -> None:
        if number in self._workers:
            self._workers[number].state = State.RETIRING
            self._end_if_retired(self._workers[number])

    def _end_if_retired(self, member: _Member) -> None:
        if member.state is State.RETIRING and not member.out:
            self._lose(member, "")

    def kill(self, number: int) -> None:
        """Kill an actor; its answers that are still on their way are dropped."""
        if number in self._workers:
            self._lose(self._workers[number], "was ended")

    def _lose(self, member: _Member, how: str) -> None:
        """Kill an actor, if it lives, and report its end; ``how`` says in words how it
        ended.
        """
        del self._workers[member.number]
        _end(member)
        if member.machine:
            where = f" on {member.machine}"
        else:
            where = ""
        self._events.append(member.died(member.pid, 0)._replace(how=f"{how}{where}"))
        self._bell.ring()

    def close(self, timeout: float = 5.0) -> bool:
        members = list(self._workers.values())
        self._workers.clear()
        self._backlog.clear()
        self._arrived.clear()
        comes_back(lambda: deque(map(_end, members)), timeout)
        self._setup = None
        return True


def _end(member: _Member) -> None:
    # If Ray has been shut down, say.
    with contextlib.suppress(Exception):
        if ray.is_initialized():
            ray.kill(member.actor)


def connect(address: str | None) -> None:
    """Connect to the Ray cluster at ``address``, or start one; do nothing if connected
    to it already.
    """
    if ray.is_initialized() and address in {
        None,
        "auto",
        ray.get_runtime_context().gcs_address,
    }:
        return
    try:
        ray.init(address=address)
    except (OSError, RuntimeError, ValueError) as error:
        if address is None:
            where = "here"
        else:
            where = f"at {address}"
        raise WorkerStartError(
            f"there is no Ray to be had {where}: {error}. `ray start --head` starts "
            "one."
        ) from error


class InStore:
    maps_files: ClassVar = False

    def __init__(self, buffers: list[memoryview]) -> None:
        try:
            self._there: Any = ray.put(
                [np.frombuffer(buffer, np.uint8) for buffer in buffers]
            )
        except ray.exceptions.RayError as error:
            raise SharedMemoryFull(
                f"the dataset doesn't fit into Ray's object store: {error}. Start Ray "
                "with a larger object_store_memory, or use np.memmap and files."
            ) from error

    def buffers(self, is_own: bool) -> list[Any]:
        """Return the buffers; on each node the first worker waits until they have
        arrived.
        """
        return list(ray.get(self._there))

    def close(self) -> None:
        self._there = None
