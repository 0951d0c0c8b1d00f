"""Hooks are told the same facts whoever fetches the batches, and they are true."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from loader_kinds import NO_TORCH

import mpiter
from mpiter.errors import UnevenSamples
from mpiter.hook import Coming, HandedOut, Hook, Position, Setting

HAS_TORCH = importlib.util.find_spec("torch") is not None
Torchs: Any = None
if HAS_TORCH:
    import torch

    import mpiter.torch

    Torchs = mpiter.torch.DataLoader
torchs = [pytest.mark.torch, pytest.mark.skipif(not HAS_TORCH, reason=NO_TORCH)]

# How the batches are fetched: the options for it.
WAYS: dict[str, dict[str, Any]] = {
    "here": {"n_processes": 0},
    "two workers": {"n_processes": 2},
    "threads": {"n_processes": 2, "backend": "thread"},
}
LENGTH = 20


@dataclass
class Fact:
    """What a hook was told of one batch, or of an end."""

    samples: int | None
    nbytes: int
    is_end: bool
    error: str
    planned: int | None
    before: tuple[int, int]
    after: tuple[int, int]
    # For each stretch the epoch, the position, the row and the keys.
    keys: list[tuple[int, int, int, list[Any]]]
    faults: list[tuple[int, int]]


class Notes(Hook):
    """Notes what it is told of each batch."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.sizes: list[int | None] = []

    def check(self, setting: Setting) -> None:
        self.sizes.append(setting.batch_size)

    def handed_out(
        self, batch: HandedOut, samples: int | None, began: float, ended: float
    ) -> None:
        plan = batch.plan
        keys = []
        for one in plan.stretches:
            found = [*map(plain, one.indices)]
            keys.append((one.epoch, one.position, one.row, found))
        fact = Fact(
            samples=samples,
            nbytes=batch.nbytes,
            is_end=batch.is_end,
            error=type(batch.error).__name__,
            planned=plan.samples,
            before=(plan.before.epoch, plan.before.position),
            after=(plan.after.epoch, plan.after.position),
            keys=keys,
            faults=[(one.epoch, one.position) for one in batch.faults],
        )
        self.facts.append(fact)


class PerLoop(Notes):
    """Has notes of their own for each loop."""

    def __init__(self) -> None:
        super().__init__()
        self.loops: list[Notes] = []

    def for_loop(self, setting: Setting) -> Hook:
        self.loops.append(Notes())
        return self.loops[-1]


def plain(key: Any) -> Any:
    if isinstance(key, np.integer):
        return int(key)
    return key


class Samples:
    """A dataset of what a function makes of an index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Stream:
    """The same samples, to be iterated over."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __iter__(self) -> Any:
        return map(self.make, range(LENGTH))


def three(index: int) -> Any:
    return np.zeros(3)


def several(index: int) -> Any:
    return np.zeros(index % 5 + 1)


def several_of_torch(index: int) -> Any:
    return torch.zeros(index % 5 + 1)


def some_fail(index: int) -> Any:
    if index in (4, 6, 11):
        raise OSError("unreadable")
    return np.zeros(3)


def all_kinds(index: int) -> Any:
    """Return 3 + 8 + 1 + 16 + 4 + 8 + 2 * 8 bytes, and texts."""
    return {
        "array": np.zeros(3, np.uint8),
        "numbers": (index, index % 2 == 0, complex(index)),
        "scalar": np.float32(index),
        "tensor": torch.zeros(2) if HAS_TORCH else np.zeros(2, np.float32),
        "list": [1.0, index],
        "texts": ("word" * index, b"word" * index, None, np.str_("word" * index)),
    }


def large_and_missing(index: int) -> Any:
    return (2**70 if index == 7 else index, None if index == 9 else 1.5)


def stacked(samples: Sequence[Any]) -> Any:
    return {"x": [np.stack(samples)], "count": len(samples), "text": "words"}


def told(
    make: Callable[..., Any], name: str, dataset: Any, size: int = 8, **options: Any
) -> Notes:
    """Return what a hook was told of all batches."""
    hook = Notes()
    how = WAYS[name] | options
    if make is not mpiter.batches:
        how["num_workers"] = how.pop("n_processes")
    if "batch_sampler" not in options:
        how["batch_size"] = size
    epochs = 1 if make is mpiter.batches else 2
    with make(dataset, hooks=hook, **how) as found:
        for _ in range(epochs):
            for batch in found:
                del batch
    gc.collect()
    return hook


