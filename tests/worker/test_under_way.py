"""Samples that are under way at the same time come as they do one by one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import lives_still, wait_until

import mpiter
from mpiter.errors import IteratorClosed

LENGTH = 60
WAYS: dict[str, dict[str, Any]] = {
    "processes": {"n_processes": 2},
    "threads": {"n_processes": 2, "backend": "thread"},
    "none": {"n_processes": 0},
}


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


class Plain:
    """Samples that depend on their place, and of which some take longer."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004 if index % 5 == 0 else 0.0)
        return index, mpiter.get_rng().random()


class Async(Plain):
    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0.004 if index % 5 == 0 else 0.0)
        return index, await asyncio.create_task(drawn())


async def drawn() -> float:
    """Draw in a task of its own, as a client's callback would."""
    await asyncio.sleep(0)
    return mpiter.get_rng().random()


def batches_of(dataset: Any, **options: Any) -> list[Any]:
    options = {"seed": 3, "epochs": 2, **options}
    with mpiter.batches(dataset, 7, **options) as stream:
        return [[*map(np.ndarray.tolist, batch)] for batch in stream]


@pytest.mark.parametrize("kind", [Plain, Async])
@pytest.mark.parametrize("concurrency", [2, 16])
def test_batches_are_those_that_are_read_one_by_one(
    way: dict[str, Any], kind: Any, concurrency: int
) -> None:
    wanted = batches_of(Plain(), n_processes=0)
    assert batches_of(kind(), concurrency=concurrency, **way) == wanted


def test_an_async_dataset_needs_no_option(way: dict[str, Any]) -> None:
    assert batches_of(Async(), **way) == batches_of(Plain(), n_processes=0)
    assert batches_of(Async(), concurrency=1, **way) == batches_of(Async(), **way)


