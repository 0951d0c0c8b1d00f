"""Descriptors, threads and memory over a long run; batches that are kept, by whoever, for however long."""

import contextlib
import gc
import re
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest
from ours import slots_of
from ways import iterator

import mpiter
from mpiter import machine
from mpiter.engine import team

pytestmark = pytest.mark.slow  # this Python shows it; the further ones are spared

SHAPE = (8, 8)
MB = 1 << 20


class Images:
    """Image i is filled with what only i gives."""

    def __init__(self, length=400, shape=SHAPE):
        self.length, self.shape = length, shape

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return image_of(i, self.shape), i


def image_of(i, shape=SHAPE):
    return np.random.default_rng(i).integers(0, 256, shape, dtype=np.uint8)


def checksum(batch):
    return [(zlib.crc32(np.ascontiguousarray(image)), label) for image, label in batch]


def expected(labels, shape=SHAPE):
    return [(zlib.crc32(image_of(label, shape)), label) for label in labels]


def household():
    """Descriptors and threads of this process, and the processes below it."""
    gc.collect()
    return (
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        len(psutil.Process().children(recursive=True)),
    )


def memory():
    """Bytes that this process and its workers have to themselves, shared slots once, code not at all."""
    pids = [process.pid for process in (psutil.Process(), *psutil.Process().children(recursive=True))]
    told = ""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # of a process that has just ended
            told += Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(map(int, re.findall(r"^Pss_(?:Anon|Shmem): +(\d+)", told, re.MULTILINE)))


def take(it, batches):
    for _ in range(batches):
        next(it)


@pytest.mark.parametrize("serializer", ["slots", "packed"])
def test_thousands_of_batches_leave_descriptors_threads_and_memory_as_they_were(serializer):
    images = [image_of(i) for i in range(100)]
    with mpiter.MultiprocessIterator(images, 4, n_processes=2, seed=0, serializer=serializer) as it:
        take(it, 1000)
        before, occupied = household(), memory()
        take(it, 4000)
        assert household() == before
        assert memory() - occupied < 6 * MB


def test_a_hundred_resets_leave_descriptors_threads_and_memory_as_they_were():
    with mpiter.MultiprocessIterator(Images(), 4, n_processes=2, shuffle=False) as it:

        def reset_often(times):
            for turn in range(times):
                it.reset()
                for at in range(turn % 4):
                    assert checksum(next(it)) == expected(range(4 * at, 4 * at + 4))

        reset_often(20)
        before, occupied = household(), memory()
        reset_often(100)
        assert household() == before
        assert memory() - occupied < 6 * MB


def test_iterators_opened_and_closed_one_after_another_leave_nothing():
    def use_one():
        with mpiter.MultiprocessIterator(Images(), 4, n_processes=1) as it:
            take(it, 3)

    use_one()
    before = household()
    for _ in range(20):
        use_one()
    assert household() == before


@pytest.fixture
def little_memory(monkeypatch):
    """A machine on which slots may take two megabytes and no more."""
    monkeypatch.setattr(machine, "memory_total", lambda: 2 * MB * team._SHARE)


BIG = (128, 128)  # 16 kB: four of them a batch, some thirty batches in all


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("backend", ["process", "thread"])
def test_hoarding_beyond_the_cap_is_warned_about_once_and_corrupts_nothing(backend):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", RuntimeWarning)
        with mpiter.batches(Images(800, BIG), 4, epochs=1, n_processes=2, shuffle=False, backend=backend) as stream:
            kept = list(stream)
            stats, size = stream.stats(), slots_of(stream).bytes
    assert len(kept) == 200
    for number, batch in enumerate(kept):
        assert checksum(zip(*batch, strict=True)) == expected(range(4 * number, 4 * number + 4), BIG), number
    assert stats.copies > 0
    assert size <= 2 * MB
    notes = [w for w in heard if issubclass(w.category, RuntimeWarning) and "kept alive" in str(w.message)]
    assert len(notes) == 1
    assert "copy=True" in str(notes[0].message)


@pytest.mark.usefixtures("little_memory")
def test_batches_dropped_in_any_order_bring_their_slots_back():
    rng, kept = np.random.default_rng(0), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with mpiter.MultiprocessIterator(Images(400, BIG), 4, n_processes=2, seed=1) as it:
            for number in range(300):
                kept[number] = next(it)
                while len(kept) > 20:
                    batch = kept.pop(rng.choice(list(kept)))
                    assert checksum(batch) == expected([label for _, label in batch], BIG)
                    del batch
            assert slots_of(it).bytes <= 2 * MB
    for batch in kept.values():
        assert checksum(batch) == expected([label for _, label in batch], BIG)


@pytest.mark.usefixtures("little_memory")
def test_with_copies_asked_for_nobody_is_warned():
    with mpiter.MultiprocessIterator(Images(400, BIG), 4, repeat=False, n_processes=2, copy=True) as it:
        kept = list(it)  # warnings are errors here
        assert it.stats().copies == len(kept) == 100


def endings():
    def close(it):
        it.close()

    def drop(it):
        del it
        gc.collect()

    return [close, drop]


@pytest.mark.parametrize("backend", ["process", "thread", "serial"])
@pytest.mark.parametrize("end", endings(), ids=["closed", "dropped"])
def test_batches_and_what_is_cut_from_them_outlive_the_iterator(backend, end):
    it = iterator(Images(), 4, n_processes=2, shuffle=False, backend=backend)
    batches = [next(it) for _ in range(5)]
    one_image, column = batches[3][2][0], batches[4].columns[0][1:]
    end(it)
    del it
    others = iterator(Images(), 4, n_processes=2, seed=2, backend=backend)  # may take what is free
    take(others, 20)
    others.close()
    for number, batch in enumerate(batches):
        assert checksum(batch) == expected(range(4 * number, 4 * number + 4))
    del batches, batch
    gc.collect()
    assert zlib.crc32(one_image) == zlib.crc32(image_of(14))
    assert [zlib.crc32(image) for image in column] == [zlib.crc32(image_of(i)) for i in (17, 18, 19)]
    one_image += 1  # and they are the caller's to write to


@pytest.mark.torch
def test_a_torch_tensor_made_of_a_batch_keeps_its_slot():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with mpiter.MultiprocessIterator(Images(), 4, n_processes=2, shuffle=False) as it:
        batch = next(it)
        tensors = [torch.from_numpy(batch.columns[0]), torch.from_numpy(batch[1][0])]
        del batch
        take(it, 300)
        assert np.array_equal(tensors[0][3].numpy(), image_of(3))
    gc.collect()
    assert np.array_equal(tensors[1].numpy(), image_of(1))
