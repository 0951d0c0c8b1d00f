"""The pilot behind "auto": its decisions, and how it flies on a simulated machine of 64 cores."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field, replace
from functools import cache

import pytest

import mpiter
from mpiter.engine.pilot import Auto, Setting
from mpiter.stats import Stats
from mpiter.tuning.auto import AutoPilot
from mpiter.tuning.parts import Measured, Part, has_shifted
from mpiter.tuning.policy import Decision, View, decide
from mpiter.tuning.simulation import Load, Machine, Outcome, Service, simulate

# -- decisions -------------------------------------------------------------------------------------------------------


def part(waits: float, busy: float = 1.0, batch_s: float = 0.1, workers: int = 1, blocked: float = 0.0) -> Part:
    """Ten batches, of whose time so much went by waiting, and with so many workers busy, or blocked by a disk."""
    busy_s = 10 * batch_s * busy * workers
    return Part(10, 10 * batch_s, 10 * batch_s * waits, busy_s, busy_s * (1 - blocked))


def view(workers: int, *parts: Part, **more: object) -> View:
    here = Measured(Setting(workers, 2), parts)
    given = {"tried": (), "least": 1, "most": 64, "cap": 64, "most_prefetch": 2, "left": 5, **more}
    return View(here, **given)  # type: ignore[arg-type]


def seen(workers: int, batch_s: float, waits: float, busy: float = 1.0) -> Measured:
    return Measured(Setting(workers, 2), (part(waits, busy, batch_s, workers),) * 4)


def wanted(decision: Decision) -> int:
    assert decision.setting is not None, decision.reason
    return decision.setting.workers


@pytest.mark.parametrize(("waits", "workers"), [(0.5, 5), (0.75, 10), (0.9, 23), (1.0, 64)])
def test_who_waits_gets_the_workers_that_hide_loading(waits: float, workers: int) -> None:
    """Twice as many where half of the time is waiting, and some to spare."""
    assert wanted(decide(view(2, part(waits)))) == workers


def test_little_waiting_is_looked_at_for_longer() -> None:
    some = part(0.1)
    assert decide(view(2, some)) == decide(view(2, some, some, some))
    assert decide(view(2, some)).setting is None
    assert wanted(decide(view(2, *[some] * 4))) == 3


def test_idle_workers_go_when_nobody_waits() -> None:
    idle = part(0.0, busy=0.25, workers=16)
    assert wanted(decide(view(16, *[idle] * 4))) == 5
    assert decide(view(16, *[part(0.0, busy=0.8, workers=16)] * 4)).is_final


def test_a_pause_of_the_trainer_frees_no_worker() -> None:
    """It has validated: one part of five says that steps take a hundred times as long."""
    usual, pause = part(0.0, busy=0.8, workers=4), part(0.0, busy=0.008, batch_s=10.0, workers=4)
    decision = decide(view(4, usual, usual, pause, usual, usual))
    assert decision.setting is None
    assert decision.is_final


def test_more_workers_that_bring_nothing_go_again() -> None:
    """As many stay as can have done what was done."""
    few, many = seen(4, 0.1, waits=0.9), [part(0.9, batch_s=0.05, workers=64)] * 4
    assert wanted(decide(view(64, *many, tried=(few,)))) == 9
    nine = seen(9, 0.051, waits=0.9)
    tried = (few, Measured(Setting(64, 2), tuple(many)))
    stays = decide(view(9, *nine.parts, tried=tried))
    assert (stays.setting, stays.is_final) == (None, True)
    back = decide(view(9, *seen(9, 0.06, waits=0.9).parts, tried=tried, left=1))
    assert (wanted(back), back.is_final) == (64, True)


def test_more_batches_wait_where_workers_are_idle_though_the_consumer_waits() -> None:
    bursts = [part(0.2, busy=0.5, workers=8)] * 4
    assert decide(view(8, *bursts, most_prefetch=64)).setting == Setting(8, 16)
    assert wanted(decide(view(8, *bursts, most_prefetch=2))) > 8, "or else more workers"


def test_nothing_is_tried_with_the_last_change_but_what_was_best_is_gone_back_to() -> None:
    decision = decide(view(4, *seen(4, 0.2, waits=0.5).parts, tried=(seen(8, 0.1, waits=0.0),), left=1))
    assert wanted(decision) == 8
    assert decision.is_final


def test_more_workers_than_fit_are_let_go_at_once() -> None:
    assert wanted(decide(view(16, part(0.9), most=7))) == 7


def test_what_no_longer_fits_is_not_gone_back_to() -> None:
    few, many = seen(4, 0.25, waits=0.9), seen(46, 0.025, waits=0.2)
    here = seen(17, 0.06, waits=0.6).parts
    assert wanted(decide(view(17, *here, tried=(few, many), left=1))) == 46
    assert decide(view(17, *here, tried=(few, many), left=1, most=17)).setting is None
    waiting = replace(seen(17, 0.02, waits=0.2), setting=Setting(17, 16))
    assert decide(view(17, *here, tried=(waiting,), left=1, most_prefetch=8)).setting is None
    assert decide(view(17, *here, tried=(waiting,), left=1, most_prefetch=16)).setting == Setting(17, 16)


def advised(**more: float) -> str:
    about = {"waits": 0.5, "blocked": 0.9, "busy": 1.0, "cap": 2, **more}
    parts = [part(about["waits"], about["busy"], workers=2, blocked=about["blocked"])] * 4
    decision = decide(view(2, *parts, most=2, cap=int(about["cap"])))
    assert (decision.setting, decision.is_final) == (None, True)
    return decision.advice


def test_who_has_as_many_workers_as_may_be_and_they_wait_for_a_disk_is_advised_to_allow_more() -> None:
    assert advised() == (
        "the consumer waits 50% of the time, and 2 workers are all that are allowed; they wait 90% of theirs, "
        "and not for a core: mpiter.Auto(most=8) allows more"
    )
    assert not advised(waits=0.0), "there is no need"
    assert not advised(blocked=0.2), "the cores are what is short"
    assert not advised(cap=4), "memory is what is short"
    assert not advised(busy=0.5), "it isn't for lack of workers"


def test_another_load_is_noticed_and_noise_is_not() -> None:
    rng = random.Random(0)
    usual = [part(0.0, busy=rng.uniform(0.5, 0.9), workers=4) for _ in range(20)]
    assert not has_shifted(usual, [part(0.0, busy=0.9, workers=4)] * 2, 4)
    assert not has_shifted(usual, [usual[0], part(0.9, batch_s=1.0, workers=4)], 4), "once is no change"
    assert "a batch takes the workers" in has_shifted(usual, [part(0.6, batch_s=0.25, workers=4)] * 2, 4)
    assert "a step takes the consumer" in has_shifted(usual, [part(0.0, busy=0.3, batch_s=0.2, workers=4)] * 2, 4)


def test_what_takes_next_to_no_time_may_vary() -> None:
    usual = [part(0.999, workers=4)] * 20
    assert not has_shifted(usual, [part(0.99, workers=4)] * 2, 4), "steps take ten times as long, which is nothing"


# -- flights ---------------------------------------------------------------------------------------------------------

GRID = (1, 2, 4, 8, 16, 24, 32, 48, 64)
CORES = Machine.of(64, memory_bytes=256 << 30)
WARM = 350


def service(mean_s: float, spread: float = 0.3, cpu: bool = True, seed: int = 0) -> list[Service]:
    rng = random.Random(seed)
    drawn = [mean_s * rng.lognormvariate(-spread * spread / 2, spread) for _ in range(4000)]
    return [Service(one) if cpu else Service(0.05 * one, 0.95 * one) for one in drawn]


def straggling(mean_s: float) -> list[Service]:
    rng = random.Random(1)
    return [Service(0.0, mean_s * (50 if rng.random() < 0.02 else 1)) for _ in range(4000)]


def bursts(low_s: float, high_s: float, every: int, length: int, batch_size: int = 8) -> list[Service]:
    return [Service(0.0, high_s if at % every < length else low_s) for at in range(every) for _ in range(batch_size)]


@dataclass(frozen=True)
class Flight:
    """A load on a machine."""

    load: Load
    machine: Machine = field(default=CORES)
    batches: int = 800

    def fixed(self, workers: int, n_prefetch: int = 2) -> Outcome:
        return simulate(self.load, self.machine, workers, n_prefetch, self.batches)


NO_STEP = Service(0.0)


def made(samples: list[Service], step: Service = NO_STEP, **more: object) -> Load:
    return Load(samples, [step], **{"batch_size": 8, "start_s": 0.3, **more})  # type: ignore[arg-type]


FLIGHTS = {
    "CPU-bound": Flight(made(service(10e-3)), batches=1600),
    "CPU-bound, 8 cores": Flight(made(service(10e-3), Service(1e-3)), Machine.of(8, 256 << 30)),
    "I/O-bound": Flight(made(service(20e-3, 0.6, cpu=False), Service(1e-3)), batches=2400),  # they come 64 at a time
    "bursty": Flight(made(bursts(5e-3, 30e-3, 100, 15), Service(0.0, 10e-3))),
    "bursty, often": Flight(made(bursts(5e-3, 50e-3, 20, 2), Service(0.0, 10e-3))),
    "straggling": Flight(made(straggling(5e-3), Service(0.0, 8e-3))),
    "memory-limited": Flight(
        made(service(10e-3), Service(1e-3), worker_bytes=1 << 30, room_bytes=50 << 20), Machine.of(64, 24 << 30)
    ),
    "trainer-bound": Flight(made(service(1e-3), Service(0.0, 50e-3))),
}


@cache
def best_of(name: str) -> float:
    """Of all fixed settings that fit: seconds from batch to batch."""
    flight, found = FLIGHTS[name], []
    for workers in GRID:
        for n_prefetch in (2, 64):
            outcome = flight.fixed(workers, n_prefetch)
            if outcome.peak_bytes <= flight.machine.memory_bytes:
                found.append(outcome.batch_s(WARM))
    return min(found)


def flown(load: Load, machine: Machine, batches: int) -> tuple[Outcome, AutoPilot]:
    pilot = AutoPilot(Auto(most=64), Auto(), memory=lambda stats: float(machine.memory_bytes))
    return simulate(load, machine, 1, 2, batches, pilot, most_workers=64), pilot


@pytest.mark.slow
@pytest.mark.parametrize("name", FLIGHTS)
def test_auto_is_as_good_as_the_best_of_a_sweep_and_steady(name: str) -> None:
    flight = FLIGHTS[name]
    outcome, pilot = flown(flight.load, flight.machine, flight.batches)
    assert outcome.batch_s(WARM) <= 1.05 * best_of(name), pilot.changes
    assert sum(change.batches > 200 for change in pilot.changes) <= 3
    assert outcome.peak_bytes <= flight.machine.memory_bytes
    assert outcome.batches == flight.batches


HALF = 1000
CHANGES = {
    "four times the work": ((2e-3, 8e-3), (8e-3, 8e-3)),
    "a fourth of it": ((8e-3, 8e-3), (2e-3, 8e-3)),
    "a trainer that is faster": ((5e-3, 12e-3), (5e-3, 3e-3)),
    "a trainer that is slower": ((5e-3, 3e-3), (5e-3, 12e-3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_load_that_changes_is_followed(name: str) -> None:
    (sample_s, step_s), (later_sample_s, later_step_s) = CHANGES[name]
    samples = service(sample_s, cpu=False)[: 4 * HALF] * 2 + service(later_sample_s, cpu=False)[: 4 * HALF] * 2
    steps = [Service(0.0, step_s)] * HALF + [Service(0.0, later_step_s)] * HALF
    load = Load(samples, steps, batch_size=8, start_s=0.3)
    outcome, pilot = flown(load, CORES, 2 * HALF)
    halves = []
    for workers in (2, 4, 8, 16, 32):
        fixed = simulate(load, CORES, workers, 2, 2 * HALF)
        halves.append((fixed.taken[HALF], fixed.seconds - fixed.taken[HALF]))
    best = sum(min(half[at] for half in halves) for at in (0, 1))
    assert outcome.seconds <= 1.1 * best, pilot.changes
    first, last = pilot.changes[0].after.workers, pilot.changes[-1].after.workers
    assert any(change.batches > HALF for change in pilot.changes), (first, last)


def test_a_pilot_keeps_to_what_it_was_told() -> None:
    load, stays = made(service(10e-3)), AutoPilot(Auto(2, 5), None, memory=lambda stats: 1e12)
    outcome = simulate(load, CORES, 2, 3, 200, stays, most_workers=64)
    assert [change.after for change in stays.changes][-1] == Setting(5, 3)
    assert {change.after.n_prefetch for change in stays.changes} == {3}
    assert outcome.stats.workers == 5
    waiting = AutoPilot(None, Auto(most=5), memory=lambda stats: 1e12)
    simulate(made(straggling(5e-3), Service(0.0, 8e-3)), CORES, 12, 2, 300, waiting)
    assert {change.after.workers for change in waiting.changes} <= {12}
    assert max(change.after.n_prefetch for change in waiting.changes) == 5


def test_each_change_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mpiter.tuning"):
        _, pilot = flown(made(service(10e-3), Service(0.0, 20e-3)), CORES, 200)
    assert pilot.changes
    assert [record.getMessage() for record in caplog.records] == [
        f"after {change.batches} batches {change.reason}" for change in pilot.changes
    ]
    assert "% of the time: 4 workers where there were 1" in caplog.text


def test_advice_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    pilot = AutoPilot(Auto(most=2), None, memory=lambda stats: 1e12)
    with caplog.at_level(logging.INFO, "mpiter.tuning"):
        simulate(made(service(10e-3, cpu=False)), CORES, 1, 2, 800, pilot, most_workers=2)
    assert sum("mpiter.Auto(most=8) allows more" in record.getMessage() for record in caplog.records) == 1
    caplog.clear()
    pilot = AutoPilot(Auto(most=2), None, memory=lambda stats: 1e12)
    with caplog.at_level(logging.INFO, "mpiter.tuning"):
        simulate(made(service(10e-3)), CORES, 1, 2, 800, pilot, most_workers=2)
    assert "allows more" not in caplog.text


def test_the_counters_are_read_once_in_many_batches() -> None:
    looks = 0

    def stats() -> Stats:
        nonlocal looks
        looks += 1
        return replace(Stats(), batches=at, seconds=at * 1e-3, fetch_s=at * 1e-3, room_bytes=1)

    pilot = AutoPilot(Auto(most=4), None, memory=lambda stats: 1e12)
    for at in range(1, 20_000):
        pilot.look(at, Setting(1, 2), stats)
    assert looks < 300


@pytest.mark.parametrize("given", [{"n_processes": "auto"}, {"n_processes": mpiter.Auto(most=2), "n_prefetch": "auto"}])
def test_iterators_have_a_pilot_where_they_are_asked_to(given: dict[str, object]) -> None:
    with mpiter.batches(range(40), 4, shuffle=False, **given) as stream:  # type: ignore[arg-type]
        assert [list(batch) for batch in stream] == [list(range(at, at + 4)) for at in range(0, 40, 4)]


def test_loaders_have_one_too() -> None:
    with mpiter.DataLoader(range(40), 4, num_workers="auto") as loader:
        for _ in range(2):
            assert [list(batch) for batch in loader] == [list(range(at, at + 4)) for at in range(0, 40, 4)]
    with pytest.raises(mpiter.OptionError, match="num_workers='many'"):
        mpiter.DataLoader(range(4), num_workers="many")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [({"least": 0}, "least=0"), ({"most": True}, "most=True"), ({"least": 3, "most": 2}, "most=2 is less")],
)
def test_bounds_that_make_no_sense_are_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(mpiter.OptionError, match=said):
        mpiter.Auto(**given)