CASES: dict[str, tuple[Callable[..., Any], Any, dict[str, Any]]] = {
    "batches": (mpiter.batches, Samples(three), {"epochs": 2, "seed": 1}),
    "kinds": (mpiter.batches, Samples(all_kinds), {"shuffle": False}),
    "odd": (
        mpiter.batches,
        Samples(large_and_missing),
        {"shuffle": False, "ragged": "list"},
    ),
    "skip": (mpiter.batches, Samples(some_fail), {"seed": 1, "on_error": "skip"}),
    "list": (mpiter.batches, Samples(several), {"seed": 1, "ragged": "list"}),
    "pad": (mpiter.batches, Samples(several), {"seed": 1, "ragged": "pad"}),
    "jagged": (mpiter.batches, Samples(several), {"seed": 1, "ragged": "jagged"}),
    "columns": (
        mpiter.batches,
        (np.zeros((LENGTH, 3)), np.arange(LENGTH)),
        {"seed": 1},
    ),
    "loader": (mpiter.DataLoader, Samples(three), {"shuffle": True, "seed": 1}),
    "left out": (mpiter.DataLoader, Samples(three), {"drop_last": True}),
    "sampler": (mpiter.DataLoader, Samples(three), {"sampler": range(3, 15)}),
    "collate_fn": (mpiter.DataLoader, Samples(three), {"collate_fn": stacked}),
    "collate_fn, skip": (
        mpiter.DataLoader,
        Samples(some_fail),
        {"collate_fn": stacked, "on_error": "skip"},
    ),
    "batch_sampler": (
        mpiter.DataLoader,
        Samples(three),
        {"batch_sampler": [[1, 2, 3], [7], [5, 4]]},
    ),
    "torch": (Torchs, Samples(three), {}),
    "torch, jagged": (
        Torchs,
        Samples(several_of_torch),
        {"ragged": "jagged"},
    ),
    "torch, collate_fn": (
        Torchs,
        Samples(three),
        {"collate_fn": stacked},
    ),
    "torch, batch_sampler": (
        Torchs,
        Samples(three),
        {"batch_sampler": [[1, 2, 3], [7], [5, 4]]},
    ),
}


def marked(case: str) -> Any:
    return pytest.param(case, marks=torchs if case.startswith("torch") else [])


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_the_facts_are_the_same_whoever_fetches(case: str) -> None:
    make, dataset, options = CASES[case]
    first, *others = [told(make, name, dataset, **options).facts for name in WAYS]
    assert first[-1].is_end
    for other in others:
        assert other == first


@pytest.mark.parametrize("name", WAYS)
def test_an_error_is_told_where_samples_cannot_be_stacked(name: str) -> None:
    hook = Notes()
    with mpiter.batches(Samples(several), 8, hooks=hook, **WAYS[name]) as stream:
        for _ in range(3):
            with pytest.raises(UnevenSamples):
                next(stream)
    assert [fact.error for fact in hook.facts] == ["UnevenSamples"] * 3
    assert [fact.nbytes for fact in hook.facts] == [0, 0, 0]


def bytes_of(case: str, name: str = "two workers") -> list[int]:
    make, dataset, options = CASES[case]
    return [fact.nbytes for fact in told(make, name, dataset, **options).facts]


def test_the_bytes_are_those_of_what_the_user_gets() -> None:
    assert bytes_of("batches")[:4] == [192, 192, 96, 192]
    assert sum(bytes_of("batches")) == 2 * LENGTH * 24
    assert bytes_of("kinds") == [8 * 56, 8 * 56, 4 * 56, 0]
    assert bytes_of("columns") == [8 * 32, 8 * 32, 4 * 32, 0]
    # A number among objects counts as in a column; None counts nothing.
    assert bytes_of("odd") == [8 * 16, 8 * 16 - 8, 4 * 16, 0]
    # The largest of five rows, each filled up to it.
    assert bytes_of("pad") == [8 * 40, 8 * 40, 4 * 40, 0]
    assert sum(bytes_of("list")) == LENGTH * 3 * 8
    # The values, and one offset more than there are rows.
    assert sum(bytes_of("jagged")) == LENGTH * 3 * 8 + (9 + 9 + 5) * 8
    assert sum(bytes_of("skip")) == (LENGTH - 3) * 24
    # The array and the count.
    assert bytes_of("collate_fn")[:4] == [200, 200, 104, 0]
    assert bytes_of("batch_sampler")[:4] == [72, 24, 48, 0]


