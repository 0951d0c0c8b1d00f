"""An ``ImageFolder`` over tar shards: its pictures, classes, transforms and order."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import encoded, smooth
from PIL import Image

import mpiter
from mpiter.errors import DamagedFile
from mpiter.files import Tar
from mpiter.images import (
    BrokenImage,
    Compose,
    Flip,
    ImageFolder,
    Normalize,
    RandomResizedCrop,
    Resize,
)

PICTURES = 30


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def write(path: Path, items: Iterable[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as shard:
        for name, data in items:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
    return path


def picture(number: int) -> bytes:
    return encoded(Image.fromarray(smooth(40, 50, number)), "JPEG")


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Shards with a ``.cls`` for each picture."""
    for shard in range(2):
        items = list[tuple[str, bytes]]()
        for number in range(shard * PICTURES, (shard + 1) * PICTURES):
            items.append((f"{number:04}.cls", b"%d" % (number % 7)))
            items.append((f"{number:04}.JPG", picture(number)))
            items.append((f"{number:04}.mask.png", b"no picture"))
        write(tmp_path / f"{shard}.tar", items)
    return tmp_path


def test_classes_are_those_in_members_of_their_own(numbered: Path) -> None:
    dataset = ImageFolder(Tar(numbered))
    assert len(dataset) == 2 * PICTURES
    assert dataset.classes == []
    assert [dataset.labels[at] for at in range(9)] == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert dataset.paths[31] == "0031.jpg"
    assert dataset.paths[:2] == ["0000.jpg", "0001.jpg"]
    assert repr(dataset).startswith("<ImageFolder: 60 pictures; Tar(2 shards: 60")
    for number in (0, 29, 30, 59):
        pixels, label = dataset[number]
        assert label == number % 7
        wanted = np.asarray(Image.open(io.BytesIO(picture(number))))
        assert np.array_equal(pixels, wanted)


def test_labels_serve_as_an_array(numbered: Path) -> None:
    labels = ImageFolder(Tar(numbered)).labels
    wanted = np.arange(2 * PICTURES) % 7
    assert labels[:9].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert np.array_equal(labels, wanted)
    assert np.array_equal(labels == 1, wanted == 1)
    assert np.array_equal(labels[labels == 3], wanted[wanted == 3])
    assert np.array_equal(np.bincount(labels), np.bincount(wanted))
    assert labels[-1] == labels[np.int64(59)] == 59 % 7
    with pytest.raises(IndexError):
        labels[60]


@pytest.mark.parametrize("begin", ["", "./"])
def test_classes_are_the_folders_where_members_have_none(
    begin: str, tmp_path: Path
) -> None:
    folder = tmp_path / "pets"
    for number, name in enumerate(["dog/1.jpg", "cat/x/2.jpg", "dog/3.jpg"]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture(number))
    items = [
        (f"{begin}{path.relative_to(folder)}", path.read_bytes())
        for path in sorted(folder.rglob("*.jpg"), reverse=True)
    ]
    dataset = ImageFolder(Tar(write(tmp_path / "pets.tar", items)))
    unpacked = ImageFolder(folder)
    assert dataset.classes == unpacked.classes == ["cat", "dog"]
    assert dataset.class_to_idx == unpacked.class_to_idx
    assert dataset.labels.tolist() == [1, 1, 0]
    back = [dataset.paths[at].removeprefix("./") for at in range(3)]
    for number, path in enumerate(unpacked.paths):
        at = back.index(path)
        assert np.array_equal(dataset[at][0], unpacked[number][0])
        assert dataset[at][1] == unpacked[number][1]


def test_transforms_and_the_form_are_those_of_any_folder(numbered: Path) -> None:
    augment = Compose([RandomResizedCrop(16), Flip(), Normalize()])
    dataset = ImageFolder(Tar(numbered, window=30_000), augment, layout="CHW")
    wanted = list[Any]()
    with mpiter.batches(dataset, 8, n_processes=0, seed=1, epochs=1) as stream:
        wanted += [(pictures.copy(), labels.copy()) for pictures, labels in stream]
    assert wanted[0][0].shape == (8, 3, 16, 16)
    assert wanted[0][0].dtype == np.float32
    with mpiter.batches(dataset, 8, n_processes=2, seed=1, epochs=1) as stream:
        for (pictures, labels), (its, their) in zip(stream, wanted, strict=True):
            assert np.array_equal(pictures, its)
            assert np.array_equal(labels, their)


def test_the_order_is_that_of_the_shards(numbered: Path) -> None:
    shards = Tar(numbered, window=30_000)
    dataset = ImageFolder(shards, RandomResizedCrop(8))

    def labels_of(stream: Any) -> list[int]:
        return [int(label) for _, labels in stream for label in labels]

    order = np.asarray(shards.mpiter_order(5, None).take(0, 2 * PICTURES))
    with mpiter.batches(dataset, 8, n_processes=0, seed=5, epochs=1) as stream:
        had = labels_of([next(stream), next(stream)])
        state = stream.state_dict()
    with mpiter.batches(dataset, 8, n_processes=1, seed=5, epochs=1) as stream:
        stream.load_state_dict(state)
        assert had + labels_of(stream) == (order % 7).tolist()
    again = pickle.loads(pickle.dumps(dataset))
    with mpiter.batches(again, 60, n_processes=0, seed=5, epochs=1) as stream:
        assert labels_of(stream) == (order % 7).tolist()


