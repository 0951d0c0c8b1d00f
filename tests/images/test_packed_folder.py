"""A packed folder as a dataset: the folder's samples, whoever reads them, and errors where it isn't what it was."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import zipfile
import zlib

import image_files
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scripts import METHODS

import mpiter
from mpiter.errors import OptionError
from mpiter.images import BrokenImage, Flip, ImageFolder, PackedFolder, RandomResizedCrop, broken
from mpiter.images.archive import Archive
from mpiter.images.pack import pack
from mpiter.images.zipped import BadArchive, Index

NAMES = (
    "cat/1.jpg",
    "cat/2.JPEG",
    "cat/deep/3.png",
    "cat-like/1.png",
    "dog/ä/日.jpg",
    "dog/a.png",
    "dog/notes.txt",
    "top.png",
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
    (root / "nobody").mkdir()  # a class without pictures
    return root


@pytest.fixture(scope="module")
def packed(folder):
    pack(folder, folder.parent / "out.zip")
    return folder.parent / "out.zip"


@pytest.fixture
def mine(packed, tmp_path):
    """An archive that a test may spoil."""
    path = tmp_path / "mine.zip"
    path.write_bytes(packed.read_bytes())
    return path


def same(one, other):
    return len(one) == len(other) and all(
        a[1] == b[1] and type(a[1]) is type(b[1]) and np.array_equal(a[0], b[0])
        for a, b in zip(one, other, strict=True)
    )


def test_it_has_the_samples_of_the_folder_in_its_order(folder, packed):
    ours, theirs = PackedFolder(packed), ImageFolder(folder)
    assert (ours.classes, ours.class_to_idx) == (theirs.classes, theirs.class_to_idx)
    assert ours.classes == ["cat", "cat-like", "dog", "nobody"]
    assert list(ours.paths) == list(theirs.paths)
    assert list(ours.paths[1:3]) == [ours.paths[1], ours.paths[2]]
    assert same(ours, theirs)
    assert same(ours, [theirs[-len(theirs) + i] for i in range(len(theirs))])
    assert ours.source(0) == f"{packed}/cat/1.jpg"
    with zipfile.ZipFile(packed) as archive:
        assert [ours.fetch(i) for i in range(len(ours))] == [archive.read(name) for name in ours.paths]


def test_it_takes_the_options_of_a_folder(folder, packed):
    options = {"mode": "L", "layout": "CHW", "dtype": np.float32, "decoder": "pillow", "extensions": (".png",)}
    ours, theirs = (make(where, **options) for make, where in ((PackedFolder, packed), (ImageFolder, folder)))
    assert same(ours, theirs)
    assert ours[0][0].shape == (1, 20, 30)
    assert ours.about() == theirs.about()


@pytest.mark.parametrize("method", [*METHODS, "thread"])
def test_workers_read_what_the_folder_has(folder, packed, method):
    backend = "thread" if method == "thread" else mpiter.Process(method)

    def read(dataset):
        with mpiter.batches(dataset, 2, n_processes=2, seed=3, backend=backend) as stream:
            return [(pictures.copy(), labels.copy()) for pictures, labels in stream]

    crop = RandomResizedCrop(8)
    ours, theirs = read(PackedFolder(packed, crop)), read(ImageFolder(folder, crop))
    assert len(ours) == 3
    assert all(
        np.array_equal(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_a_forked_copy_and_a_pickle_read_beside_the_original(packed):
    dataset = PackedFolder(packed)
    dataset.fetch(0)  # it is open
    wanted = [dataset.fetch(i) for i in range(len(dataset))]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        fine = all([dataset.fetch(i) for i in range(len(dataset))] == wanted for _ in range(50))
        os.write(write, b"1" if fine else b"0")
        os._exit(0)
    assert all([dataset.fetch(i) for i in range(len(dataset))] == wanted for _ in range(50))
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    os.close(read)
    os.close(write)
    again = pickle.loads(pickle.dumps(dataset))
    assert [again.fetch(i) for i in range(len(again))] == wanted


@pytest.mark.slow
def test_a_million_pictures_are_some_arrays(tmp_path):
    from mpiter.images.zipped import Member, end

    count = 100_000
    path = tmp_path / "many.zip"
    members = [Member(b"%03d/%06d.jpg" % (number % 100, number), 0.0, 0) for number in range(count)]
    size = len(members[0].local())
    index = b"".join(member.central(number * size) for number, member in enumerate(members))
    path.write_bytes(b"".join(member.local() for member in members) + index + end(index, count, count * size))
    dataset = PackedFolder(path)
    assert (len(dataset), len(dataset.classes)) == (count, 100)
    assert dataset.paths[1] == "000/000100.jpg"
    assert dataset.fetch(5) == b""
    assert len(pickle.dumps(dataset)) < 150 * count  # the names themselves take 63, with their figures
    buffers = []
    assert len(pickle.dumps(dataset, protocol=5, buffer_callback=buffers.append)) < 10_000


# -- archives of others ----------------------------------------------------------------------------------------------


def zipped_by_python(folder, path, *, before=b"", after=b"", **options):
    path.write_bytes(before)
    with zipfile.ZipFile(path, "a" if before else "w", **options) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
        archive.comment = after
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": zipfile.ZIP_DEFLATED},
        {"before": b"#!/bin/sh\n", "after": b"a comment"},
        {"after": b"PK\5\6 isn't the end " * 3},
    ],
    ids=str,
)
def test_archives_that_others_made_are_read_too(folder, tmp_path, options):
    path = zipped_by_python(folder, tmp_path / "theirs.zip", **options)
    assert same(PackedFolder(path), ImageFolder(folder))


def test_an_archive_that_was_written_to_a_pipe_is_read(folder, tmp_path):
    class Pipe:
        """Can't go back, so that sizes and checksums stand behind the data."""

        def __init__(self, file):
            self.write, self.flush = file.write, file.flush

    with open(tmp_path / "piped.zip", "wb") as file, zipfile.ZipFile(Pipe(file), "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
    dataset = PackedFolder(tmp_path / "piped.zip")
    assert same(dataset, list(ImageFolder(folder)))


def test_sizes_and_places_beyond_the_old_format_are_read(tmp_path, folder, monkeypatch):
    from mpiter.images import pack as packing

    class Far(packing._Packing):
        def __init__(self, *about):
            super().__init__(*about)
            self._at = 5 << 30

    monkeypatch.setattr(packing, "_Packing", Far)
    pack(folder, tmp_path / "far.zip")
    assert same(PackedFolder(tmp_path / "far.zip"), ImageFolder(folder))
    with (
        zipfile.ZipFile(tmp_path / "large.zip", "w") as archive,
        archive.open("a/1.png", "w", force_zip64=True) as member,
    ):
        member.write((folder / "dog/a.png").read_bytes())
    assert PackedFolder(tmp_path / "large.zip").fetch(0) == (folder / "dog/a.png").read_bytes()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_that_is_not_read_is_told_at_once(folder, tmp_path, method):
    path = zipped_by_python(folder, tmp_path / "theirs.zip", compression=method)
    with pytest.raises(
        BadArchive, match=rf"theirs\.zip/cat/1\.jpg is compressed by method {method}, which can't be read"
    ):
        PackedFolder(path)


def test_an_encrypted_member_is_told_at_once(folder, tmp_path):
    path = zipped_by_python(folder, tmp_path / "theirs.zip")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"cat/1.jpg") - 38] |= 1  # a flag of its record in the index
    path.write_bytes(data)
    with pytest.raises(BadArchive, match=r"cat/1\.jpg is encrypted"):
        PackedFolder(path)


