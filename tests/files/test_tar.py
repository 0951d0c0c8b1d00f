"""Tar shards as a dataset: each sample as it was written, in exact orders."""

from __future__ import annotations

import bz2
import copy
import gzip
import io
import json
import logging
import lzma
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from resumed import assert_resumes
from scripts import run

import mpiter
from mpiter.errors import DamagedFile
from mpiter.files import Parquet, Tar, kept
from mpiter.staging import Staging

SAMPLES = 120
# A sample's members have some 108 bytes: the runs of a window have 3 or 4 samples.
WINDOW = 6000

Items = Iterable[tuple[str, bytes]]


def write(path: Path, items: Items, form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as shard:
        for name, data in items:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
    return path


def records(first: int = 0, count: int = SAMPLES) -> Items:
    for number in range(first, first + count):
        yield f"{number:04}.json", json.dumps({"number": number}).encode()
        yield f"{number:04}.bin", bytes(92)


def begin_of(path: Path, name: str) -> int:
    """Return the byte of a shard where a member begins."""
    with tarfile.open(path) as shard:
        return shard.getmember(name).offset_data


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's caches, which no test may write to unasked."""
    folder = tmp_path / "caches"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shards = tmp_path / "shards"
    shards.mkdir()
    for shard in range(2):
        write(shards / f"{shard}.tar", records(shard * SAMPLES))
    return shards


def numbers_of(stream: Any) -> list[int]:
    return [int(number) for batch in stream for number in batch["json"]["number"]]


# -- samples ---------------------------------------------------------------------------


def encoded(**told: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([[1, 2], [3, 4]], np.int16), **told)
    return file.getvalue()


def picture(level: int = 0, form: str = "PNG") -> bytes:
    pixels = np.full((6, 8, 3), level, np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), **options)
    return file.getvalue()


