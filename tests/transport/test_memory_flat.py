"""Over a long run, descriptors, threads and memory don't grow.

Batches that are kept stay as they are.
"""

import contextlib
import gc
import os
import re
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest
from ours import slots_of

import mpiter
from mpiter import machine
from mpiter.engine import team

# This is the same on every Python, so the full run on one of them is enough.
pytestmark = pytest.mark.slow

SHAPE = (8, 8)
MB = 1 << 20


class Images:
    """Images, each filled with random bytes of its own."""

    def __init__(self, length=400, shape=SHAPE):
        self.length = length
        self.shape = shape

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
    """Count the descriptors, threads and child processes of this process."""
    gc.collect()
    return (
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        len(psutil.Process().children(recursive=True)),
    )


def memory(it):
    """Count the bytes that this process and the workers of ``it`` have to themselves.

    Shared slots count once, and code doesn't count.  A fork server's memory isn't
    included, because it may still be importing.
    """
    told = ""
    for pid in (os.getpid(), *it.worker_pids):
        # A worker that has just ended has no such file.
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            told += Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(
        map(int, re.findall(r"^Pss_(?:Anon|Shmem): +(\d+)", told, re.MULTILINE))
    )


def take(it, batches):
    for _ in range(batches):
        next(it)


def test_many_batches_leave_descriptors_threads_and_memory_as_they_were():
    with mpiter.MultiprocessIterator(
        [image_of(i) for i in range(100)], 4, n_processes=2, seed=0
    ) as it:
        take(it, 300)
        before = household()
        occupied = memory(it)
        take(it, 700)
        assert household() == before
        assert memory(it) - occupied < 6 * MB


def test_many_resets_leave_descriptors_threads_and_memory_as_they_were():
    with mpiter.MultiprocessIterator(Images(), 4, n_processes=2, shuffle=False) as it:

        def reset_often(times):
            for turn in range(times):
                it.reset()
                for at in range(turn % 4):
                    assert checksum(next(it)) == expected(range(4 * at, 4 * at + 4))

        reset_often(10)
        before = household()
        occupied = memory(it)
        reset_often(30)
        assert household() == before
        assert memory(it) - occupied < 6 * MB


@pytest.fixture
def little_memory(monkeypatch):
    """Let slots take two megabytes and no more."""
    monkeypatch.setattr(machine, "memory_total", lambda: 2 * MB * team._SHARE)


# An image of 16 kB: with four of them in a batch, some thirty batches fit.
BIG = (128, 128)


@pytest.mark.usefixtures("little_memory")
def test_batches_dropped_in_any_order_bring_their_slots_back():
    rng = np.random.default_rng(0)
    kept = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with mpiter.MultiprocessIterator(
            Images(400, BIG), 4, n_processes=2, seed=1
        ) as it:
            for number in range(120):
                kept[number] = next(it)
                while len(kept) > 20:
                    batch = kept.pop(rng.choice(list(kept)))
                    assert checksum(batch) == expected(
                        [label for _, label in batch], BIG
                    )
                    del batch
            assert slots_of(it).bytes <= 2 * MB
    for batch in kept.values():
        assert checksum(batch) == expected([label for _, label in batch], BIG)


@pytest.mark.usefixtures("little_memory")
def test_with_copies_asked_for_there_is_no_warning():
    with mpiter.MultiprocessIterator(
        Images(100, BIG), 2, repeat=False, n_processes=2, copy=True
    ) as it:
        # A warning would be an error here.
        kept = list(it)
        assert it.stats().copies == len(kept) == 50


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_batches_and_what_is_cut_from_them_outlive_the_iterator(is_closed):
    it = mpiter.MultiprocessIterator(Images(), 4, n_processes=2, shuffle=False)
    batches = [next(it) for _ in range(5)]
    one_image = batches[3][2][0]
    column = batches[4].columns[0][1:]
    if is_closed:
        it.close()
    del it
    gc.collect()
    # This iterator may take the memory that is free.
    others = mpiter.MultiprocessIterator(Images(), 4, n_processes=2, seed=2)
    take(others, 20)
    others.close()
    for number, batch in enumerate(batches):
        assert checksum(batch) == expected(range(4 * number, 4 * number + 4))
    del batches, batch
    gc.collect()
    assert zlib.crc32(one_image) == zlib.crc32(image_of(14))
    assert [zlib.crc32(image) for image in column] == [
        zlib.crc32(image_of(i)) for i in (17, 18, 19)
    ]
    # The caller may write to them.
    one_image += 1
