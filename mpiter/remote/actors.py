"""Workers that are Ray's actors, each with at most two blocks at a time.

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
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import ray

from ..bell import Bell
from ..errors import SharedMemoryFull, WorkerCrashed, WorkerStartError
from ..pool.anypool import comes_back
from ..pool.workers import Event, State, Work, Worker, Workers
from ..worker.block import Block, Lost
from ..worker.board import CELL
from ..worker.worker import Setup, begin

_MOST_OUT = 2  # blocks that an actor may have
# The time between two requests for the actors' lines of the board, unless a timeout is
# shorter.
_LOOK_S = 1.0

# What is done with the result of one of an actor's methods.
_Do = Callable[[Future[Any]], object]


class _Actor:
    """Ray's actor: runs in a process of the cluster, and is one worker."""

    def __init__(
        self,
        setup: Setup,
        ended: Counter[int],
        number: int,
        path: list[str],
    ) -> None:
        self._setup = replace(setup, ended=ended)
        self._number = number
        # The dataset is imported from where the program finds it.
        missing = [place for place in path if place not in sys.path]
        sys.path += [place for place in missing if os.path.exists(place)]

    def arrive(self) -> tuple[int, str]:
        """Return this actor's process id, and the name of its machine."""
        return os.getpid(), socket.gethostname()

    def begin(self) -> None:
        begin(self._setup, self._number)

    def work(self, func: Work, block: Block) -> Any:
        return func(block)

    def look(self) -> bytes:
        """Return its line of the board, which tells the row that it is fetching.

        This is called in another thread than ``work``.
        """
        return bytes(self._setup.board.cells(self._number))