@pytest.mark.torch
@pytest.mark.skipif(not HAS_TORCH, reason=NO_TORCH)
def test_the_bytes_of_a_nested_tensor_are_those_of_its_elements() -> None:
    assert sum(bytes_of("torch, jagged")) == 2 * LENGTH * 3 * 4


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("make", [three, all_kinds, several, large_and_missing])
def test_a_list_of_samples_has_the_bytes_of_its_samples(
    make: Callable[[int], Any], name: str
) -> None:
    hook = Notes()
    dataset = Samples(make)
    options: dict[str, Any] = {"shuffle": False, "repeat": False, "hooks": hook}
    kind: Callable[..., Any] = mpiter.MultiprocessIterator
    if name == "here":
        kind = mpiter.SerialIterator
    elif name == "threads":
        kind = mpiter.MultithreadIterator
        options["n_threads"] = 2
    else:
        options |= WAYS[name]
    with kind(dataset, 8, **options) as iterator:
        assert sum(map(len, iterator)) == LENGTH
    each = {
        three: [24] * LENGTH,
        all_kinds: [56] * LENGTH,
        several: [8 * (index % 5 + 1) for index in range(LENGTH)],
        large_and_missing: [8 if index == 9 else 16 for index in range(LENGTH)],
    }[make]
    expected = [sum(each[:8]), sum(each[8:16]), sum(each[16:]), 0]
    assert [fact.nbytes for fact in hook.facts] == expected


@pytest.mark.parametrize("name", WAYS)
def test_the_end_is_at_the_place_that_was_reached(name: str) -> None:
    ends = {}
    for case in ("batches", "loader", "left out", "sampler", "batch_sampler"):
        make, dataset, options = CASES[case]
        facts = told(make, name, dataset, **options).facts
        ends[case] = [fact.after for fact in facts if fact.is_end]
        for before, fact in pairwise(facts):
            if fact.is_end:
                assert fact.before == fact.after == before.after
    assert ends["batches"] == [(2, 0)]
    assert ends["loader"] == ends["left out"] == [(1, 0), (2, 0)]
    assert ends["sampler"] == [(0, 12), (1, 12)]
    assert ends["batch_sampler"] == [(0, 3), (1, 3)]


def test_the_end_is_behind_all_batches_that_came_as_they_were_done() -> None:
    hook = Notes()
    options: dict[str, Any] = {"n_processes": 2, "in_order": False, "epochs": 2}
    with mpiter.batches(Samples(three), 4, hooks=hook, **options) as stream:
        assert sum(map(len, stream)) == 2 * LENGTH
    assert hook.facts[-1].after == (2, 0)


@pytest.mark.parametrize("name", WAYS)
def test_an_error_of_the_sampler_ends_the_run_where_it_was(name: str) -> None:
    class Breaks:
        def __iter__(self) -> Any:
            yield from range(8)
            raise KeyError("none left")

    hook = Notes()
    how = WAYS[name] | {"sampler": Breaks(), "hooks": hook}
    workers = how.pop("n_processes")
    with (
        mpiter.DataLoader(Samples(three), 4, num_workers=workers, **how) as loader,
        pytest.raises(KeyError),
    ):
        for batch in loader:
            del batch
    *_, last = hook.facts
    assert (last.is_end, last.error, last.after) == (True, "KeyError", (0, 8))


@pytest.mark.parametrize("kind", ["numpy", marked("torch")])
@pytest.mark.parametrize("name", [*WAYS, "one worker"])
@pytest.mark.parametrize("collate_fn", [None, stacked])
def test_each_loop_of_a_stream_tells_its_end(
    collate_fn: Any, name: str, kind: str
) -> None:
    hook = PerLoop()
    how = WAYS.get(name, {"n_processes": 1})
    how = how | {"hooks": hook, "collate_fn": collate_fn}
    workers = how.pop("n_processes")
    stream: Any = Stream(three)
    make: Any = mpiter.DataLoader
    if kind == "torch":
        stream = torch_stream()
        make = Torchs
    with make(stream, 8, num_workers=workers, **how) as loader:
        for _ in range(2):
            for batch in loader:
                del batch
    count = 8 if collate_fn else 0
    loops = [[*map(brief, notes.facts)] for notes in hook.loops]
    first = [(8, 192 + count, (0, 0)), (8, 192 + count, (0, 1))]
    rest = [(4, 96 + count, (0, 1))]
    if len(loops) == 1:
        rest = [(4, 96 + count, (0, 2))]
        epoch = [*first, *rest, (None, 0, (0, 3))]
        assert loops == [[*epoch, *map(later, epoch)]]
    else:
        epochs = [
            [first[0], *rest, (None, 0, (0, 2))],
            [first[0], (None, 0, (0, 1))],
        ]
        assert loops == [[*epoch, *map(later, epoch)] for epoch in epochs]
    assert hook.sizes[0] == 8


