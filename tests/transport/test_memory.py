"""Batches come though shared memory is short, kept by the user, or of another kind."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Squares, plain_batch
from ours import slots_of
from scripts import wait_until

import mpiter
from mpiter import machine
from mpiter.engine import team
from mpiter.engine.rooms import Rooms
from mpiter.transport.memory import Arena


def whole(**options: Any) -> list[Any]:
    with mpiter.MultiprocessIterator(
        Squares(60), 4, repeat=False, seed=1, n_processes=2, **options
    ) as it:
        return [plain_batch(batch) for batch in it]


def test_without_memfd_an_unnamed_file_does(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole()
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    assert whole(backend=mpiter.Process("forkserver")) == expected


def test_full_memory_is_an_error_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = machine.memory_available
    says = r"a slot of 40\.0 MB does not fit: 32\.9 MB"
    with mpiter.MultiprocessIterator(
        Squares(20, (1000, 1000)), 10, n_processes=1, n_prefetch=1
    ) as it:
        monkeypatch.setattr(machine, "memory_available", lambda: 100_000_000)
        with pytest.raises(mpiter.errors.SharedMemoryFull, match=says) as caught:
            next(it)
        assert isinstance(caught.value, MemoryError)
        monkeypatch.setattr(machine, "memory_available", genuine)
        # Once there is memory again, the same batch comes.
        assert len(next(it)) == 10


def test_memory_that_runs_out_later_means_fewer_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocations = 0
    genuine = Arena.allocate

    def allocate(self: Arena, size: int) -> int:
        nonlocal allocations
        allocations += 1
        # The first four allocations are two of the board, and two slots.
        if allocations > 4:
            raise mpiter.errors.SharedMemoryFull("no more")
        return genuine(self, size)

    expected = whole()
    monkeypatch.setattr(Arena, "allocate", allocate)
    with pytest.warns(RuntimeWarning, match="memory is short: the 2 slots"):
        assert whole() == expected


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_a_hoarder_gets_copies_in_the_end_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(machine, "memory_total", lambda: 8 * 60 * 4096)
    with mpiter.batches(
        Squares(300, (100, 10)), 1, shuffle=False, n_processes=2, backend=backend
    ) as it:
        with pytest.warns(
            RuntimeWarning, match=r"batches are kept alive.*copy=True"
        ) as told:
            kept = list(it)
        assert len(told) == 1
        assert it.stats().copies > 0
        assert slots_of(it).bytes <= 60 * 4096
    assert [int(y[0]) for _, y in kept] == list(range(300))
    assert all((x == y[0] * y[0]).all() for x, y in kept)


def test_the_end_that_waits_in_the_queue_holds_no_slot() -> None:
    with mpiter.MultiprocessIterator(
        [np.full(64, i) for i in range(32)], 4, n_processes=1, repeat=False
    ) as it:
        kept = [next(it) for _ in range(5)]
        wait_until(
            lambda: it.stats().leased_batches == len(kept),
            "all is fetched, and five batches are held",
        )


def test_a_refused_room_is_asked_for_again_though_planning_had_to_wait_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planning waits at the end of an epoch, and here each batch is an epoch.

    The batch without a room lies behind that boundary.
    """
    genuine = Rooms.take
    asked = itertools.count(1)

    def take(self: Rooms, rows: int) -> Any:
        if next(asked) % 2:
            return genuine(self, rows)
        # At once there is a room again.
        self.slots._bell.ring()
        return None

    monkeypatch.setattr(Rooms, "take", take)
    orders = {"order_sampler": lambda order, position: np.arange(4)}
    with mpiter.MultiprocessIterator(list(range(4)), 4, **orders, n_processes=1) as it:
        batches: list[Any] = []
        taking = threading.Thread(
            target=lambda: batches.extend(list(next(it)) for _ in range(20)),
            daemon=True,
        )
        taking.start()
        taking.join(30)
        assert batches == [[0, 1, 2, 3]] * 20


