"""A dataset may return the same memory again and again.

Its samples arrive as they were when it returned them.  From processes, all kinds of
samples do.  From threads, columns do, and arrays in lists: these batches hold the very
objects until a buffer is seen to be filled again within a block.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict, deque
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pytest
from datasets import Squares, plain
from ways import iterator

import mpiter

LENGTH = 100
THREAD: dict[str, Any] = {"n_processes": 1, "backend": "thread"}


class Named(NamedTuple):
    x: Any


class Thing:
    """An object of a kind that can't be copied."""

    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Thing({self.value})"


class Reusing(Squares):
    """Returns the same objects at each sample, with other contents."""

    def __init__(
        self, way: str, buffers: int = 1, size: int = 6, length: int = LENGTH
    ) -> None:
        super().__init__(length)
        self.way = way
        self.size = size
        self.asked = 0
        self.ring = [np.empty(size, np.float32) for _ in range(buffers)]
        self.list = [0, 0]
        self.dict = {"x": 0}
        self.thing = Thing()
        self.structured = np.zeros(1, [("a", "i4"), ("b", "f4")])
        self.mask = np.zeros(2, bool)

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        array = self.ring[self.asked % len(self.ring)]
        array[:] = index
        return self.sample(index, array)

    def sample(self, index: int, array: Any) -> Any:
        self.list[:] = [index, -index]
        self.dict["x"] = index
        self.thing.value = index
        self.structured["a"] = index
        self.mask[0] = index % 2
        arrays = {
            "an array": array,
            "in a tuple": (array, index),
            "in a dict": {"x": array, "y": [index, array[:2]]},
            "a view": array[1:],
            "a view in a tuple": (index, array.reshape(2, -1)),
            "a reversed view": array[::-1],
            "a named tuple": Named(array),
            "an ordered dict": OrderedDict(x=array),
            "a masked array": np.ma.array(
                array, mask=[index % 2] * self.size, copy=False
            ),
            "many parts": (*range(20), array),
            "ragged views": array[: 1 + index % 3],
            "ragged views behind others": (np.zeros(index % 5), array),
        }
        if self.way in arrays:
            return arrays[self.way]
        values = self.list, self.dict, self.structured[0]
        if self.way == "values":
            return values
        # Some of these travel as objects.
        return {
            "arrays": arrays,
            "values": values,
            "record": (self.structured[0], self.structured.view(np.recarray)[0]),
            "masked": np.ma.array(array[:2], mask=self.mask, copy=False),
            "objects": np.array([array, None], object),
            "deque": deque([array]),
            "things": (self.thing, Thing(array)),
            "memoryview": memoryview(array),
        }


class Fresh(Reusing):
    """The same samples, none of which shares memory with another."""

    def __getitem__(self, index: int) -> Any:
        return type(self)(self.way, size=self.size).sample(
            index, np.full(self.size, index, np.float32)
        )


ARRAYS = (
    *(
        "an array",
        "in a tuple",
        "in a dict",
        "a view",
        "a view in a tuple",
        "a reversed view",
    ),
    *("ragged views", "ragged views behind others"),
    *("a named tuple", "an ordered dict", "a masked array", "many parts"),
)


def told(sample: Any) -> Any:
    if isinstance(sample, dict):
        return {name: told(part) for name, part in sample.items()}
    if isinstance(sample, memoryview):
        return sample.tolist()
    if {"Thing", "deque", "object"} & set(re.findall(r"\w+", repr(sample))):
        return repr(sample)
    return plain(sample)


def samples_of(dataset: Any, batch_size: int = 50, **options: Any) -> list[Any]:
    with iterator(dataset, batch_size, repeat=False, shuffle=False, **options) as it:
        return [told(sample) for batch in it for sample in batch]


def columns_of(dataset: Any, **options: Any) -> list[Any]:
    with mpiter.batches(
        dataset, 20, epochs=1, shuffle=False, ragged="list", **options
    ) as stream:
        return [told(batch) for batch in stream]


def expected(way: str, **how: Any) -> list[Any]:
    fresh = Fresh(way, **how)
    return [told(fresh[index]) for index in range(len(fresh))]


@pytest.mark.parametrize(
    ("way", "serializer"),
    [
        ("an array", "slots"),
        ("ragged views", "slots"),
        ("all", "slots"),
        ("all", "packed"),
    ],
)
def test_samples_from_processes_are_what_they_were_when_they_were_returned(
    way: str, serializer: str
) -> None:
    found = samples_of(Reusing(way), n_processes=2, serializer=serializer)
    assert found == expected(way)


@pytest.mark.parametrize("way", [*ARRAYS, "values"])
def test_so_are_columns_from_threads(way: str) -> None:
    assert columns_of(Reusing(way), **THREAD) == columns_of(Fresh(way), n_processes=0)


@pytest.mark.parametrize("way", ARRAYS)
def test_so_are_arrays_in_lists_from_threads_and_without_workers(way: str) -> None:
    assert (
        samples_of(Reusing(way), **THREAD)
        == samples_of(Reusing(way), n_processes=0)
        == expected(way)
    )


@pytest.mark.parametrize(
    ("way", "how"), [("an array", {"buffers": 2}), ("ragged views", {"buffers": 40})]
)
def test_so_are_those_of_several_buffers_in_turn(way: str, how: Any) -> None:
    assert samples_of(Reusing(way, **how), **THREAD) == expected(way)


def test_so_are_large_ones_around_one_that_fails() -> None:
    class Fails(Reusing):
        def __getitem__(self, index: int) -> Any:
            if index == 30:
                raise KeyError(index)
            return super().__getitem__(index)

    wanted = expected("an array", size=50_000)
    found = samples_of(Fails("an array", size=50_000), **THREAD, on_error="skip")
    assert found == wanted[:30] + wanted[31:]


