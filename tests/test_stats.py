"""``stats()`` says how long the program has waited for batches."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter import stats as telling
from mpiter.engine import tally as tallying
from mpiter.engine.tally import Tally
from mpiter.stats import NUMBERS, Stats, total


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that the test sets."""

    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

        def process_time(self) -> float:
            return 0.0

    clock = Clock()
    for module in (tallying, telling):
        monkeypatch.setattr(module, "time", clock)
    return clock


def looked(tally: Tally, **more: Any) -> mpiter.Stats:
    return replace(tally.look(), **more)


def test_the_start_is_told_apart_and_shares_are_since_the_last_look(clock: Any) -> None:
    tally = Tally()
    assert str(looked(tally)) == "no batch yet"
    tally.waits = 2.0, None
    tally.handed_out(4)
    for clock.now, waited in ((105.0, 2.1), (110.0, 2.2)):
        tally.waits = waited, None
        tally.handed_out(4)
    first = looked(tally, workers=2)
    assert (first.start_s, first.recent_s, first.recent_batches) == (2.0, 10.0, 3)
    assert first.recent_share == pytest.approx(0.02)
    clock.now = 120.0
    tally.waits = (7.2, None)
    tally.handed_out(4)
    second = looked(tally, workers=2)
    assert (second.recent_s, second.recent_batches) == (10.0, 1)
    assert second.recent_share == pytest.approx(0.5)
    keep_up = "waited 50% of the last 10.0 s, for 1 batch: workers can't keep up"
    assert keep_up in str(second)
    assert "waited 2% of the last 10.0 s, for 3 batches: workers suffice" in str(first)


def test_a_wait_counts_while_it_lasts(clock: Any) -> None:
    tally = Tally()
    tally.handed_out(4)
    clock.now = 102.0
    tally.waits = 0.0, clock.now
    clock.now = 110.0
    seen = looked(tally)
    assert (seen.wait_s, seen.recent_s, seen.recent_wait_s) == (8.0, 10.0, 8.0)
    tally.waits = 9.0, None
    clock.now = 120.0
    seen = looked(tally)
    assert (seen.wait_s, seen.recent_s, seen.recent_wait_s) == (9.0, 20.0, 9.0)


def test_two_looks_in_a_row_show_the_same(clock: Any) -> None:
    tally = Tally()
    tally.handed_out(4)
    clock.now = 110.0
    tally.waits = (5.0, None)
    tally.handed_out(4)
    first = looked(tally, workers=2)
    second = looked(tally, workers=2)
    assert first.recent_batches == 2
    assert str(first) == str(second)
    clock.now = 115.0
    third = looked(tally, workers=2)
    assert (third.recent_s, third.recent_batches) == (15.0, 2), (
        "no batch has come since"
    )


def test_frequent_reads_leave_other_readers_something_to_see(clock: Any) -> None:
    tally = Tally()
    tally.handed_out(4)
    for _ in range(100):
        clock.now += 0.125
        tally.handed_out(4)
        seen = looked(tally)
    assert 1 <= seen.recent_s <= 2
    assert seen.recent_batches == seen.recent_s / 0.125


def test_an_interval_between_two_looks_of_one_reader_is_told_whatever_others_look_at(
    clock: Any,
) -> None:
    tally = Tally()
    before = tally.look()
    shares = list[float]()
    ends = list[Any]()
    for waits_s in (1.0, 0.5, 2.0):
        for _ in range(4):
            clock.now += 2.5
            tally.waits = tally.waits[0] + waits_s, None
            tally.handed_out(8)
            # A progress bar looks each time.
            now = looked(tally)
        interval = now.since(before)
        shares.append(interval.as_dict()["mpiter/recent_share"])
        ends.append((interval.recent_s, interval.recent_batches, interval.batches))
        before = now
    assert shares == pytest.approx([0.4, 0.2, 0.8])
    assert ends == [(10.0, 4, 4), (10.0, 4, 8), (10.0, 4, 12)]
    assert "waited 80% of the last 10.0 s, for 4 batches" in str(interval)


def test_an_interval_includes_the_waiting_for_workers_that_were_started_in_it(
    clock: Any,
) -> None:
    def after(start_s: float, wait_s: float, batches: int) -> Stats:
        tally = Tally()
        tally.waits = start_s, None
        for _ in range(batches):
            tally.handed_out(8)
        tally.waits = wait_s, None
        return tally.look()

    before = after(start_s=3.0, wait_s=3.5, batches=50)
    clock.now += 10
    interval = after(start_s=2.0, wait_s=4.0, batches=60).since(before)
    assert (interval.recent_share, interval.recent_batches) == (0.4, 60)
    assert Stats().since(before).recent_share == 0


