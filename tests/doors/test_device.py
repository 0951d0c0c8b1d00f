"""DevicePrefetcher copies batches to the GPU, and locks and unlocks their memory.

What needs a GPU is skipped without one.  The bookkeeping of page-locked ranges is
tested with a fake in place of CUDA.
"""

from __future__ import annotations

import collections
import contextlib
import gc
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from ours import slots_of
from scripts import wait_until

import mpiter

pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")

import torch

from mpiter.torch import DataLoader, DevicePrefetcher, device
from mpiter.torch.device import PageLocks
from mpiter.transport.memory import arena_at

pytestmark = pytest.mark.torch
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="there is no CUDA device here: run it where one is",
)


@pytest.fixture(autouse=True, scope="module")
def _cuda_is_there() -> None:
    """Use CUDA before the first test.

    The descriptors that it opens then, and keeps, belong to no test.
    """
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")


class Images:
    """Samples of bytes, as decoders return them, a label and a name."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.full((3, 4, 5), index, np.uint8), index, f"image {index}"


class Pair(NamedTuple):
    left: Any
    right: Any


# -- on any device ---------------------------------------------------------------------


def test_images_are_normalised_and_everything_else_comes_along():
    with DataLoader(Images(), 4, num_workers=1) as loader:
        ahead = DevicePrefetcher(loader, "cpu", normalize=([1, 2, 3], [1, 2, 4]))
        assert len(ahead) == 6
        for number, (x, y, names) in enumerate(ahead):
            wanted = torch.arange(4 * number, 4 * number + 4)
            assert x.dtype == torch.float32
            for channel, (mean, std) in enumerate([(1, 1), (2, 2), (3, 4)]):
                assert torch.equal(x[:, channel, 3, 4], (wanted - mean) / std)
            assert torch.equal(y, wanted)
            assert list(names) == [f"image {index}" for index in wanted.tolist()]


def test_dtypes():
    batch = {
        "image": np.zeros((2, 3, 4, 5), np.uint8),
        "numbers": np.zeros(2),
        "labels": np.zeros(2, np.int64),
    }
    for options, image, numbers in (
        ({}, torch.uint8, torch.float64),
        ({"dtype": torch.float16}, torch.float16, torch.float16),
        (
            {"normalize": ([0] * 3, [1] * 3), "dtype": torch.bfloat16},
            torch.bfloat16,
            torch.bfloat16,
        ),
    ):
        (found,) = DevicePrefetcher([batch], "cpu", **options)
        assert (
            found["image"].dtype,
            found["numbers"].dtype,
            found["labels"].dtype,
        ) == (image, numbers, torch.int64)
    for dtype in ("float16", np.float32):
        with pytest.raises(mpiter.OptionError, match="is no dtype of torch's"):
            DevicePrefetcher([batch], "cpu", dtype=dtype)


def test_containers_stay_what_they_are():
    batch = Pair([np.ones(2)], {"a": (torch.ones(1), None), "b": "text"})
    (found,) = DevicePrefetcher([batch], "cpu")
    assert type(found) is Pair
    assert torch.equal(found.left[0], torch.ones(2).double())
    assert type(found.right["a"]) is tuple
    assert (found.right["a"][1], found.right["b"]) == (None, "text")


def test_on_the_cpu_nothing_is_copied():
    with mpiter.batches(
        [np.full(3, i) for i in range(4)], 4, n_processes=1, shuffle=False
    ) as batches:
        seen = []
        for x in DevicePrefetcher(batches, "cpu"):
            arena = arena_at(x.data_ptr())
            assert arena is not None
            assert arena.range_at(x.data_ptr()) is not None
            seen.append(x)
        assert batches.stats().leased_batches == 1


def test_dicts_of_other_classes_and_batches_of_iterators_are_known():
    (found,) = DevicePrefetcher([collections.defaultdict(list, a=np.ones(2))], "cpu")
    assert (type(found), found["a"].tolist()) == (collections.defaultdict, [1, 1])
    with mpiter.SerialIterator([(np.ones(2), 1)] * 3, 3, repeat=False) as iterator:
        ((x, y),) = DevicePrefetcher(iterator, "cpu")
    assert (x.shape, y.tolist()) == ((3, 2), [1, 1, 1])


def test_its_state_is_the_loaders():
    with (
        DataLoader(Images(), 4, shuffle=True, num_workers=1) as loader,
        DataLoader(Images(), 4, shuffle=True) as other,
    ):
        assert DevicePrefetcher(loader, "cpu").stats() == loader.stats()
        with pytest.raises(
            AttributeError, match="'DevicePrefetcher' object has no attribute 'state'"
        ):
            DevicePrefetcher(loader, "cpu").state  # noqa: B018
        ahead = DevicePrefetcher(loader, "cpu")
        goes_on = DevicePrefetcher(other, "cpu")
        epoch = iter(ahead)
        next(epoch)
        goes_on.load_state_dict(ahead.state_dict())
        assert [y.tolist() for _, y, _ in goes_on] == [y.tolist() for _, y, _ in epoch]


def test_pinning_without_an_accelerator_is_a_warning():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator here: see the tests that need one")
    with pytest.warns(UserWarning, match="no accelerator is found"):
        loader = DataLoader(Images(), 4, pin_memory=True)
    assert not next(iter(loader))[0].is_pinned()


# -- page-locked ranges ----------------------------------------------------------------


class FakeCuda:
    """Registers ranges, and raises errors, where CUDA would."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.held = {}
        self.calls = 0

    def lock(self, address: int, size: int) -> bool:
        self.calls += 1
        assert all(
            address + size <= start or start + length <= address
            for start, length in self.held.items()
        )
        if not self.refuses:
            self.held[address] = size
        return not self.refuses

    def unlock(self, address: int) -> None:
        del self.held[address]

    def covers(self, address: int, size: int) -> bool:
        return any(
            start <= address and address + size <= start + length
            for start, length in self.held.items()
        )


