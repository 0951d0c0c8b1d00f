"""A dataset may return the same memory again and again: its samples arrive as they were when it returned them."""

from __future__ import annotations

import array
import functools
import itertools
from collections import deque
from typing import Any

import numpy as np
import pytest
from datasets import Record, Squares, plain
from pairs import pairs, slow_but, slow_if

import mpiter
from mpiter.samples import caution
from mpiter.worker import fetch

LENGTH = 100


class Thing:
    """Of a kind that nobody knows how to copy."""

    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and self.value == other.value

    def __repr__(self) -> str:
        return f"Thing({self.value})"


class Reusing(Squares):
    """Returns what it returned before, with something else in it."""

    def __init__(self, way: str, buffers: int = 1, size: int = 6, late: int = 0, length: int = LENGTH) -> None:
        super().__init__(length)
        self.way, self.size, self.late = way, size, late
        self.ring = [np.empty(size, np.float32) for _ in range(buffers)]
        self.list, self.dict, self.record, self.thing = [0, 0], {"x": 0}, Record(0, ""), Thing()
        self.asked = 0

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        if self.asked <= self.late:
            return self.sample(index, np.full(self.size, index, np.float32))
        array = self.ring[self.asked % len(self.ring)]
        array[:] = index
        return self.sample(index, array)

    def sample(self, index: int, array: Any) -> Any:
        self.list[:], self.dict["x"], self.record.image, self.thing.value = [index, -index], index, index, index
        return {
            "an array": lambda: array,
            "in a tuple": lambda: (array, index),
            "in a dict": lambda: {"x": array, "y": [index, array[:2]]},
            "a view": lambda: array[1:],
            "a view in a tuple": lambda: (index, array.reshape(2, -1)),
            "a reversed view": lambda: array[::-1],
            "a window that moves": lambda: array[index % 2 : index % 2 + 4],
            "the end of it": lambda: array[-1 - index % 4 :],
            "in an array of objects": lambda: np.array([array, None], object),
            "in a deque": lambda: deque([array]),
            "ragged views": lambda: array[: 1 + index % 3],
            "ragged views behind others": lambda: (np.zeros(index % 5), array),
            "a list": lambda: self.list,
            "a dict": lambda: self.dict,
            "a dataclass": lambda: self.record,
            "a thing": lambda: self.thing,
            "a thing in a tuple": lambda: (index, self.thing),
            "in a new thing": lambda: Thing(array),
            "a memoryview": lambda: memoryview(array),
        }[self.way]()


class Fresh(Reusing):
    """The same samples, none of which has to do with another."""

    def __getitem__(self, index: int) -> Any:
        return type(self)(self.way, size=self.size).sample(index, np.full(self.size, index, np.float32))


WAYS = (
    *("an array", "in a tuple", "in a dict", "a view", "a view in a tuple", "a reversed view", "ragged views"),
    *(
        "ragged views behind others",
        "a list",
        "a dict",
        "a dataclass",
        "a thing",
        "a thing in a tuple",
        "in a new thing",
    ),
    "a memoryview",
)
BACKENDS: dict[str, dict[str, Any]] = {
    "process": {"n_processes": 2},
    "thread": {"n_processes": 1, "backend": "thread"},
    "packed": {"n_processes": 1, "serializer": "packed"},
}


def told(sample: Any) -> Any:
    if isinstance(sample, memoryview):
        return sample.tolist()
    return repr(sample) if "Thing" in repr(sample) else plain(sample)


def samples_of(dataset: Any, batch_size: int = 50, **options: Any) -> list[Any]:
    with mpiter.MultiprocessIterator(dataset, batch_size, repeat=False, shuffle=False, seed=1, **options) as it:
        return [told(sample) for batch in it for sample in batch]


def in_order(dataset: Any, batch_size: int, backend: str) -> mpiter.MultiprocessIterator[Any]:
    return mpiter.MultiprocessIterator(dataset, batch_size, repeat=False, shuffle=False, n_processes=1, backend=backend)


@pytest.fixture(autouse=True)
def all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_clock", lambda: 0)  # time stands still: no task is ever cut short


def expected(way: str, **how: Any) -> list[Any]:
    fresh = Fresh(way, **how)
    return [told(fresh[index]) for index in range(len(fresh))]


def is_rare(way: str, backend: str) -> bool:
    return backend == "packed" or (backend == "process" and way not in ("an array", "in a tuple", "a dict"))


@pytest.mark.parametrize(("way", "backend"), slow_if(is_rare, itertools.product(WAYS, BACKENDS)))
def test_samples_are_what_they_were_when_they_were_returned(way: str, backend: str) -> None:
    assert samples_of(Reusing(way), **BACKENDS[backend]) == expected(way)


@pytest.mark.parametrize("way", ["an array", "a view in a tuple", "ragged views"])
@pytest.mark.parametrize("buffers", [2, 3, 7, 40])
def test_so_are_those_of_several_buffers_in_turn(way: str, buffers: int) -> None:
    assert samples_of(Reusing(way, buffers), n_processes=1, backend="thread") == expected(way)


