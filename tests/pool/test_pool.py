"""The Pool: what every Pool promises; what ours alone does; and any other Pool.

Callbacks may be expected once somebody has waited: ours calls them in the thread that waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import multiprocessing
import os
import pickle
import random
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.pool import MaybeEncodingError, ThreadPool
from pathlib import Path
from typing import Any

import chores
import numpy as np
import psutil
import pytest
from chores import EndsWhenOpened, Pids, Sore, SoreWhenOpened
from pairs import slow_but
from scripts import METHODS, lives_still, run, wait_until

import mpiter
from mpiter import WorkerCrashed, WorkerStartError
from mpiter.bell import Bell
from mpiter.pool import member
from mpiter.pool.anypool import AnyPool, Threads
from mpiter.pool.member import Exit, State
from mpiter.pool.pool import MOST_OUT, Pool
from mpiter.transport.transport import OUT_OF_LINE
from mpiter.worker.board import Line
from mpiter.worker.lifeline import CUT_OFF

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork from a process with threads

PATIENCE_S = 60  # against hanging


def _ours(method: str, *args: Any, **options: Any) -> Pool:
    return Pool(*args, context=multiprocessing.get_context(method), **options)


def _stock(method: str, *args: Any) -> Any:
    return multiprocessing.get_context(method).Pool(*args)


@pytest.fixture(params=["forkserver"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes Pools, and ends them."""
    with contextlib.ExitStack() as made:

        def pool(*args: Any) -> Any:
            one = _ours(request.param, *args)
            made.callback(one.join)
            made.callback(one.terminate)
            return one

        yield pool


# What may depend on how workers start is tried with all of them.
however_workers_start = pytest.mark.parametrize("make", slow_but(METHODS, "forkserver"), indirect=True)


@pytest.fixture
def pool(make: Callable[..., Any]) -> Any:
    return make(2)


# -- what every Pool promises ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunksize", [None, 1, 3, 100])
def test_results_come_in_the_order_of_the_items(pool: Any, chunksize: int | None) -> None:
    assert pool.map(chores.square, range(50), chunksize) == [number * number for number in range(50)]


def test_one_callback_gets_all_results(pool: Any) -> None:
    came: list[Any] = []
    result = pool.map_async(chores.square, range(10), 3, came.append, pytest.fail)
    result.wait(PATIENCE_S)
    assert result.ready()
    assert result.successful()
    assert came == [[number * number for number in range(10)]]
    assert result.get() == came[0]
    assert len(came) == 1


def test_a_call_has_arguments_of_both_kinds_and_a_callback_of_its_own(pool: Any) -> None:
    came: list[Any] = []
    result = pool.apply_async(chores.described, (1, 2), {"three": 3}, came.append, pytest.fail)
    assert result.get(PATIENCE_S) == ((1, 2), {"three": 3})
    assert came == [((1, 2), {"three": 3})]
    assert pool.apply(chores.described, (4,)) == ((4,), {})


def test_any_iterable_will_do(pool: Any) -> None:
    assert pool.map(chores.square, (number for number in (3, 2, 1))) == [9, 4, 1]


def test_of_nothing_nothing_comes_at_once(pool: Any) -> None:
    result = pool.map_async(chores.square, [], None, pytest.fail, pytest.fail)
    assert result.ready()
    assert result.successful()
    assert result.get() == []


def test_several_calls_are_out_at_the_same_time(pool: Any) -> None:
    results = [pool.map_async(chores.square, range(at, at + 5), 2) for at in range(40)]
    assert [result.get(PATIENCE_S) for result in reversed(results)] == [
        [number * number for number in range(at, at + 5)] for at in reversed(range(40))
    ]


@however_workers_start
def test_each_worker_is_initialized_once(make: Callable[..., Any], tmp_path: Path) -> None:
    pool = make(3, chores.equip, ("a", 1))
    calls = [pool.apply_async(chores.meet, (tmp_path, 3)) for _ in range(3 * MOST_OUT)]
    met = dict(call.get(PATIENCE_S) for call in calls)
    assert len(met) == 3
    assert all(equipment == [("a", 1)] for equipment in met.values())


@however_workers_start
def test_an_error_comes_as_itself_with_its_traceback(pool: Any) -> None:
    came: list[Any] = []
    result = pool.map_async(chores.sore_at_seven, range(10), 2, pytest.fail, came.append)
    with pytest.raises(Sore, match=r"^7 hurts$") as caught:
        result.get(PATIENCE_S)
    assert came == [caught.value]
    assert not result.successful()
    assert type(caught.value.__cause__).__name__ == "RemoteTraceback"
    assert "in sore_at_seven" in str(caught.value.__cause__)
    assert pool.map(chores.sore_at_seven, range(7)) == list(range(7))


def test_what_cannot_be_pickled_cannot_be_asked(pool: Any) -> None:
    came: list[Any] = []
    result = pool.map_async(lambda item: item, range(3), 1, pytest.fail, came.append)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda") as caught:
        result.get(PATIENCE_S)
    assert came == [caught.value]
    with pytest.raises(TypeError, match="cannot pickle"):
        pool.apply_async(chores.same, (threading.Lock(),)).get(PATIENCE_S)
    assert pool.map(chores.square, range(9)) == [number * number for number in range(9)]


@pytest.mark.parametrize("chore", [chores.unpicklable, chores.raises_unpicklable])
def test_an_answer_that_cannot_be_pickled_is_an_error_that_says_so(pool: Any, chore: Any) -> None:
    came: list[Any] = []
    result = pool.map_async(chore, [0], 1, pytest.fail, came.append)
    with pytest.raises(MaybeEncodingError, match=r"cannot pickle '_thread\.lock' object") as caught:
        result.get(PATIENCE_S)
    assert came == [caught.value]
    assert pool.map(chores.square, range(9)) == [number * number for number in range(9)]


