"""A staged dataset has the same samples and states as the one in the store.

Each sample is read from the store once, and stays in the tier.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import signal
import warnings

import numpy as np
import pytest
from stores import Store, bytes_below

import mpiter
from mpiter.staging import Staging
from mpiter.staging import staging as module

SIZE = 1000  # bytes of a sample
TAIL = 16  # bytes behind it in its file


def gone_through(dataset, **options):
    with mpiter.batches(
        dataset, 4, **{"n_processes": 0, "seed": 3} | options
    ) as stream:
        return [
            (index.tolist(), total.tolist()) for index, total in stream
        ], stream.stats()


def test_each_sample_is_read_from_the_store_once_however_many_want_it(tmp_path):
    store = Store(tmp_path)
    staging = Staging(tmp_path / "tier", "1MB")
    found, _ = gone_through(staging.of(store), epochs=3, n_processes=2)
    assert found == gone_through(Store(tmp_path / "other"), epochs=3)[0]
    assert store.reads() == dict.fromkeys(range(40), 1)
    seen = staging.stats()
    assert (seen.held, seen.copied) == (40, 40)
    assert seen.hits + seen.fallbacks == 120
    assert seen.hits >= 80
    assert "40 copies held" in str(seen)


def test_later_epochs_hit_what_there_is_room_for(tmp_path):
    store = Store(tmp_path, 100)
    staging = Staging(tmp_path / "tier", 50 * (SIZE + TAIL))
    with mpiter.batches(staging.of(store), 10, n_processes=1, seed=1) as stream:
        for _ in stream:
            assert bytes_below(tmp_path) <= staging.stats().capacity
        first = staging.stats()
        assert sum(len(index) for index, _ in stream) == 100
        assert abs(staging.stats().hits - first.hits - 50) <= 2
    assert staging.stats().held == first.held == 50, "what is kept stays"
    assert staging.stats().held_bytes <= staging.stats().capacity


def test_another_dataset_and_another_program_find_the_copies(tmp_path):
    store = Store(tmp_path)
    gone_through(Staging(tmp_path / "tier", "1MB").of(store))
    staging = Staging(tmp_path / "tier", "1MB")
    staged = staging.of(store)
    assert staging.stats().held == 40
    assert staged.fetch.held().all()
    gone_through(staged)
    assert staging.stats().hit_rate == 1
    assert store.reads() == dict.fromkeys(range(40), 1)


def test_a_damaged_copy_is_noticed_and_made_again(tmp_path):
    store = Store(tmp_path)
    staging = Staging(tmp_path / "tier", "1MB", threads=0)
    staged = staging.of(store)
    assert all(store.is_right(*staged[index]) for index in range(40))
    kept = sorted((tmp_path / "tier").glob("mpiter-staged-*/*/*/*"))
    before = staging.stats()
    first, *others = kept[0].read_bytes()
    kept[0].write_bytes(bytes([first ^ 1, *others]))
    kept[1].write_bytes(kept[1].read_bytes()[:-20])
    kept[2].write_bytes(b"")
    del staging, staged
    staging = Staging(tmp_path / "tier", "1MB", threads=0)
    staged = staging.of(store)
    for _ in range(2):
        assert all(store.is_right(*staged[index]) for index in range(40))
    seen = staging.stats()
    assert (seen.held, seen.copied, seen.hits) == (40, 3, 77)
    assert bytes_below(tmp_path / "tier") == before.held_bytes == seen.held_bytes


def test_a_full_disk_ends_the_copying_and_nothing_else(tmp_path, monkeypatch, caplog):
    store = Store(tmp_path)
    staging = Staging(tmp_path / "tier", "1MB", threads=0)
    staged = staging.of(store)
    assert store.is_right(*staged[0])

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    assert store.is_right(*staged[1])
    assert "nothing more is staged: [Errno 28] No space left on device" in caplog.text
    assert all(store.is_right(*staged[index]) for index in range(40))
    seen = staging.stats()
    assert (seen.held, seen.hits, seen.held_bytes) == (1, 1, SIZE + TAIL)
    assert bytes_below(tmp_path / "tier") == SIZE + TAIL


def test_a_tier_that_is_gone_ends_the_copying_and_nothing_else(tmp_path, caplog):
    """The threads that copy ahead say so once.

    It goes to the log, since no line of the user's program is the cause.
    """
    store = Store(tmp_path)
    staging = Staging(tmp_path / "tier", "1MB")
    staged = staging.of(store)
    assert store.is_right(*staged[0])
    shutil.rmtree(tmp_path / "tier")
    found, _ = gone_through(staged, n_processes=0)
    assert (
        caplog.text.count("nothing more is staged: [Errno 2] No such file or directory")
        == 1
    )
    assert found == gone_through(store)[0]
    assert not (tmp_path / "tier").exists()
    assert (staging.stats().held_bytes, staging.stats().hits) == (0, 0)


@pytest.mark.death
def test_workers_that_are_killed_hold_no_others_up(tmp_path):
    """A worker may be killed while it copies a sample."""
    store = Store(tmp_path, 100)
    staging = Staging(tmp_path / "tier", "1MB", threads=0)
    staged = staging.of(store)
    seen = []
    with (
        mpiter.batches(staged, 4, n_processes=2, epochs=2) as stream,
        warnings.catch_warnings(),
    ):
        # There are warnings of the deaths.
        warnings.simplefilter("ignore")
        for number, (index, total) in enumerate(stream):
            assert all(map(store.is_right, index.tolist(), total.tolist()))
            seen += index.tolist()
            if number in (3, 10, 16):
                os.kill(stream.worker_pids[number % 2], signal.SIGKILL)
    assert sorted(seen) == sorted([*range(100)] * 2)
    before = staging.stats()
    assert before.held == 100
    assert all(store.is_right(*staged[index]) for index in range(100))
    assert staging.stats().hits - before.hits == 100


class Hanging(Store):
    """A store whose first read, in any process, lasts until it may end."""

    def __init__(self, folder):
        super().__init__(folder)
        context = multiprocessing.get_context("fork")
        self.may_end = context.Event()
        self.is_first = context.Semaphore(1)
        self.has_begun = context.Event()

    def fetch(self, index):
        if self.is_first.acquire(block=False):
            self.has_begun.set()
            assert self.may_end.wait(60)
        return super().fetch(index)


def test_a_process_that_hangs_while_it_copies_does_not_hold_others_up_for_long(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    store = Hanging(tmp_path)
    staging = Staging(tmp_path / "tier", "1MB", threads=0)
    staged = staging.of(store)
    # This process stands for another program.
    copier = multiprocessing.get_context("fork").Process(
        target=staged.fetch.copy, args=(3,)
    )
    copier.start()
    assert store.has_begun.wait(20)
    try:
        assert store.is_right(*staged[3])
        assert (staging.stats().fallbacks, staging.stats().held) == (1, 0), (
            "read, and the copy is still the other's"
        )
    finally:
        store.may_end.set()
        copier.join(20)
    assert store.is_right(*staged[3])
    assert (staging.stats().hits, staging.stats().held) == (1, 1)


def test_an_error_of_the_store_is_the_datasets_and_holds_no_others_up(tmp_path):
    store = Store(tmp_path)
    os.unlink(store.source(7))
    staging = Staging(tmp_path / "tier", "1MB")
    found, stats = gone_through(staging.of(store), on_error="skip", epochs=2)
    assert sum(len(indices) for indices, _ in found) == 78
    assert stats.skipped == 2
    assert "FileNotFoundError" in stats.skips[0][1]
    assert staging.stats().held == 39


def test_another_tier_may_come_before(tmp_path):
    store = Store(tmp_path)
    disk = Staging(tmp_path / "tier", "1MB", threads=0)
    memory = Staging(tmp_path / "other", 10 * (SIZE + TAIL), threads=0)
    staged = memory.of(disk.of(store))
    for _ in range(2):
        assert all(store.is_right(*staged[index]) for index in range(40))
    assert (memory.stats().hits, disk.stats().hits) == (10, 30)
    assert store.reads() == dict.fromkeys(range(40), 1)


def test_two_datasets_share_the_bound(tmp_path):
    one = Store(tmp_path / "1")
    other = Store(tmp_path / "2")
    staging = Staging(tmp_path / "tier", 50 * (SIZE + TAIL), threads=0)
    for dataset in map(staging.of, (one, other)):
        assert all(one.is_right(*dataset[index]) for index in range(40))
    stats = staging.stats()
    assert (stats.held, stats.held_bytes) == (50, stats.capacity)


def test_a_staged_dataset_is_one_of_the_users_class(tmp_path):
    store = Store(tmp_path)
    staged = Staging(tmp_path / "tier", "1MB", threads=0).of(store)
    assert type(staged) is Store
    assert "fetch" not in vars(store), "the user's own is as it was"
    again = pickle.loads(pickle.dumps(staged))
    assert again[3] == staged[3] == store[3]


def test_sizes_are_read_as_people_write_them(tmp_path):
    said = {
        "200GB": 200 * 10**9,
        "1.5TB": 15 * 10**11,
        "64 GiB": 64 << 30,
        "10": 10,
        1e6: 10**6,
        "5kb": 5000,
    }
    assert {size: Staging(tmp_path, size).stats().capacity for size in said} == said


class Slotted:
    __slots__ = ()
    source = fetch = __len__ = lambda self, *index: 1


def test_what_makes_no_sense_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for capacity in (
        "",
        "GB",
        "-1GB",
        0,
        -5,
        None,
        "1e400",
        float("nan"),
        float("inf"),
        "5 apples",
    ):
        with pytest.raises(mpiter.OptionError, match="is no size"):
            Staging(tmp_path / "tier", capacity)
    for options in ({"threads": -1}, {"threads": "many"}):
        with pytest.raises(mpiter.OptionError, match=next(iter(options))):
            Staging(tmp_path / "tier", 1000, **options)
    with pytest.raises(mpiter.OptionError, match="is no folder of this machine"):
        Staging("s3://bucket/tier", "1MB")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(
        mpiter.OptionError,
        match=r"copies cannot be kept in .*file/x: Not a directory; take another",
    ):
        Staging(tmp_path / "file" / "x", "1MB")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(
        mpiter.OptionError, match="list cannot be staged: it needs source"
    ):
        Staging(tmp_path / "tier", 1000).of([1, 2])
    with pytest.raises(mpiter.OptionError, match="no __slots__"):
        Staging(tmp_path / "tier", 1000).of(Slotted())


def test_a_url_is_fetched_by_fsspec(tmp_path):
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    pytest.importorskip("PIL", reason="Pillow is not installed")
    import image_files
    from PIL import Image

    from mpiter.images import ImageList

    for number in range(8):
        image = Image.fromarray(image_files.smooth(20, 30, number))
        image.save(tmp_path / f"{number}.png")
    pairs = [(f"{number}.png", number) for number in range(8)]
    staging = Staging(tmp_path / "tier", "1MB")
    staged = staging.of(ImageList(pairs, root=f"file://{tmp_path}"))
    with mpiter.batches(staged, 4, n_processes=0, epochs=2) as stream:
        for pictures, labels in stream:
            for picture, label in zip(pictures, labels, strict=True):
                whole = np.asarray(Image.open(tmp_path / f"{label}.png"))
                assert (picture == whole).all()
    assert staging.stats().held == 8
    assert staging.stats().hits >= 8
