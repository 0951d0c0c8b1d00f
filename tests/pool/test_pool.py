"""Our Pool answers each block, unless the block's worker has died, and never hangs.

The last tests do the same with any other Pool.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chores
import numpy as np
import pytest
from chores import Chore, Pids, Sore, SoreWhenOpened
from scripts import lives_still, run, wait_until

import mpiter
from mpiter.bell import Bell
from mpiter.pool import pipes
from mpiter.pool import pool as processes
from mpiter.pool.anypool import AnyPool, Threads
from mpiter.pool.pool import Pool
from mpiter.pool.workers import Died, State
from mpiter.samples.envelope import OUT_OF_LINE
from mpiter.worker.block import Lost
from mpiter.worker.board import Line

# Some workers are forked from a process that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


class Used:
    """A Pool with the blocks that it was given, its answers, and its deaths."""

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        self.bell = Bell()
        self.pool = make(*args, bell=self.bell)
        self.asked: dict[int, Chore] = {}
        self.answers: dict[int, Any] = {}
        self.lost: dict[int, BaseException] = {}
        self.died: list[Died] = []
        # If true, a worker that dies is replaced.
        self.replaces = False

    def ask(self, func: Any, *args: Any) -> int:
        """Send a block once a worker has room for it, and return its number."""
        self.until(lambda: self.pool.vacancies(1000))
        chore = Chore(len(self.asked), func, args)
        self.asked[chore.number] = chore
        self.pool.map_async(chores.do, [chore])
        return chore.number

    def ask_each(self, func: Any, things: Any) -> list[int]:
        return [self.ask(func, thing) for thing in things]

    def wait(self, timeout: float | None = None) -> None:
        for event in self.pool.wait(timeout):
            if type(event) is Died:
                self.died.append(event)
                if self.replaces:
                    self.pool.start(event.number)
            elif type(event) is Lost:
                self.lost[event.number] = event.error
            else:
                assert event[0] not in self.answers, "an answer came twice"
                self.answers[event[0]] = event[1]

    def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            self.wait()

    def ready(self) -> Used:
        """Wait until all its workers are ready."""
        workers = self.pool._workers
        self.until(lambda: all(one.state is State.READY for one in workers.values()))
        return self

    def get(self, *numbers: int) -> list[Any]:
        """Wait for the answers to these blocks."""
        self.until(lambda: all(number in self.answers for number in numbers))
        return [self.answers.pop(number) for number in numbers]

    def error(self, number: int) -> BaseException:
        """Wait for the error that comes in place of this block's answer."""
        self.until(lambda: number in self.lost)
        return self.lost[number]

    def works(self) -> None:
        assert self.get(*self.ask_each(chores.square, range(9))) == [
            number * number for number in range(9)
        ]

    def set_to_work(self, gate: Path, blocks: int = 4, workers: int = 1) -> list[int]:
        """Send blocks that are answered once the gate is open.

        Return when so many workers are fetching one.
        """
        numbers = [self.ask(chores.wait_at, gate) for _ in range(blocks)]
        wait_until(lambda: len(chores.waiting_at(gate)) >= workers, "they are at work")
        return numbers

    def chores_of(self, *numbers: int) -> tuple[Chore, ...]:
        return tuple(self.asked[number] for number in numbers)

    def close(self) -> None:
        self.pool.close()
        self.bell.close()


def _ours(method: str, *args: Any, bell: Bell) -> Pool:
    return Pool(
        *args, chores.equip, (), context=multiprocessing.get_context(method), bell=bell
    )


@contextlib.contextmanager
def made_of(make: Callable[..., Any]) -> Iterator[Callable[..., Used]]:
    """Return a function that makes Pools, which are closed in the end."""
    with contextlib.ExitStack() as made:

        def used(*args: Any) -> Used:
            one = Used(make, *args)
            made.callback(one.close)
            return one

        yield used