class Together:
    """Each sample waits until so many others are under way in this process."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return LENGTH

    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count}

    @property
    def barrier(self) -> threading.Barrier:
        with LOCK:
            if "barrier" not in vars(self):
                vars(self)["barrier"] = threading.Barrier(self.count)
            found: threading.Barrier = vars(self)["barrier"]
            return found

    def __getitem__(self, index: int) -> int:
        # The first sample is fetched alone, to learn how samples are built.
        if index:
            self.barrier.wait(20)
        return index


LOCK = threading.Lock()


def test_a_second_batch_is_begun_while_the_first_is_waited_for() -> None:
    # Batches of 2, and 4 samples are waited for: no batch alone has as many.
    options: dict[str, Any] = {"n_processes": 1, "shuffle": False, "concurrency": 4}
    with mpiter.batches(Together(4), 2, epochs=1, **options) as stream:
        # The samples 1 to 56 are 14 times four.
        found = [next(stream).tolist() for _ in range(28)]
    assert [*chain(*found)] == [*range(56)]


class Counts:
    """Says how many samples are under way while each is read."""

    def __init__(self) -> None:
        self.now = 0

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        with LOCK:
            self.now += 1
        time.sleep(0.002)
        with LOCK:
            seen = self.now
            self.now -= 1
        return seen


class AsyncCounts(Counts):
    async def __getitem__(self, index: int) -> int:
        self.now += 1
        await asyncio.sleep(0.002)
        seen = self.now
        self.now -= 1
        return seen


@pytest.mark.parametrize("kind", [Counts, AsyncCounts])
def test_no_more_are_under_way_than_was_said(way: dict[str, Any], kind: Any) -> None:
    with mpiter.batches(kind(), 20, concurrency=5, epochs=1, **way) as stream:
        seen = [int(batch.max()) for batch in stream]
    # Threads of one process share the dataset.
    workers = 2 if way.get("backend") == "thread" else 1
    assert 2 <= max(seen) <= 5 * workers


class Faulty(Plain):
    def __getitem__(self, index: int) -> Any:
        if index % 10 == 3:
            raise ValueError(f"sample {index} is broken")
        return super().__getitem__(index)


class AsyncFaulty(Async):
    async def __getitem__(self, index: int) -> Any:
        if index % 10 == 3:
            raise ValueError(f"sample {index} is broken")
        return await super().__getitem__(index)


@pytest.mark.parametrize("kind", [Faulty, AsyncFaulty])
def test_errors_come_with_their_batch_and_name_their_sample(
    way: dict[str, Any], kind: Any
) -> None:
    with mpiter.batches(kind(), 5, shuffle=False, concurrency=8, **way) as stream:
        with pytest.raises(ValueError, match="sample 3 is broken") as caught:
            next(stream)
        assert "sample 3 (position 3 of epoch 0)" in "".join(caught.value.__notes__)
        assert next(stream)[0].tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("kind", [Faulty, AsyncFaulty])
def test_failing_samples_are_left_out(way: dict[str, Any], kind: Any) -> None:
    options = {"epochs": 1, "on_error": "skip", **way}
    wanted = batches_of(Faulty(), **{**options, "n_processes": 0})
    assert batches_of(kind(), concurrency=8, **options) == wanted
    with mpiter.batches(kind(), 7, concurrency=8, **options) as stream:
        seen = sum(len(batch[0]) for batch in stream)
        assert (seen, stream.stats().skipped) == (54, 6)


# -- whole batches as rows -------------------------------------------------------------


def total(samples: Sequence[Any]) -> Any:
    return [index for index, _ in samples], [draw for _, draw in samples]


@pytest.mark.parametrize("kind", [Plain, Async])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_of_batches_that_are_collated_are_under_way_too(
    kind: Any, workers: int
) -> None:
    def everything(dataset: Any, workers: int, **options: Any) -> list[Any]:
        loader = mpiter.DataLoader(
            dataset,
            7,
            shuffle=True,
            num_workers=workers,
            collate_fn=total,
            seed=3,
            **options,
        )
        return [*loader, *loader]

    assert everything(kind(), workers, concurrency=8) == everything(Plain(), 0)


def test_as_many_samples_of_a_collated_batch_are_under_way_as_was_said() -> None:
    with mpiter.DataLoader(
        Counts(), 20, num_workers=1, collate_fn=max, concurrency=5
    ) as loader:
        seen = [*loader]
    assert 3 <= max(seen) <= 5


@pytest.mark.parametrize("kind", [Faulty, AsyncFaulty])
def test_samples_of_collated_batches_are_left_out(kind: Any) -> None:
    options: dict[str, Any] = {"collate_fn": total, "on_error": "skip"}
    with mpiter.DataLoader(
        kind(), 20, num_workers=1, concurrency=8, **options
    ) as loader:
        found = [batch[0] for batch in loader]
        assert loader.stats().skipped == 6
        assert [key for key, _ in loader.stats().skips] == [3, 13, 23, 33, 43, 53]
    wanted = [index for index in range(LENGTH) if index % 10 != 3]
    assert [*chain(*found)] == wanted


# -- the global generators -------------------------------------------------------------


class Draws(Plain):
    def __getitem__(self, index: int) -> Any:
        return index, random.random()


class AsyncDraws(Plain):
    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0)
        return index, random.random()


@pytest.mark.parametrize("kind", [Draws, AsyncDraws])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_what_draws_from_the_global_generators_is_read_one_by_one(
    kind: Any, workers: int
) -> None:
    wanted = batches_of(Draws(), n_processes=0)
    with pytest.warns(RuntimeWarning, match="they are read one by one"):
        found = batches_of(kind(), n_processes=workers, concurrency=8)
    assert found == wanted


class Refills(Plain):
    """Returns the same memory for each sample."""

    def __init__(self) -> None:
        self.memory = np.zeros(3)

    def __getitem__(self, index: int) -> Any:
        self.memory[:] = index
        return self.memory


class AsyncRefills(Refills):
    async def __getitem__(self, index: int) -> Any:
        await asyncio.sleep(0.001)
        return super().__getitem__(index)


# Two workers that are threads would fill the same memory, with or without options.
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Refills, AsyncRefills])
def test_what_uses_its_memory_again_is_read_one_by_one(workers: int, kind: Any) -> None:
    wanted = batches_of(Refills(), n_processes=0)
    with pytest.warns(RuntimeWarning, match="they are read one by one"):
        assert batches_of(kind(), n_processes=workers, concurrency=8) == wanted


# -- deaths ----------------------------------------------------------------------------


@pytest.mark.death
@pytest.mark.parametrize("kind", [Plain, Async])
@pytest.mark.parametrize("seed", range(3))
def test_killed_workers_lose_and_repeat_nothing(kind: Any, seed: int) -> None:
    rng = random.Random(seed)
    wanted = batches_of(Plain(), n_processes=0, epochs=20)
    found = list[Any]()
    options: dict[str, Any] = {"seed": 3, "epochs": 20, "n_processes": 2}
    with mpiter.batches(kind(), 7, concurrency=8, **options) as stream:
        for batch in stream:
            found.append([*map(np.ndarray.tolist, batch)])
            if len(found) in (10, 50, 90):
                pid = rng.choice(stream.worker_pids)
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: not lives_still(pid), "it is dead")
        assert stream.stats().restarts == 3
    assert found == wanted


class Deadly(Plain):
    """Its sample 17 ends the worker."""

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            os._exit(1)
        return super().__getitem__(index)


@pytest.mark.death
def test_a_sample_that_ends_its_worker_is_found_among_those_under_way() -> None:
    options: dict[str, Any] = {"shuffle": False, "epochs": 1, "on_error": "skip"}
    options |= {"n_processes": 2, "concurrency": 8}
    with mpiter.batches(Deadly(), 7, **options) as stream:
        found = [batch[0].tolist() for batch in stream]
        assert [key for key, _ in stream.stats().skips] == [17]
    assert [*chain(*found)] == [index for index in range(LENGTH) if index != 17]


class Hangs(Plain):
    """The first read of its sample 17 never ends."""

    def __init__(self, folder: Path) -> None:
        self.flag = folder / "hung"

    def __getitem__(self, index: int) -> Any:
        if index == 17 and not self.flag.exists():
            self.flag.touch()
            time.sleep(600)
        return super().__getitem__(index)


@pytest.mark.death
def test_a_sample_that_hangs_is_read_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sample_timeout": 1.0, "concurrency": 8}
    found = batches_of(Hangs(tmp_path), n_processes=2, **options)
    assert found == batches_of(Plain(), n_processes=0)


# -- what it says, and what is refused -------------------------------------------------


def test_what_cannot_be_is_refused() -> None:
    for wrong in (0, -1, 1.5, True):
        with pytest.raises((mpiter.OptionError, TypeError), match="concurrency"):
            mpiter.batches(Plain(), 7, concurrency=wrong)  # type: ignore[arg-type]
    with pytest.raises(mpiter.OptionError, match="a stream is read one sample after"):
        mpiter.DataLoader(Endless(), 7, concurrency=4)


class Endless:
    def __iter__(self) -> Any:
        return iter(range(10))


class Wrapped(Plain):
    """It isn't async, but what it reads from is."""

    def __init__(self) -> None:
        self.inner = Async()

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