@dataclass(eq=False, kw_only=True)
class _Member(Worker):
    """An actor, as the consumer process knows it, and the blocks that it has."""

    actor: Any
    since: float  # when Ray was asked to start it
    # It is 0 until the actor has started.
    pid: int = 0
    machine: str = ""
    # Its line was asked for, and hasn't come yet.
    is_looked_at: bool = False

    def room(self, most: int, block: Block | None = None) -> int:
        """Return how many more blocks, or blocks like ``block``, it may have.

        It has at most ``most`` at a time.  A block that may kill its actor (``singly``)
        is sent to it alone: other answers would be lost with it.
        """
        blocks = [*self.out.values()]
        if block is not None:
            blocks.append(block)
        if any(one.singly for one in blocks):
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
        _: object,
        initargs: tuple[Setup],
        *,
        bell: Bell,
    ) -> None:
        super().__init__(bell)
        (setup,) = initargs
        self._board = setup.board
        self._setup = ray.put(setup)
        self._ended = setup.ended
        self._options = options
        self._patience = patience
        # Looks run in a thread of their own in the actor.  Behind a sample that is
        # stuck none would be answered.
        as_actor = ray.remote(
            **options,
            max_restarts=0,
            concurrency_groups={"looks": 1},
        )
        self._class = as_actor(_Actor)
        self._backlog: deque[tuple[Work, Block]] = deque()
        self._looked = 0.0
        for number in range(workers):
            self.start(number)

    def map_async(self, func: Work, blocks: Iterable[Block]) -> None:
        self._backlog.extend((func, block) for block in blocks)
        self._assign()

    def vacancies(self, most: int) -> int:
        found = 0
        for member in self._able:
            found += max(0, member.room(most))
        return found - len(self._backlog)

    @property
    def _able(self) -> list[_Member]:
        return [member for member in self._workers.values() if member.takes_blocks]

    def _assign(self) -> None:
        """Send the waiting blocks, each to the actor with the fewest.

        Those that no actor can take wait on.
        """
        while self._backlog:
            func, block = self._backlog[0]
            chosen: _Member | None = None
            most = 0
            for member in self._able:
                room = member.room(_MOST_OUT, block)
                if room > most:
                    chosen = member
                    most = room
            if chosen is None:
                return
            self._be_connected()
            answer = chosen.actor.work.remote(func, block)
            self._backlog.popleft()
            chosen.out[block.number] = block
            do = partial(self._answered, chosen, block)
            self._then(answer, chosen, do)

    def _then(self, answer: Any, member: _Member, do: _Do) -> None:
        """Have ``wait`` call ``do`` with Ray's future of ``answer``.

        If the answer can't come, ``wait`` reports the actor's end.
        """
        post = partial(self._post, member, do)
        answer.future().add_done_callback(post)

    def _post(self, *word: Any) -> None:
        """Add an event, unless the actor's end was reported.

        After ``close`` the event would keep an object in Ray's store.
        """
        member = word[0]
        if self._workers.get(member.number) is member:
            super()._post(*word)

    def _hear(
        self,
        member: _Member,
        do: _Do,
        future: Future[Any],
    ) -> None:
        # The actor's end was reported in the meantime, and its blocks are with others.
        if self._workers.get(member.number) is not member:
            return
        error = future.exception()
        # That the method has raised is an answer like any other.
        if error is None or isinstance(error, ray.exceptions.RayTaskError):
            do(future)
        else:
            # Ray adds the same list of causes to each error.
            text = " ".join(str(error).split())
            why, _, _ = text.partition(" Some common causes include")
            # The end of a traceback says most.
            self._lose(member, f"was lost by Ray ({why[-600:].rstrip('.')})")

    def _answered(
        self,
        member: _Member,
        block: Block,
        future: Future[Any],
    ) -> None:
        del member.out[block.number]
        error = future.exception()
        if error is None:
            self._events.append(future.result())
        else:
            self._events.append(Lost(block.number, error))
        self._end_if_retired(member)
        self._assign()

    def wait(self, timeout: float | None = None) -> list[Event]:
        """Wait for events and return them.

        Every ``_LOOK_S`` seconds the actors are asked for their lines of the board.
        """
        look_s = _LOOK_S
        if timeout is not None:
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
                look = member.actor.look.options(concurrency_group="looks")
                self._then(look.remote(), member, partial(self._saw, member))

    def _saw(self, member: _Member, future: Future[Any]) -> None:
        member.is_looked_at = False
        line = memoryview(future.result())
        self._board.cells(member.number)[:] = line.cast("q")

    def _wait_for_a_place(self, member: _Member) -> None:
        """Raise an error if no actor has found a place for too long."""
        # An actor that waits for a place mustn't count as stuck.
        cells = self._board.cells(member.number)
        cells[CELL.since] = time.monotonic_ns()
        others = any(other.pid for other in self._workers.values())
        waited_s = time.monotonic() - member.since
        if not others and waited_s >= self._patience:
            # The next attempt waits as long again.
            member.since = time.monotonic()
            has = ray.cluster_resources()
            free = ray.available_resources()
            asks = {"CPU": self._options["num_cpus"]}
            asks.update(self._options["resources"] or {})
            wants = []
            for name, number in asks.items():
                there = f"{free.get(name, 0):g} of {has.get(name, 0):g} free"
                wants.append(f"{number:g} {name} ({there})")
            raise WorkerStartError(
                f"Ray has found no place for a worker in {self._patience:g} s; each "
                f"wants {', '.join(wants)}. Free some of it, add nodes, or lower "
                "cpus_per_worker or resources of mpiter.remote.Ray. If a node has as "
                "much free, Ray could not start a process on it: its logs, in "
                "/tmp/ray/session_latest/logs, say why."
            )

    def _be_connected(self) -> None:
        """Raise an error if Ray was shut down: any call would start another cluster."""
        if not ray.is_initialized():
            raise WorkerCrashed(
                "Ray was shut down, and the workers with it; call ray.shutdown() "
                "after close()."
            )

    def start(self, number: int) -> None:
        self._be_connected()
        actor = self._class.remote(self._setup, self._ended, number, sys.path)
        member = _Member(
            number=number,
            actor=actor,
            since=time.monotonic(),
        )
        self._workers[number] = member
        arrives = actor.arrive.remote()
        self._then(arrives, member, partial(self._has_place, member))
        begins = actor.begin.remote()
        self._then(begins, member, partial(self._is_ready, member))

    def _has_place(self, member: _Member, future: Future[Any]) -> None:
        member.pid, member.machine = future.result()

    def _is_ready(self, member: _Member, future: Future[Any]) -> None:
        member.is_ready()
        # Its own line is known only once it was asked for, at the next look.
        cells = self._board.cells(member.number)
        cells[CELL.ready] = 1
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
        """Kill an actor, if it lives, and report its end.

        ``how`` says in words how it ended.
        """
        del self._workers[member.number]
        _end(member)
        if member.machine:
            how = f"{how} on {member.machine}"
        died = member.died(member.pid, 0)
        self._events.append(died._replace(how=how))
        self._bell.ring()

    def close(self, timeout: float = 5.0) -> bool:
        members = list(self._workers.values())
        self._workers.clear()
        self._backlog.clear()
        self._arrived.clear()

        def end_all() -> None:
            for member in members:
                _end(member)

        comes_back(end_all, timeout)
        self._setup = None
        return True


def _end(member: _Member) -> None:
    # Ray may be shut down at this moment, and the actor with it.
    with contextlib.suppress(Exception):
        if ray.is_initialized():
            ray.kill(member.actor)


def connect(address: str | None) -> None:
    """Connect to the Ray cluster at ``address``, or start one.

    Do nothing if the program is connected to it already.
    """
    if ray.is_initialized():
        connected_to = ray.get_runtime_context().gcs_address
        if address in (None, "auto", connected_to):
            return
    try:
        ray.init(address=address)
    except (OSError, RuntimeError, ValueError) as error:
        where = "here" if address is None else f"at {address}"
        raise WorkerStartError(
            f"there is no Ray to be had {where}: {error}. `ray start --head` starts "
            "one."
        ) from error


class InStore:
    maps_files: ClassVar = False

    def __init__(self, buffers: list[memoryview]) -> None:
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        try:
            self._there = ray.put(arrays)
        except ray.exceptions.RayError as error:
            raise SharedMemoryFull(
                f"the dataset doesn't fit into Ray's object store: {error}. Start Ray "
                "with a larger object_store_memory, or use np.memmap and files."
            ) from error

    def buffers(self, is_own: bool) -> list[Any]:
        """Return the buffers.

        On each node the first worker waits until they have arrived.
        """
        return list(ray.get(self._there))

    def close(self) -> None:
        self._there = None