@pytest.fixture
def ours() -> Iterator[Callable[..., Used]]:
    """Pools of a fork server, for what may depend on how workers start."""
    with made_of(partial(_ours, "forkserver")) as used:
        yield used


@pytest.fixture
def forked() -> Iterator[Callable[..., Used]]:
    """Pools of forked workers, which start quickly, for everything else."""
    with made_of(partial(_ours, "fork")) as used:
        yield used


# -- what is asked is answered ---------------------------------------------------------


def test_what_cannot_be_pickled_cannot_be_asked(forked: Callable[..., Used]) -> None:
    pool = forked(1)
    for func, args in ((lambda: 1, ()), (chores.same, (threading.Lock(),))):
        with pytest.raises(
            (pickle.PicklingError, AttributeError, TypeError),
            match=r"lambda|cannot pickle",
        ):
            pool.ask(func, *args)
    assert pool.pool.out(0) == 0
    pool.works()


@pytest.mark.parametrize(
    ("func", "args", "kind", "text"),
    [
        (
            chores.unpicklable,
            (),
            mpiter.SampleError,
            "cannot pickle '_thread.lock' object",
        ),
        (chores.sore, (), mpiter.SampleError, "Sore: it hurts"),
        (
            chores.same,
            (SoreWhenOpened(),),
            mpiter.SampleError,
            "Sore: in the unpickling",
        ),
        (SoreWhenOpened, (), Sore, "in the unpickling"),
    ],
    ids=["answer", "error", "question", "answer here"],
)
def test_what_cannot_be_pickled_opened_or_done_is_an_error_of_its_own(
    forked: Callable[..., Used], func: Any, args: Any, kind: type, text: str
) -> None:
    pool = forked(1)
    before = pool.ask(chores.same, 1)
    number = pool.ask(func, *args)
    after = pool.ask(chores.same, 2)
    error = pool.error(number)
    assert type(error) is kind
    assert text in str(error)
    assert kind is Sore or "in " in str(error.__cause__), "the worker's traceback"
    assert pool.get(before, after) == [1, 2]
    assert pool.died == []


def test_answers_of_any_size_arrive_whole_one_after_the_other(
    forked: Callable[..., Used],
) -> None:
    """One read of a pipe may end anywhere within an answer."""
    pool = forked(2)
    kinds = (bytes, bytearray, partial(np.ones, dtype="b"))
    things = [
        kind(near + more)
        for near in (OUT_OF_LINE, 1 << 16)
        for more in range(-80, 81, 16)
        for kind in kinds
    ]
    for thing, back in zip(
        things, pool.get(*pool.ask_each(chores.same, things)), strict=True
    ):
        assert type(back) is type(thing)
        assert bytes(back) == bytes(thing)


def test_an_answer_may_have_more_buffers_than_one_system_call_writes(
    forked: Callable[..., Used],
) -> None:
    buffers = [np.full(OUT_OF_LINE, at % 251, np.uint8) for at in range(1600)]
    pool = forked(1)
    (back,) = pool.get(pool.ask(chores.same, buffers))
    assert all(map(np.array_equal, back, buffers))


def test_large_questions_and_large_answers_at_once_do_not_block(
    forked: Callable[..., Used],
) -> None:
    """Both sides write while each pipe is full."""
    pool = forked(2)
    texts = [bytes([at]) * (1 << 20) for at in range(12)]
    assert pool.get(*pool.ask_each(chores.same, texts)) == texts


def test_a_block_is_with_the_worker_that_has_least_to_do(
    forked: Callable[..., Used], tmp_path: Path
) -> None:
    pool = forked(3).ready()
    gate = tmp_path / "gate"
    ours = pool.pool
    outs = []
    vacancies = []
    for _ in range(6):
        pool.ask(chores.wait_at, gate)
        outs.append(sorted(ours.out(number) for number in range(3)))
        vacancies.append((ours.vacancies(2), ours.vacancies(1)))
    assert outs == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 2], [1, 2, 2], [2, 2, 2]]
    assert vacancies == [(5, 2), (4, 1), (3, 0), (2, 0), (1, 0), (0, 0)]
    assert ours.busy([0, 1, 2, 7]) == {0, 1, 2}
    gate.touch()
    assert set(pool.get(*range(6))) == set(ours.pids.values())
    assert ours.busy([0, 1, 2]) == set()
    assert ours.vacancies(2) == 6