def test_a_coroutine_in_place_of_a_sample_is_an_error_with_the_remedy() -> None:
    with (
        mpiter.batches(Wrapped(), 7, n_processes=1, concurrency=4) as stream,
        pytest.raises(TypeError, match="write `async def __getitem__` in the class"),
    ):
        next(stream)


class Waits(Plain):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


def test_stats_tell_waiting_from_working_and_name_a_remedy() -> None:
    with mpiter.batches(Waits(), 5, n_processes=1, epochs=None) as stream:
        next(stream)
        before = stream.stats()
        for _ in range(6):
            next(stream)
        seen = stream.stats().since(before)
    assert seen.sample_cpu_s < seen.sample_s / 2
    assert seen.verdict().startswith("workers wait ")
    assert seen.useful_concurrency in (2, 4, 8, 16, 32, 64)
    assert f": concurrency={seen.useful_concurrency}" in seen.verdict()


def test_tune_tries_samples_under_way_where_workers_wait() -> None:
    found = mpiter.tune(Waits(), 8, max_workers=2, budget_s=8)
    assert found.concurrency in (16, 64)
    assert found.n_processes in (1, 2)
    assert (found.n_processes, found.concurrency) in found.under_way
    assert f"concurrency={found.concurrency}: workers wait" in str(found)
    assert str(found).count("← chosen") == 1


class ManyAtOnce(Plain):
    """It reads many at once, if asked to."""

    def __getitems__(self, indices: Any) -> Any:
        raise AssertionError("the samples are asked for one by one")


def test_samples_are_asked_for_though_a_dataset_reads_many(way: dict[str, Any]) -> None:
    wanted = batches_of(Plain(), n_processes=0)
    assert batches_of(ManyAtOnce(), concurrency=4, **way) == wanted


def test_arrays_are_read_as_ever(way: dict[str, Any]) -> None:
    data = (np.arange(LENGTH), np.arange(LENGTH) / 2)
    options: dict[str, Any] = {"n_processes": 0, "seed": 3, "epochs": 1}
    with mpiter.batches(data, 7, **options) as stream:
        wanted = [[*map(np.ndarray.tolist, batch)] for batch in stream]
    with mpiter.batches(data, 7, **{**options, **way}, concurrency=4) as stream:
        assert [[*map(np.ndarray.tolist, batch)] for batch in stream] == wanted
        # No thread was started for them.
        assert not [one for one in threading.enumerate() if "reading" in one.name]


