"""What people do with a staged dataset that its makers did not think of: odd sources, tiers, indices and sizes."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import pathlib
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stores import Store, content

import mpiter
from mpiter.staging import ResidentFirst, Staging
from mpiter.staging.ledger import Ledger
from mpiter.staging.memory import Memory, MemoryShelf

TIERS = ("folder", "memory")


def tier_of(kind: str, tmp_path: Path) -> Any:
    return "memory" if kind == "memory" else tmp_path / "tier"


def test_an_index_beyond_the_end_is_nobody_elses_sample(tmp_path):
    staged = Staging("memory", "1MB").of(Store(tmp_path, 4))
    assert [staged[index][0] for index in range(4)] == [0, 1, 2, 3]
    for index in (4, -5):
        with pytest.raises(IndexError, match="no index of 4 samples"):
            staged[index]
    assert len(list(staged)) == 4


class Paths(Store):
    """Sources of another type."""

    kind: Any = pathlib.Path

    def source(self, index: int) -> Any:
        return self.kind(super().source(index))


@pytest.mark.parametrize("has_root", [True, False])
@pytest.mark.parametrize("kind", [pathlib.Path, os.fsencode])
def test_a_source_is_a_path_of_any_type(kind, has_root, tmp_path):
    store = Paths(tmp_path, 4)
    store.kind = kind
    if not has_root:
        store.source = lambda index, root=store.root: kind(f"{root}/{index:04}.bin")
        del store.root
    staging = Staging(tmp_path / "tier", "1MB", workers=0)
    staged = staging.of(store)
    assert all(store.is_right(*staged[index]) for index in (0, 1, 2, 3, 0))
    assert staging.stats().hits == 1


def test_a_source_that_is_no_path_is_refused_by_name(tmp_path):
    store = Paths(tmp_path, 4)
    staged = Staging(tmp_path / "tier", "1MB").of(store)
    store.kind = staged.kind = lambda path: 7
    with pytest.raises(TypeError, match=r"source\(i\) of the dataset returned int; staging needs a path or a URL\."):
        staged[0]


def test_copies_are_found_however_the_root_is_written(tmp_path, monkeypatch):
    store = Store(tmp_path, 4)
    first = Staging(tmp_path / "tier", "1MB").of(store)
    assert all(store.is_right(*first[index]) for index in range(4))
    monkeypatch.chdir(tmp_path)
    store.root = "store"
    assert Staging("tier", "1MB").of(store).fetch.held().all()


@dataclasses.dataclass(frozen=True)
class Frozen:
    root: str

    def __len__(self) -> int:
        return 4

    def source(self, index: int) -> str:
        return f"{self.root}/{index}"

    def fetch(self, index: int) -> bytes:
        return content(index, 10)

    def __getitem__(self, index: int) -> bytes:
        return self.fetch(index)


def test_a_frozen_dataclass_is_staged():
    staging = Staging("memory", "1MB")
    staged = staging.of(Frozen("/far"))
    assert [staged[index] for index in (0, 0)] == [content(0, 10)] * 2
    assert staging.stats().hits == 1


class Static(Frozen):
    @staticmethod
    def fetch(index):
        return content(index, 10)


class OfTheClass(Frozen):
    @classmethod
    def source(cls, index):
        return f"/far/{index}"

    @classmethod
    def fetch(cls, index):
        return content(index, 10)


class Partial(Frozen):
    def fetch_of(self, index, size):
        return content(index, size)

    fetch = functools.partialmethod(fetch_of, size=10)


class ToCall:
    def __call__(self, index):
        return content(index, 10)


class OfAnObject(Frozen):
    fetch = ToCall()


@pytest.mark.parametrize("kind", [Static, OfTheClass, Partial, OfAnObject])
def test_methods_are_of_any_kind(kind):
    staging = Staging("memory", "1MB")
    staged = staging.of(kind("/far"))
    assert [staged[index] for index in (0, 0)] == [content(0, 10)] * 2
    assert staging.stats().hits == 1


# -- tiers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TIERS)
def test_a_tier_comes_before_itself_nowhere(kind, tmp_path):
    staged = Staging(tier_of(kind, tmp_path), "1MB").of(Store(tmp_path, 4))
    with pytest.raises(mpiter.OptionError, match=r"is staged in .* already"):
        Staging(tier_of(kind, tmp_path), "1MB").of(staged)


def test_a_tier_may_be_named_as_in_a_shell_and_memory_is_not_taken_for_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Staging("~/copies", "1MB")
    with pytest.raises(mpiter.OptionError, match="may be memory or a folder"):
        Staging("Memory", "1MB")
    assert [path.name for path in tmp_path.iterdir()] == ["copies"]


@pytest.mark.parametrize("tier", [None, "", 3, "s3://bucket/tier"])
def test_what_is_no_folder_is_refused(tier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mpiter.OptionError, match="is no folder of this machine"):
        Staging(tier, "1MB")
    assert not list(tmp_path.iterdir())


def test_a_tier_that_cannot_be_used_is_refused_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(mpiter.OptionError, match=r"copies cannot be kept in .*file/x: Not a directory; take another"):
        Staging(tmp_path / "file" / "x", "1MB")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_is_full_at_once_is_an_error_and_no_crash(tmp_path, monkeypatch):
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)  # what is mapped without having been written is a SIGBUS then
    with pytest.raises(mpiter.OptionError, match="No space left on device"):
        Staging(tmp_path, "1MB")


def test_a_ledger_that_is_there_stays_as_it_is(tmp_path):
    path = str(tmp_path / "ledger")
    assert Ledger(100, path).reserve(30)
    assert Ledger(100, path).used == (30, 1)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_a_copy_that_the_system_reads_in_parts_is_whole(monkeypatch):
    shelf = MemoryShelf(Memory(1000), 1)
    shelf.put(0, content(0, 100))
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 30), at))
    assert shelf.get(0) == content(0, 100)


def test_a_copy_that_is_noted_while_somebody_looks_is_whole_or_not_there(monkeypatch):
    shelf = MemoryShelf(Memory(1000), 1)
    shelf.put(0, content(0, 100))
    table = shelf._table()
    whole, table[0] = table[0].tolist(), (0, 0)

    class Noted(np.ndarray):
        """Whoever writes comes after the first number that is read."""

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            if not isinstance(found, Noted):
                table[0] = whole
            return found

        def tolist(self) -> Any:
            return [self[0], self[1]]

    monkeypatch.setattr(shelf, "_table", lambda: table.view(Noted))
    assert shelf.get(0) is None
    assert shelf.get(0) == content(0, 100)


# -- what is full, damaged, too large --------------------------------------------------------------------------------


def test_a_damaged_copy_is_made_again_when_the_tier_is_full(tmp_path):
    store = Store(tmp_path, 10)
    staging = Staging(tmp_path / "tier", 4 * 1016, workers=0)
    staged = staging.of(store)
    assert all(store.is_right(*staged[index]) for index in range(10))
    copy = next((tmp_path / "tier").glob("mpiter-staged-*/*/*/*"))
    copy.write_bytes(b"damaged!" + copy.read_bytes()[8:])
    before = staging.stats()
    assert before.is_full
    for _ in range(2):
        assert all(store.is_right(*staged[index]) for index in range(10))
    seen = staging.stats().since(before)
    assert (seen.damaged, seen.held, seen.hits) == (1, 4, 7)


@pytest.mark.parametrize("kind", TIERS)
def test_what_never_fits_is_not_read_in_vain_again_and_again(kind, tmp_path):
    store = Store(tmp_path, 40)
    staging = Staging(tier_of(kind, tmp_path), 500)
    with mpiter.batches(staging.of(store), 4, n_processes=2, seed=0, epochs=3) as stream:
        for _ in stream:
            pass
    assert staging.stats().held == 0
    assert store.reads().total() <= 120 + 4  # one of each thread that copies ahead


class Mixed(Store):
    """Every tenth sample is larger than the tier."""

    def fetch(self, index: int) -> bytes:
        return super().fetch(index) * (1 if index % 10 else 60)

    def __getitem__(self, index: int) -> Any:
        return index, len(self.fetch(index))


@pytest.mark.parametrize("kind", TIERS)
def test_some_that_are_too_large_keep_nobody_from_copying_the_others(kind, tmp_path):
    store = Mixed(tmp_path, 40)
    staging = Staging(tier_of(kind, tmp_path), 50_000)
    with mpiter.batches(staging.of(store), 4, n_processes=2, seed=0, epochs=4) as stream:
        for _ in stream:
            pass
    assert staging.stats().held == 36
    reads = store.reads()
    assert all(reads[index] == 1 for index in range(40) if index % 10)
    assert all(reads[index] <= 5 for index in range(0, 40, 10))


# -- what is told ----------------------------------------------------------------------------------------------------


def test_copies_of_other_samples_of_the_store_are_not_counted(tmp_path):
    store = Store(tmp_path)
    staging = Staging(tmp_path / "tier", "1MB", workers=0)
    staged = staging.of(store)
    assert all(store.is_right(*staged[index]) for index in range(40))
    few = Store(tmp_path, 10)
    again = Staging(tmp_path / "tier", "1MB")
    again.of(few)
    assert (again.stats().held, again.stats().samples) == (10, 10)
    staging.of(few)
    assert (staging.stats().held, staging.stats().samples) == (50, 50)


def test_in_memory_a_dataset_has_the_room_of_those_that_are_gone(tmp_path):
    store, kept = Store(tmp_path / "1", 10), Store(tmp_path / "2", 10)
    staging = Staging("memory", 20 * 1000, workers=0)
    stays = staging.of(kept)
    assert all(kept.is_right(*stays[index]) for index in range(10))
    for _ in range(3):
        before, staged = staging.stats(), staging.of(store)
        assert all(store.is_right(*staged[index]) for index in [*range(10)] * 2)
        assert staging.stats().since(before).hits == 10
        stats = staging.stats()
        assert (stats.held, stats.samples, stats.held_bytes) == (20, 20, 20 * 1000)
        del staged
    assert all(kept.is_right(*stays[index]) for index in range(10))
    assert staging.stats().since(before).hits == 20
    assert pickle.loads(pickle.dumps(staging)).stats().held_bytes == 20 * 1000


def test_nothing_is_complete_before_there_is_a_dataset():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Staging("memory", "1MB").stats().staged_s is None


@pytest.mark.parametrize("options", [{"log": 5}, {"replay": 5}, {"replay": [5]}, {"replay": []}, {"replay": b"orders"}])
def test_a_log_that_is_no_path_is_refused(options, tmp_path):
    staged = Staging("memory", "1MB").of(Store(tmp_path, 4))
    (name, value) = next(iter(options.items()))
    with pytest.raises(mpiter.OptionError, match=f"^{re.escape(f'{name}={value!r}')} is no path"):
        ResidentFirst(staged, **options)


def test_a_log_of_another_run_is_kept(tmp_path):
    staged = Staging("memory", "1MB").of(Store(tmp_path, 4))
    (tmp_path / "orders").write_text("mine")
    with pytest.raises(mpiter.OptionError, match="orders is there already; log= takes a new file"):
        ResidentFirst(staged, log=tmp_path / "orders")
    assert (tmp_path / "orders").read_text() == "mine"