# -- the end of a worker concerns that worker ------------------------------------------


def test_a_death_loses_the_blocks_of_the_dead_and_no_others(
    ours: Callable[..., Used], tmp_path: Path
) -> None:
    pool = ours(2).ready()
    gate = tmp_path / "gate"
    before = pool.pool.pids
    numbers = pool.set_to_work(gate, blocks=4, workers=2)
    os.kill(before[0], signal.SIGKILL)
    pool.until(lambda: pool.died)
    (end,) = pool.died
    lost = [chore.number for chore in end.blocks]
    assert end == Died(
        0, before[0], -signal.SIGKILL, State.READY, pool.chores_of(*lost)
    )
    assert pool.pool.pids == {1: before[1]}
    assert (pool.pool.out(0), pool.pool.vacancies(2)) == (0, 0)
    pool.pool.start(0)
    gate.touch()
    assert len(lost) == 2
    assert set(pool.get(*set(numbers) - set(lost))) == {before[1]}
    pool.ready().works()
    assert sorted(pool.pool.pids) == [0, 1]
    assert pool.pool.pids[1] == before[1]
    assert (pool.died, pool.lost) == ([end], {})


def test_answers_that_were_sent_before_the_end_count_however_it_is_told(
    forked: Callable[..., Used],
) -> None:
    pool = forked(1).ready()
    (pid,) = pool.pool.pids.values()
    answered = pool.ask(chores.square, 3)
    lost = pool.ask(chores.end, 3)
    wait_until(lambda: not lives_still(pid), "it has ended")
    genuine = pool.pool._poll
    backwards = SimpleNamespace(
        poll=lambda timeout: genuine.poll(timeout)[::-1], unregister=genuine.unregister
    )
    pool.pool._poll = backwards
    pool.wait()
    assert pool.answers == {answered: 9}
    assert [(end.code, end.blocks) for end in pool.died] == [(3, pool.chores_of(lost))]


def test_half_an_answer_does_no_harm(forked: Callable[..., Used]) -> None:
    pool = forked(2).ready()
    size = 100_000
    before = pool.pool.pids
    lost = pool.ask(chores.end_in_mid_answer, np.ones(size, np.uint8))
    others = [pool.ask(chores.same, np.full(size, at, np.uint8)) for at in range(20)]
    pool.until(lambda: pool.died)
    (end,) = pool.died
    assert end.code == 5
    assert end.blocks[0].number == lost
    alive = set(others) - {chore.number for chore in end.blocks}
    for number, back in zip(alive, pool.get(*alive), strict=True):
        assert np.array_equal(back, pool.asked[number].args[0])
    assert pool.pool.pids == {1 - end.number: before[1 - end.number]}
    pool.works()


def test_a_worker_that_retires_does_its_blocks_and_gets_no_more(
    ours: Callable[..., Used], tmp_path: Path
) -> None:
    pool = ours(2).ready()
    gate = tmp_path / "gate"
    before = pool.pool.pids
    numbers = [pool.ask(chores.wait_at, gate) for _ in range(3)]
    had = pool.pool.out(0)
    pool.pool.retire(0)
    pool.pool.retire(0)
    numbers += [pool.ask(chores.wait_at, gate) for _ in range(3)]
    assert pool.pool.out(0) == had
    gate.touch()
    assert pool.get(*numbers).count(before[0]) == had
    pool.until(lambda: pool.died)
    assert pool.died == [Died(0, before[0], 0, State.RETIRING, ())]
    assert pool.pool.pids == {1: before[1]}
    # The loop may retire a worker after its end, because of its last answer.
    pool.pool.retire(0)