def test_what_macos_adds_to_an_archive_is_no_class(folder, tmp_path):
    path = zipped_by_python(folder, tmp_path / "theirs.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/cat/._1.jpg", b"about the file")
    assert same(PackedFolder(path), ImageFolder(folder))


def test_labels_and_endings_are_those_of_a_folder(folder, packed):
    assert PackedFolder(packed).labels.tolist() == ImageFolder(folder).labels.tolist()
    for endings in (".JPG", [".jpg"]):
        found = PackedFolder(packed, extensions=endings)
        assert list(found.paths) == list(ImageFolder(folder, extensions=endings).paths)


# -- what isn't as it was --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data[:-1], "is not a whole ZIP archive: its end is missing. Copy or pack it again"),
        (lambda data: data[: len(data) // 2], "its end is missing"),
        (lambda data: b"", "is no ZIP archive: it doesn't end like one"),
        (lambda data: b"\xff\xd8\xff" + bytes(1000), "is no ZIP archive"),
        (lambda data: data[1000:], "its index is cut short"),
        (lambda data: data.replace(b"PK\1\2", b"PK\1\3"), "its index is damaged"),
    ],
)
def test_a_torn_archive_is_told_when_it_is_opened(mine, spoil, says):
    mine.write_bytes(spoil(mine.read_bytes()))
    with pytest.raises(BadArchive, match=says.replace(".", r"\.")):
        PackedFolder(mine)


def test_a_file_that_is_not_there_keeps_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.zip"):
        PackedFolder(tmp_path / "gone.zip")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_told_and_waited_for_by_nobody(tmp_path, make):
    path = tmp_path / "pets.zip"
    make(path)
    with pytest.raises(BadArchive, match=r"pets\.zip is no ZIP archive: it is a folder, a pipe or a device"):
        PackedFolder(path)


def test_an_archive_without_pictures_is_told(tmp_path):
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as archive:
        archive.writestr("top.png", b"")
        archive.writestr("a/notes.txt", b"")
    with pytest.raises(OptionError, match="has no pictures in folders of its own"):
        PackedFolder(tmp_path / "texts.zip")