def brief(fact: Fact) -> tuple[int | None, int, tuple[int, int]]:
    assert fact.is_end == (fact.samples is None)
    assert not fact.keys
    assert not fact.faults
    assert fact.planned in (None, 0)
    return fact.samples, fact.nbytes, fact.before


def later(
    one: tuple[int | None, int, tuple[int, int]],
) -> tuple[int | None, int, tuple[int, int]]:
    samples, nbytes, (epoch, position) = one
    return samples, nbytes, (epoch + 1, position)


def torch_stream() -> Any:
    class Ours(torch.utils.data.IterableDataset):  # type: ignore[misc]
        shards_itself = False

        def __iter__(self) -> Any:
            return map(three, range(LENGTH))

    return Ours()


@pytest.mark.parametrize(
    "case", ["collate_fn", "batch_sampler", marked("torch, collate_fn")]
)
def test_keys_are_those_of_samples_also_where_one_worker_makes_a_batch(
    case: str,
) -> None:
    make, dataset, options = CASES[case]
    hook = told(make, "two workers", dataset, **options)
    batches = [fact for fact in hook.facts if not fact.is_end]
    for fact in batches:
        [(epoch, _, row, keys)] = fact.keys
        assert (epoch, row, len(keys)) == (fact.before[0], 0, fact.samples)
        assert fact.planned == fact.samples
    first = [fact.keys[0][3] for fact in batches[:3]]
    if case == "batch_sampler":
        assert first == options["batch_sampler"]
        # The batches are counted, and the samples.
        assert [fact.before[1] for fact in batches[:3]] == [0, 1, 2]
        assert [fact.keys[0][1] for fact in batches[:3]] == [0, 3, 4]
        assert hook.sizes == [None]
    else:
        assert [key for keys in first for key in keys] == [*range(LENGTH)]
        assert hook.sizes == [8]


def test_without_batching_a_batch_has_one_sample() -> None:
    hook = told(mpiter.DataLoader, "here", Samples(three), None)  # type: ignore[arg-type]
    assert hook.sizes == [1]
    assert len([fact for fact in hook.facts if fact.samples == 1]) == 2 * LENGTH


def test_a_batch_that_crosses_an_epoch_has_a_stretch_for_each() -> None:
    found = []
    for n_processes in (0, 2):
        hook = Notes()
        kind: Callable[..., Any] = mpiter.SerialIterator
        options: dict[str, Any] = {"shuffle": False, "hooks": hook}
        if n_processes:
            kind = mpiter.MultiprocessIterator
            options["n_processes"] = n_processes
        with kind(Samples(three), 8, **options) as iterator:
            for _ in range(3):
                next(iterator)
        crossing = hook.facts[2]
        assert (crossing.before, crossing.after) == ((0, 16), (1, 4))
        assert [one[:3] for one in crossing.keys] == [(0, 16, 0), (1, 0, 4)]
        found.append(hook.facts)
    assert found[0] == found[1]


def test_bytes_of_what_holds_itself_or_lies_deep_are_counted_to_an_end() -> None:
    def looped(samples: Sequence[Any]) -> Any:
        batch: list[Any] = [np.zeros(3)]
        batch += [batch, batch]
        deep: Any = np.zeros(3)
        for _ in range(500):
            deep = [deep]
        return [batch, deep]

    hook = told(mpiter.DataLoader, "here", Samples(three), collate_fn=looped)
    assert [fact.nbytes for fact in hook.facts[:3]] == [24, 24, 24]
    assert hook.facts[3].is_end


def test_nothing_is_counted_unless_a_hook_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(batch: object) -> int:
        raise AssertionError("nobody has asked")

    monkeypatch.setattr("mpiter.engine.hooks.nbytes_of", refused)

    places: list[tuple[int, int]] = []

    class Asks(Hook):
        def begun(self, position: Position, coming: Coming) -> None:
            places.append((position.epoch, position.position))

    with mpiter.batches(Samples(three), 8, n_processes=0, hooks=Asks()) as stream:
        assert sum(map(len, stream)) == LENGTH
    assert places == [(0, 0)]
