"""Workers that are Ray's actors: one each, with two blocks at most, and each death a matter of its own.

``Actors`` runs in the consumer process, in the thread that waits; Ray calls back in threads of its own, which only
leave word and ring the bell.  ``_Actor`` runs in a process that Ray starts wherever there is room.  Guarantees that an
actor's end, its node's included, is told once, with what it had been asked and has not answered; that an actor which
finds no place in the cluster becomes an error; and that nothing is left in the cluster.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray

from ..bell import Bell
from ..errors import WorkerCrashed
from ..pool.anypool import comes_back
from ..pool.member import Died, State
from ..worker.block import Block, Lost
from ..worker.board import Cell, Line
from ..worker.worker import Setup, begin
from . import cluster

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


@dataclass(eq=False, slots=True)
class _Member:
    """An actor, and what it has been asked."""

    number: int
    actor: Any
    since: float  # when a place was asked for
    pid: int = 0  # 0: it has no place yet
    machine: str = ""
    state: State = State.STARTING
    out: list[Block] = field(default_factory=list)  # in the order in which it has them
    is_looked_at: bool = False

    def room(self, most: int, block: Block | None = None) -> int:
        """Count how many more blocks it may have, or how many like this one.

        A block of single rows has its actor to itself: it may end it, and answers with it that are still on their way.
        """
        is_alone = any(other.singly for other in [*self.out, block] if other is not None)
        return int(not self.out) if is_alone else most - len(self.out)


class Actors:
    """``map_async`` on actors.

    ``options`` are Ray's for an actor, ``patience`` the seconds in which the first of them must have a process.
    """

    shares_fate = False

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
        (setup,) = initargs
        self._board, self._setup = setup.board, ray.put(setup)
        self._options, self._patience = options, patience
        self._class = ray.remote(**options, max_restarts=0, concurrency_groups={"looks": 1})(_Actor)
        self._bell = bell
        self._events: list[Any] = []  # that wait() has still to give
        self._members: dict[int, _Member] = {}
        self._backlog: deque[tuple[Any, Block]] = deque()
        self._numbers = itertools.count()
        self._awaited: dict[int, tuple[_Member, Callable[[Any], object]]] = {}  # answers: of whom, for what
        self._arrived: deque[tuple[int, Any]] = deque()  # those that wait() has still to deal with
        self._looked = 0.0
        for number in range(workers):
            self.start(number)

    def map_async(self, func: Any, blocks: Iterable[Block]) -> None:
        """Ask for blocks; ``wait`` gives what comes of them."""
        self._backlog.extend((func, block) for block in blocks)
        self._assign()

    def vacancies(self, most: int) -> int:
        """How many more blocks would be with an actor at once, if each may have ``most``."""
        return sum(max(0, member.room(most)) for member in self._able) - len(self._backlog)

    @property
    def _able(self) -> list[_Member]:
        return [member for member in self._members.values() if member.state is State.READY]

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
            chosen.out.append(block)
            self._then(answer, chosen, partial(self._answered, chosen, block))

    def _then(self, answer: Any, member: _Member, do: Callable[[Any], object]) -> None:
        """Have ``wait`` call ``do`` with the answer; if there will be none, the actor has ended."""
        number = next(self._numbers)
        self._awaited[number] = member, do
        answer.future().add_done_callback(partial(_post, self._awaited, self._arrived, self._bell, number))

    def _heard(self, number: int, future: Any) -> None:
        member, do = self._awaited.pop(number)
        if self._members.get(member.number) is not member:
            return  # it was told of as ended
        error = future.exception()
        if error is None or isinstance(error, ray.exceptions.RayTaskError):  # what was called has raised
            do(future)
        else:
            self._lose(member, f"was lost by Ray ({cluster.why(error)})")

    def _answered(self, member: _Member, block: Block, future: Any) -> None:
        member.out.remove(block)
        self._assign()
        error = future.exception()
        self._events.append(future.result() if error is None else Lost(block.number, error))

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait until something happens: answers, Lost and Died, or nothing of these."""
        look_s = _LOOK_S if timeout is None else min(timeout, _LOOK_S)
        self._bell.wait(look_s, at_once=bool(self._arrived or self._events))
        while self._arrived:
            self._heard(*self._arrived.popleft())
        for member in list(self._members.values()):
            if member.state is State.RETIRING and not member.out:
                self._lose(member, "")
        if time.monotonic() - self._looked >= look_s:
            self._look()
        events, self._events = self._events, []
        return events

    def _look(self) -> None:
        """Ask all actors what they do."""
        self._be_connected()
        self._looked = time.monotonic()
        for member in list(self._members.values()):
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
        """Let it wait for room without an error, as long as any other worker has a place."""
        self._board.cells(member.number)[Cell.SINCE] = time.monotonic_ns()  # it isn't stuck
        others = any(other.pid for other in self._members.values())
        if not others and time.monotonic() - member.since >= self._patience:
            member.since = time.monotonic()  # another attempt waits as long again
            raise cluster.no_place(self._options, self._patience)

    def _be_connected(self) -> None:
        """Refuse to ask after the end of Ray, which would start another cluster."""
        if not ray.is_initialized():
            raise WorkerCrashed("Ray was shut down, and the workers with it; call ray.shutdown() after close().")

    def start(self, number: int) -> None:
        """Have Ray start an actor, wherever there is room."""
        self._be_connected()
        actor = self._class.remote(self._setup, number, sys.path)
        member = self._members[number] = _Member(number, actor, time.monotonic())
        self._then(actor.arrive.remote(), member, partial(self._has_place, member))
        self._then(actor.begin.remote(), member, partial(self._is_ready, member))

    def _has_place(self, member: _Member, future: Any) -> None:
        member.pid, member.machine = future.result()

    def _is_ready(self, member: _Member, future: Any) -> None:
        if member.state is State.STARTING:
            member.state = State.READY
            self._board.cells(member.number)[Cell.READY] = 1  # what it does we hear only when we look
            self._assign()

    def retire(self, number: int) -> None:
        """End an actor after its last block."""
        if number in self._members:
            self._members[number].state = State.RETIRING
            self._bell.ring()

    def kill(self, number: int) -> None:
        """End an actor whatever it does: what it still says is not listened to."""
        if number in self._members:
            self._lose(self._members[number], "was ended")

    abandon = kill

    def _lose(self, member: _Member, how: str) -> None:
        """Tell that an actor has ended, or does now."""
        if self._members.get(member.number) is member:
            del self._members[member.number]
            _end(member)
            where = f" on {member.machine}" if member.machine else ""
            died = Died(member.number, member.pid, 0, member.state, tuple(member.out), f"{how}{where}")
            self._events.append(died)
            self._bell.ring()

    @property
    def pids(self) -> dict[int, int]:
        """None: they are on other machines."""
        return {}

    def out(self, number: int) -> int:
        return len(self._members[number].out) if number in self._members else 0

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        return {number for number in lines if self.out(number)}

    def close(self, timeout: float = 5.0) -> bool:
        """End all; what they might still do is not waited for."""
        members = list(self._members.values())
        for table in (self._members, self._backlog, self._awaited, self._arrived):
            table.clear()
        comes_back(lambda: deque(map(_end, members)), timeout)
        self._setup = None
        return True


def _post(awaited: Any, arrived: deque[tuple[int, Any]], bell: Bell, number: int, future: Any) -> None:
    """Leave word, in a thread of Ray's, which may keep this for ever if it is shut down."""
    if number in awaited:
        arrived.append((number, future))
        bell.ring()


def _end(member: _Member) -> None:
    with contextlib.suppress(Exception):  # Ray has been shut down, say
        if ray.is_initialized():
            ray.kill(member.actor)
