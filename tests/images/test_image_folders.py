"""Folders and lists of pictures are datasets for every loader."""

from __future__ import annotations

import os
import shutil

import image_files
import numpy as np
import pytest
from PIL import Image

import mpiter
from mpiter.images import ImageFolder, ImageList, Normalize, Resize

pytestmark = pytest.mark.filterwarnings("ignore:folders in .* without pictures")

PICTURES = {
    "cat": ["2.jpg", "10.jpg", "deep/1.png"],
    "ant": ["1.JPG", "notes.txt", "é ü.jpg"],
    "zebra": [],
}
IN_ORDER = ["ant/1.JPG", "ant/é ü.jpg", "cat/10.jpg", "cat/2.jpg", "cat/deep/1.png"]


@pytest.fixture
def root(tmp_path):
    for name, files in PICTURES.items():
        (tmp_path / name).mkdir()
        for number, file in enumerate(files):
            path = tmp_path / name / file
            path.parent.mkdir(exist_ok=True)
            if path.suffix == ".txt":
                path.write_text("no picture")
            else:
                Image.fromarray(image_files.smooth(20, 30, number)).save(path)
    (tmp_path / "readme.jpg").write_text("in no folder")
    return tmp_path


def test_each_folder_is_a_class_and_the_order_is_that_of_names(root):
    folder = ImageFolder(root)
    assert folder.classes == ["ant", "cat", "zebra"]
    assert folder.class_to_idx == {"ant": 0, "cat": 1, "zebra": 2}
    assert list(folder.paths) == IN_ORDER
    assert [label for _, label in folder] == [0, 0, 1, 1, 1]
    assert folder.source(2) == os.path.join(root, "cat/10.jpg")
    assert len(folder) == 5


def test_indices_are_those_of_a_list(root):
    folder = ImageFolder(root)
    assert folder[-1][1] == folder[np.int64(4)][1] == 1
    for index in (5, -6):
        with pytest.raises(
            IndexError, match=f"no picture {index} among the 5 of <ImageFolder: "
        ):
            folder[index]
    with pytest.raises(TypeError):
        folder["cat"]


def test_it_says_what_it_is(root):
    assert repr(ImageFolder(root)) == f"<ImageFolder: 5 pictures of 3 classes; {root}>"
    assert (
        repr(ImageList(["a.jpg"], root="/far"))
        == "<ImageList: 1 picture, no labels; /far>"
    )


@pytest.mark.filterwarnings("default")
def test_a_class_without_pictures_is_warned_of(root):
    with pytest.warns(
        RuntimeWarning,
        match=r"folders in .* without pictures \(1\) count as classes too: 'zebra'",
    ):
        ImageFolder(root)


def test_a_folder_without_pictures_is_refused(root):
    with pytest.raises(mpiter.OptionError, match="has no subfolder with pictures"):
        ImageFolder(root / "ant")


def test_links_are_followed_but_not_round_in_circles(root):
    os.symlink("..", root / "ant" / "up")
    os.symlink(".", root / "ant" / "here")
    os.symlink(".", root / "ant" / "here too")
    os.symlink("itself.jpg", root / "zebra" / "itself.jpg")
    os.symlink("../cat/deep", root / "zebra" / "cats")
    assert list(ImageFolder(root).paths) == [
        *IN_ORDER,
        "zebra/itself.jpg",
        "zebra/cats/1.png",
    ]


def test_a_folder_that_may_not_be_read_is_an_error(root, monkeypatch):
    def refuse(path):
        if os.fspath(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="deep"):
        ImageFolder(root)


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("RGBA", 4)])
def test_pictures_come_as_they_are_asked_for(root, mode, channels):
    for layout, shape in (("HWC", (20, 30, channels)), ("CHW", (channels, 20, 30))):
        for dtype in (None, "float32"):
            picture, _ = ImageFolder(root, mode=mode, dtype=dtype, layout=layout)[0]
            assert (picture.shape, picture.dtype) == (shape, dtype or np.uint8)
            assert picture.flags.c_contiguous
            assert picture.max() > 200


def test_what_is_normalized_has_either_layout(root):
    for layout, shape in (("HWC", (20, 30, 3)), ("CHW", (3, 20, 30))):
        picture, _ = ImageFolder(root, Normalize(), layout=layout)[0]
        assert (picture.shape, picture.flags.c_contiguous) == (shape, True)


def test_the_dataset_protocol_sees_inside(root):
    folder = ImageFolder(root, Resize(10))
    sample = folder.read(2)
    assert sample[0].shape == (20, 30, 3)
    transformed = folder.transform(sample)
    assert transformed[1] == folder[2][1]
    assert (transformed[0] == folder[2][0]).all()


class Inverted(ImageFolder):
    def read(self, index):
        picture, label = super().read(index)
        return 255 - picture, label