@pytest.mark.parametrize("way", ["an array", "in a dict", *slow_but(["a view in a tuple", "a dict"])])
def test_so_are_those_of_a_dataset_that_begins_to_reuse_later(way: str) -> None:
    found = samples_of(Reusing(way, late=1500, length=2000), n_processes=1, backend="thread")
    assert found == expected(way, length=2000)


class Recurring(Squares):
    """Parts of one array, for several indices each; from some index on one buffer."""

    def __init__(self, size: int, late: int, length: int) -> None:
        super().__init__(length)
        self.parts = np.arange(20 * size, dtype=np.float32).reshape(20, size)
        self.buffer, self.late, self.asked = np.empty(size, np.float32), late, 0

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        if index < self.late:
            return self.parts[index % 20]
        self.buffer[:] = self.parts[index % 20]
        return self.buffer


@pytest.mark.parametrize("size", slow_but([6, 5000], 6))
def test_an_array_in_which_nothing_changes_is_data(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [caution.copied]
    monkeypatch.setattr(caution, "copied", lambda sample: made.append(sample) or made[0](sample))
    dataset = Recurring(size, 10**9, length := 4000)
    found = samples_of(dataset, length // 40, n_processes=1, backend="thread")
    assert found == [told(dataset.parts[index % 20]) for index in range(length)]
    assert length < dataset.asked <= 1.1 * length, "only the first of them are fetched twice"
    assert len(made) < 0.2 * length, "…and copied"


@pytest.mark.parametrize("size", [6, 5000, 100_000])
def test_what_is_no_data_at_last_is_not_taken_for_it(size: int) -> None:
    length = 40 * max(8, min(50, 800_000 // size))
    dataset = Recurring(size, length // 2, length)
    found = samples_of(dataset, length // 40, n_processes=1, backend="thread")
    assert found == [told(dataset.parts[index % 20]) for index in range(length)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "way", "buffers"),
    pairs(BACKENDS, ["an array", "a view", "in a tuple", "a list", "in a dict"], [1, 2, 4]),
)
def test_so_are_those_of_a_ring_that_begins_late(way: str, buffers: int, backend: str) -> None:
    options = BACKENDS[backend]
    if options.get("n_processes") == 2:
        options = {**options, "n_processes": 1}
    how = {"buffers": buffers, "late": 1500, "length": 3000}
    assert samples_of(Reusing(way, **how), 100, **options) == expected(way, length=3000)


@pytest.mark.parametrize("backend", ["thread", "process"])
@pytest.mark.parametrize("chunk", [300, 500, 1000])
def test_so_are_parts_of_a_chunk_that_gives_way_to_the_next(chunk: int, backend: str) -> None:
    """It looks like data until then."""

    class Chunks(Squares):
        read, held = np.empty((chunk, 4)), -1

        def __getitem__(self, index: int) -> Any:
            if self.held != index // chunk:
                self.held = index // chunk
                self.read[:] = np.arange(chunk)[:, None] + chunk * self.held
            return self.read[index % chunk]

    with in_order(Chunks(4000), 64, backend) as it:
        assert [sample[0] for batch in it for sample in batch] == list(range(4000))


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_so_is_a_placeholder_that_is_refreshed_rarely(backend: str) -> None:
    every = 700

    class Rarely(Squares):
        buffer = np.zeros(64)

        def __getitem__(self, index: int) -> Any:
            if index % every == 0:
                self.buffer[:] = index
            return self.buffer if index % 3 else self.buffer[:]

    with in_order(Rarely(5000), 100, backend) as it:
        found = [sample[0] for batch in it for sample in batch]
    assert found == [index // every * every for index in range(5000)]


def test_so_are_two_buffers_that_take_turns_within_a_sample() -> None:
    class Swapping(Squares):
        buffers = np.zeros(3), np.zeros(3)

        def __getitem__(self, index: int) -> Any:
            now, before = self.buffers[index % 2], self.buffers[(index + 1) % 2]
            now[:], before[:] = index, index - 1
            return now, before

    with in_order(Swapping(LENGTH), 2, "thread") as it:
        found = [(int(now[0]), int(before[0])) for batch in it for now, before in batch]
    assert found == [(index, index - 1) for index in range(LENGTH)]


def test_so_are_large_ones() -> None:
    assert samples_of(Reusing("in a tuple", size=200_000, length=20), 10, n_processes=1, backend="thread") == expected(
        "in a tuple", size=200_000, length=20
    )


def test_so_are_those_before_one_that_fails() -> None:
    class Fails(Reusing):
        def __getitem__(self, index: int) -> Any:
            if index == 30:
                raise KeyError(index)
            return super().__getitem__(index)

    wanted = expected("an array")
    assert samples_of(Fails("an array"), n_processes=1, backend="thread", on_error="skip") == wanted[:30] + wanted[31:]


STRUCTURED = np.dtype([("a", "i4"), ("b", "f4")])


class OfNumpy(Squares):
    """One memory, shown in some way of NumPy's."""

    def __init__(self, way: str) -> None:
        super().__init__(LENGTH)
        self.way = way
        self.record, self.mask, self.block = np.zeros(1, STRUCTURED), np.zeros(2, bool), bytearray(8)

    def __getitem__(self, index: int) -> Any:
        self.record["a"], self.mask[0], self.block[0] = index, index % 2, index
        return {
            "a structured scalar": lambda: self.record[0],
            "in a tuple": lambda: (index, self.record[0]),
            "a record": lambda: self.record.view(np.recarray)[0],
            "a masked array": lambda: np.ma.array(self.record["a"], mask=self.mask[:1], copy=False),
            "a mask": lambda: np.ma.array([index], mask=self.mask[:1], copy=False),
            "bytes of another": lambda: np.frombuffer(self.block, np.uint8),
        }[self.way]()


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["a structured scalar", "in a tuple", "a record", "a masked array", "a mask", "bytes of another"]
)
@pytest.mark.parametrize("backend", ["thread", "process"])
def test_so_is_memory_in_another_shape(way: str, backend: str) -> None:
    with in_order(OfNumpy(way), 20, backend) as it:
        found = [str(sample) for batch in it for sample in batch]
    assert found == [str(OfNumpy(way)[index]) for index in range(LENGTH)]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["thread", "process"])
@pytest.mark.parametrize(
    "way",
    [
        "plain",
        "a view",
        "of numpy",
        "bfloat16",
        "in a dict",
        "conjugate",
        "parameter",
        "subclass",
        "quantized",
        "sparse",
    ],
)
def test_so_are_tensors(way: str, backend: str) -> None:
    torch = pytest.importorskip("torch")
    ways = {
        "plain": lambda memory: memory,
        "a view": lambda memory: memory[1:],
        "of numpy": lambda memory: torch.from_numpy(memory.numpy()),  # new each time, all on the same memory
        "bfloat16": lambda memory: memory[:],
        "in a dict": lambda memory: {"x": [memory[:]]},
        "conjugate": lambda memory: memory.conj(),
        "parameter": torch.nn.Parameter,
        "subclass": lambda memory: memory.as_subclass(type("Sub", (torch.Tensor,), {})),
        "quantized": lambda memory: torch.quantize_per_tensor(memory, 1.0, 0, torch.quint8),
        "sparse": lambda memory: torch.sparse_coo_tensor(torch.tensor([[0, 1, 2]]), memory, (4,)),
    }
    kinds = {"bfloat16": torch.bfloat16, "in a dict": torch.bfloat16, "conjugate": torch.complex64}

    class Tensors(Squares):
        def __init__(self) -> None:
            super().__init__(LENGTH)
            self.memory = torch.zeros(3, dtype=kinds.get(way, torch.float32))
            if way == "quantized":
                self.memory = ways[way](self.memory)

        def __getitem__(self, index: int) -> Any:
            if way == "quantized":
                self.memory.copy_(torch.full((3,), float(index)))
                return self.memory[:]
            self.memory[:] = index
            return ways[way](self.memory)

    with in_order(Tensors(), 50, backend) as it:
        found = [sample["x"][0] if way == "in a dict" else sample for batch in it for sample in batch]
    if way == "quantized":
        found = [sample.dequantize() for sample in found]
    if way == "sparse":
        found = [sample.coalesce().values() for sample in found]
    assert [sample[0].detach().real.item() for sample in found] == list(range(LENGTH))


class OfItsOwnPlan(array.array):  # type: ignore[type-arg]
    """A kind of which nobody knows what else it holds."""


@pytest.mark.parametrize("of", [OfItsOwnPlan, functools.partial, deque, set])
def test_so_are_kinds_that_nobody_knows(of: Any) -> None:
    class Held(Squares):
        held = of("q", [0]) if of is OfItsOwnPlan else [0] if of is functools.partial else of()

        def __getitem__(self, index: int) -> Any:
            if of in (OfItsOwnPlan, functools.partial):
                self.held[0] = index
                return self.held if of is OfItsOwnPlan else functools.partial(max, self.held)
            self.held.clear()
            getattr(self.held, "add" if of is set else "append")(index)
            return self.held

    with in_order(Held(LENGTH), 20, "thread") as it:
        found = [sample.args[0] if of is functools.partial else sample for batch in it for sample in batch]
    assert [next(iter(sample)) for sample in found] == list(range(LENGTH))


class Hidden:
    __slots__ = ("__held",)

    def __init__(self, held: Any) -> None:
        self.__held = held

    def first(self) -> Any:
        return self.__held[0]


def test_so_is_what_a_slot_of_a_private_name_holds() -> None:
    class Filled(Squares):
        buffer = np.zeros(3)

        def __getitem__(self, index: int) -> Any:
            self.buffer[:] = index
            return Hidden(self.buffer)

    with in_order(Filled(LENGTH), 20, "thread") as it:
        assert [sample.first() for batch in it for sample in batch] == list(range(LENGTH))


def test_what_must_not_be_fetched_twice_never_is() -> None:
    class Once(Reusing):
        repeatable = False

    dataset = Once("an array")
    assert samples_of(dataset, n_processes=1, backend="thread") == expected("an array")
    assert dataset.asked == LENGTH
