"""Workers that come and go while batches are handed out: nothing is lost, repeated, reordered or left behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter.engine.pilot import Look, Pilot, Wings

BATCH, MOST = 4, 3
WIDTHS = (3, 1, 2)


class Drawing:
    """Samples that depend on the random numbers of their place."""

    def __len__(self) -> int:
        return 403

    def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
        return index, mpiter.get_rng().random(5)


class Script(Pilot):
    """A pilot that has been told what to do after how many batches."""

    def __init__(self, every: int) -> None:
        self.made: list[int] = []
        self._every = every

    def __call__(self, workers: object) -> Script:
        return self

    def look(self, batches: int, now: int, look: Callable[[], Look]) -> int | None:
        count = len(self.made)
        if count == len(WIDTHS) or batches < self._every * (count + 1):
            return None
        assert now == (self.made[-1] if self.made else 1)
        self.made.append(WIDTHS[count])
        return self.made[-1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script(every=8)
    monkeypatch.setattr(Wings, "pilot", made)
    return made


def stream(n_processes: Any, backend: Any = "process", **more: Any) -> Any:
    return mpiter.batches(Drawing(), BATCH, n_processes=n_processes, backend=backend, seed=7, epochs=None, **more)


def until_all_is_done(
    batches: Any, script: Script, meanwhile: Callable[[int], object] = lambda count: None
) -> list[Any]:
    """What is handed out until the script has come to its end, and some more."""
    found: list[Any] = []
    after = 0
    while after < 30:
        found.append(copied(next(batches)))
        meanwhile(len(found))
        after += len(script.made) == len(WIDTHS)
    return found


def copied(batch: Any) -> tuple[Any, ...]:
    return tuple(np.array(column) for column in batch)


def check(found: list[Any], start: int = 0) -> None:
    """They are what one gets without workers."""
    with stream(0) as alone:
        for at in range(start + len(found)):
            batch = next(alone)
            if at >= start:
                assert all(map(np.array_equal, batch, found[at - start])), f"batch {at}"


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_batches_are_the_same_whoever_comes_and_goes(script: Script, backend: str) -> None:
    with stream(mpiter.Auto(most=MOST), backend) as batches:
        found = until_all_is_done(batches, script)
        assert script.made == list(WIDTHS)
        assert batches.stats().workers == WIDTHS[-1]
        assert batches.stats().restarts == 0, "who was asked to go has not died"
    check(found)


@pytest.mark.death
def test_workers_that_are_killed_meanwhile_change_nothing(script: Script) -> None:
    killed = []

    def kill(count: int) -> None:
        if count % 12 == 10 and len(killed) < 3 and (pids := batches.worker_pids):
            with contextlib.suppress(ProcessLookupError):  # it may be just the one that goes
                os.kill(pids[-1], signal.SIGKILL)
                killed.append(pids[-1])

    with stream(mpiter.Auto(most=MOST)) as batches:
        found = until_all_is_done(batches, script, kill)
    assert len(killed) == 3
    check(found)


def test_it_may_be_left_and_gone_on_from_at_any_time(script: Script) -> None:
    with stream(mpiter.Auto(most=MOST), "thread") as batches:
        while len(script.made) < 2:
            next(batches)
        state, count = batches.state_dict(), batches.stats().batches
    script.made.clear()
    with stream(mpiter.Auto(most=MOST), "thread") as batches:
        batches.load_state_dict(state)
        check(until_all_is_done(batches, script), start=count)


def test_a_loader_keeps_its_pilot_from_epoch_to_epoch(script: Script) -> None:
    with mpiter.DataLoader(range(200), 4, num_workers=mpiter.Auto(most=MOST)) as loader:
        while len(script.made) < len(WIDTHS):
            assert np.concatenate([np.array(batch) for batch in loader]).tolist() == list(range(200))


def test_who_asks_for_more_workers_than_there_are_cores_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpiter.engine.pilot.cores", lambda: 2)
    with stream(mpiter.Auto(least=3), "thread") as batches:
        next(batches)
        assert batches.stats().workers == 3


def test_a_word_that_is_nearly_auto_is_told_of() -> None:
    with pytest.raises(mpiter.OptionError, match="n_processes='AUTO' is unknown; use a whole number or 'auto'"):
        stream("AUTO")