ARRAYS = {
    "a number": saved(np.float32(1.5)),
    "nothing": saved(np.empty((0, 3), ">i2")),
    "records": saved(np.ones(3, [("x", "u1"), ("y", "f8", 2)])),
    "by columns": saved(np.asfortranarray(np.arange(6).reshape(2, 3))),
    "text": saved(np.array(["größe", "a"])),
    "version 2": saved(np.arange(3), version=(2, 0)),
    "version 3": saved(np.zeros(2, [("ö", "i4")]), version=(3, 0)),
    "time": saved(np.array(["2026-11-29", "NaT"], "M8[D]")),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_those_that_numpy_reads(name: str, tmp_path: Path) -> None:
    data = ARRAYS[name]
    wanted = np.load(io.BytesIO(data))
    dataset = Tar(write(tmp_path / "0.tar", [("a.npy", data), ("b.npy", data)]))
    for number in range(2):
        array = dataset[number]["npy"]
        np.testing.assert_equal(array, wanted)
        assert array.dtype == wanted.dtype
        assert array.flags.f_contiguous == wanted.flags.f_contiguous
        assert array.flags.writeable


KINDS: dict[str, tuple[bytes, Any]] = {
    "json": (b'{"x": [1, 2]}', {"x": [1, 2]}),
    "npy": (encoded(), np.array([[1, 2], [3, 4]], np.int16)),
    "txt": ("größer".encode(), "größer"),
    "cls": (b" 17\n", 17),
    "png": (picture(7), np.full((6, 8, 3), 7, np.uint8)),
    "mask.png": (picture(9), np.full((6, 8, 3), 9, np.uint8)),
    "jpg": (picture(0, "JPEG"), np.zeros((6, 8, 3), np.uint8)),
    "bin": (b"\0\xff", b"\0\xff"),
    "tar.gz": (b"it isn't one", b"it isn't one"),
    "pyd": (b"\x80no pickle", b"\x80no pickle"),
}


@pytest.mark.parametrize("workers", [0, 1])
def test_members_are_decoded_by_their_extensions(workers: int, tmp_path: Path) -> None:
    names = [f"a.{kind}" for kind in KINDS]
    values = [data for data, _ in KINDS.values()]
    write(tmp_path / "0.tar", zip(names, values, strict=True))
    dataset = Tar(tmp_path)
    wanted = {"__key__": "a"} | {kind: value for kind, (_, value) in KINDS.items()}
    sample = dataset[0]
    if workers:
        with mpiter.MultiprocessIterator(
            dataset, 1, repeat=False, n_processes=workers
        ) as it:
            [[sample]] = it
    np.testing.assert_equal(sample, wanted)
    for name, value in sample.items():
        assert type(value) is type(wanted[name])
    assert dataset.fields == [*KINDS]


def test_a_sample_is_what_follows_each_other_under_a_name(tmp_path: Path) -> None:
    items = [
        ("__meta__/about.json", b"{}"),
        ("./__meta__/about.json", b"{}"),
        ("a/__MACOSX/x.txt", b"macOS's"),
        ("a/x.1.TXT", b"1"),
        ("a/readme", b"no extension"),
        ("a/x.b.txt", b"2"),
        ("b/x.txt", b"3"),
        ("b/.x.txt", b"hidden"),
        ("b/x.d/y.txt", b"4"),
        ("a/x.txt", b"again"),
    ]
    write(tmp_path / "0.tar", items)
    write(tmp_path / "1.tar", [("a/x.txt", b"of another shard")])
    dataset = Tar(tmp_path)
    assert [dataset[at] for at in range(len(dataset))] == [
        {"__key__": "a/x", "1.txt": "1", "b.txt": "2"},
        {"__key__": "b/x", "txt": "3"},
        {"__key__": "b/x.d/y", "txt": "4"},
        {"__key__": "a/x", "txt": "again"},
        {"__key__": "a/x", "txt": "of another shard"},
    ]


def test_a_tar_cannot_be_staged(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(mpiter.OptionError, match="Tar cannot be staged"):
        Staging(tmp_path / "tier", "1MB").of(Tar(folder))


def test_samples_are_read_in_any_order(folder: Path) -> None:
    dataset = Tar(folder)
    asked = [5, 4, 3, 3, 4, 130, 10, 12, 119, 120, 0]
    found = [sample["json"]["number"] for sample in dataset.samples(asked)]
    assert found == asked


def test_folders_and_devices_are_no_members(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        for kind, name in [
            (tarfile.DIRTYPE, "folder.d"),
            (tarfile.FIFOTYPE, "folder.d/pipe.txt"),
            (tarfile.REGTYPE, "folder.d/file.txt"),
        ]:
            member = tarfile.TarInfo(name)
            member.type = kind
            shard.addfile(member)
    dataset = Tar(tmp_path)
    assert len(dataset) == 1
    assert dataset[0] == {"__key__": "folder.d/file", "txt": ""}


def add_link(shard: tarfile.TarFile, kind: bytes, name: str, target: str) -> None:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    shard.addfile(member)


def add_file(shard: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    shard.addfile(member, io.BytesIO(data))


def test_links_within_a_shard_are_the_files_that_they_lead_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as shard:
        add_link(shard, tarfile.SYMTYPE, "a/0.txt", "../b/3.txt")
        add_file(shard, "a/0.cls", b"0")
        add_file(shard, "./a/1.TXT", b"one")
        add_file(shard, "./a/1.bin", bytes(200_000))
        add_link(shard, tarfile.LNKTYPE, "a/2.txt", "a/1.TXT")
        # A link to a link, and one to a file that is no member of a sample.
        add_link(shard, tarfile.SYMTYPE, "a/2.b.txt", "0.txt")
        add_file(shard, "shared", b"of all")
        add_link(shard, tarfile.LNKTYPE, "a/2.c.txt", "shared")
        add_file(shard, "b/3.txt", b"three")
    dataset = Tar(tmp_path)
    wanted = [
        {"__key__": "a/0", "txt": "three", "cls": 0},
        {"__key__": "./a/1", "txt": "one", "bin": bytes(200_000)},
        {"__key__": "a/2", "txt": "one", "b.txt": "three", "c.txt": "of all"},
        {"__key__": "b/3", "txt": "three"},
    ]
    assert samples_of(dataset) == wanted
    assert dataset.samples([3, 2, 0]) == [wanted[3], wanted[2], wanted[0]]
    assert samples_of(Tar(tmp_path)) == wanted
    assert caplog.text == ""


def test_links_that_lead_nowhere_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as shard:
            add_link(shard, tarfile.SYMTYPE, "a.jpg", "/data/a.jpg")
            add_link(shard, tarfile.SYMTYPE, "b.txt", "../../b.txt")
            add_file(shard, "b.cls", b"1")
            add_link(shard, tarfile.SYMTYPE, "c.txt", "d.txt")
            add_link(shard, tarfile.SYMTYPE, "d.txt", "c.txt")
            add_file(shard, "e.txt", b"5")
            add_link(shard, tarfile.LNKTYPE, "f.txt", "e.txt")
    wanted = [
        {"__key__": "b", "cls": 1},
        {"__key__": "e", "txt": "5"},
        {"__key__": "f", "txt": "5"},
    ]
    # What is kept of the headers tells it again.
    for _ in range(2):
        caplog.clear()
        assert samples_of(Tar(tmp_path)) == 2 * wanted
        [record] = caplog.records
        assert "8 links lead to no file" in record.message
        assert "'a.jpg' of " in record.message


def test_links_lead_to_files_of_their_own_archive(tmp_path: Path) -> None:
    parts = list[bytes]()
    for number in range(2):
        path = tmp_path / f"{number}.tar"
        with tarfile.open(path, "w") as shard:
            add_file(shard, "a.txt", b"%d" % number)
            add_link(shard, tarfile.LNKTYPE, "b.txt", "a.txt")
        parts.append(path.read_bytes())
    joined = tmp_path / "joined.tar"
    joined.write_bytes(b"".join(parts))
    assert [sample["txt"] for sample in samples_of(Tar(joined))] == ["0", "0", "1", "1"]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_strange_names_are_read(form: int, tmp_path: Path) -> None:
    keys = ["k" * 99, "f" * 90 + "/" + "k" * 200, "größe/ä", "x" * 101]
    if form == tarfile.GNU_FORMAT:
        # Bytes that aren't UTF-8.
        keys.append("\udcff")
    items = [
        (f"{key}.{field}", key[:3].encode(errors="replace"))
        for key in keys
        for field in ("b", "c")
    ]
    write(tmp_path / "0.tar", items, form)
    dataset = Tar(tmp_path)
    for number, key in enumerate(keys):
        data = key[:3].encode(errors="replace")
        assert dataset[number] == {"__key__": key, "b": data, "c": data}


def test_decode_says_what_members_become(folder: Path) -> None:
    raw = b'{"number": 0}'
    for decode, value in [
        (False, raw),
        ({"json": None}, raw),
        ({"json": False}, raw),
        ({".JSON": len}, len(raw)),
        ({"json": lambda data: data[:1]}, b"{"),
        ({}, {"number": 0}),
        (None, {"number": 0}),
    ]:
        dataset = Tar(folder, decode=decode)
        assert dataset[0]["json"] == value
    # The field goes before its last extension.
    path = write(folder / "one.tar", [("a.b.txt", b"1"), ("a.txt", b"2")])
    dataset = Tar(path, decode={"txt": int, "b.txt": float})
    assert dataset[0] == {"__key__": "a", "b.txt": 1.0, "txt": 2}
    with pytest.raises(
        mpiter.OptionError, match=r"for 'jsn', and no .* they have 'json', 'bin'\."
    ):
        Tar(folder / "0.tar", decode={"jsn": len, "json": len})
    for wrong in (len, {"json": 1}, {"json": True}, {1: len}, True):
        with pytest.raises(mpiter.OptionError, match=r"decode="):
            Tar(folder, decode=wrong)


def test_functions_that_decode_go_to_workers(folder: Path) -> None:
    base = 1000
    dataset = Tar(
        folder,
        decode={"json": lambda data: {"number": base + json.loads(data)["number"]}},
    )
    with mpiter.batches(dataset, 8, n_processes=2, shuffle=False, epochs=1) as stream:
        assert numbers_of(stream) == [*range(base, base + 2 * SAMPLES)]


def test_an_error_of_the_users_function_stays_and_names_the_member(
    folder: Path,
) -> None:
    def fail(data: bytes) -> None:
        raise LookupError("mine")

    dataset = Tar(folder, decode={"json": fail})
    with pytest.raises(LookupError, match="mine") as found:
        dataset[3]
    [note] = found.value.__notes__
    assert "0.tar: member '0003.json' at byte " in note


def test_shards_are_named_by_path_pattern_folder_list_and_address(
    folder: Path,
) -> None:
    a = folder / "0.tar"
    b = folder / "1.tar"
    for paths in (folder, str(folder), folder / "*.tar", folder / "*", [a, b]):
        assert len(Tar(paths)) == 2 * SAMPLES
    assert Tar([b, a])[0]["json"] == {"number": SAMPLES}
    with pytest.raises(FileNotFoundError, match=r"2\.tar"):
        Tar(folder / "2.tar")
    with pytest.raises(mpiter.OptionError, match=r"names no \.tar file"):
        Tar(folder / "*.txt")


def test_braces_stand_for_several_shards(folder: Path) -> None:
    assert len(Tar(f"{folder}/{{0..1}}.tar")) == 2 * SAMPLES
    assert Tar(f"{folder}/{{1..0}}.tar")[0]["json"] == {"number": SAMPLES}
    assert len(Tar(f"{folder}/{{1,0,1}}.tar")) == 3 * SAMPLES
    for number in range(8, 12):
        write(folder / f"a{number:03}.tar", records(number, 1))
    dataset = Tar(f"{folder}/{{a,a}}{{008..011}}.tar")
    numbers = [sample["json"]["number"] for sample in samples_of(dataset)]
    assert numbers == 2 * [8, 9, 10, 11]
    with pytest.raises(FileNotFoundError, match=r"a012\.tar"):
        Tar(f"{folder}/a{{011..012}}.tar")
    # A file that has such a name is itself.
    write(folder / "{0,1}.tar", records(7, 1))
    assert len(Tar(f"{folder}/{{0,1}}.tar")) == 1


@pytest.mark.parametrize("begin", ["", "file://"])
def test_what_is_compressed_in_a_folder_is_told(
    begin: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if begin:
        pytest.importorskip(
            "fsspec", reason="fsspec is not installed: run python3 tests"
        )
    (folder / "0.tar").rename(folder / "0.TAR")
    assert len(Tar(f"{begin}{folder}")) == 2 * SAMPLES
    assert caplog.text == ""
    for name in ("2.tar.gz", "3.tgz", ".4.tar.gz"):
        (folder / name).write_bytes(b"compressed")
    assert len(Tar(f"{begin}{folder}")) == 2 * SAMPLES
    [record] = caplog.records
    assert "2 compressed files, such as " in record.message
    for path in folder.glob("*.[tT][aA][rR]"):
        path.unlink()
    with pytest.raises(
        mpiter.OptionError,
        match=r"names no \.tar file: 2 compressed files.*decompress them\.",
    ):
        Tar(f"{begin}{folder}")


@pytest.mark.parametrize("make", [Tar, Parquet])
def test_an_empty_path_is_refused(make: Any) -> None:
    for paths in ("", [""]):
        with pytest.raises(mpiter.OptionError, match=r"empty; '\.' is the current"):
            make(paths)


def test_shards_at_a_store_are_read_by_ranges(folder: Path, caches: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed: run python3 tests")
    here = Tar(folder)
    there = Tar(f"file://{folder}")
    assert [there[at] for at in range(0, 240, 7)] == [
        here[at] for at in range(0, 240, 7)
    ]
    with mpiter.batches(there, 8, n_processes=1, shuffle=False, epochs=1) as stream:
        assert numbers_of(stream) == [*range(2 * SAMPLES)]
    assert len([*caches.rglob("*.mpiter")]) == 2


def test_numbers_beyond_the_end_are_refused(folder: Path) -> None:
    dataset = Tar(folder)
    for number in (-1, 2 * SAMPLES):
        with pytest.raises(IndexError, match=f"{number} isn't from 0 to before 240"):
            dataset[number]


class Doubled(Tar):
    """A derived class with a function of samples."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Any) -> list[dict[str, Any]]:
        return [
            {"json": {"number": 2 * sample["json"]["number"]}}
            for sample in super().__getitems__(indices)
        ]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_derived_class_keeps_the_order(folder: Path, workers: int) -> None:
    options = {"n_processes": workers, "seed": 1, "epochs": 1}
    with mpiter.batches(Tar(folder, window=WINDOW), 8, **options) as stream:
        wanted = [2 * number for number in numbers_of(stream)]
    dataset = Doubled(folder, window=WINDOW)
    with mpiter.batches(dataset, 8, **options) as stream:
        assert numbers_of(stream) == wanted
    assert dataset[3] == {"json": {"number": 6}}


def test_numbers_are_whole(folder: Path) -> None:
    dataset = Tar(folder)
    assert dataset.samples([]) == []
    assert dataset[np.int64(3)] == dataset[3]
    wrong: Any
    for wrong in (1.5, "0", None):
        with pytest.raises(TypeError):
            dataset[wrong]
        with pytest.raises(TypeError, match="aren't whole numbers"):
            dataset.samples([wrong])


def test_options_that_mean_nothing_are_refused(folder: Path) -> None:
    with pytest.raises(mpiter.OptionError, match="must be 'window' or 'full'"):
        Tar(folder, shuffle=False)  # type: ignore[arg-type]
    with pytest.raises(mpiter.OptionError, match="window='much' is no size"):
        Tar(folder, window="much")


def test_a_copy_and_a_pickled_dataset_read_the_same(folder: Path) -> None:
    dataset = Tar(folder)
    copies = [copy.copy(dataset), copy.deepcopy(dataset)]
    copies.append(pickle.loads(pickle.dumps(dataset)))
    wanted = dataset[SAMPLES]
    del dataset
    for one in copies:
        assert one[SAMPLES] == wanted


# -- order -----------------------------------------------------------------------------


def test_samples_are_shuffled_among_the_runs_of_a_window(folder: Path) -> None:
    dataset = Tar(folder, window=WINDOW)
    order = dataset.mpiter_order(1, None)
    total = 2 * SAMPLES
    assert len(order) == total
    first = np.asarray(order.take(0, total))
    assert sorted(first.tolist()) == [*range(total)]
    later = np.asarray(order.later(1).take(0, total))
    other = np.asarray(dataset.mpiter_order(2, True).take(0, total))
    assert (first != later).any()
    assert (first != other).any()
    # A window has some 55 samples, in runs of neighbours from both shards.
    some = np.sort(first[:40])
    assert {*(some // SAMPLES)} == {0, 1}
    gaps = np.diff(some)
    assert 20 <= (gaps == 1).sum() < 39
    # Neighbours don't stay together.
    assert (np.diff(first) == 1).sum() < 20


def test_all_samples_may_be_shuffled_among_each_other(folder: Path) -> None:
    dataset = Tar(folder, window=1, shuffle="full")
    first = np.asarray(dataset.mpiter_order(1, None).take(0, 2 * SAMPLES))
    assert sorted(first.tolist()) == [*range(2 * SAMPLES)]
    assert abs(first[:SAMPLES].mean() - SAMPLES) < 30
    assert (np.diff(first) == 1).sum() < 10
    in_order = dataset.mpiter_order(1, False).take(0, 5)
    assert [*in_order] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("options", [{"window": 1}, {}, {"shuffle": "full"}])
def test_what_comes_at_a_place_does_not_depend_on_what_was_asked_before(
    folder: Path, options: dict[str, Any]
) -> None:
    dataset = Tar(folder, **{"window": WINDOW, **options})
    order = dataset.mpiter_order(3, True).later(2)
    whole = np.asarray(order.take(0, 2 * SAMPLES)).tolist()
    rng = random.Random(0)
    for _ in range(50):
        start, stop = sorted(rng.sample(range(2 * SAMPLES + 1), 2))
        assert np.asarray(order.take(start, stop)).tolist() == whole[start:stop]
    assert sorted(whole) == [*range(2 * SAMPLES)]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_shuffling_samples_come_as_they_lie(folder: Path, workers: int) -> None:
    options = {"n_processes": workers, "shuffle": False, "epochs": 1}
    with mpiter.batches(Tar(folder), 7, **options) as stream:
        assert numbers_of(stream) == [*range(2 * SAMPLES)]


@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_all_doors_and_backends_give_the_same(folder: Path, shuffle: Any) -> None:
    dataset = Tar(folder, window=WINDOW, shuffle=shuffle)
    with mpiter.batches(dataset, 8, n_processes=0, seed=1, epochs=2) as stream:
        wanted = numbers_of(stream)
    for options in ({"n_processes": 2}, {"n_processes": 2, "backend": "thread"}):
        with mpiter.batches(dataset, 8, seed=1, epochs=2, **options) as stream:
            assert numbers_of(stream) == wanted
    with mpiter.DataLoader(dataset, 8, seed=1, num_workers=2, shuffle=True) as loader:
        assert numbers_of(loader) + numbers_of(loader) == wanted


@pytest.mark.parametrize("shuffle", ["window", "full"])
@pytest.mark.parametrize("saved", [0, 3, 29, 30, 41])
def test_a_state_resumes_under_other_workers_and_ranks(
    folder: Path, saved: int, shuffle: Any
) -> None:
    def stream(workers: int, **options: Any) -> Any:
        dataset = Tar(folder, window=WINDOW, shuffle=shuffle)
        return mpiter.batches(dataset, 8, n_processes=workers, seed=1, **options)

    assert_resumes(stream, numbers_of, saved)


# -- processes -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_of_each_kind_read_what_the_program_has_open(
    folder: Path, method: Any
) -> None:
    dataset = Tar(folder, window=WINDOW)
    assert dataset[0]["json"] == {"number": 0}
    options = {"n_processes": 2, "backend": mpiter.Process(method)}
    with mpiter.batches(dataset, 5, seed=1, epochs=1, **options) as stream:
        for batch in stream:
            # Both read in the same shards at the same time.
            number = int(batch["json"]["number"][0])
            assert dataset[number]["json"] == {"number": number}


FORKS = """
import os, sys, threading
from mpiter.files import Tar

dataset = Tar(sys.argv[1])
numbers = [*range(len(dataset))]

def is_right(number):
    return dataset[number]["json"]["number"] == number

stop = threading.Event()

def read():
    while not stop.is_set():
        for number in numbers:
            assert is_right(number)

# Children are forked while a thread is within a read.
thread = threading.Thread(target=read)
thread.start()
children = []
for _ in range(8):
    child = os.fork()
    if not child:
        os._exit(0 if all(map(is_right, numbers)) else 1)
    children.append(child)
statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.set()
thread.join()
print(*statuses)
"""


def test_forked_processes_read_beside_threads(folder: Path) -> None:
    outcome = run(folder, FORKS, folder).ended_well()
    assert outcome.lines == ["0 0 0 0 0 0 0 0"]


def test_few_shards_are_open_at_a_time(tmp_path: Path) -> None:
    for shard in range(80):
        write(tmp_path / f"{shard:02}.tar", records(shard, 1))
    dataset = Tar(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(80):
        assert dataset[number]["json"] == {"number": number}
    assert 0 < len(os.listdir("/proc/self/fd")) - before <= 40
    del dataset
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_read_from_more_shards_than_are_open(tmp_path: Path) -> None:
    for shard in range(80):
        write(tmp_path / f"{shard:02}.tar", records(shard, 1))
    options = {"n_processes": 4, "backend": "thread", "seed": 1, "epochs": 4}
    with mpiter.batches(Tar(tmp_path), 2, **options) as stream:
        assert sorted(numbers_of(stream)) == sorted([*range(80)] * 4)


# -- what is kept of the headers -------------------------------------------------------


def spoil_headers(path: Path) -> None:
    """Make a shard's headers unreadable, unnoticed by those who look at its time."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at : at + 100] = b"?" * 100
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def samples_of(dataset: Tar) -> list[dict[str, Any]]:
    return dataset.samples(range(len(dataset)))


def test_headers_are_read_once(folder: Path, caches: Path) -> None:
    wanted = samples_of(Tar(folder))
    for path in folder.glob("*.tar"):
        spoil_headers(path)
    assert samples_of(Tar(folder)) == wanted
    # It lies beside the shards, and nowhere else.
    assert not caches.exists()
    assert len(os.listdir(folder)) == 4
    for path in folder.glob(".*.mpiter"):
        path.unlink()
    with pytest.raises(DamagedFile, match=r"0\.tar can't be read"):
        Tar(folder)


@pytest.mark.parametrize("change", ["size", "time"])
def test_headers_of_a_shard_that_was_changed_are_read_again(
    folder: Path, change: str
) -> None:
    Tar(folder)
    path = folder / "0.tar"
    status = path.stat()
    if change == "size":
        write(path, records(1000, SAMPLES + 20))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        write(path, records(1000))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    spoil_headers(folder / "1.tar")
    dataset = Tar(folder)
    assert len(dataset) == 2 * SAMPLES + (20 if change == "size" else 0)
    assert dataset[0]["json"] == {"number": 1000}
    assert dataset[len(dataset) - 1]["json"] == {"number": 2 * SAMPLES - 1}


@pytest.mark.parametrize("there", [b"", b"PK\3\4 and no more", b"\x93NUMPY\1\0"])
def test_what_was_kept_and_is_damaged_is_made_again(folder: Path, there: bytes) -> None:
    wanted = samples_of(Tar(folder))
    places = [*folder.glob(".*.mpiter")]
    assert len(places) == 2
    whole = places[0].read_bytes()
    for place in places:
        place.write_bytes(there)
    assert samples_of(Tar(folder)) == wanted
    places[0].write_bytes(whole[: len(whole) // 2])
    assert samples_of(Tar(folder)) == wanted
    assert places[0].read_bytes() == whole


def test_what_was_kept_with_any_byte_changed_does_no_harm(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "0.tar", records(0, 2))
    wanted = samples_of(Tar(path))
    place = tmp_path / ".0.tar.mpiter"
    whole = place.read_bytes()
    # Beside the values themselves, which have a checksum, ZIP tells how they lie.
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 1 << (at % 8)
        place.write_bytes(changed)
        assert samples_of(Tar(path)) == wanted


def test_where_no_file_can_be_written_the_users_caches_have_it(
    folder: Path, caches: Path
) -> None:
    for shard in range(2):
        (folder / f".{shard}.tar.mpiter" / "in the way").mkdir(parents=True)
    wanted = samples_of(Tar(folder))
    assert len([*caches.rglob("*.mpiter")]) == 2
    for path in folder.glob("*.tar"):
        spoil_headers(path)
    assert samples_of(Tar(folder)) == wanted


def test_where_nothing_can_be_kept_it_is_said_and_goes_on(
    folder: Path, caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caches.write_text("no folder")
    for shard in range(2):
        (folder / f".{shard}.tar.mpiter" / "in the way").mkdir(parents=True)
    assert len(Tar(folder)) == 2 * SAMPLES
    [record] = caplog.records
    assert "what 2 shards have can't be kept" in record.message
    assert "index= names a folder" in record.message
    assert sorted(os.listdir(folder)) == [
        ".0.tar.mpiter",
        ".1.tar.mpiter",
        "0.tar",
        "1.tar",
    ]


def test_a_user_without_a_home_has_no_caches(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = """
    import os, pwd, sys
    from mpiter.files import Tar

    def unknown(uid):
        raise KeyError(uid)

    pwd.getpwuid = unknown
    del os.environ["HOME"], os.environ["XDG_CACHE_HOME"]
    print(len(Tar(sys.argv[1])))
    """
    beside = [folder / f".{shard}.tar.mpiter" for shard in range(2)]
    assert run(folder, text, folder).ended_well().lines == ["240"]
    for place in beside:
        place.unlink()
        (place / "in the way").mkdir(parents=True)
    outcome = run(folder, text, folder)
    assert (outcome.code, outcome.lines) == (0, ["240"])
    assert "index= names a folder" in outcome.err


def test_a_folder_may_be_named_for_it(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "a new" / "folder"
    wanted = samples_of(Tar(folder, index=index))
    assert sorted(os.listdir(folder)) == ["0.tar", "1.tar"]
    assert len(os.listdir(index)) == 2
    for path in folder.glob("*.tar"):
        spoil_headers(path)
    assert samples_of(Tar(folder, index=index)) == wanted


@pytest.mark.parametrize("moment", ["tarfile.TarFile.next", "os.replace"])
def test_a_killed_program_leaves_nothing_that_counts(folder: Path, moment: str) -> None:
    text = f"""
    import os, signal, sys, tarfile
    from mpiter.files import Tar

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    {moment} = die
    Tar(sys.argv[1])
    """
    outcome = run(folder, text, folder)
    assert outcome.code == -signal.SIGKILL
    assert not [*folder.glob(".*.mpiter")]
    dataset = Tar(folder)
    assert [sample["json"]["number"] for sample in samples_of(dataset)] == [
        *range(2 * SAMPLES)
    ]


READS = """
import os, sys, tarfile
from mpiter.files import Tar

opened = 0
usual = tarfile.open

def counted(*arguments, **options):
    global opened
    opened += 1
    if sys.argv[2] == "stays":
        # At once: another thread may read, too.
        os.write(1, b"reading\\n")
        sys.stdin.readline()
    return usual(*arguments, **options)

tarfile.open = counted
print("ready", flush=True)
sys.stdin.readline()
samples = len(Tar(sys.argv[1]))
print(samples, opened, flush=True)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Any]:
    """Starts programs that read shards once they are told to."""
    script = tmp_path / "reads.py"
    script.write_text(READS)
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path | str, how: str = "goes on") -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, script, str(folder), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(mpiter.__file__).parents[1])},
        )
        started.append(program)
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        return program

    yield start
    for program in started:
        program.kill()
        program.communicate()


def go(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.write("go\n")
    program.stdin.flush()


def told_by(program: subprocess.Popen[str]) -> list[int]:
    assert program.stdout is not None
    return [*map(int, program.stdout.readline().split())]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_of_programs_that_begin_together_one_reads_the_headers_of_a_shard(
    programs: Any, tmp_path: Path, scheme: str
) -> None:
    shards = 6
    folder = tmp_path / "many"
    folder.mkdir()
    for shard in range(shards):
        write(folder / f"{shard}.tar", records(shard * SAMPLES))
    three = [programs(f"{scheme}{folder}") for _ in range(3)]
    for program in three:
        go(program)
    told = [told_by(program) for program in three]
    assert [samples for samples, _ in told] == [shards * SAMPLES] * 3
    assert sum(opened for _, opened in told) == shards
    # Nothing is left beside what is kept.
    names = [name for name in os.listdir(folder) if not name.endswith(".mpiter")]
    assert len(names) == shards


def test_a_program_that_waits_for_another_reads_once_that_is_killed(
    programs: Any, folder: Path
) -> None:
    stays = programs(folder, "stays")
    go(stays)
    assert stays.stdout.readline() == "reading\n"
    waits = programs(folder)
    go(waits)
    stays.kill()
    stays.wait()
    assert told_by(waits) == [2 * SAMPLES, 2]


def test_the_progress_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mpiter")
    monkeypatch.setattr(kept, "_EVERY_S", 0.0)
    Tar(folder)
    assert f"the headers of {4 * SAMPLES} members" in caplog.text
    caplog.clear()
    Tar(folder)
    assert caplog.text == ""


def test_members_take_few_bytes(tmp_path: Path) -> None:
    members = 5000
    names = [f"{number:06}.bin" for number in range(members)]
    path = write(tmp_path / "0.tar", [(name, b"") for name in names])
    tracemalloc.start()
    try:
        dataset = Tar(path)
        now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(dataset) == members
    # An object for each would take several hundred bytes.
    assert now / members < 60
    assert most / members < 250


# -- shards that aren't what they should be --------------------------------------------


def test_compressed_shards_are_refused_with_a_remedy(folder: Path) -> None:
    whole = (folder / "0.tar").read_bytes()
    ways = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
    for name, compress in ways.items():
        path = folder / "compressed.tar"
        path.write_bytes(compress(whole))
        with pytest.raises(
            mpiter.OptionError, match=rf"compressed by {name}.*decompress"
        ):
            Tar(folder)


@pytest.mark.parametrize("data", [b"", b"nothing" * 200, bytes(10)])
def test_files_that_are_no_shards_are_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    path.write_bytes(data)
    with pytest.raises(
        DamagedFile, match=r"0\.tar can't be read: .*\w\.  Leave it out of the list"
    ):
        Tar(path)
    whole = write(tmp_path / "2.tar", records())
    shutil.copy(path, tmp_path / "1.tar")
    with pytest.raises(DamagedFile, match=r"0\.tar can't be read: .*and 1 more so"):
        Tar(tmp_path)
    assert len(Tar([whole])) == SAMPLES


def test_shards_without_samples_are_refused(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", [("readme", b"no extension")])
    with pytest.raises(mpiter.OptionError, match=r"have no samples.*KEY\.EXTENSION"):
        Tar(path)
    # Beside others they may be.
    assert len(Tar([path, folder / "1.tar", path])) == SAMPLES


# A header, without which a shard has nothing.
MEMBER = 512


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_of_a_cut_shard_what_is_whole_remains(form: int, tmp_path: Path) -> None:
    items = list[tuple[str, bytes]]()
    for number in range(4):
        key = f"{number}" * (120 if number == 2 else 1)
        items += [(f"{key}.a", bytes(600)), (f"{key}.b", b"b" * (1 + number))]
    path = write(tmp_path / "whole.tar", items, form)
    whole = samples_of(Tar(path))
    data = path.read_bytes()
    # Behind the last member stand two empty blocks, and more to fill a record.
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    cuts = sorted({*range(0, end + 1024, 128), *range(511, end + 1024, 512)})
    lengths = list[int]()
    for cut in cuts:
        short = tmp_path / f"{cut}.tar"
        short.write_bytes(data[:cut])
        if cut < MEMBER:
            with pytest.raises(DamagedFile, match=rf"/{cut}\.tar can't be read"):
                Tar(short)
            lengths.append(0)
            continue
        dataset = Tar(short)
        lengths.append(len(dataset))
        for number in range(len(dataset) - 1):
            assert dataset[number] == whole[number]
        if cut < end + 512:
            with pytest.raises(
                DamagedFile,
                match=rf"/{cut}\.tar: member '.*' at byte [\d,]+ is the last one",
            ):
                dataset[len(dataset) - 1]
        else:
            assert samples_of(dataset) == whole
    assert lengths == sorted(lengths)
    assert {*lengths} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("zeros", [0, 512, 102_400])
def test_archives_that_were_joined_are_read_to_the_end(
    zeros: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # `cat 0.tar 1.tar`, and what fills a file up is no damage.
    parts = [(folder / f"{shard}.tar").read_bytes() for shard in range(2)]
    joined = folder / "joined.tar"
    joined.write_bytes(bytes(zeros).join(parts) + bytes(zeros))
    dataset = Tar(joined)
    assert samples_of(dataset) == samples_of(Tar([folder / "0.tar", folder / "1.tar"]))
    assert caplog.text == ""
    # A sample doesn't go on in the next archive.
    joined.write_bytes(parts[0] * 2)
    assert len(Tar(joined)) == 2 * SAMPLES


def test_what_is_no_archive_behind_the_end_of_one_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "0.tar"
    whole = path.read_bytes()
    path.write_bytes(whole + b"nothing" * 1000)
    dataset = Tar(path)
    assert f"at byte {len(whole):,} stands no header" in caplog.text
    assert len(dataset) == SAMPLES
    assert dataset[SAMPLES - 2]["json"] == {"number": SAMPLES - 2}


def test_one_sample_joined_to_itself_is_two(tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", [("a.txt", b"1")])
    path.write_bytes(path.read_bytes() * 2)
    assert samples_of(Tar(path)) == [{"__key__": "a", "txt": "1"}] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cut_shard_is_named_or_its_sample_left_out(
    folder: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "0.tar"
    # In the middle of a member.
    at = begin_of(path, "0050.bin")
    path.write_bytes(path.read_bytes()[: at + 10])
    dataset = Tar(folder)
    assert "0.tar is cut or damaged" in caplog.text
    assert len(dataset) == 51 + SAMPLES
    caplog.clear()
    # It is told again where the headers aren't read.
    dataset = Tar(folder)
    assert "0.tar is cut or damaged" in caplog.text
    options = {"n_processes": workers, "shuffle": False, "epochs": 1}
    with (
        mpiter.batches(dataset, 5, **options) as stream,
        pytest.raises(DamagedFile, match=rf"member '0050\.bin' at byte {at:,}"),
    ):
        numbers_of(stream)
    with mpiter.batches(dataset, 5, on_error="skip", **options) as stream:
        found = numbers_of(stream)
    assert found == [*range(50), *range(SAMPLES, 2 * SAMPLES)]


def test_a_damaged_header_ends_its_shard(folder: Path) -> None:
    path = folder / "0.tar"
    at = begin_of(path, "0050.json")
    data = bytearray(path.read_bytes())
    data[at - 400] ^= 1
    path.write_bytes(data)
    dataset = Tar(folder)
    assert len(dataset) == 50 + SAMPLES
    with pytest.raises(DamagedFile, match=rf"at byte {at - 512:,} stands no header"):
        dataset[49]
    assert dataset[48]["json"] == {"number": 48}
    assert dataset[50]["json"] == {"number": SAMPLES}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_member_is_named_or_its_sample_left_out(
    tmp_path: Path, workers: int
) -> None:
    items = [*records(0, 20)]
    items[14] = (items[14][0], b'{"number": ')
    path = write(tmp_path / "0.tar", items)
    dataset = Tar(path)
    options = {"n_processes": workers, "shuffle": False, "epochs": 1}
    says = r"0\.tar: member '0007\.json' at byte [\d,]+ can't be decoded: Expecting"
    with (
        mpiter.batches(dataset, 5, **options) as stream,
        pytest.raises(DamagedFile, match=says),
    ):
        numbers_of(stream)
    with mpiter.batches(dataset, 5, on_error="skip", **options) as stream:
        assert numbers_of(stream) == [*range(7), *range(8, 20)]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("npy", encoded()[:-1]),
        ("npy", encoded()[:60]),
        ("npy", b"\x93NUMPY"),
        ("npy", b""),
        ("npy", pickle.dumps([1])),
        ("cls", b"seven"),
        ("txt", b"\xff"),
        ("png", picture()[:40]),
        ("jpg", b""),
    ],
)
def test_members_that_cannot_be_decoded_are_named(
    name: str, data: bytes, tmp_path: Path
) -> None:
    path = write(tmp_path / "0.tar", [(f"a.{name}", data)])
    says = rf"0\.tar: member 'a\.{name}' at byte [\d,]+ can't be decoded: ."
    with pytest.raises(DamagedFile, match=says):
        Tar(path)[0]
    assert Tar(path, decode=False)[0][name] == data


def test_two_members_of_one_name_are_an_error_of_their_sample(tmp_path: Path) -> None:
    items = [("a.txt", b"1"), ("b.txt", b"2"), ("b.TXT", b"3"), ("c.txt", b"4")]
    dataset = Tar(write(tmp_path / "0.tar", items))
    assert len(dataset) == 3
    assert dataset[2]["txt"] == "4"
    with pytest.raises(
        DamagedFile, match=r"member 'b\.txt' at byte [\d,]+ has the name"
    ):
        dataset[1]


def test_a_shard_that_is_cut_or_goes_later_is_named(folder: Path) -> None:
    dataset = Tar(folder)
    assert dataset[SAMPLES]["json"] == {"number": SAMPLES}
    path = folder / "1.tar"
    os.truncate(path, 2000)
    # It is open.
    assert dataset[SAMPLES]["json"] == {"number": SAMPLES}
    says = r"1\.tar: member '0200\.json' at byte [\d,]+ has 15 bytes, and the file ends"
    with pytest.raises(DamagedFile, match=says):
        dataset[200]
    shutil.move(folder / "0.tar", folder / "moved")
    with pytest.raises(FileNotFoundError, match=r"0\.tar"):
        dataset[0]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("change", ["size", "time"])
def test_a_shard_that_has_changed_when_it_is_opened_is_named(
    folder: Path, change: str, workers: int
) -> None:
    dataset = Tar(folder)
    path = folder / "1.tar"
    status = path.stat()
    # Samples of as many bytes, or more of them.
    write(path, records(1000, SAMPLES + (20 if change == "size" else 0)))
    later = status.st_mtime_ns + (change == "time")
    os.utime(path, ns=(status.st_atime_ns, later))
    options = {"n_processes": workers, "shuffle": False, "epochs": 1}
    with (
        mpiter.batches(dataset, 8, **options) as stream,
        pytest.raises(
            DamagedFile, match=r"1\.tar has changed.* Make the dataset again"
        ),
    ):
        numbers_of(stream)


def test_sparse_members_are_refused(tmp_path: Path) -> None:
    # As GNU tar writes them, in the format that puts the map into pax headers.
    headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.name": "a.bin",
        "GNU.sparse.map": "1024,5",
        "GNU.sparse.size": "2048",
        "GNU.sparse.numblocks": "1",
    }
    with tarfile.open(tmp_path / "0.tar", "w", format=tarfile.PAX_FORMAT) as shard:
        member = tarfile.TarInfo("a.bin")
        member.pax_headers = headers
        member.size = 5
        shard.addfile(member, io.BytesIO(b"12345"))
    with pytest.raises(mpiter.OptionError, match=r"'a\.bin' of .* is sparse"):
        Tar(tmp_path)