class Exits(Async):
    """A task that its sample 7 begins raises what would end a program."""

    error: type[BaseException] = SystemExit

    async def __getitem__(self, index: int) -> Any:
        if index == 7:
            await asyncio.create_task(self.fails())
        return await super().__getitem__(index)

    async def fails(self) -> None:
        raise self.error("enough")


class Interrupts(Exits):
    error = KeyboardInterrupt


class Stops(Async):
    """Its sample 7 stops the event loop."""

    async def __getitem__(self, index: int) -> Any:
        if index == 7:
            asyncio.get_running_loop().stop()
        return await super().__getitem__(index)


@pytest.mark.parametrize("kind", [Exits, Interrupts])
def test_what_a_task_raises_is_its_samples_error(kind: Any) -> None:
    options: dict[str, Any] = {"shuffle": False, "epochs": 1, "n_processes": 1}
    with mpiter.batches(kind(), 5, **options) as stream:
        assert next(stream)[0].tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(mpiter.SampleError, match="enough"):
            next(stream)
        assert next(stream)[0].tolist() == [10, 11, 12, 13, 14]


def test_a_sample_that_stops_the_loop_stops_nothing(way: dict[str, Any]) -> None:
    assert batches_of(Stops(), **way) == batches_of(Plain(), n_processes=0)


def test_coroutines_that_nothing_awaits_are_refused() -> None:
    class Subset(Plain):
        def __init__(self) -> None:
            self.dataset = Async()

    async def init(info: Any) -> None:
        pass

    for dataset, options, says in (
        (Subset(), {}, "write `async def __getitem__` in the class"),
        (Plain(), {"worker_init": init}, "worker_init=.* nothing awaits it"),
    ):
        with pytest.raises(mpiter.OptionError, match=says):
            mpiter.batches(dataset, 7, **options)
    with pytest.raises(mpiter.OptionError, match="component 'a' has `async def"):
        mpiter.Mix({"a": Async()}, {"a": 1})
    with pytest.raises(mpiter.OptionError, match="Async has `async def __getitem__`"):
        mpiter.Pack(Async(), 4, lengths=[1] * LENGTH)


def test_nothing_is_left_when_an_iterator_is_closed(way: dict[str, Any]) -> None:
    # The check after each test finds threads and processes that are left.
    for kind in (Plain, Async):
        stream = mpiter.batches(kind(), 7, epochs=None, concurrency=8, **way)
        next(stream)
        stream.close()


class NeverComing(Async):
    """Samples of which some never come; how often it was given up is counted."""

    def __init__(self, comes: int) -> None:
        self.comes = comes
        self.begun = 0
        self.given_up = 0
        self.waited_for = threading.Event()

    async def __getitem__(self, index: int) -> Any:
        self.begun += 1
        if index >= self.comes:
            self.waited_for.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up += 1
        return index


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("loader", [None, list])
def test_threads_end_with_an_iterator_whose_coroutines_never_do(
    on_error: str, loader: Any
) -> None:
    # The check after each test finds threads that are left.
    dataset = NeverComing(7)
    loading: Any
    if loader is None:
        loading = mpiter.batches(
            dataset,
            7,
            n_processes=2,
            backend="thread",
            concurrency=4,
            shuffle=False,
            on_error=on_error,
        )
    else:
        loading = mpiter.DataLoader(
            dataset,
            7,
            num_workers=2,
            backend="thread",
            concurrency=4,
            collate_fn=loader,
            on_error=on_error,
        )
    with loading:
        assert [*next(iter(loading))] == [*range(7)]
        assert dataset.waited_for.wait(60)
    assert not [name for name in names_of_threads() if name.startswith("mpiter-worker")]
    assert dataset.given_up


class Gated(Plain):
    """Samples that wait in a thread until they may come, and are counted."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waited_for = threading.Event()
        self.begun = 0

    def __getitem__(self, index: int) -> Any:
        self.begun += 1
        self.waited_for.set()
        assert self.gate.wait(60)
        return index


@pytest.mark.parametrize("kind", [Gated, lambda: NeverComing(0)])
def test_next_ends_when_another_thread_closes_an_iterator_without_workers(
    kind: Any,
) -> None:
    dataset = kind()
    stream = mpiter.batches(dataset, 7, n_processes=0, concurrency=2, shuffle=False)

    def close() -> None:
        assert dataset.waited_for.wait(60)
        stream.close()
        if isinstance(dataset, Gated):
            dataset.gate.set()

    closing = threading.Thread(target=close)
    closing.start()
    with pytest.raises(IteratorClosed, match="closed while next"):
        next(stream)
    closing.join()
    # Those that were under way.
    assert dataset.begun <= 2
