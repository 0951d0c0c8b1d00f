"""A packed folder gives the folder's samples with any backend.

A file that has changed is an error.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mpiter.images import BrokenImage, Flip, ImageFolder, PackedFolder
from mpiter.images.pack import pack

pytestmark = pytest.mark.filterwarnings("ignore:folders in .* without pictures")

NAMES = (
    *("cat/1.jpg", "cat/2.JPEG", "cat/deep/3.png", "cat-like/1.png"),
    *("dog/ä/日.jpg", "dog/a.png", "dog/notes.txt", "top.png"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pets") / "folder"
    rng = np.random.default_rng(0)
    for name in NAMES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("txt"):
            path.write_text("no picture")
        else:
            Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(path)
    # This class has no pictures.
    (root / "empty").mkdir()
    return root


@pytest.fixture(scope="module")
def packed(folder):
    pack(folder, folder.parent / "out.zip")
    return folder.parent / "out.zip"


@pytest.fixture
def mine(packed, tmp_path):
    """An archive that a test may damage."""
    path = tmp_path / "mine.zip"
    path.write_bytes(packed.read_bytes())
    return path


def same(one, other):
    return len(one) == len(other) and all(
        a[1] == b[1] and type(a[1]) is type(b[1]) and np.array_equal(a[0], b[0])
        for a, b in zip(one, other, strict=True)
    )


def test_it_has_the_samples_of_the_folder_in_its_order(folder, packed):
    ours = PackedFolder(packed)
    theirs = ImageFolder(folder)
    assert (ours.classes, ours.class_to_idx) == (theirs.classes, theirs.class_to_idx)
    assert ours.classes == ["cat", "cat-like", "dog", "empty"]
    assert list(ours.paths) == list(theirs.paths)
    assert ours.labels.tolist() == theirs.labels.tolist()
    assert same(ours, theirs)
    assert ours.source(0) == f"{packed}/cat/1.jpg"
    with zipfile.ZipFile(packed) as archive:
        assert [ours.fetch(i) for i in range(len(ours))] == [
            archive.read(name) for name in ours.paths
        ]


def test_a_forked_copy_and_a_pickle_read_beside_the_original(packed):
    def reads_on(dataset):
        return all(contents(dataset) == wanted for _ in range(50))

    dataset = PackedFolder(packed)
    # Reading opens the archive in this process.
    wanted = contents(dataset)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(reads_on(dataset))
    )
    child.start()
    assert reads_on(dataset)
    child.join()
    assert child.exitcode == 1
    assert reads_on(pickle.loads(pickle.dumps(dataset)))


def zipped_by_python(folder, path, *, before=b"", after=b"", **options):
    path.write_bytes(before)
    with zipfile.ZipFile(path, "a" if before else "w", **options) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
        archive.writestr("__MACOSX/cat/._1.jpg", b"about the file")
        archive.comment = after
    return path


def test_archives_that_others_made_are_read_too(folder, tmp_path):
    for options in (
        {},
        {"compression": zipfile.ZIP_DEFLATED},
        {"before": b"#!/bin/sh\n", "after": b"a comment"},
    ):
        path = zipped_by_python(folder, tmp_path / "theirs.zip", **options)
        assert same(PackedFolder(path), ImageFolder(folder)), options


def test_sizes_and_places_beyond_the_old_format_are_read(tmp_path, folder, packed):
    with open(tmp_path / "far.zip", "wb") as file:
        # The file has a hole of 5 GB, which takes no room on the disk.
        file.seek(5 << 30)
        with (
            zipfile.ZipFile(file, "w") as archive,
            archive.open("a/1.png", "w", force_zip64=True) as member,
        ):
            member.write((folder / "dog/a.png").read_bytes())
    assert (
        PackedFolder(tmp_path / "far.zip").fetch(0)
        == (folder / "dog/a.png").read_bytes()
    )


def test_a_compression_that_is_not_read_is_told(folder, tmp_path):
    path = zipped_by_python(
        folder, tmp_path / "theirs.zip", compression=zipfile.ZIP_LZMA
    )
    with pytest.raises(BrokenImage, match="neither stored nor deflated"):
        PackedFolder(path)


def test_a_torn_archive_is_told_when_it_is_opened(mine):
    whole = mine.read_bytes()
    for spoilt, says in (
        (whole[:-1], "its index is damaged"),
        (whole[: len(whole) // 2], "File is not a zip file"),
        (whole[1000:], "its index is damaged"),
        (whole.replace(b"PK\1\2", b"PK\1\3"), "Bad magic number"),
    ):
        mine.write_bytes(spoilt)
        with pytest.raises(
            BrokenImage,
            match=rf"mine\.zip .* as a ZIP archive: ({says}).*; copy it again",
        ):
            PackedFolder(mine)


@pytest.mark.parametrize("size", [0xFFFFFFFE, 1 << 62])
def test_an_index_that_tells_of_more_bytes_than_there_are_is_damaged(tmp_path, size):
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("cat/1.png", b"some")
        archive.filelist[0].compress_size = size
    with pytest.raises(
        BrokenImage, match=r"mine\.zip .* as a ZIP archive: its index is damaged"
    ):
        PackedFolder(tmp_path / "mine.zip")


def test_a_damaged_picture_is_told_with_its_name_and_the_others_are_read(mine):
    dataset = PackedFolder(mine)
    at = mine.read_bytes().index(dataset.fetch(1)) + 400
    with open(mine, "r+b") as file:
        file.seek(at)
        file.write(b"damage")
    with pytest.raises(
        BrokenImage,
        match=r"mine\.zip/cat/2\.JPEG cannot be decoded: its checksum differs; copy or",
    ):
        dataset[1]
    assert same(
        [dataset[0], dataset[2]], [PackedFolder(mine)[0], PackedFolder(mine)[2]]
    )


@given(data=st.data())
@settings(max_examples=30)
def test_bytes_that_differ_are_never_handed_out(packed, tmp_path_factory, data):
    """Bytes of the archive are changed after it was opened, or before.

    The result is an error, or the same pictures.
    """
    path = tmp_path_factory.mktemp("spoiled") / "mine.zip"
    whole = packed.read_bytes()
    path.write_bytes(whole)
    opened = PackedFolder(path)
    wanted = contents(opened)
    at = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.binary(min_size=1, max_size=16))
    path.write_bytes((whole[:at] + damage + whole[at + len(damage) :])[: len(whole)])
    for dataset in (
        lambda: opened,
        lambda: pickle.loads(pickle.dumps(opened)),
        lambda: PackedFolder(path),
    ):
        with contextlib.suppress(BrokenImage):
            assert contents(dataset()) == wanted


def contents(dataset):
    return [(dataset.paths[i], dataset.fetch(i)) for i in range(len(dataset))]


def test_opening_an_archive_that_was_replaced_is_an_error(mine, folder):
    dataset = PackedFolder(mine, Flip())
    mine.unlink()
    pack(folder / "cat", mine)
    # This process still has the archive that it opened.
    assert len(dataset.fetch(0)) > 0
    with pytest.raises(
        BrokenImage, match=r"cat/1\.jpg cannot be decoded: its checksum differs"
    ):
        pickle.loads(pickle.dumps(dataset))[0]