def test_slots_that_a_hoarder_needed_are_given_back() -> None:
    with mpiter.MultiprocessIterator(
        Squares(4000, (100, 10)), 1, n_processes=2, run_ahead=2
    ) as it:
        kept = [next(it) for _ in range(120)]
        many = slots_of(it).count
        del kept
        for _ in range(200):
            next(it)
        assert many >= 119, (
            "all but the first batch, which was fetched before there was a layout, "
            "lie in slots"
        )
        assert slots_of(it).count < 60


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "a row": lambda a: a[1],
    "a column": lambda a: a[:, 2:3],
    "one dimension more": lambda a: a[None, ::-1].T,
    "its base as an array": lambda a: np.asarray(a.base),
    "a memoryview": memoryview,
    "a memoryview of a row": lambda a: memoryview(a[2])[3:5],
    "another dtype": lambda a: a.view(np.uint8),
    "a structured field": lambda a: a.view([("x", "f4"), ("y", "f4")])["y"],
    "a masked array": lambda a: np.ma.masked_array(a, copy=False),
    "DLPack": np.from_dlpack,
    "a capsule": lambda a: a.__dlpack__(),
    "a flat iterator": lambda a: a.flat,
}


def test_an_array_keeps_its_slot_however_it_is_held() -> None:
    """The slot comes back when the last reference to its memory is gone."""
    with mpiter.MultiprocessIterator(
        np.ones((4000, 10, 10)), 2, n_processes=2, run_ahead=2
    ) as it:
        next(it)
        held = {name: hold(next(it)[1]) for name, hold in HOLDERS.items()}
        for _ in range(50):
            next(it).columns[...] = -1
        wait_until(
            lambda: it.stats().leased_batches == len(held),
            "each has kept its batch's slot",
        )
        for name in HOLDERS.keys() - {"its base as an array", "a capsule"}:
            assert np.array_equal(
                np.asarray(held[name]), np.asarray(HOLDERS[name](np.ones((10, 10))))
            ), name
        held.clear()
        wait_until(lambda: it.stats().leased_batches == 0, "all are back")


class Weighty:
    """A dataset of 64 MB, which each sample reads.

    A sample is the number of bytes that its process has to itself after that.
    """

    def __init__(self) -> None:
        self.rows = np.ones((64, 1 << 20), np.uint8)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        assert self.rows.sum() == self.rows.size
        told = Path("/proc/self/smaps_rollup").read_text()
        return 1024 * int(re.findall(r"^Pss_Anon: +(\d+)", told, re.MULTILINE)[0])


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(),
    reason="only Linux's /proc says which memory is shared",
)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_read_a_dataset_in_memory_where_it_is(method: str) -> None:
    class Light(Weighty):
        def __init__(self) -> None:
            self.rows = np.ones((1, 1), np.uint8)

    def own_memory(dataset: Any) -> int:
        (batch,) = mpiter.batches(
            dataset, 8, epochs=1, n_processes=2, backend=mpiter.Process(method)
        )
        return int(max(batch))

    # What all three processes read counts as a third for each of them.
    assert own_memory(Weighty()) - own_memory(Light()) < (48 << 20)


def test_a_loop_whose_only_slot_comes_free_as_it_hands_over_a_copy_goes_on(monkeypatch):
    """Nothing else would wake the loop.

    No worker has a block, and the consumer rings only if the queue was full.
    """
    monkeypatch.setattr(team, "_SHARE", machine.memory_total() // (2 << 20))
    with mpiter.batches(
        np.zeros((64, 50_000)),
        4,
        n_processes=2,
        n_prefetch=4,
        sample_timeout=None,
        epochs=1,
    ) as it:
        with pytest.warns(RuntimeWarning, match="batches are handed out as copies"):
            assert sum(len(batch) for batch in it) == 64
        assert slots_of(it).count == 1