def test_each_block_is_answered_right_or_was_with_a_dead_worker(
    forked: Callable[..., Used],
) -> None:
    dice = random.Random(0)
    pool = forked(3).ready()
    kills = 0
    pool.replaces = True
    for at in range(200):
        if kills < 10 and dice.random() < 0.1 and (pids := pool.pool.pids):
            kills += 1
            # The worker may have died before, and a later start has reaped it.
            with contextlib.suppress(ProcessLookupError):
                by_us = dice.random() < 0.5
                number = dice.choice(list(pids))
                if by_us:
                    pool.pool.kill(number)
                else:
                    os.kill(pids[number], signal.SIGKILL)
        pool.wait(dice.choice((0, 0.001)))
        pool.ask(chores.same, np.full(dice.choice((1, 50_000)), at))
    pool.until(lambda: not pool.pool.busy(range(3)))
    lost = [chore.number for end in pool.died for chore in end.blocks]
    assert sorted([*pool.answers, *lost]) == [*range(200)]
    assert all((back == at).all() for at, back in pool.answers.items())
    assert pool.lost == {}


def test_a_worker_that_was_replaced_gets_its_turn_again(
    forked: Callable[..., Used],
) -> None:
    pool = forked(3).ready()
    pool.replaces = True
    pool.pool.kill(0)
    pool.until(lambda: pool.died)
    pool.ready()
    # One block at a time: among workers without one, each has its turn.
    pids = [*itertools.chain(*(pool.get(pool.ask(os.getpid)) for _ in range(6)))]
    assert sorted(pids) == sorted([*pool.pool.pids.values()] * 2)