@however_workers_start
def test_large_arrays_travel_both_ways_and_are_the_callers_own(pool: Any) -> None:
    arrays = [np.arange(at, at + (1 << 18)).reshape(512, 512) for at in range(4)]
    back = pool.map(chores.same, [(array, array.T, at) for at, array in enumerate(arrays)], 1)
    for at, (array, (one, other, number)) in enumerate(zip(arrays, back, strict=True)):
        assert np.array_equal(one, array)
        assert np.array_equal(other, array.T)
        assert number == at
        one[0, 0] = -1


def test_more_tasks_than_a_pipe_holds(pool: Any) -> None:
    assert pool.map(len, [bytes(100_000)] * 100, 1) == [100_000] * 100


@pytest.mark.parametrize("near", [OUT_OF_LINE, 1 << 16, 1 << 20])
def test_answers_of_any_size_arrive_whole_one_after_the_other(pool: Any, near: int) -> None:
    """Wherever one ends and the next begins in what a pipe brings at a time."""
    things = [
        kind(near + more) for more in range(-80, 81, 4) for kind in (bytes, bytearray, partial(np.ones, dtype="b"))
    ]
    for thing, back in zip(things, pool.map(chores.same, things, 1), strict=True):
        assert type(back) is type(thing)
        assert bytes(back) == bytes(thing)


def test_an_answer_may_have_more_buffers_than_one_system_call_writes(pool: Any) -> None:
    buffers = [np.full(OUT_OF_LINE, at % 251, np.uint8) for at in range(1600)]
    assert all(map(np.array_equal, pool.apply(chores.same, (buffers,)), buffers))


