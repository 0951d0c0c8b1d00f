"""A state in which one value was replaced gives a StateError or an ordinary epoch."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter

LENGTH = 12
BATCH = 3


class Stream:
    """A stream that saves and loads its place."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < LENGTH:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if not 0 <= state["at"] <= LENGTH:
            raise ValueError("beyond")
        self.at = state["at"]


class Untold:
    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH))


class Drawing:
    """A sampler that draws from three generators."""

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        for _ in range(LENGTH):
            yield (random.randrange(LENGTH) + int(np.random.randint(LENGTH))) % LENGTH


MAKES: dict[str, Callable[[], Any]] = {
    "a loader": lambda: mpiter.DataLoader(range(LENGTH), BATCH, shuffle=True, seed=1),
    "a sampler": lambda: mpiter.DataLoader(
        range(LENGTH), BATCH, sampler=Drawing(), seed=1
    ),
    "a stream": lambda: mpiter.DataLoader(Stream(), BATCH),
    "a stream that tells nothing": lambda: mpiter.DataLoader(Untold(), BATCH),
    "an iterator": lambda: mpiter.SerialIterator(
        range(LENGTH), BATCH, repeat=False, seed=1
    ),
    "batches": lambda: mpiter.batches(
        range(LENGTH), BATCH, n_processes=0, seed=1, epochs=2
    ),
}
VALUES = st.one_of(
    st.sampled_from(
        [
            0,
            1,
            -1,
            7,
            2**31,
            -(2**31),
            2**63,
            10**30,
            1e300,
            -0.5,
            float("inf"),
            float("nan"),
            "x",
            "",
            None,
        ]
    ),
    st.booleans(),
    st.sampled_from([[], {}, [1], {"a": 1}, [[0]], ["MT19937"]]),
    st.sampled_from(
        [
            {"~array": ["|S0", [1 << 40], ""]},
            {"~tensor": ["_dynamo", [1], "AAAA"]},
            {"~tuple": [[]]},
        ]
    ),
)


def places(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value; of a long list, the first and the last few."""
    if path:
        yield path
    parts: list[tuple[Any, Any]] = []
    if isinstance(state, dict):
        parts += state.items()
    elif isinstance(state, list):
        parts += enumerate(state)
    if len(parts) >= 10:
        parts = parts[:2] + parts[-3:]
    for key, part in parts:
        yield from places(part, (*path, key))


def saved(make: Callable[[], Any], after: int) -> Any:
    with make() as source:
        batches = iter(source)
        for _ in range(after):
            next(batches)
        return json.loads(json.dumps(source.state_dict()))


@pytest.mark.filterwarnings("ignore:the stream has no state")
@pytest.mark.parametrize("name", MAKES)
@settings(max_examples=30)
@given(data=st.data())
def test_what_is_damaged_is_a_state_error_or_does_no_harm(
    name: str, data: st.DataObject
) -> None:
    state = saved(MAKES[name], data.draw(st.sampled_from([0, 1, 3]), "batches"))
    damaged = copy.deepcopy(state)
    path = data.draw(st.sampled_from(sorted(places(state), key=repr)), "path")
    inner = damaged
    for key in path[:-1]:
        inner = inner[key]
    if data.draw(st.booleans(), "is left out"):
        del inner[path[-1]]
    else:
        inner[path[-1]] = data.draw(VALUES, "value")
    with MAKES[name]() as target:
        before = random.getstate(), np.random.get_state()[1].tolist()
        try:
            target.load_state_dict(damaged)
            batches = iter(target)
            found = [
                sample
                for _, batch in zip(range(20), batches, strict=False)
                for sample in batch
            ]
        except mpiter.StateError:
            assert (random.getstate(), np.random.get_state()[1].tolist()) == before, (
                "it was all or nothing"
            )
        else:
            assert len(found) <= 20 * BATCH
            assert all(0 <= int(sample) < LENGTH for sample in found)


class Holding:
    """A sampler with a generator of its own."""

    def __init__(self, generator: np.random.Generator | np.random.RandomState) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return map(int, self.generator.permutation(LENGTH))


@pytest.mark.parametrize(
    ("bits", "name", "most", "kind"),
    [("MT19937", "pos", 624, "RandomState"), ("Philox", "buffer_pos", 4, "Generator")],
)
def test_a_position_beyond_a_generators_numbers_is_not_read(
    bits: str, name: str, most: int, kind: str
) -> None:
    """NumPy would take the memory behind them for numbers."""

    def make() -> mpiter.DataLoader[Any, Any]:
        generator = getattr(np.random, kind)(getattr(np.random, bits)(5))
        return mpiter.DataLoader(range(LENGTH), BATCH, sampler=Holding(generator))

    state = saved(make, 1)
    (path,) = [path for path in places(state) if "held" in path and path[-1] == name]
    for position in (-1, most + 1, 10**6):
        damaged = copy.deepcopy(state)
        inner = damaged
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = position
        with make() as target:
            with pytest.raises(mpiter.StateError, match="position"):
                target.load_state_dict(damaged)
                iter(target)
            target.load_state_dict(state)
            assert len(list(target)) == LENGTH // BATCH - 1