def test_a_read_of_ones_own_is_what_samples_are_made_of(root):
    for folder in (Inverted(root), Inverted(root, Resize(10))):
        whole = folder.read(2)
        assert (whole[0] == 255 - ImageFolder(root).read(2)[0]).all()
        assert (folder[2][0] == folder.transform(whole)[0]).all()


class Kept(ImageList):
    """A list whose bytes come from elsewhere, in an object of another kind."""

    def __init__(self, file, kind):
        super().__init__(["row 1"])
        self._file = file
        self._kind = kind

    def fetch(self, index):
        return self._kind(self._file.read_bytes())


def test_bytes_that_lie_elsewhere_may_be_a_buffer(root):
    wanted = Kept(root / "cat/2.jpg", bytes)[0]
    for kind in (bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)):
        assert (Kept(root / "cat/2.jpg", kind)[0] == wanted).all()
    with pytest.raises(TypeError, match="not 'NoneType'"):
        Kept(root / "cat/2.jpg", lambda data: None)[0]


def test_a_list_has_labels_or_none(root):
    labelled = ImageList([("cat/2.jpg", 3), (root / "cat" / "10.jpg", -1)], root=root)
    assert [label for _, label in labelled] == [3, -1]
    plain = ImageList(["cat/2.jpg", root / "cat" / "10.jpg"], root=root)
    assert (plain[0] == labelled[0][0]).all()
    assert (plain[1] == labelled[1][0]).all()
    assert ImageList([("cat/2.jpg", 0.5)], root=root)[0][1] == 0.5
    with pytest.raises(mpiter.OptionError, match="the list has paths and pairs"):
        ImageList(["cat/2.jpg", ("cat/10.jpg", 1)], root=root)
    with pytest.raises(
        mpiter.OptionError,
        match=r"a dict's labels would be lost, .*; pass its items\(\)",
    ):
        ImageList({"cat/2.jpg": 3}, root=root)
    with pytest.raises(
        TypeError, match="ImageList has no option 'nope'; it has decoder, mode"
    ):
        ImageList([], nope=1)
    with pytest.raises(TypeError, match="not int"):
        ImageList([(3, "cat/2.jpg")], root=root)


def test_a_text_file_has_a_pair_or_a_path_a_line(root):
    (root / "pairs.txt").write_text(
        "cat/2.jpg 3\n\nant/é ü.jpg\t-1\n", encoding="utf-8"
    )
    pairs = ImageList(root / "pairs.txt", root=root)
    assert [label for _, label in pairs] == [3, -1]
    assert list(pairs.paths) == ["cat/2.jpg", "ant/é ü.jpg"]
    (root / "paths.txt").write_text("cat/2.jpg\nant/é ü.jpg\n", encoding="utf-8")
    paths = ImageList(str(root / "paths.txt"), root=root)
    assert list(paths.paths) == list(pairs.paths)
    assert paths[0].shape == (20, 30, 3)
    (root / "both.txt").write_text("cat/2.jpg 3\ncat/10.jpg\n")
    with pytest.raises(
        mpiter.OptionError,
        match=r"line 'cat/10\.jpg' of .*both\.txt has no whole number",
    ):
        ImageList(root / "both.txt", root=root)
    with pytest.raises(
        mpiter.OptionError, match=r"2\.jpg is no text file of paths; .* pass a list"
    ):
        ImageList(root / "cat" / "2.jpg")


def test_a_path_may_be_a_url_whatever_the_root():
    for root in (".", "/pets"):
        one = ImageList(["s3://bucket/1.jpg"], root=root)
        assert one.source(0) == "s3://bucket/1.jpg"


def test_text_files_of_other_systems_are_read(root):
    shutil.copy(root / "cat" / "2.jpg", os.fsencode(root) + b"/a b \xff.jpg")
    for text in ("\ufeff{} 3\r\n", "{} 3", "\n  {}\t+3  \n\n"):
        (root / "pairs.txt").write_bytes(text.encode().replace(b"{}", b"a b \xff.jpg"))
        ((picture, label),) = ImageList(root / "pairs.txt", root=root)
        assert (picture.shape, label) == ((20, 30, 3), 3)


@pytest.mark.chainer
def test_samples_are_those_of_chainers_labeled_image_dataset(root):
    chainer = pytest.importorskip("chainer", reason="Chainer is not installed")
    (root / "pairs.txt").write_text("cat/2.jpg 3\ncat/deep/1.png 1\n")
    theirs = chainer.datasets.LabeledImageDataset(str(root / "pairs.txt"), str(root))
    ours = ImageList(root / "pairs.txt", root=root, dtype="float32", layout="CHW")
    for (picture, label), (their_picture, their_label) in zip(
        ours, theirs, strict=True
    ):
        assert (picture.dtype, picture.shape) == (
            their_picture.dtype,
            their_picture.shape,
        )
        assert np.abs(picture - their_picture).max() <= 3
        assert label == their_label