def test_where_pipes_cannot_be_widened_narrow_ones_do(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    assert len(pool.apply(chores.same, (np.ones(1 << 20),))) == 1 << 20


def test_large_tasks_and_large_answers_at_once_hold_nobody_up(pool: Any) -> None:
    """Both sides write, and each pipe is full."""
    texts = [bytes([at]) * (3 << 20) for at in range(12)]
    results = [pool.map_async(chores.same, [text], 1) for text in texts]
    assert [result.get(PATIENCE_S) for result in results] == [[text] for text in texts]


def test_who_waits_for_long_enough_is_told(pool: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    result = pool.apply_async(chores.wait_at, (gate,))
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(0.01)
    result.wait(0.01)
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    gate.touch()
    assert result.get(PATIENCE_S) in chores.waiting_at(gate)


def test_a_closed_pool_does_what_it_has_and_takes_no_more(pool: Any) -> None:
    came: list[Any] = []
    results = [pool.map_async(chores.square, range(at), 1, came.append) for at in range(1, 20)]
    pool.close()
    with pytest.raises(ValueError, match="Pool not running"):
        pool.map_async(chores.square, range(3))
    with pytest.raises(ValueError, match="Pool not running"):
        pool.apply_async(chores.square, (3,))
    pool.join()
    assert all(result.ready() for result in results)
    assert sorted(came) == [[number * number for number in range(at)] for at in range(1, 20)]


def test_only_a_closed_pool_can_be_waited_for(pool: Any) -> None:
    with pytest.raises(ValueError, match="still running"):
        pool.join()


def test_a_pool_can_be_ended_more_than_once(pool: Any) -> None:
    pool.map(chores.square, range(3))
    pool.close()
    pool.close()
    pool.join()
    pool.join()
    pool.terminate()
    pool.terminate()
    pool.join()


@however_workers_start
def test_a_pool_is_ended_in_the_midst_of_its_work(pool: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    set_to_work(pool, gate)
    pool.map_async(chores.same, range(100), 1)
    pool.terminate()
    pool.join()
    assert not any(map(lives_still, chores.waiting_at(gate)))


def test_with_ends_a_pool(make: Callable[..., Any], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with make(2) as pool:
        set_to_work(pool, gate)
    with pytest.raises(ValueError, match="Pool not running"):
        pool.map(chores.square, range(3))
    pool.join()
    assert not any(map(lives_still, chores.waiting_at(gate)))


def test_a_pool_has_a_worker_at_least(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make(0)


def test_as_many_workers_as_processors_unless_told_otherwise(make: Callable[..., Any], tmp_path: Path) -> None:
    count = os.cpu_count() or 1
    pool = make()
    calls = [pool.apply_async(chores.meet, (tmp_path, count)) for _ in range(count * MOST_OUT)]
    assert len(dict(call.get(PATIENCE_S) for call in calls)) == count


# -- what ours alone does: the end of a worker concerns that worker -------------------------------------------------


class Watched:
    """Pools of our own, and what they tell of their workers' ends."""

    def __init__(self, method: str, made: contextlib.ExitStack) -> None:
        self._method, self._made = method, made
        self.ends: list[Exit] = []

    def __call__(self, workers: int, *args: Any, **options: Any) -> Pool:
        """One that replaces whoever ends."""
        pool = _ours(self._method, workers, *args, **options)
        self._made.callback(pool.terminate)
        return pool

    def told(self, workers: int, *args: Any, **options: Any) -> Pool:
        """One whose owner is told, and sees to it himself."""
        return self(workers, *args, ended=self.ends.append, **options)


@pytest.fixture(params=METHODS[:2])
def ours(request: pytest.FixtureRequest) -> Iterator[Watched]:
    with contextlib.ExitStack() as made:
        yield Watched(request.param, made)


however_ours_start = pytest.mark.parametrize("ours", METHODS, indirect=True)


@pytest.fixture
def forked() -> Iterator[Watched]:
    """For what has nothing to do with how workers start."""
    with contextlib.ExitStack() as made:
        yield Watched("fork", made)


def set_to_work(pool: Any, gate: Path, tasks: int = 4, workers: int = 1) -> list[Any]:
    """Callbacks that are answered once the gate is open, of which so many workers have one in hand."""
    calls = [pool.apply_async(chores.wait_at, (gate,)) for _ in range(tasks)]
    while len(chores.waiting_at(gate)) < workers:
        calls[0].wait(0.01)
    return calls


def until(pool: Any, condition: Callable[[], Any]) -> None:
    """Wait as the engine does."""
    while not condition():
        pool.wait()


def ready(pool: Pool) -> Pool:
    """Once all its workers are."""
    until(pool, lambda: all(worker.state is State.READY for worker in pool._workers.values()))
    return pool


def errors_of(results: list[Any]) -> list[Exception | None]:
    found: list[Exception | None] = []
    for result in results:
        try:
            result.get(PATIENCE_S)
            found.append(None)
        except Exception as error:
            found.append(error)
    return found


def test_a_task_is_with_the_worker_that_has_least_to_do_and_at_most_two_are(forked: Watched, tmp_path: Path) -> None:
    pool, gate = ready(forked(3)), tmp_path / "gate"
    outs, vacancies = [], []
    calls = []
    for _ in range(8):
        calls.append(pool.apply_async(chores.wait_at, (gate,)))
        outs.append(sorted(pool.out(number) for number in range(3)))
        vacancies.append(pool.vacancies)
    assert outs == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 2], [1, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, 2]]
    assert vacancies == [5, 4, 3, 2, 1, 0, -1, -2]
    assert pool.busy([0, 1, 2, 7]) == {0, 1, 2}
    gate.touch()
    assert {call.get(PATIENCE_S) for call in calls} == set(pool.pids.values())
    assert [pool.out(number) for number in range(3)] == [0, 0, 0]
    assert pool.vacancies == 6


@however_ours_start
def test_a_death_loses_the_tasks_of_the_dead_and_no_others(ours: Watched, tmp_path: Path) -> None:
    pool, gate = ready(ours(2)), tmp_path / "gate"
    before = pool.pids
    calls = set_to_work(pool, gate, tasks=9, workers=2)
    os.kill(before[0], signal.SIGKILL)
    until(pool, lambda: pool.pids.get(0, before[0]) != before[0])
    gate.touch()
    lost = [error for error in errors_of(calls) if error is not None]
    assert [type(error) for error in lost] == [WorkerCrashed, WorkerCrashed]
    told = f"worker 0 (pid {before[0]}) ended with code -9 and has not answered this task."
    assert [str(error) for error in lost] == [told, told]
    assert pool.pids[1] == before[1]
    assert pool.map(chores.square, range(30)) == [number * number for number in range(30)]
    assert sorted(pool.pids) == [0, 1]


@pytest.mark.parametrize(("task", "code"), [((chores.end, 3), 3), ((chores.same, EndsWhenOpened()), 7), ((exit, 0), 0)])
def test_however_a_worker_ends_the_task_says_so(ours: Watched, task: Any, code: int) -> None:
    pool = ours(2)
    func, argument = task
    with pytest.raises(WorkerCrashed, match=rf"ended with code {code} and has not answered this task\."):
        pool.apply_async(func, (argument,)).get(PATIENCE_S)
    assert pool.map(chores.square, range(9)) == [number * number for number in range(9)]


def test_answers_that_were_sent_before_the_end_count(ours: Watched) -> None:
    pool = ready(ours.told(1))
    (before,) = pool.pids.values()
    came: list[Any] = []
    with_buffers = pool.apply_async(chores.same, (np.arange(8000),), callback=came.append)
    pool.apply_async(chores.end, (3,))
    wait_until(lambda: not lives_still(before), "it has ended")
    assert came == []  # since nobody has waited yet
    until(pool, lambda: ours.ends)
    assert with_buffers.ready()
    assert np.array_equal(with_buffers.get(), np.arange(8000))
    assert len(came) == 1
    assert [(end.code, end.items) for end in ours.ends] == [(3, ((chores.end, (3,), {}),))]


@pytest.mark.parametrize("size", slow_but([1, 1000, 100_000, 10_000_000], 1, 1000, 100_000))
def test_half_an_answer_hurts_nobody(ours: Watched, size: int) -> None:
    pool = ready(ours(2))
    before = pool.pids
    lost = pool.apply_async(chores.end_in_mid_answer, (np.ones(size, np.uint8),))
    others = [pool.apply_async(chores.same, (np.full(size, at, np.uint8),)) for at in range(20)]
    with pytest.raises(WorkerCrashed, match="ended with code 5"):
        lost.get(PATIENCE_S)
    for at, (other, error) in enumerate(zip(others, errors_of(others), strict=True)):
        if error is None:
            assert np.array_equal(other.get(), np.full(size, at, np.uint8))
        else:
            assert type(error) is WorkerCrashed
    assert sum(error is not None for error in errors_of(others)) <= MOST_OUT - 1
    assert len(set(before.values()) & set(pool.pids.values())) == 1


def test_a_task_that_cannot_be_opened_is_an_error_of_its_own(ours: Watched) -> None:
    pool = ours(1)
    calls = [pool.apply_async(chores.same, (item,)) for item in (1, SoreWhenOpened(), 2)]
    first, error, last = errors_of(calls)
    assert (first, last) == (None, None)
    assert isinstance(error, Sore)
    assert "in _raise" in str(error.__cause__)


def test_an_answer_that_cannot_be_opened_is_an_error_of_its_own(ours: Watched) -> None:
    pool = ours(1)
    calls = [pool.map_async(chore, [1]) for chore in (chores.same, chores.raises_unopenable, chores.same)]
    first, error, last = errors_of(calls)
    assert (first, last) == (None, None)
    assert isinstance(error, RuntimeError)
    assert "TwoArguments" in str(error)


def test_ctrl_c_while_an_answer_is_opened_loses_nothing(ours: Watched, tmp_path: Path) -> None:
    pool, file = ours(1), tmp_path / "interrupts"
    file.touch()
    called: list[Any] = []
    result = pool.apply_async(chores.raises_when_opened, (KeyboardInterrupt, file, True), callback=called.append)
    after = pool.apply_async(chores.same, (1,))
    with pytest.raises(KeyboardInterrupt):
        result.get(PATIENCE_S)
    assert result.get(PATIENCE_S) == "opened"
    assert called == ["opened"]
    assert after.get(PATIENCE_S) == 1


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, BaseException])
def test_whatever_the_opening_of_an_answer_raises_is_raised_by_get(ours: Watched, tmp_path: Path, error: Any) -> None:
    pool, file = ours(1), tmp_path / "raises"
    file.touch()
    result = pool.apply_async(chores.raises_when_opened, (error, file, False))
    after = pool.apply_async(chores.same, (1,))
    for _ in range(2):
        with pytest.raises(error):
            result.get(PATIENCE_S)
    assert after.get(PATIENCE_S) == 1


def test_the_end_of_a_pool_leaves_the_resource_tracker_to_others(
    ours: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = resource_tracker._resource_tracker
    resource_tracker.ensure_running()
    monkeypatch.setattr(tracker, "_pid", 1)  # where a worker would not die, in another test, it has none any more
    with ours(1) as pool:
        assert pool.apply(chores.same, (1,)) == 1
    assert tracker._pid == 1


def test_who_looks_after_a_pool_is_told_of_an_end_and_fills_the_place(ours: Watched, tmp_path: Path) -> None:
    pool, gate = ready(ours.told(2)), tmp_path / "gate"
    before = pool.pids
    calls = set_to_work(pool, gate, workers=2)
    pool.kill(0)
    until(pool, lambda: ours.ends)
    item = (chores.wait_at, (gate,), {})
    assert ours.ends == [Exit(0, before[0], -signal.SIGKILL, State.READY, (item, item))]
    assert pool.pids == {1: before[1]}
    assert pool.out(0) == 0
    pool.start(0)
    gate.touch()
    until(pool, lambda: sum(call.ready() for call in calls) == 2)
    assert len({pool.apply(chores.pid) for _ in range(1)} | set(pool.pids.values())) == 2
    assert len(ours.ends) == 1


@however_ours_start
def test_whoever_is_killed_while_he_starts_had_nothing_to_lose(ours: Watched, tmp_path: Path) -> None:
    pool = ours.told(1, chores.wait_at, (tmp_path / "gate",))
    call = pool.apply_async(chores.pid)
    pid = pool.pids[0]
    pool.kill(0)
    until(pool, lambda: ours.ends)
    assert ours.ends == [Exit(0, pid, -signal.SIGKILL, State.STARTING, ())]
    (tmp_path / "gate").touch()
    pool.start(0)
    assert call.get(PATIENCE_S) == pool.pids[0]


def test_whoever_has_ended_may_retire(forked: Watched) -> None:
    """His last answer may be what says that it is time."""
    pool = ready(forked.told(1))
    pool.retire(0)
    pool.apply_async(chores.pid)
    until(pool, lambda: forked.ends)
    pool.retire(0)
    assert pool.pids == {}


def test_whoever_retires_does_what_he_has_and_gets_no_more(ours: Watched, tmp_path: Path) -> None:
    pool, gate = ready(ours.told(2)), tmp_path / "gate"
    before = pool.pids
    calls = [pool.apply_async(chores.wait_at, (gate,)) for _ in range(3)]
    pool.retire(0)
    pool.retire(0)
    calls += [pool.apply_async(chores.wait_at, (gate,)) for _ in range(5)]
    assert [pool.out(number) for number in range(2)] == [2, 2]
    gate.touch()
    assert [call.get(PATIENCE_S) for call in calls].count(before[0]) == 2
    until(pool, lambda: ours.ends)
    assert ours.ends == [Exit(0, before[0], 0, State.RETIRING, ())]
    assert pool.pids == {1: before[1]}


def test_one_may_retire_before_he_is_ready(ours: Watched, tmp_path: Path) -> None:
    pool = ours.told(1, chores.wait_at, (tmp_path / "gate",))
    pid = pool.pids[0]
    pool.retire(0)
    call = pool.apply_async(chores.pid)
    (tmp_path / "gate").touch()
    until(pool, lambda: ours.ends)
    assert ours.ends == [Exit(0, pid, 0, State.RETIRING, ())]
    assert not call.ready()
    pool.start(0)
    assert call.get(PATIENCE_S) == pool.pids[0]


def test_a_pool_that_nobody_looks_after_replaces_who_retires(forked: Watched) -> None:
    pool = ready(forked(1))
    before = pool.pids
    pool.retire(0)
    assert pool.apply(chores.pid) not in before.values()


def test_who_would_not_die_is_left_to_himself(forked: Watched, tmp_path: Path) -> None:
    pool, gate = ready(forked.told(1)), tmp_path / "gate"
    pid = pool.pids[0]
    (call,) = set_to_work(pool, gate, tasks=1)
    process = psutil.Process(pid)
    try:
        pool.abandon(0)
        assert forked.ends == []  # it is told when somebody waits, as always
        pool.wait()
        assert forked.ends == [Exit(0, pid, None, State.READY, ((chores.wait_at, (gate,), {}),))]
        assert lives_still(pid)
        assert multiprocessing.active_children() == []
        pool.start(0)
        assert pool.apply(chores.pid) != pid
        assert not call.ready()
        assert pool.dispose() is True
    finally:
        process.kill()
        os.waitpid(pid, 0)


def test_a_pool_that_cannot_end_somebody_says_so_in_time(forked: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ready(forked(2))
    stubborn = pool._workers[0]
    monkeypatch.setattr(stubborn, "kill", lambda: None)
    os.kill(stubborn.pid, signal.SIGSTOP)  # it doesn't listen either
    try:
        assert pool.dispose(timeout=0.05) is False
        assert lives_still(stubborn.pid)
    finally:
        os.kill(stubborn.pid, signal.SIGKILL)
        os.waitpid(stubborn.pid, 0)


@however_ours_start
@pytest.mark.parametrize("fails", [chores.raise_at_once, chores.end_unless])
def test_workers_that_cannot_start_are_an_error_and_not_tried_for_ever(
    ours: Watched, tmp_path: Path, fails: Any
) -> None:
    pool = ours(2, fails, (tmp_path / "x" if fails is chores.end_unless else tmp_path,))
    result = pool.map_async(chores.square, range(20), 1)
    with pytest.raises(WorkerStartError, match=r"ended with code \d at its start: see what it said\."):
        result.get(PATIENCE_S)
    until(pool, lambda: not pool.pids)
    assert chores.begun_in(tmp_path) <= 2
    with pytest.raises(WorkerStartError, match="at its start"):
        pool.map(chores.square, range(3))


@pytest.mark.slow
@however_ours_start
def test_who_is_ready_goes_on_where_replacements_cannot_start(ours: Watched, tmp_path: Path) -> None:
    marker = tmp_path / "all is well"
    marker.touch()
    pool = ready(ours(4, chores.end_unless, (marker,)))
    marker.unlink()
    for number in range(2):
        pool.kill(number)
    until(pool, lambda: set(pool.pids) == {2, 3})
    assert pool.map(chores.square, range(5)) == [0, 1, 4, 9, 16]


@pytest.mark.slow
@however_ours_start
def test_replacements_that_cannot_start_are_an_error_as_well(ours: Watched, tmp_path: Path) -> None:
    marker = tmp_path / "all is well"
    marker.touch()
    pool = ours(1, chores.end_unless, (marker,))
    assert pool.apply(chores.square, (3,)) == 9
    marker.unlink()
    pool.kill(0)
    with pytest.raises((WorkerStartError, WorkerCrashed)):
        for _ in range(1000):
            pool.apply(chores.square, (3,))
    until(pool, lambda: not pool.pids)
    assert chores.begun_in(tmp_path) <= 4


@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_whoever_dies_whenever_each_task_is_answered_right_or_was_with_the_dead(forked: Watched, seed: int) -> None:
    dice = random.Random(seed)
    pool, kills = ready(forked(3)), 0
    calls = [pool.apply_async(chores.same, (np.full(dice.choice((1, 50_000)), at),)) for at in range(300)]
    while not all(call.ready() for call in calls):
        pool.wait(dice.choice((0, 0.001, None)))
        if kills < 10 and dice.random() < 0.1 and pool.pids:
            kills += 1
            with contextlib.suppress(ProcessLookupError):  # it has died, and whoever was started since has reaped it
                dice.choice((pool.kill, lambda number: os.kill(pool.pids[number], signal.SIGKILL)))(
                    dice.choice(list(pool.pids))
                )
    lost = 0
    for at, (call, error) in enumerate(zip(calls, errors_of(calls), strict=True)):
        if error is None:
            assert np.array_equal(call.get(), np.full_like(call.get(), at))
        else:
            assert type(error) is WorkerCrashed
            lost += 1
    assert lost <= MOST_OUT * kills


def test_an_end_is_noticed_though_a_child_keeps_the_pipes_open(ours: Watched, tmp_path: Path) -> None:
    pool, gate = ours(1), tmp_path / "gate"
    try:
        with pytest.raises(WorkerCrashed, match="ended with code 6"):
            pool.apply_async(chores.end_with_a_child, (gate,)).get(PATIENCE_S)
        assert pool.apply(chores.square, (3,)) == 9
    finally:
        gate.touch()


def test_a_pool_is_ended_though_its_pipes_are_full(ours: Watched, tmp_path: Path) -> None:
    """The stock one may then wait for ever, for its own thread, which waits for room in a pipe that nobody reads."""
    pool, gate = ours(2), tmp_path / "gate"
    set_to_work(pool, gate)
    pool.map_async(chores.same, [bytes(100_000)] * 100, 1)
    pool.terminate()
    pool.join()
    assert not any(map(lives_still, chores.waiting_at(gate)))


def test_nobody_waits_for_a_dead_workers_children(
    forked: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have its sentinel; the system knows its exit code without it."""
    monkeypatch.setattr(member, "_FOR_A_CODE_S", 1e6)
    pool, gate = ready(forked.told(3)), tmp_path / "gate"
    try:
        for _ in range(3):
            pool.apply_async(chores.end_with_a_child, (gate,))
        until(pool, lambda: len(forked.ends) == 3)
        assert [end.code for end in forked.ends] == [6] * 3
    finally:
        gate.touch()


def test_a_worker_whose_way_to_us_is_gone_ends_when_it_answers(ours: Watched) -> None:
    pool = ready(ours(1))
    with pytest.raises(WorkerCrashed, match=f"ended with code {CUT_OFF} "):
        pool.apply(chores.close_everything)
    assert pool.apply(chores.square, (3,)) == 9


def test_what_cannot_be_received_is_told_when_nobody_sends_any_more(forked: Watched) -> None:
    def nowhere(item: Any, sizes: Any) -> Any:
        raise MemoryError("no room")

    pool, told = ready(forked.told(1, destinations=nowhere)), []
    (pid,) = pool.pids.values()
    pool.apply_async(np.zeros, (1 << 20,), error_callback=lambda error: told.append((error, lives_still(pid))))
    until(pool, lambda: forked.ends)
    ((error, was_alive),) = told
    assert isinstance(error, MemoryError)
    assert not was_alive
    assert forked.ends == [Exit(0, pid, -signal.SIGKILL, State.READY, ())]


def test_it_does_not_matter_in_which_order_the_system_tells_of_an_end(forked: Watched) -> None:
    pool = ready(forked.told(1))
    (pid,) = pool.pids.values()
    answered, lost = pool.apply_async(chores.square, (3,)), pool.apply_async(chores.end, (3,))
    wait_until(lambda: not lives_still(pid), "it has ended")
    genuine = pool._selector.select
    pool._selector.select = lambda timeout: genuine(timeout)[::-1]  # type: ignore[method-assign]
    pool.wait()
    assert answered.get() == 9
    assert not lost.ready()
    assert [end.code for end in forked.ends] == [3]


@pytest.mark.parametrize("method", METHODS)
def test_where_there_are_no_pidfds_a_sentinel_will_do(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with _ours(method, 2) as pool:
        with pytest.raises(WorkerCrashed, match="ended with code 3"):
            pool.apply(chores.end, (3,))
        assert pool.map(chores.square, range(9)) == [number * number for number in range(9)]
        before = ready(pool).pids
        pool.kill(0)
        until(pool, lambda: pool.pids.get(0, before[0]) != before[0])
        assert pool.pids[1] == before[1]


# -- what ours alone does: one thread, one place where it waits -----------------------------------------------------


def test_callbacks_run_in_the_thread_that_waits_and_no_other_is_started(ours: Watched) -> None:
    threads = threading.active_count()
    pool, where = ours(2), []
    pool.map_async(chores.square, range(20), 1, lambda _: where.append(threading.get_ident()))
    pool.apply_async(chores.sore_at_seven, (7,), error_callback=lambda _: where.append(threading.get_ident()))
    assert threading.active_count() == threads
    until(pool, lambda: len(where) == 2)
    assert where == [threading.get_ident()] * 2


def test_whoever_rings_ends_a_wait(forked: Watched) -> None:
    bell = Bell()
    pool = ready(forked(1, bell=bell))
    bell.ring()
    pool.wait()
    ringing = threading.Thread(target=bell.ring)
    ringing.start()
    pool.wait()
    ringing.join()
    bell.close()
    pool.wait(0)


def test_a_bell_of_ones_own_outlives_the_pool(forked: Watched) -> None:
    bell = Bell()
    try:
        for _ in range(2):
            pool = forked(1, bell=bell)
            assert pool.apply(chores.square, (3,)) == 9
            bell.ring()
            pool.wait()
            pool.terminate()
        bell.ring()
    finally:
        bell.close()


def test_what_a_callback_raises_leaves_wait_and_nothing_else_is_lost(forked: Watched) -> None:
    pool = forked(2)
    came: list[Any] = []

    def take(value: Any) -> None:
        came.append(value)
        if value % 2:
            raise Sore(str(value))

    for number in range(10):
        pool.apply_async(chores.same, (number,), callback=take)
    sore = 0
    while len(came) < 10:
        try:
            pool.wait()
        except Sore:
            sore += 1
    assert sorted(came) == list(range(10))
    assert sore == 5


def test_a_callback_that_raises_while_one_joins_keeps_no_other_from_being_called(forked: Watched) -> None:
    pool = forked(1)
    came: list[Any] = []

    def take(value: Any) -> None:
        came.append(value)
        raise Sore

    for number in range(3):
        pool.apply_async(chores.same, (number,), callback=take)
    pool.close()
    for _ in range(3):
        with pytest.raises(Sore):
            pool.join()
    pool.join()
    assert came == [0, 1, 2]


def test_a_callback_may_ask_for_more_and_wait_for_it(forked: Watched) -> None:
    pool = forked(1)
    came: list[Any] = []

    def again(number: int) -> None:
        came.append(pool.apply(chores.square, (number,)))

    calls = [pool.apply_async(chores.same, (number,), callback=again) for number in range(3)]
    until(pool, lambda: len(came) == 3)
    assert sorted(came) == [0, 1, 4]
    assert all(call.ready() for call in calls)


def test_what_was_not_answered_by_the_end_is_an_error_and_no_hang(forked: Watched, tmp_path: Path) -> None:
    pool = forked(1)
    call = pool.apply_async(chores.wait_at, (tmp_path / "gate",))
    pool.terminate()
    with pytest.raises(ValueError, match="terminated before this was answered"):
        call.get()


# -- what ours alone does: buffers go where they belong -------------------------------------------------------------


@however_ours_start
def test_large_buffers_are_received_where_they_belong(ours: Watched) -> None:
    room, asked = np.zeros((4, 1000), np.int64), []

    def destinations(item: Any, sizes: Any) -> Any:
        asked.append((item[0], list(sizes)))
        return None if item[0] == 3 else [memoryview(room[item[0]]).cast("B")]

    pool = ours(2, destinations=destinations)
    chosen = [(at, np.arange(1000) + at) for at in range(4)]
    back = pool.map(chores.same, chosen, 1)
    assert sorted(asked) == [(at, [8000]) for at in range(4)]
    for at, (number, array) in enumerate(back):
        assert number == at
        assert np.array_equal(array, np.arange(1000) + at)
        assert np.shares_memory(array, room) is (at != 3)
    assert np.array_equal(room[:3], [array for _, array in chosen[:3]])
    assert not room[3].any()
    assert pool.map(chores.same, [(0, b"small"), (1, np.arange(10))])[0] == (0, b"small")
    assert len(asked) == 4, "small ones are part of the message"


def test_what_was_received_is_not_kept(ours: Watched) -> None:
    rooms = [np.zeros(8000, np.uint8)]
    received, came = weakref.ref(rooms[0]), []
    pool = ours(1, destinations=lambda item, sizes: [rooms.pop().data])
    pool.apply_async(np.ones, (8000, np.uint8), callback=lambda array: came.append(int(array.sum())))
    until(pool, lambda: came)
    assert came == [8000]
    assert received() is None


def test_where_there_is_no_place_for_an_answer_its_task_fails_and_the_others_do_not(ours: Watched) -> None:
    def destinations(item: Any, sizes: Any) -> Any:
        if item[0] == 5:
            raise MemoryError("no room")

    pool = ready(ours(2, destinations=destinations))
    calls = [pool.map_async(chores.same, [(at, np.full(100_000, at))], 1) for at in range(10)]
    errors = errors_of(calls)
    assert type(errors[5]) is MemoryError
    assert str(errors[5]) == "no room"
    assert sum(error is not None for error in errors) <= MOST_OUT
    for at, (call, error) in enumerate(zip(calls, errors, strict=True)):
        if error is None:
            assert np.array_equal(call.get()[0][1], np.full(100_000, at))
        else:
            assert type(error) is MemoryError
    assert pool.map(chores.square, range(9)) == [number * number for number in range(9)]


# -- what ours alone does: it leaves nothing -------------------------------------------------------------------------


def household() -> tuple[int, int, int]:
    """Descriptors, threads, and processes below us."""
    gc.collect()
    below = psutil.Process().children(recursive=True)
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(below)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "end"),
    [("fork", "terminate"), ("fork", "close"), ("fork", "with"), ("forkserver", "close"), ("spawn", "with")],
)
def test_nothing_is_left_of_a_pool(method: str, end: str, tmp_path: Path) -> None:
    def use(number: int) -> None:
        with contextlib.ExitStack() as stack:
            pool = _ours(method, 2)
            if end == "with":
                stack.enter_context(pool)
            pool.map(chores.square, range(9))
            with pytest.raises(WorkerCrashed):
                pool.apply(chores.end, (3,))
            if end == "close":
                pool.close()
                pool.join()
                return
            gate = tmp_path / f"gate{number}"
            set_to_work(pool, gate)
            if end == "terminate":
                pool.terminate()

    use(0)
    before = household()
    for number in range(1, 3):
        use(number)
    assert household() == before


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_workers_of_a_pool_that_is_dropped_end_with_it(method: str) -> None:
    pool = ready(_ours(method, 2))
    pids = pool.pids.values()
    del pool
    gc.collect()
    wait_until(lambda: not multiprocessing.active_children(), "they have ended")  # which also buries the dead
    assert not any(map(lives_still, pids))


DROPPED = """
import multiprocessing, os, sys
from mpiter.pool.pool import Pool

if __name__ == "__main__":
    pool = Pool(2, context=multiprocessing.get_context(sys.argv[1]))
    print(pool.map(len, ["a", "bc"]), flush=True)
    if (child := os.fork()) == 0:
        raise SystemExit
    os.waitpid(child, 0)
    print(pool.map(len, ["def", "ghij"]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_program_may_end_without_ending_its_pool_but_its_fork_does_not_end_it(method: str, tmp_path: Path) -> None:
    assert run(tmp_path, DROPPED, method).ended_well().lines == ["[1, 2]", "[3, 4]"]


# -- any other Pool ------------------------------------------------------------------------------------------------


class Owner:
    """Of Pools of some kind; is told what the engine would be."""

    def __init__(self, make: Callable[..., Any], shows_processes: bool) -> None:
        self.make, self.shows_processes = make, shows_processes
        self.bell, self.ends = Bell(), []
        self.pools: list[AnyPool] = []

    def __call__(self, workers: int, initializer: Any = chores.equip, initargs: Any = ()) -> AnyPool:
        pool = AnyPool(self.make, workers, initializer, initargs, bell=self.bell, ended=self.ends.append)
        self.pools.append(pool)
        return pool

    def close(self) -> None:
        for pool in self.pools:
            pool.dispose()
        self.bell.close()


OTHERS = {"stock": partial(_stock, "fork"), "ThreadPool": ThreadPool, "Threads": Threads}


@pytest.fixture(params=OTHERS)
def others(request: pytest.FixtureRequest) -> Iterator[Owner]:
    """Of any other Pool."""
    owner = Owner(OTHERS[request.param], request.param == "stock")
    yield owner
    owner.close()


def test_any_pool_answers_in_the_thread_that_waits(others: Owner) -> None:
    pool, came, where = others(2), [], []

    def take(values: Any) -> None:
        came.extend(values)
        where.append(threading.get_ident())

    for number in range(10):
        pool.map_async(chores.square, [number], 1, take, pytest.fail)
    until(pool, lambda: len(came) == 10)
    assert sorted(came) == [number * number for number in range(10)]
    assert set(where) == {threading.get_ident()}


def test_any_pool_passes_an_error_on(others: Owner) -> None:
    pool, came = others(2), []
    pool.map_async(chores.sore_at_seven, [7], 1, pytest.fail, came.append)
    until(pool, lambda: came)
    assert [type(error) for error in came] == [Sore]


def test_any_pool_counts_what_is_out(others: Owner, tmp_path: Path) -> None:
    pool, gate, came = others(2), tmp_path / "gate", []
    lines = {at: Line(1, 1, 0, 0, 0, 0, 0, 0) for at in range(2)}
    assert pool.vacancies == 2 * MOST_OUT
    assert pool.busy(lines) == set()
    for left in (3, 2, 1, 0, -1):
        pool.map_async(chores.wait_at, [gate], 1, came.append, pytest.fail)
        assert pool.vacancies == left
    assert pool.out(0) == 5
    assert set(pool.busy(lines)) == {0, 1}, "somebody must have it"
    assert set(pool.busy({**lines, 1: lines[1]._replace(active=1)})) == {1}
    gate.touch()
    until(pool, lambda: len(came) == 5)
    assert pool.vacancies == 2 * MOST_OUT
    assert pool.pids == {}


class Given:
    """A Pool that answers when it is told to."""

    def __init__(self, workers: int, initializer: Any, initargs: Any) -> None:
        self.tasks: list[tuple[Any, Callable[[Any], object]]] = []

    def map_async(self, func: Any, items: Any, chunksize: Any, callback: Any, error_callback: Any) -> None:
        self.tasks.append((items[0], callback))

    def answer(self) -> None:
        item, callback = self.tasks.pop(0)
        callback([item])

    def terminate(self) -> None: ...


@pytest.fixture
def given() -> Iterator[AnyPool]:
    """Four workers, of whom one may be at work; three tasks."""
    owner = Owner(Given, False)
    pool = owner(4)
    pool.limit(1)
    assert pool.vacancies == MOST_OUT
    assert pool.has_idle_worker
    for item in "abc":
        pool.map_async(chores.same, [item], 1, lambda _: None, pytest.fail)
    yield pool
    owner.close()


def in_hand(pool: AnyPool) -> str:
    return "".join(item for item, _ in pool._pool.tasks)


def test_of_any_pool_no_more_workers_are_at_work_than_may_be(given: AnyPool) -> None:
    assert in_hand(given) == "a"
    assert given.vacancies == MOST_OUT - 3
    assert not given.has_idle_worker
    given._pool.answer()
    given.wait(0)
    assert in_hand(given) == "b"
    given.limit(3)
    assert in_hand(given) == "bc"
    assert given.has_idle_worker
    assert given.vacancies == 3 * MOST_OUT - 2
    given.limit(4)
    for item in "defgh":
        given.map_async(chores.same, [item], 1, pytest.fail, pytest.fail)
    assert in_hand(given) == "bcdefgh", "where all may be at work, the next task is at hand"


def test_what_waits_until_a_worker_may_be_at_work_outlasts_the_pool(given: AnyPool) -> None:
    ends: Any = given._tell.__self__  # type: ignore[attr-defined]
    given.kill(0)
    assert [end.items for end in ends] == [("a",)]
    given.start(0)
    assert in_hand(given) == "b"


@pytest.mark.slow
def test_any_pool_is_ended_as_a_whole_and_made_anew(others: Owner, tmp_path: Path) -> None:
    pool, gate, came = others(2), tmp_path / "gate", []
    for _ in range(3):
        pool.map_async(chores.wait_at, [gate], 1, pytest.fail, pytest.fail)
    wait_until(lambda: chores.waiting_at(gate), "somebody is at work")
    if not others.shows_processes:
        gate.touch()  # nobody can end a thread: late answers are dropped
    pool.kill(1)
    assert others.ends == [Exit(1, 0, 0, State.READY, (gate, gate, gate))]
    assert pool.out(0) == 0
    pool.abandon(1)
    pool.map_async(chores.square, [3], 1, came.extend, pytest.fail)  # which waits for the next Pool
    assert pool.out(0) == 1
    pool.start(1)
    pool.map_async(chores.square, [4], 1, came.extend, pytest.fail)
    until(pool, lambda: len(came) == 2)
    assert sorted(came) == [9, 16]
    assert len(others.ends) == 1


def test_any_pool_is_woken(others: Owner) -> None:
    pool = others(2)
    others.bell.ring()
    pool.wait()
    pool.wait(0)


def test_any_pool_is_ended_in_the_midst_of_its_work_and_says_no_more(others: Owner, tmp_path: Path) -> None:
    pool, gate = others(2), tmp_path / "gate"
    for _ in range(4):
        pool.map_async(chores.wait_at, [gate], 1, pytest.fail, pytest.fail)
    wait_until(lambda: chores.waiting_at(gate), "somebody is at work")
    if not others.shows_processes:
        gate.touch()
    assert pool.dispose() is True
    pool.wait(0)
    if others.shows_processes:
        assert not any(map(lives_still, chores.waiting_at(gate)))


def test_a_worker_of_any_pool_is_not_killed_while_it_answers() -> None:
    """The stock Pool would wait for ever for the lock that the worker had."""
    owner, may_read = Owner(OTHERS["stock"], True), threading.Event()
    try:
        stock = owner(2)._pool
        big, close = b"x" * 1_000_000, stock.close
        stock.apply_async(chores.same, (0,), callback=lambda _: may_read.wait(PATIENCE_S))
        answer = stock.apply_async(chores.same, (big,))
        wait_until(lambda: stock._outqueue._reader.poll(), "a worker answers, and nobody reads")
        stock.close = lambda: (close(), may_read.set())
        assert owner.pools[0].dispose() is True
        assert answer.get(PATIENCE_S) == big
    finally:
        may_read.set()
        owner.close()


def test_a_thread_that_is_stuck_is_left_to_itself() -> None:
    begun, release = threading.Event(), threading.Event()

    def stick(_: int) -> None:
        begun.set()
        release.wait(PATIENCE_S)

    owner = Owner(Threads, False)
    try:
        pool = owner(2)
        threads = pool._pool._threads
        pool.map_async(stick, [1], 1, pytest.fail, pytest.fail)
        assert begun.wait(PATIENCE_S)
        assert pool.dispose(timeout=0.1) is False
    finally:
        release.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    owner.close()


# -- the engine's own use of it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_workers_are_replaced_after_maxtasksperchild_samples(method: str) -> None:
    with mpiter.MultiprocessIterator(
        Pids(), 5, repeat=False, n_processes=2, maxtasksperchild=20, run_ahead=4, backend=mpiter.Process(method)
    ) as it:
        workers = {pid for batch in it for pid in batch}
        stats = it.stats()
    assert stats.samples == 200
    assert stats.restarts == 0
    assert len(workers) > 3
    assert stats.renewals >= len(workers) - 2


@pytest.mark.parametrize("backend", ["thread", mpiter.Process(pool=multiprocessing.Pool)])
def test_of_other_pools_nobody_is_replaced(backend: Any) -> None:
    with mpiter.MultiprocessIterator(
        Pids(), 5, repeat=False, n_processes=2, maxtasksperchild=20, run_ahead=4, backend=backend
    ) as it:
        workers = {pid for batch in it for pid in batch}
        assert it.stats().samples == 200
        assert it.stats().restarts == 0
    assert len(workers) <= 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_method": "fork", "pool": multiprocessing.Pool}, r"get_context\('fork'\)\.Pool as pool="),
        ({"pool": 3}, r"pool=3 cannot be called; pass what makes a Pool"),
        ({"start_method": "teleport"}, "is not available here"),
    ],
)
def test_a_backend_that_makes_no_sense_is_refused(options: Any, message: str) -> None:
    with pytest.raises(mpiter.OptionError, match=message):
        mpiter.Process(**options)


UNCLOSED = """
import multiprocessing, sys
import mpiter

class Numbers:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return index

if __name__ == "__main__":
    kinds = [{"n_processes": 0}, {"backend": "thread"}, {}, {"backend": mpiter.Process(pool=multiprocessing.Pool)}]
    order = kinds if sys.argv[1] == "forwards" else kinds[::-1]
    kept = [mpiter.batches(Numbers(), 2, **{"n_processes": 2, **kind}) for kind in order]
    kept.append(mpiter.DataLoader(Numbers(), 2))
    under_way = [iter(one) for one in kept]
    print([len(next(one)) for one in under_way])
"""


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_what_nobody_has_closed_ends_with_the_program_and_says_nothing(order: str, tmp_path: Path) -> None:
    """From Python 3.12 on no thread starts while the interpreter ends."""
    assert run(tmp_path, UNCLOSED, order).ended_well().lines == ["[2, 2, 2, 2, 2]"]