def test_a_dead_workers_children_are_not_waited_for(
    ours: Callable[..., Used], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep its pipes and its sentinel open.

    The system knows the worker's exit code without them.
    """
    monkeypatch.setattr(processes, "_FOR_A_CODE_S", 1e6)
    pool = ours(3).ready()
    gate = tmp_path / "gate"
    try:
        for _ in range(3):
            pool.ask(chores.end_with_a_child, gate)
        pool.until(lambda: len(pool.died) == 3)
        assert [end.code for end in pool.died] == [6] * 3
    finally:
        gate.touch()


def test_where_there_is_no_place_for_an_answer_its_worker_is_ended(
    forked: Callable[..., Used], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(size: int) -> Any:
        raise MemoryError("no room")

    pool = forked(1).ready()
    (pid,) = pool.pool.pids.values()
    pool.works()
    with monkeypatch.context() as patch:
        patch.setattr(pipes, "bytearray", nowhere, raising=False)
        numbers = [pool.ask(np.zeros, 1 << 20), pool.ask(chores.same, 1)]
        pool.until(lambda: pool.died)
    assert [type(pool.lost[number]) for number in numbers] == [MemoryError] * 2
    assert pool.died == [Died(0, pid, -signal.SIGKILL, State.READY, ())]
    pool.pool.start(0)
    pool.works()


def test_where_there_are_no_pidfds_a_sentinel_will_do(
    ours: Callable[..., Used], monkeypatch: Any
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    pool = ours(2).ready()
    before = pool.pool.pids
    pool.ask(chores.end, 3)
    pool.until(lambda: pool.died)
    (end,) = pool.died
    assert end.code == 3
    pool.works()
    pool.pool.start(end.number)
    pool.ready().pool.kill(1 - end.number)
    pool.until(lambda: len(pool.died) == 2)
    assert pool.died[1][:3] == (1 - end.number, before[1 - end.number], -signal.SIGKILL)
    pool.works()


# -- it leaves nothing -----------------------------------------------------------------


def test_a_pool_is_ended_in_the_midst_of_its_work_though_its_pipes_are_full(
    ours: Callable[..., Used], tmp_path: Path
) -> None:
    pool = ours(2)
    gate = tmp_path / "gate"
    pool.set_to_work(gate)
    pool.ask_each(chores.same, [bytes(100_000)] * 50)
    assert pool.pool.close() is True
    assert pool.pool.close() is True
    assert not any(map(lives_still, chores.waiting_at(gate)))


# -- any other Pool --------------------------------------------------------------------


OTHERS = {"stock": multiprocessing.get_context("fork").Pool, "ThreadPool": ThreadPool}
IDLE = dict.fromkeys(range(2), Line(1, 1, 0, 0, 0, 0))


def _any(make: Any, workers: int, *, bell: Bell) -> AnyPool:
    return AnyPool(make, workers, chores.equip, (), bell=bell)


def _threads(workers: int, *, bell: Bell) -> Threads:
    return Threads(workers, lambda number: chores.equip(), (), bell=bell)


def test_threads_answer_pass_an_error_on_and_are_left_one_by_one(
    tmp_path: Path,
) -> None:
    with made_of(_threads) as used:
        pool = used(2)
        gate = tmp_path / "gate"
        pool.works()
        assert type(pool.error(pool.ask(chores.sore))) is Sore
        pool.set_to_work(gate)
        had = tuple(pool.pool._workers[0].out.values())
        pool.pool.kill(0)
        pool.wait()
        (died,) = pool.died
        assert (died.number, died.code, died.blocks) == (0, None, had)
        gate.touch()
        pool.pool.start(0)
        pool.works()


@pytest.fixture(params=OTHERS)
def others(request: pytest.FixtureRequest) -> Iterator[Callable[..., Used]]:
    """Pools of another kind than ours."""
    with made_of(partial(_any, OTHERS[request.param])) as used:
        yield used


def test_any_pool_answers_passes_an_error_on_and_counts_what_is_out(
    others: Callable[..., Used], tmp_path: Path
) -> None:
    pool = others(2)
    gate = tmp_path / "gate"
    pool.works()
    assert type(pool.error(pool.ask(chores.sore))) is Sore
    pool.bell.ring()
    assert pool.pool.wait() == []
    assert pool.pool.vacancies(2) == 4
    assert pool.pool.busy(IDLE) == set()
    for left in (3, 2, 1, 0, 0):
        pool.ask(chores.wait_at, gate)
        assert pool.pool.vacancies(2) == left
    assert pool.pool.out(0) == 5
    assert set(pool.pool.busy(IDLE)) == {0, 1}, "a worker must have it"
    assert set(pool.pool.busy({**IDLE, 1: IDLE[1]._replace(active=1)})) == {1}
    gate.touch()
    pool.until(lambda: pool.pool.vacancies(2) == 4)


# -- the engine's own use of it --------------------------------------------------------


def test_workers_are_replaced_after_maxtasksperchild_samples() -> None:
    with mpiter.MultiprocessIterator(
        Pids(), 5, repeat=False, n_processes=2, maxtasksperchild=40, run_ahead=4
    ) as it:
        workers = {pid for batch in it for pid in batch}
        stats = it.stats()
    assert stats.samples == 200
    assert stats.restarts == 0
    assert len(workers) > 3


def test_an_unknown_start_method_is_refused() -> None:
    with pytest.raises(mpiter.OptionError, match="is not available here"):
        mpiter.Process("teleport")


UNCLOSED = """
import mpiter

class Numbers:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return index

if __name__ == "__main__":
    kept = [
        mpiter.batches(Numbers(), 2, n_processes=0),
        mpiter.batches(Numbers(), 2, n_processes=2, backend="thread"),
        mpiter.batches(Numbers(), 2, n_processes=2),
        mpiter.DataLoader(Numbers(), 2),
    ]
    under_way = [iter(one) for one in kept]
    print([len(next(one)) for one in under_way])
"""


def test_a_pool_that_is_not_closed_ends_with_the_program_and_says_nothing(
    tmp_path: Path,
) -> None:
    """From Python 3.12 on, no thread can be started while the interpreter ends."""
    assert run(tmp_path, UNCLOSED).ended_well().lines == ["[2, 2, 2, 2]"]
