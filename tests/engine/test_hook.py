"""Each hook is called for each event, and one that fails stops nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter.hook import Hook

EVENTS = ("begun", "planned", "answered", "waited", "handed_out", "close")


class Told(Hook):
    """Counts its calls, and fails in those that ``raises`` names."""

    def __init__(self, *raises: str) -> None:
        self.told: Counter[str] = Counter()
        self.raises = raises

    def __getattribute__(self, name: str) -> Any:
        if name not in EVENTS:
            return super().__getattribute__(name)

        def hear(*what: Any) -> None:
            self.told[name] += 1
            if name in self.raises:
                raise ValueError(f"not {name}")

        return hear


class Watched:
    """A dataset that has a hook."""

    def __init__(self, hook: Any = None) -> None:
        self.hook = hook

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index

    def mpiter_hook(self) -> Any:
        return self.hook

    def __reduce__(self) -> Any:
        return Watched, ()


@pytest.mark.parametrize("n_processes", [0, 2])
def test_a_hook_is_told_of_each_batch(n_processes: int) -> None:
    hook = Told()
    with mpiter.batches(
        Watched(hook), 4, n_processes=n_processes, shuffle=False
    ) as stream:
        assert np.concatenate(list(stream)).tolist() == list(range(24))
    assert (hook.told["begun"], hook.told["planned"]) == (1, 6)
    assert hook.told["answered"] >= 6
    assert hook.told["handed_out"] == 7, "a hook hears of the end as well"
    assert hook.told["close"] >= 1


@pytest.mark.parametrize(
    ("event", "n_processes"),
    [*((event, 0) for event in EVENTS), ("answered", 2), ("handed_out", 2)],
)
def test_a_hook_that_fails_is_told_nothing_more_and_stops_nothing_else(
    event: str, n_processes: int
) -> None:
    hook = Told(event)
    stream = mpiter.batches(Watched(hook), 4, n_processes=n_processes, epochs=2)
    # No event can follow ``close``.
    if event == "close":
        assert sum(len(batch) for batch in stream) == 48
        stream.close()
    else:
        with (
            stream,
            pytest.warns(
                RuntimeWarning,
                match=rf"Told\.{event}\(\) has failed; this hook is called no more",
            ),
        ):
            assert sum(len(batch) for batch in stream) == 48
        assert hook.told[event] == 1
        assert hook.told["close"] == 1


def test_a_for_loop_that_returns_no_hook_is_refused_by_its_name():
    class Forgets(mpiter.Hook):
        def for_loop(self, setting):
            pass

    with (
        mpiter.batches([1, 2], 1, n_processes=0, hooks=Forgets()) as stream,
        pytest.raises(mpiter.OptionError, match=r"for_loop\(\) of the hook Forgets"),
    ):
        next(stream)
