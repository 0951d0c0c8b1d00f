"""Workers that come, go and are evicted, in any order: there is one at a time in each place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from simulated import Choices, explore

from mpiter.bell import Bell
from mpiter.pool import crew as crews
from mpiter.pool import endings
from mpiter.pool.anypool import AnyPool
from mpiter.pool.crew import Callbacks, Crew
from mpiter.pool.endings import End
from mpiter.pool.member import Exit, State
from mpiter.pool.pool import MOST_OUT
from mpiter.rules import Rules
from mpiter.worker.board import Cell

MOST = 2


class Workers:
    """A Pool whose workers do what they are told to by a test."""

    def __init__(self, count: int, ended: Any, shares_fate: bool) -> None:
        self.shares_fate, self._tell = shares_fate, ended
        self.states = dict.fromkeys(range(count), State.STARTING)
        self.killed: set[int] = set()
        self._ends: list[Exit] = []

    @property
    def pids(self) -> dict[int, int]:
        return dict.fromkeys(self.states, 0)

    def out(self, number: int) -> int:
        return 0

    def busy(self, lines: Any) -> set[int]:
        return set()

    def wait(self, timeout: float | None = None) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            self._tell(end)

    def start(self, number: int) -> None:
        assert self.shares_fate or number not in self.states, f"place {number} is taken"
        self.states[number] = State.STARTING

    def retire(self, number: int) -> None:
        if number in self.states:
            self.states[number] = State.RETIRING

    def kill(self, number: int) -> None:
        self.killed.add(number)

    def abandon(self, number: int) -> None:
        self.ends(number, None)

    def ends(self, number: int, code: int | None = 0) -> None:
        """A worker is gone; the crew is told when it waits."""
        self.killed.discard(number)
        self._ends.append(Exit(number, 0, code, self.states.pop(number), ()))

    def dispose(self, timeout: float) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that is set."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    clock.monotonic_ns = lambda: int(1e9 * clock.now)
    monkeypatch.setattr(crews, "time", clock)
    monkeypatch.setattr(endings, "time", clock)
    return clock


@contextmanager
def crew_of(grows: bool = True, make: Any = None, **rules: Any) -> Iterator[tuple[Crew, Any, list[End]]]:
    """A crew of ``MOST`` workers, its Pool, and what it says of ends."""
    made: list[Any] = []
    told: list[End] = []

    def pool(count: int, begin: Any, initargs: Any, *, ended: Any, **calls: Any) -> Any:
        made.append(make(count, begin, initargs, ended=ended, **calls) if make else Workers(count, ended, not grows))
        return made[0]

    nothing = SimpleNamespace(bind=lambda host: None, writer=lambda: None, close=lambda: None)
    launch = SimpleNamespace(cargo=None, dumps=None, grows=grows, pool=pool, close=lambda: None)
    backend: Any = SimpleNamespace(name="fake", shares_memory=False, in_process=True, launch=lambda cargo: launch)
    transport: Any = nothing
    callbacks = Callbacks(Bell(), pytest.fail, told.append, lambda task, sizes: None)
    crew = Crew(Rules(workers=MOST, **rules), backend, transport, (None, None), callbacks)
    try:
        yield crew, made[0], told
    finally:
        crew.dispose()
        callbacks.bell.close()


def become_ready(crew: Crew, pool: Workers, number: int) -> None:
    pool.states[number] = State.READY
    crew._board.cells(number)[Cell.READY] = 1


@pytest.mark.slow
def test_in_each_place_there_is_one_worker_whatever_comes_first(clock: Any) -> None:
    """Resizes, ends, starts, and leavers that take so long that they are evicted."""

    def run(choices: Choices) -> None:
        with crew_of() as (crew, pool, _):
            for _ in range(6):
                events = [lambda: crew.resize(MOST + 1 - crew.width), lambda: passes(1.1)]
                for number, state in pool.states.items():
                    if state is State.STARTING:
                        events.append(lambda number=number: become_ready(crew, pool, number))
                    elif state is State.RETIRING:
                        events.append(lambda number=number: pool.ends(number))
                events[choices.among(len(events))]()
                turn(crew, pool)
            come_to_rest(crew, pool)
            assert sorted(pool.states) == list(range(crew.width))
            assert set(pool.states.values()) == {State.READY}

    def turn(crew: Crew, pool: Workers) -> None:
        """As the loop takes one."""
        assert not crew.is_settled or max(pool.states, default=-1) < crew.width, "somebody has still to go"
        crew.wait()
        crew.replace_workers()

    def passes(seconds: float) -> None:
        clock.now += seconds

    def come_to_rest(crew: Crew, pool: Workers) -> None:
        for _ in range(10):
            for number, state in list(pool.states.items()):
                if state is State.STARTING:
                    become_ready(crew, pool, number)
                elif state is State.RETIRING:
                    pool.ends(number)
            turn(crew, pool)
            if crew.is_settled:
                return
        pytest.fail("it does not come to rest")

    assert explore(run) > 1000


def test_a_leaver_that_stays_is_killed_and_its_place_filled_when_it_is_gone(clock: Any) -> None:
    with crew_of() as (crew, pool, told):
        for number in range(MOST):
            become_ready(crew, pool, number)
        crew.resize(1)
        for _ in range(3):
            crew.wait()
            clock.now += 1.1
        assert pool.killed == {1}
        assert not crew.is_settled
        crew.resize(2)
        crew.replace_workers()
        assert pool.states[1] is State.RETIRING
        pool.ends(1, -9)
        crew.wait()
        crew.replace_workers()
        assert pool.states[1] is State.STARTING
        assert [(end.worker, end.how) for end in told] == [(1, "made no progress for 1 s")]


def test_a_pool_that_ends_as_a_whole_is_made_anew_whichever_worker_it_was(clock: Any) -> None:
    """Its workers stay when there should be fewer, and any of them may have the task that is stuck."""
    with crew_of(grows=False, workers_first=1) as (crew, pool, _):
        assert len(pool.states) == MOST
        pool.ends(MOST - 1)
        crew.wait()
        crew.replace_workers()
        assert len(pool.states) == MOST


def test_of_a_pool_whose_workers_all_stay_so_many_are_at_work_as_there_should_be() -> None:
    idle = SimpleNamespace(terminate=lambda: None)
    make = partial(AnyPool, lambda *args: idle)
    with crew_of(grows=False, make=make, workers_first=1) as (crew, _pool, _):
        for width in (1, 2, 1):
            crew.resize(width)
            assert crew.vacancies == width * MOST_OUT
    with crew_of(grows=False, make=make, workers_first=1) as (crew, _pool, _):
        assert crew.vacancies == MOST_OUT, "from the beginning"
