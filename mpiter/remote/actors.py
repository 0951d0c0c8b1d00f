"""Workers that are Ray's actors: one each, with two tasks at most, and each death a matter of its own.

``Actors`` runs in the consumer process, in the thread that waits; Ray calls back in threads of its own, which only
leave word and ring the bell.  ``_Actor`` runs in a process that Ray starts wherever there is room.  Guarantees that an
actor's end, its node's included, is told once, with what it had been asked and has not answered; that one which finds
no place in the cluster becomes an error; and that nothing is left in the cluster.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from typing import Any

from ..bell import Bell
from ..errors import WorkerCrashed
from ..pool.anypool import comes_back
from ..pool.member import Exit, State
from ..pool.pool import MOST_OUT
from ..worker.board import Cell, Line
from ..worker.worker import Setup
from .ray_errors import full, no_place, why

_LOOK_S = 1.0  # between two looks at what actors do, unless somebody wants to know sooner


class _Actor:
    """In the cluster: one worker."""

    def __init__(self, begin: Callable[[Setup, int], None], setup: Setup, number: int, path: list[str]) -> None:
        self._begin, self._setup, self._number = begin, setup, number
        sys.path += [place for place in path if place not in sys.path and os.path.exists(place)]  # the program's own

    def arrive(self) -> tuple[int, str]:
        """It has got a process: which, and on what machine."""
        return os.getpid(), socket.gethostname()

    def begin(self) -> None:
        self._begin(self._setup, self._number)

    def work(self, func: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        return [func(item) for item in items]

    def look(self) -> bytes:
        """What it does right now: its line of the board; asked while it works."""
        return bytes(self._setup.board.cells(self._number))


@dataclass(eq=False, slots=True)
class _Asked:
    """A task."""

    func: Any
    items: list[Any]
    answered: Callable[[Any], object]
    failed: Callable[[BaseException], object]

    @property
    def is_suspect(self) -> bool:
        """It may end its actor, and the answers with it that are still on their way."""
        return any(item.singly for item in self.items)


@dataclass(eq=False, slots=True)
class _Member:
    """An actor, and what it has been asked."""

    number: int
    actor: Any
    since: float  # when a place was asked for
    has_place: bool = False
    pid: int = 0
    machine: str = ""
    state: State = State.STARTING
    out: dict[int, _Asked] = field(default_factory=dict)  # in the order in which it has them
    is_looked_at: bool = False

    def room(self, asked: _Asked | None = None) -> int:
        """For how many more tasks, or for how many like this one: a suspect has its actor to itself."""
        if any(other.is_suspect for other in self.out.values()) or (asked is not None and asked.is_suspect):
            return int(not self.out)
        return MOST_OUT - len(self.out)


class Actors:
    """``multiprocessing.Pool``'s ``map_async``, on actors.

    ``options`` are Ray's for an actor, ``patience`` the seconds in which the first of them must have a process.
    """

    shares_fate = False

    def __init__(
        self,
        options: dict[str, Any],
        patience: float,
        workers: int,
        initializer: Callable[[Setup, int], None],
        initargs: tuple[Setup],
        *,
        bell: Bell,
        ended: Callable[[Exit], object],
        destinations: Any = None,
    ) -> None:
        import ray

        self._ray, self._errors = ray, ray.exceptions
        (setup,) = initargs
        self._board, self._begin, self._setup = setup.board, initializer, ray.put(setup)
        self._wanted = options
        self._class = ray.remote(**options, max_restarts=0, concurrency_groups={"looks": 1})(_Actor)
        self._patience, self._bell, self._tell = patience, bell, ended
        self._members: dict[int, _Member] = {}
        self._backlog: deque[_Asked] = deque()
        self._numbers = itertools.count()
        self._arrived: deque[Callable[[], object]] = deque()  # what wait() has still to deal with
        self._looked, self._is_over = 0.0, False
        self._cluster = self._here()
        try:
            for number in range(workers):
                self.start(number)
        except BaseException:
            self.dispose()
            raise

    # -- tasks -------------------------------------------------------------------------------------------------------

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Any,
        chunksize: int | None = None,
        callback: Any = None,
        error_callback: Any = None,
    ) -> None:
        """As it is, all in one task; the callbacks are called by ``wait``."""
        self._backlog.append(_Asked(func, list(iterable), callback, error_callback))
        self._assign()

    @property
    def vacancies(self) -> int:
        """How many more tasks would be with an actor at once, or with the first one that is ready."""
        free = [member.room() for member in self._able]
        return (sum(free) if free else 1) - len(self._backlog)

    @property
    def has_idle_worker(self) -> bool:
        return any(not member.out for member in self._able)

    @property
    def _able(self) -> list[_Member]:
        return [member for member in self._members.values() if member.state is State.READY]

    def _assign(self) -> None:
        """Hand out what waits, to whoever has least to do."""
        while self._backlog:
            asked = self._backlog[0]
            chosen = max(self._able, key=lambda member: member.room(asked), default=None)
            if chosen is None or chosen.room(asked) < 1:
                return
            self._be_connected()
            self._backlog.popleft()
            number = next(self._numbers)
            chosen.out[number] = asked
            try:
                answer = chosen.actor.work.remote(asked.func, asked.items)
            except BaseException:  # it never left
                del chosen.out[number]
                raise
            self._then(answer, chosen, partial(self._answered, chosen, number))

    def _then(self, answer: Any, member: _Member, do: Callable[[Any], object]) -> None:
        """Have ``do`` called by ``wait`` with the answer; if there will be none, the actor has ended."""
        answer.future().add_done_callback(partial(self._post, member, do))

    def _post(self, member: _Member, do: Callable[[Any], object], future: Any) -> None:
        """In a thread of Ray's."""
        if not self._is_over:
            self._arrived.append(partial(self._heard, member, do, future))
            self._bell.ring()

    def _heard(self, member: _Member, do: Callable[[Any], object], future: Any) -> None:
        if self._members.get(member.number) is not member:
            return  # it was told of as ended
        error = future.exception()
        is_theirs = isinstance(error, self._errors.RayTaskError)  # what was called has raised
        if error is not None and not is_theirs:
            self._lose(member, f"was lost by Ray ({why(error)})")
        else:
            do(future)

    def _answered(self, member: _Member, number: int, future: Any) -> None:
        asked = member.out.pop(number)
        if member.state is State.RETIRING and not member.out:
            self._arrived.append(partial(self._lose, member, ""))
        self._assign()
        error = future.exception()
        if error is None:
            asked.answered(future.result())
        elif isinstance(error, (self._errors.ObjectStoreFullError, self._errors.OutOfDiskError)):
            asked.failed(full(error))
        else:
            asked.failed(error)

    # -- what happens ------------------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> None:
        """Wait until something happens, and pass it on."""
        if not self._arrived:
            connection.wait([self._bell.fileno()], _LOOK_S if timeout is None else min(timeout, _LOOK_S))
        self._bell.hush()
        while self._arrived:
            self._arrived.popleft()()
        if time.monotonic() - self._looked >= (_LOOK_S if timeout is None else min(timeout, _LOOK_S)):
            self._look()

    def _look(self) -> None:
        """Ask all what they do."""
        self._be_connected()
        self._looked = time.monotonic()
        for member in list(self._members.values()):
            if not member.is_looked_at and member.has_place:
                member.is_looked_at = True
                look = member.actor.look.options(concurrency_group="looks").remote()
                self._then(look, member, partial(self._saw, member))
            elif not member.has_place:
                self._wait_for_a_place(member)

    def _be_connected(self) -> None:
        """Ray would start another cluster for whoever asks it something after its end."""
        if not self._ray.is_initialized() or self._here() != self._cluster:
            raise WorkerCrashed("Ray was shut down, and the workers with it; call ray.shutdown() after close().")

    def _here(self) -> str:
        """The node that this program is on: another one if somebody has started another Ray."""
        return str(self._ray.get_runtime_context().get_node_id())

    def _saw(self, member: _Member, future: Any) -> None:
        member.is_looked_at = False
        self._board.cells(member.number)[:] = memoryview(future.result()).cast("q")

    def _wait_for_a_place(self, member: _Member) -> None:
        """It waits for what others have: no error, as long as there is somebody who works."""
        self._board.cells(member.number)[Cell.SINCE] = time.monotonic_ns()  # it isn't stuck
        others = any(other.has_place for other in self._members.values())
        if others or time.monotonic() - member.since < self._patience:
            return
        member.since = time.monotonic()  # another attempt waits as long again
        raise no_place(self._wanted, self._patience, self._ray.cluster_resources(), self._ray.available_resources())

    # -- workers come and go -----------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Have Ray start an actor, wherever there is room."""
        self._be_connected()
        actor = self._class.remote(self._begin, self._setup, number, sys.path)
        member = self._members[number] = _Member(number, actor, time.monotonic())
        self._then(actor.arrive.remote(), member, partial(self._has_place, member))
        self._then(actor.begin.remote(), member, partial(self._is_ready, member))

    def _has_place(self, member: _Member, future: Any) -> None:
        member.has_place = True
        member.pid, member.machine = future.result()

    def _is_ready(self, member: _Member, future: Any) -> None:
        if (error := future.exception()) is not None:
            self._lose(member, f"has failed ({why(error)})")
        elif member.state is State.STARTING:
            member.state = State.READY
            self._board.cells(member.number)[Cell.READY] = 1  # what it does we hear only when we look
            self._assign()

    def retire(self, number: int) -> None:
        member = self._members.get(number)
        if member is not None and member.state is not State.RETIRING:
            member.state = State.RETIRING
            if not member.out:
                self._arrived.append(partial(self._lose, member, ""))
                self._bell.ring()

    def kill(self, number: int) -> None:
        """End an actor whatever it does: what it still says is not listened to."""
        member = self._members.get(number)
        if member is not None:
            self._lose(member, "was ended")

    abandon = kill

    def _lose(self, member: _Member, how: str) -> None:
        """An actor has ended, or does now."""
        if self._members.get(member.number) is not member:
            return
        del self._members[member.number]
        self._end(member)
        items = tuple([item for asked in member.out.values() for item in asked.items])
        where = f" on {member.machine}" if member.machine else ""
        self._tell(Exit(member.number, member.pid, 0, member.state, items, f"{how}{where}"))

    def _end(self, member: _Member) -> None:
        with contextlib.suppress(Exception):  # Ray has been shut down, say
            if self._ray.is_initialized():
                self._ray.kill(member.actor)

    @property
    def pids(self) -> dict[int, int]:
        """Of none: they are on other machines."""
        return {}

    def out(self, number: int) -> int:
        member = self._members.get(number)
        return 0 if member is None else len(member.out)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        return {number for number in lines if self.out(number)}

    def dispose(self, timeout: float = 5.0) -> bool:
        """End all; what they might still do concerns nobody here."""
        self._is_over, members = True, list(self._members.values())
        self._members.clear()
        self._backlog.clear()
        self._arrived.clear()
        comes_back(lambda: deque(map(self._end, members)), timeout)
        self._setup = None
        return True