def test_each_slot_is_registered_once_and_let_go_before_its_memory_is():
    cuda = FakeCuda()
    locks = PageLocks(cuda.lock, cuda.unlock)
    data = [np.full((64, 64), i, np.float32) for i in range(40)]
    with mpiter.batches(data, 8, n_processes=1, shuffle=False, epochs=4) as batches:
        for x in batches:
            assert locks.cover(x.ctypes.data)
            assert cuda.covers(x.ctypes.data, x.nbytes)
        assert cuda.calls <= slots_of(batches).count
        assert cuda.held
        kept = x
    assert not cuda.held
    assert kept[0, 0, 0] == 32


def test_memory_that_is_no_slot_is_not_touched():
    cuda = FakeCuda()
    assert not PageLocks(cuda.lock, cuda.unlock).cover(np.zeros(10).ctypes.data)
    assert not cuda.calls


# -- one batch ahead, with a stand-in for CUDA -----------------------------------------


class FakeEvent:
    """An event that has passed once it is set, or waited for."""

    made: ClassVar[list[FakeEvent]] = []

    def __init__(self) -> None:
        self.has_passed = False
        self.made.append(self)

    def record(self, stream):
        pass

    def query(self):
        return self.has_passed

    def synchronize(self):
        self.has_passed = True


@pytest.fixture
def fake_cuda(monkeypatch):
    """Let DevicePrefetcher treat the CPU as a GPU."""
    stream = SimpleNamespace(wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(
        device,
        "_cuda_locks",
        PageLocks(lambda address, size: True, lambda address: None),
    )
    monkeypatch.setattr(DevicePrefetcher, "__iter__", lambda self: device._Ahead(self))
    FakeEvent.made.clear()


class Noted:
    """A loader that keeps which batch was asked for last, and fails at the third."""

    def __init__(self):
        self.asked = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.asked += 1
        if self.asked == 3:
            raise ValueError("the third")
        if self.asked > 5:
            raise StopIteration
        return np.full(3, self.asked)

    def state_dict(self):
        return self.asked


def test_one_batch_is_ahead_and_the_state_is_of_the_one_handed_out(fake_cuda):
    ahead = DevicePrefetcher(Noted(), "cpu")
    epoch = iter(ahead)
    found = []
    while True:
        try:
            batch = next(epoch)
        except ValueError as error:
            found.append(str(error))
        except StopIteration:
            break
        else:
            found.append((int(batch[0]), ahead.state_dict()))
    assert found == [(1, 1), (2, 2), "the third", (4, 4), (5, 5)]
    assert list(epoch) == []


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_pass_that_was_not_asked_for_its_end_can_be_ended(request, is_ahead):
    if is_ahead:
        request.getfixturevalue("fake_cuda")
    moved = DevicePrefetcher(mpiter.DataLoader(range(6), 2), "cpu")
    batches = iter(moved)
    for epoch in (0, 0, 1):
        next(batches)
        moved.end_pass()
        assert moved.state_dict()["epoch"] == epoch


def test_host_memory_is_kept_until_its_copy_has_arrived(fake_cuda):
    with mpiter.batches(
        [np.full(64, i) for i in range(32)], 4, n_processes=1, shuffle=False
    ) as batches:
        epoch = iter(DevicePrefetcher(batches, "cpu"))
        for _ in range(4):
            next(epoch)
        # Batches in flight count, too: on its way from its slot to the queue, a batch
        # counts for a moment as the user's.
        wait_until(lambda: batches.stats().leased_batches == 5, "five batches are held")
        for event in FakeEvent.made:
            event.has_passed = True
        next(epoch)
        gc.collect()
        wait_until(
            lambda: batches.stats().leased_batches <= 2, "what has arrived is let go of"
        )
        del epoch
        assert all(event.has_passed for event in FakeEvent.made)


# -- on a GPU --------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_arrive_on_the_gpu_unharmed(num_workers):
    with DataLoader(Images(), 4, num_workers=num_workers) as loader:
        for _ in range(20):
            seen = []
            for x, y, _ in DevicePrefetcher(loader, "cuda"):
                assert x.is_cuda
                assert y.is_cuda
                assert (x == y[:, None, None, None]).all()
                seen += y.tolist()
            assert seen == list(range(24))


@needs_gpu
def test_slots_are_page_locked_while_in_use():
    with mpiter.batches(
        [np.full((64, 64), i) for i in range(64)], 8, n_processes=1, shuffle=False
    ) as batches:
        host = []

        def noted():
            for x in batches:
                host.append(torch.from_numpy(x))
                yield x

        for number, x in enumerate(DevicePrefetcher(noted(), "cuda")):
            assert host[number].is_pinned()
            assert torch.equal(x.cpu(), host[number])


@needs_gpu
def test_pinned_batches_are_pinned():
    class Custom(list):
        def pin_memory(self):
            return "pinned by itself"

    with DataLoader(Images(), 4, num_workers=2, pin_memory=True) as loader:
        x, y, names = next(iter(loader))
        assert x.is_pinned()
        assert y.is_pinned()
        assert names[0] == "image 0"
    with DataLoader(Images(), 4, collate_fn=Custom, pin_memory=True) as loader:
        assert next(iter(loader)) == "pinned by itself"