def test_an_interval_of_a_stream_leaves_out_batches_before_it_while_workers_start(
    clock: Any,
) -> None:
    """Each shard has its own counters, and the second one's first batch comes later."""
    first = Tally()
    second = Tally()
    first.waits = 1.0, None
    first.handed_out(8)
    before = total([first.look(), second.look()])
    clock.now += 10
    second.waits = 4.0, None
    for shard in (second, first, second):
        shard.handed_out(8)
    interval = total([first.look(), second.look()]).since(before)
    assert (interval.recent_batches, interval.recent_wait_s) == (3, 4.0)


def test_of_a_moment_nothing_is_concluded() -> None:
    stats = mpiter.Stats(
        batches=48, recent_batches=48, recent_s=0.02, recent_wait_s=0.019, workers=2
    )
    says = "waited 95% of the last 0.0 s, for 48 batches: too short a time to tell"
    assert says in str(stats)


def test_one_batch_is_in_the_singular_and_rare_counts_show_where_not_zero() -> None:
    stats = mpiter.Stats(batches=1, samples=1, recent_batches=1, restarts=2, odd_rows=3)
    lines = str(stats).splitlines()
    assert lines[0].startswith("1 batch, 1 sample;")
    assert "for 1 batch:" in lines[1]
    assert lines[-1] == "2 restarts, 3 odd rows"


@pytest.mark.parametrize("workers", [0, 2])
def test_iterators_and_loaders_tell_it_in_lines_of_a_screen(workers: int) -> None:
    verdicts = {
        2: ("workers", "too short"),
        0: ("fetched without workers", "too short"),
    }[workers]
    with (
        mpiter.batches(range(100), 4, n_processes=workers) as stream,
        mpiter.DataLoader(range(100), 4, num_workers=workers) as loader,
    ):
        epoch = iter(loader)
        for source, batches in ((stream, stream), (loader, epoch)):
            assert str(source.stats()) == "no batch yet"
            next(batches)
            next(batches)
            lines = str(source.stats()).splitlines()
            assert lines[0].startswith("2 batches, 8 samples; the first came after ")
            assert any(verdict in lines[1] for verdict in verdicts)
            assert max(map(len, lines)) <= 100


class Elements:
    """A stream of 40 elements, which two workers read."""

    def __iter__(self) -> Any:
        return iter(range(40))


@pytest.mark.parametrize(
    ("dataset", "options", "workers", "batches", "samples"),
    [
        (Elements(), {"batch_size": 6}, 2, 7, 40),
        (Elements(), {"batch_size": 6, "drop_last": True}, 0, 6, 36),
        (Elements(), {"batch_size": None}, 0, 40, 40),
        (range(40), {"batch_size": 6, "collate_fn": list}, 2, 7, 40),
        (
            range(40),
            {"batch_sampler": [[1, 2, 3], [], [4]], "collate_fn": list},
            0,
            3,
            4,
        ),
        (
            range(40),
            {"batch_sampler": [[1, 2, 3], [], [4]], "collate_fn": list},
            2,
            3,
            4,
        ),
        (range(40), {"batch_size": None}, 2, 40, 40),
        (range(40), {"batch_size": 6}, 0, 7, 40),
    ],
)
def test_samples_are_counted_wherever_their_batches_are_made(
    dataset: Any, options: dict[str, Any], workers: int, batches: int, samples: int
) -> None:
    with mpiter.DataLoader(dataset, num_workers=workers, **options) as loader:
        for _ in range(2):
            assert len(list(loader)) == batches
        stats = loader.stats()
    assert (stats.workers, stats.batches, stats.samples) == (
        workers,
        2 * batches,
        2 * samples,
    )
    assert "the first came after" in str(stats)