@pytest.mark.parametrize(
    "options", [THREAD, {"n_processes": 1}], ids=["thread", "process"]
)
def test_so_are_the_parts_of_a_sample_whose_buffers_take_turns(
    options: dict[str, Any],
) -> None:
    class Swapping(Squares):
        buffers = np.zeros(3), np.zeros(3)

        def __getitem__(self, index: int) -> Any:
            now = self.buffers[index % 2]
            before = self.buffers[(index + 1) % 2]
            now[:] = index
            before[:] = index - 1
            return now, before

    pairs = [
        (np.full(3, float(index)), np.full(3, float(index - 1)))
        for index in range(LENGTH)
    ]
    assert samples_of(Swapping(LENGTH), 20, **options) == list(map(told, pairs))


TENSORS: dict[str, Any] = {
    "plain": lambda torch, memory: memory,
    "a view": lambda torch, memory: memory[1:],
    # Each of these is a new tensor on the same memory.
    "of numpy": lambda torch, memory: torch.from_numpy(memory.numpy()),
    # The others travel as objects.  A bfloat16 is the leading half of a float32.
    "bfloat16": lambda torch, memory: memory.view(torch.bfloat16)[1:],
    "conjugate": lambda torch, memory: torch.complex(memory, memory).conj(),
    "parameter": lambda torch, memory: torch.nn.Parameter(memory),
    "subclass": lambda torch, memory: memory.as_subclass(
        type("Sub", (torch.Tensor,), {})
    ),
    "sparse": lambda torch, memory: torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 2]]), memory, (4,)
    ),
}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options", [THREAD, {"n_processes": 1}], ids=["thread", "process"]
)
def test_so_are_tensors(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    # A list from threads holds the very objects, and only arrays are compared in it.
    ways = [*TENSORS][:4] if options is THREAD else [*TENSORS]

    class Tensors(Squares):
        memory = torch.zeros(3)

        def __getitem__(self, index: int) -> Any:
            self.memory[:] = index
            return {way: TENSORS[way](torch, self.memory) for way in ways}

    with iterator(Tensors(LENGTH), 50, repeat=False, shuffle=False, **options) as it:
        for index, sample in enumerate(sample for batch in it for sample in batch):
            for way, tensor in sample.items():
                values = tensor.coalesce().values() if way == "sparse" else tensor
                assert values[0].detach().real.item() == index, way


def test_an_array_that_never_changes_is_fetched_once_and_handed_over_as_it_is() -> None:
    class Parts(Squares):
        parts = np.arange(60.0).reshape(20, 3)
        asked = 0

        def __getitem__(self, index: int) -> Any:
            self.asked += 1
            return self.parts[index % 20]

    dataset = Parts(LENGTH)
    with iterator(dataset, 20, repeat=False, shuffle=False, **THREAD) as it:
        for sample, part in zip(
            (sample for batch in it for sample in batch), itertools.cycle(dataset.parts)
        ):
            assert np.shares_memory(sample, dataset.parts)
            assert sample.tolist() == part.tolist()
    assert dataset.asked == LENGTH


def test_what_must_not_be_fetched_twice_never_is() -> None:
    class Once(Reusing):
        repeatable = False

    dataset = Once("an array")
    assert samples_of(dataset, **THREAD) == expected("an array")
    assert dataset.asked == LENGTH


class Some(Squares):
    """One of four pictures has memory of its own, and the others share a buffer.

    So do the labels, whose values come again and again.
    """

    def __init__(self, parts: slice) -> None:
        super().__init__(64)
        self.parts = parts
        self.buffer = np.zeros(3)
        self.label = np.zeros(3)
        self.kept = {index: np.full(3, float(index)) for index in range(0, 64, 4)}

    def __getitem__(self, index: int) -> Any:
        self.label[:] = index % 2
        self.buffer[:] = index
        return (
            self.kept.get(index, self.buffer),
            self.label,
            np.full(3, float(index)),
        )[self.parts]


@pytest.mark.parametrize(
    "options", [{"n_processes": 0}, THREAD], ids=["alone", "thread"]
)
@pytest.mark.parametrize("parts", [slice(1), slice(1, 3)], ids=["kept", "label"])
def test_a_buffer_is_noticed_whose_first_contents_come_again(
    parts: slice, options: dict[str, Any]
) -> None:
    """At the end of a batch its first sample may look as it did before.

    The samples between would be lost all the same.
    """
    for seed in range(3):
        with iterator(Some(parts), 8, repeat=False, seed=seed, **options) as it:
            found = [np.array(sample).tolist() for batch in it for sample in batch]
        whole = [
            [[index] * 3, [index % 2] * 3, [index] * 3][parts] for index in range(64)
        ]
        assert sorted(found, key=itemgetter(-1)) == whole


@pytest.mark.parametrize(
    ("size", "at"), [(1_025, 0), (1_039, 1_038), (3_001, 1_000), (3_001, 3_000)]
)
def test_a_large_buffer_in_which_one_number_changes_is_noticed_after_some_batches(
    size: int, at: int
) -> None:
    class Flags(Squares):
        buffer = np.zeros(size)

        def __getitem__(self, index: int) -> Any:
            self.buffer[at] = index + 1
            return self.buffer

    with mpiter.SerialIterator(Flags(400), 4, repeat=False, shuffle=False) as it:
        right = [
            [sample[at] for sample in batch] == [*batch_of_four(number)]
            for number, batch in enumerate(it)
        ]
    assert all(right[-30:])


def batch_of_four(number: int) -> range:
    return range(4 * number + 1, 4 * number + 5)