def test_pictures_and_classes_that_are_broken_are_named(tmp_path: Path) -> None:
    items = [
        ("a.jpg", b"no picture"),
        ("a.cls", b"1"),
        ("b.jpg", picture(0)),
        ("b.cls", b"one"),
        ("c.jpg", picture(1)),
        ("d.cls", b"1"),
        ("e.jpg", picture(2)),
        ("e.cls", b"1"),
    ]
    dataset = ImageFolder(Tar(write(tmp_path / "0.tar", items)))
    with pytest.raises(BrokenImage, match=r"0\.tar: member 'a\.jpg' at byte 512 canno"):
        dataset[0]
    with pytest.raises(
        DamagedFile, match=r"0\.tar: member 'b\.cls' at byte .*no class"
    ):
        dataset[1]
    with pytest.raises(
        DamagedFile, match=r"sample 2 \('c' of .*0\.tar\) has no class \(\.cls\)"
    ):
        dataset[2]
    with pytest.raises(
        DamagedFile, match=r"sample 3 \('d' of .*0\.tar\) has no picture"
    ):
        dataset[3]
    # Of all together those stand out that have none.
    assert [*dataset.labels] == dataset.labels[:].tolist() == [1, -1, -1, 1, 1]
    assert [*dataset.paths] == ["a.jpg", "b.jpg", "c.jpg", "", "e.jpg"]
    assert dataset.paths[2:4] == ["c.jpg", ""]
    with pytest.raises(DamagedFile, match="has no picture"):
        dataset.paths[3]
    with mpiter.batches(
        dataset, 4, on_error="skip", n_processes=0, shuffle=False, epochs=1
    ) as stream:
        [(pictures, labels)] = stream
    assert pictures.shape[0] == 1
    assert labels.tolist() == [1]


def test_of_several_pictures_the_first_of_the_shortest_field_is_taken(
    tmp_path: Path,
) -> None:
    names = ["a/1.x.jpg", "a/1.png", "a/1.jpg", "a/2.jpg", "a/2.png", "a/3.mask.jpg"]
    items = [(name, picture(number)) for number, name in enumerate(names)]
    dataset = ImageFolder(Tar(write(tmp_path / "0.tar", items)))
    assert [*dataset.paths] == ["a/1.png", "a/2.jpg", "a/3.mask.jpg"]
    assert dataset.fetch(2) == picture(5)


def test_a_shard_that_is_cut_says_so(numbered: Path) -> None:
    path = numbered / "1.tar"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    dataset = ImageFolder(Tar(numbered))
    assert PICTURES < len(dataset) < 2 * PICTURES
    assert dataset[len(dataset) - 2][1] == (len(dataset) - 2) % 7
    with pytest.raises(DamagedFile, match=r"1\.tar.* the last one before"):
        dataset[len(dataset) - 1]


def test_what_cannot_be_a_folder_of_pictures_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", [("a/b.txt", b"1")])
    with pytest.raises(mpiter.OptionError, match="has no pictures"):
        ImageFolder(Tar(path))
    path = write(tmp_path / "1.tar", [("b.jpg", picture(0))])
    with pytest.raises(
        mpiter.OptionError, match=r"neither a member b\.cls nor a folder"
    ):
        ImageFolder(Tar(path))
    with pytest.raises(mpiter.OptionError, match=r"ImageFolder\(mpiter\.files\.Tar"):
        ImageFolder(path)
    for wrong in ([str(path)], [path], ((1, 2), 3), None):
        with pytest.raises(
            mpiter.OptionError,
            match=r"a folder, or mpiter\.files\.Tar\(…\) .*, and not \w+",
        ):
            ImageFolder(wrong)  # type: ignore[arg-type]


class Backwards(mpiter.Order):
    """An order that a dataset brings."""

    def __len__(self) -> int:
        return 2 * PICTURES

    def take(self, start: int, stop: int) -> list[int]:
        return [2 * PICTURES - 1 - at for at in range(start, stop)]

    def later(self, epochs: int) -> Backwards:
        return self


class Ordered(ImageFolder):
    def mpiter_order(self, seed: int, shuffle: bool | None) -> mpiter.Order:
        return Backwards()


def test_a_derived_class_keeps_its_order(numbered: Path) -> None:
    dataset = Ordered(Tar(numbered), Resize(8))
    with mpiter.batches(dataset, 60, n_processes=0, epochs=1) as stream:
        [(_, labels)] = stream
    assert labels.tolist() == [number % 7 for number in reversed(range(60))]