@pytest.mark.parametrize(
    ("batch_s", "step_s", "busy", "enough", "several"),
    [
        (1.7, 0.654, 0.2, 3, 2),
        (0.176, 0.04, 0.0, 5, 4),
        (0.05, 0.075, 1.0, 1, None),
        (3.0, 0.5, 1.0, None, None),
        (3.0, 1.0, 0.6, 4, None),
        (1.0, 1e-6, 0.0, None, 64),
    ],
    ids=["the article", "a store", "one", "short of cores", "busy", "no step"],
)
def test_as_many_workers_suffice_as_a_batch_takes_times_as_long_as_a_step(
    monkeypatch: pytest.MonkeyPatch,
    batch_s: float,
    step_s: float,
    busy: float,
    enough: int | None,
    several: int | None,
) -> None:
    """In the article, a batch takes a worker 1.7 s, and a step takes 654 ms.

    Three workers hide that, and two don't.
    """
    monkeypatch.setattr("mpiter.machine.cores", lambda: 4)
    with_two_s = batch_s / 2  # seconds between batches of two workers
    stats = Stats(
        batches=100,
        samples=3200,
        sample_s=batch_s / 32,
        sample_cpu_s=busy * batch_s / 32,
        workers=2,
        recent_batches=10,
        recent_s=10 * max(step_s, with_two_s),
        recent_wait_s=10 * max(0.0, with_two_s - step_s),
    )
    assert stats.enough_workers == enough
    assert stats.useful_concurrency == several
    told = f"; {enough} would" if enough is not None and enough > 2 else ""
    wanted = f"workers can't keep up{told}"
    if enough == 1:
        wanted = "workers suffice"
    elif several is not None:
        waiting = f"{1 - busy:.0%}"
        wanted = f"workers wait {waiting} of their time: concurrency={several}"
        wanted += f", or {enough} workers" if enough else ""
    assert stats.verdict() == wanted
    hidden = f"; {enough} would hide it"
    if enough is None and several is not None:
        hidden = f"; one with concurrency={several} would wait less"
    elif enough is None:
        hidden = "; 4, one on each core, would be faster"
    assert replace(stats, workers=0).verdict() == f"fetched without workers{hidden}"
    light = replace(stats, sample_s=1e-7, sample_cpu_s=1e-7)
    assert [light.enough_workers, replace(light, recent_wait_s=0.0).verdict()] == [
        0,
        "workers suffice; so would none",
    ]
    assert (
        replace(light, workers=0).verdict()
        == "fetched without workers; none are needed"
    )


class Waits:
    """Samples that wait, and are read many at once."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index

    def mpiter_reader(self) -> Any:
        return lambda indices: [self[int(index)] for index in indices]


class WaitsAlone(Waits):
    """A class derived from such a dataset, with a ``[]`` of its own."""

    def __getitem__(self, index: int) -> int:
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_where_samples_cannot_be_under_way_together_workers_are_advised(
    workers: int,
) -> None:
    def verdict(dataset: Any) -> str:
        with mpiter.batches(dataset, 10, n_processes=workers, seed=0) as stream:
            for _ in range(6):
                next(stream)
            seen = stream.stats()
        # A moment counts as nothing on a fast machine.
        seen = replace(seen, recent_s=10.0, recent_wait_s=9.999, recent_batches=5)
        return seen.verdict()

    wanted = {
        0: "fetched without workers; 8 would wait less",
        1: "% of their time: have more of them",
    }
    assert wanted[workers] in verdict(Waits())
    assert "concurrency=" in verdict(WaitsAlone())


def test_without_workers_little_is_advised_where_little_would_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mpiter.machine.cores", lambda: 4)
    stats = Stats(
        batches=100,
        samples=3200,
        sample_s=0.01,
        sample_cpu_s=0.01,
        recent_batches=10,
        recent_s=3.2,
        recent_wait_s=3.199,
    )
    assert stats.verdict().endswith("; 4, one on each core, would be faster")
    # Handing over takes as long.
    light = replace(stats, sample_s=3e-5, sample_cpu_s=3e-5)
    assert light.verdict() == "fetched without workers"
    monkeypatch.setattr("mpiter.machine.cores", lambda: 1)
    assert stats.verdict() == "fetched without workers"


def test_a_dict_for_loggers_has_every_number_under_a_prefix() -> None:
    numbers = Stats(
        batches=4, samples=32, recent_s=2.0, recent_wait_s=0.5, recent_batches=3
    ).as_dict()
    assert numbers["mpiter/batches"] == 4
    assert numbers["mpiter/recent_share"] == 0.25
    assert {f"mpiter/{name}" for name in NUMBERS} < set(numbers)
    assert json.loads(json.dumps(numbers)) == numbers
    assert set(Stats().as_dict("train.")) == {
        name.replace("mpiter/", "train.") for name in numbers
    }
    assert all(type(value) in (int, float) for value in numbers.values())


def test_without_workers_no_batch_counts_as_a_copy_for_want_of_slots():
    with mpiter.batches((np.arange(100), np.arange(100)), 10, n_processes=0) as stream:
        list(stream)
        assert (stream.stats().batches, stream.stats().copies) == (10, 0)
