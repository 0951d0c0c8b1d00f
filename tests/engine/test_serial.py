"""Without workers, samples are the dataset's own objects, and nothing is pickled.

They are fetched in the caller's thread.
"""

from __future__ import annotations

import collections
import gc
import pickle
import platform
import random
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Squares
from support import scripts

import mpiter
from mpiter.errors import SampleError, WorkerStartError

LOADERS: dict[str, Callable[..., Any]] = {
    "a serial iterator": lambda data, **how: mpiter.SerialIterator(
        data, 4, repeat=False, shuffle=False, **how
    ),
    "batches": lambda data, **how: mpiter.batches(
        data, 4, shuffle=False, n_processes=0, **how
    ),
    "a loader": lambda data, **how: mpiter.DataLoader(data, batch_size=4, **how),
}
any_loader = pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
of_lists = pytest.mark.parametrize("make", [*LOADERS.values()][:1], ids=[*LOADERS][:1])


class Refuses:
    """A sample that can be neither pickled nor copied."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise pickle.PicklingError("nothing is to be pickled")


def no_name() -> Any:
    """Return a named tuple whose class isn't found by its name."""
    return collections.namedtuple("Elsewhere", "x y")


@of_lists
def test_with_copy_the_samples_are_copies(make: Callable[..., Any]) -> None:
    data = [np.full(3, index) for index in range(4)]
    with make(data, copy=True) as it:
        next(it)[1][...] = -1
    assert data[1].tolist() == [1, 1, 1]


@any_loader
def test_nothing_is_pickled(make: Callable[..., Any]) -> None:
    kind = no_name()
    data = [kind(Refuses(), np.zeros(2)) for _ in range(6)]
    with make(data) as it:
        first, _ = it
    if isinstance(first, list):
        assert first == data[:4]
    assert type(first) is kind or type(first[0]) is kind


@of_lists
def test_a_batch_that_is_dropped_frees_its_samples(make: Callable[..., Any]) -> None:
    class Sample:
        pass

    class Made(Squares):
        def __getitem__(self, index: int) -> Any:
            return Sample()

    with make(Made(8)) as it:
        seen = weakref.ref(next(it)[0])
        gc.collect()
        assert seen() is None


class Reusing(Squares):
    """From sample ``begins`` on, returns the same memory again and again."""

    def __init__(self, length: int, begins: int, buffers: int, way: str) -> None:
        super().__init__(length)
        self.begins = begins
        self.way = way
        self.memory = np.zeros((buffers, 2000), np.float32)

    def __getitem__(self, index: int) -> Any:
        if index >= self.begins:
            memory = self.memory[index % len(self.memory)]
        else:
            memory = np.zeros(2000, np.float32)
        memory[:] = index
        return {
            "an array": lambda: memory,
            "a view": lambda: memory[::-1],
            "in a tuple": lambda: (memory, index),
            "in a dict": lambda: {"x": [memory[5:]], "y": index},
        }[self.way]()


@any_loader
@pytest.mark.parametrize(
    ("way", "begins", "buffers"),
    [("an array", 0, 1), ("a view", 0, 3), ("in a tuple", 40, 2), ("in a dict", 0, 1)],
)
def test_a_dataset_that_fills_its_memory_again_is_found_out(
    make: Callable[..., Any], way: str, begins: int, buffers: int
) -> None:
    with make(Reusing(80, begins, buffers, way)) as it:
        batches = [batch.columns if isinstance(batch, list) else batch for batch in it]
    columns = {
        "in a tuple": lambda batch: batch[0],
        "in a dict": lambda batch: batch["x"][0],
    }.get(way, lambda batch: batch)
    found = [int(row[0]) for batch in batches for row in columns(batch)]
    assert found == list(range(80))


class Drawing(Squares):
    def __init__(self, draws: Callable[[], object], begins: int = 0) -> None:
        super().__init__(40)
        self.draws = draws
        self.begins = begins

    def __getitem__(self, index: int) -> Any:
        return self.draws() if index >= self.begins else 0.0


DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "random.gauss": lambda: random.gauss(0, 1),
    "numpy": np.random.rand,
    "numpy.randn": np.random.randn,
    "random, 624 words": lambda: float(
        [random.getrandbits(32) for _ in range(624)][-1]
    ),
    "numpy, 624 words": lambda: float(
        np.random.randint(0, 2**32, 624, dtype=np.uint32)[-1]
    ),
}


@any_loader
@pytest.mark.parametrize(
    ("draws", "begins"), [*zip(DRAWS.values(), [0, 10] * 3, strict=True)], ids=DRAWS
)
def test_the_callers_generators_are_found_as_they_were(
    make: Callable[..., Any], draws: Callable[[], Any], begins: int
) -> None:
    def mine() -> list[float]:
        return [
            random.random(),
            random.gauss(0, 1),
            np.random.rand(),
            np.random.randn(),
        ]

    def run(fetches: bool) -> list[list[float]]:
        random.seed(1)
        np.random.seed(1)
        found = [mine()]
        with make(Drawing(draws, begins), seed=5) as it:
            for _ in it if fetches else range(10):
                found.append(mine())
        return found

    assert run(True) == run(False)


class Raising(Squares):
    def __init__(self, error: BaseException) -> None:
        super().__init__(4)
        self.error = error

    def __getitem__(self, index: int) -> Any:
        raise self.error