@pytest.mark.parametrize(
    ("offset", "says"),
    [(400, "its checksum differs"), (0, "its record isn't where the index says")],
    ids=["data", "record"],
)
def test_a_damaged_picture_is_told_with_its_name_and_the_others_are_read(mine, offset, says):
    dataset = PackedFolder(mine)
    at, stamp = int(dataset._archive.index.offsets[dataset._members[1]]), os.stat(mine)
    with open(mine, "r+b") as file:
        file.seek(at + offset)
        file.write(b"damage")
    os.utime(mine, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as a disk does it
    with pytest.raises(BrokenImage, match=rf"mine\.zip/cat/2\.JPEG cannot be decoded: {says}; copy or pack .* again"):
        dataset[1]
    assert same([dataset[0], dataset[2]], [PackedFolder(mine)[0], PackedFolder(mine)[2]])


@pytest.mark.parametrize("figure", [1 << 40, (1 << 63) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_size_or_a_place_that_cannot_be_is_damage_too(tmp_path, which, figure):
    data = image_files.kinds()["jpeg"]
    figures = [len(data), len(data), 0]
    figures[which] = figure
    name, extra = b"a/1.jpg", struct.pack("<HH3Q", 1, 24, *figures)
    record = [20, 0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name), 0]
    local = struct.pack("<4s5H3L2H", b"PK\3\4", *record) + name + data
    record[6:] = 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra), 0, 0, 0, 0, 0xFFFFFFFF
    index = struct.pack("<4s6H3L5H2L", b"PK\1\2", 45, *record) + name + extra
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(index), len(local), 0)
    (tmp_path / "out.zip").write_bytes(local + index + end)
    with pytest.raises(BrokenImage, match=r"beyond the end|cut short"):
        PackedFolder(tmp_path / "out.zip")[0]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_of_more_bytes_than_any_picture_has_is_not_read(tmp_path, monkeypatch, compression):
    with zipfile.ZipFile(tmp_path / "out.zip", "w", compression) as archive:
        archive.writestr("cat/disk.jpg", bytes(5001))
    monkeypatch.setattr(broken, "MOST_BYTES", 5000)
    with pytest.raises(BrokenImage, match=r"out\.zip/cat/disk\.jpg cannot be decoded: it has 5,001 bytes, and no more"):
        PackedFolder(tmp_path / "out.zip")[0]


def test_checksums_are_compared_unless_they_are_not_wanted(mine):
    dataset = PackedFolder(mine, verify=False)
    at = int(dataset._archive.index.offsets[dataset._members[1]])
    with open(mine, "r+b") as file:
        file.seek(at + 400)
        file.write(b"damage")
    assert b"damage" in dataset.fetch(1)


@given(data=st.data())
@settings(max_examples=200)
def test_bytes_that_differ_are_never_handed_out(packed, tmp_path_factory, data):
    """Some of the archive's bytes are changed, after it was opened or before: an error, or the same pictures."""
    path = tmp_path_factory.mktemp("spoiled") / "mine.zip"
    whole = packed.read_bytes()
    path.write_bytes(whole)
    opened = PackedFolder(path)
    wanted = contents(opened)
    at = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.binary(min_size=1, max_size=16))
    path.write_bytes((whole[:at] + damage + whole[at + len(damage) :])[: len(whole)])
    for dataset in (lambda: opened, lambda: pickle.loads(pickle.dumps(opened)), lambda: PackedFolder(path)):
        with contextlib.suppress(BadArchive, BrokenImage):
            assert contents(dataset()) == wanted


def contents(dataset):
    return [(dataset.paths[i], dataset.fetch(i)) for i in range(len(dataset))]


def test_an_archive_that_was_replaced_is_told_to_who_opens_it_then(mine, folder):
    dataset = PackedFolder(mine, Flip())
    pickled = pickle.dumps(dataset)
    mine.unlink()
    pack(folder, mine, only=("*.png",))
    assert len(dataset.fetch(0)) > 0  # this process has the one that it opened
    with pytest.raises(BadArchive, match=r"mine\.zip has changed since its index was read; make the dataset anew"):
        pickle.loads(pickled)[0]


def test_an_archive_that_was_copied_is_the_same(mine):
    pickled = pickle.dumps(PackedFolder(mine))
    os.utime(mine, (1, 1))
    assert len(pickle.loads(pickled).fetch(0)) > 0


def test_an_archive_that_was_written_over_in_place_is_told(mine):
    dataset = PackedFolder(mine)
    mine.write_bytes(b"short")
    with pytest.raises(BadArchive, match="has changed since its index was read"):
        dataset[0]


def test_an_archive_is_closed_with_its_dataset(packed):
    archive = Archive(str(packed))
    fd = archive._opened().fd
    Index.read(fd, str(packed))
    del archive
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.chainer
def test_chainers_zipped_image_dataset_reads_it(folder, packed):
    chainer = pytest.importorskip("chainer", reason="Chainer is not installed")
    pack(folder, packed.with_name("pictures.zip"), only=("*.jpg", "*.png", "*.JPEG"), force=True)
    theirs = chainer.datasets.ZippedImageDataset(str(packed.with_name("pictures.zip")), dtype=np.float32)
    ours = PackedFolder(packed.with_name("pictures.zip"), layout="CHW", dtype=np.float32, decoder="pillow")
    by_name = {name: theirs.get_example(name) for name in ours.paths}
    assert len(theirs) == len(ours) + 1  # top.png lies in no class
    assert all(np.array_equal(by_name[name], picture) for name, (picture, _) in zip(ours.paths, ours, strict=True))