@any_loader
def test_an_error_is_the_very_exception_with_its_traceback_and_its_samples_name(
    make: Callable[..., Any],
) -> None:
    class Odd(Exception):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(f"{one} and {other}")
            self.lock = threading.Lock()

    raised: list[Odd] = []

    class Fails(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raised.append(Odd(1, index))
                raise raised[-1]
            return index

    with make(Fails(12)) as it:
        batches = iter(it)
        next(batches)
        with pytest.raises(Odd) as caught:
            next(batches)
        assert caught.value is raised[-1]
        assert any(
            "sample 5 (position 5 of epoch 0)" in note
            for note in caught.value.__notes__
        )
        assert caught.traceback[-1].name == "__getitem__"
        assert len(next(batches)) == 4


@any_loader
def test_what_would_mean_something_else_to_a_loop_is_told(
    make: Callable[..., Any],
) -> None:
    error = StopIteration("enough")
    with (
        make(Raising(error)) as it,
        pytest.raises(SampleError, match="StopIteration") as caught,
    ):
        next(iter(it))
    assert caught.value.__cause__ is error


@any_loader
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_the_programs_own_exit_is_no_failure_of_a_sample(
    make: Callable[..., Any], error: Any, on_error: str
) -> None:
    """A signal's handler may call sys.exit() while a sample is fetched."""
    with (
        make(Raising(error), on_error=on_error) as it,
        pytest.raises(type(error)) as caught,
    ):
        next(iter(it))
    assert caught.value is error


@any_loader
def test_ctrl_c_in_the_dataset_loses_nothing(make: Callable[..., Any]) -> None:
    class Interrupted(Squares):
        is_new = True

        def __getitem__(self, index: int) -> Any:
            if index == 6 and self.is_new:
                self.is_new = False
                raise KeyboardInterrupt
            return index

    with make(Interrupted(12)) as it:
        batches = iter(it)
        found = list[int]()
        while len(found) < 13:
            try:
                found += map(int, next(batches))
            except KeyboardInterrupt:
                found.append(-1)
    assert found == [0, 1, 2, 3, -1, 4, 5, 6, 7, 8, 9, 10, 11]


@of_lists
def test_a_worker_init_that_fails_is_told_and_tried_again(
    make: Callable[..., Any],
) -> None:
    calls: list[mpiter.WorkerInfo] = []

    def begins(info: mpiter.WorkerInfo) -> None:
        calls.append(info)
        if len(calls) < 2:
            raise OSError("not yet")

    with make(Squares(4), worker_init=begins) as it:
        with pytest.raises(WorkerStartError, match="not yet") as caught:
            next(it)
        assert isinstance(caught.value.__cause__, OSError)
        assert len(next(it)) == 4
    assert (calls[-1].name, calls[-1].num_workers) == ("serial worker 0", 1)


@any_loader
def test_an_iterator_within_a_dataset_knows_its_own_place(
    make: Callable[..., Any],
) -> None:
    class Inner(Squares):
        def __getitem__(self, index: int) -> Any:
            return mpiter.get_rng().random()

    class Outer(Squares):
        def __getitem__(self, index: int) -> Any:
            before = mpiter.get_rng().random()
            with make(Inner(4), seed=9) as it:
                inner = [float(one) for batch in it for one in batch]
            info = mpiter.get_worker_info()
            assert info is not None
            assert info.dataset is outer
            return before, inner[0]

    outer = Outer(4)
    with make(outer, seed=2) as it:
        batch = next(iter(it))
    before, inner = batch.columns if isinstance(batch, list) else batch
    assert len({*map(float, before)}) == 4
    assert len({*map(float, inner)}) == 1


def test_ctrl_c_in_the_first_batch_that_draws_leaves_the_callers_generators_alone() -> (
    None
):
    def interrupts() -> float:
        random.random(), np.random.random()
        raise KeyboardInterrupt

    before = (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        np.random.get_state()[2],
    )
    with (
        mpiter.SerialIterator(Drawing(interrupts, 2), 4, shuffle=False) as it,
        pytest.raises(KeyboardInterrupt),
    ):
        next(it)
    assert (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        np.random.get_state()[2],
    ) == before


class Failing:
    """One sample fails, and from some sample on each draws from Python's generator."""

    def __init__(self, draws_from: int = 24, fails: int = 10) -> None:
        self.draws_from = draws_from
        self.fails = fails
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        drawn = random.random() if index >= self.draws_from else 0.0
        if index == self.fails:
            raise ValueError("a sample that fails")
        return index, drawn


def drawn_by(data: Failing) -> dict[int, float]:
    with mpiter.batches(
        data, 4, shuffle=False, n_processes=0, seed=5, on_error="skip"
    ) as stream:
        return {
            index: drawn
            for batch in stream
            for index, drawn in zip(*map(list, batch), strict=True)
        }


@pytest.mark.parametrize("fails", [8, 10, 11])
def test_an_error_anywhere_in_a_batch_leaves_out_its_sample_and_repeats_no_other(
    fails: int,
) -> None:
    data = Failing(fails=fails)
    assert list(drawn_by(data)) == [index for index in range(24) if index != fails]
    assert data.asked == list(range(24))


@pytest.mark.parametrize("first", [8, 9, 10, 11])
def test_what_is_drawn_before_an_error_depends_on_its_place_alone(first: int) -> None:
    always = drawn_by(Failing(0))
    later = drawn_by(Failing(first))
    assert {index: drawn for index, drawn in later.items() if index >= first} == {
        index: drawn for index, drawn in always.items() if index >= first
    }


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc",
    reason="only glibc gives memory back and takes it again so",
)
def test_the_memory_of_a_batch_and_its_samples_serves_the_next_one_too(
    tmp_path: Path,
) -> None:
    program = """
        import resource
        import numpy as np
        import mpiter

        class Pictures:
            def __len__(self):
                return 64

            def __getitem__(self, index):
                return np.full((224, 224, 3), index, np.float32)

        def new_pages():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        stream = mpiter.batches(Pictures(), 32, n_processes=0, epochs=None)
        for _ in range(4):
            next(stream)
        before = new_pages()
        for _ in range(10):
            next(stream)
        print((new_pages() - before) // 10)
    """
    pages = int(scripts.run(tmp_path, program).ended_well().out)
    assert pages < 32 * 224 * 224 * 3 * 4 // 4096 // 10
