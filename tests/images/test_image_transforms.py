"""Any transforms give the same pixels under any number of workers."""

from __future__ import annotations

import importlib.util
import random

import image_files
import numpy as np
import pytest
from picture_sets import are_same
from picture_sets import plain as plain_batches
from PIL import Image

import mpiter
from mpiter.images import (
    Compose,
    Crop,
    Flip,
    ImageList,
    Normalize,
    RandomResizedCrop,
    Resize,
)
from mpiter.images.transforms import plain

PICTURE = image_files.smooth()
NEEDS_ALBUMENTATIONS = pytest.mark.skipif(
    not importlib.util.find_spec("albumentations"),
    reason="albumentations is not installed",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of twelve files, some of each kind."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(12):
        image = Image.fromarray(
            image_files.smooth(60 + 5 * number, 100 - 3 * number, number)
        )
        image.save(folder / f"{number:02}.{'png' if number % 4 == 0 else 'jpg'}")
    return folder


def files(root, transform, **options):
    names = sorted(path.name for path in root.iterdir())
    return ImageList(
        [(name, number) for number, name in enumerate(names)],
        transform,
        root=root,
        **options,
    )


def epochs(dataset, **options):
    """Read two epochs."""
    with mpiter.batches(dataset, 5, seed=3, epochs=2, **options) as stream:
        return plain_batches(stream)


def has_drawn_anew(found):
    """Return of each picture whether it has other pixels in the second epoch."""

    def by_label(batches):
        pictures = {}
        for pixels, labels in batches:
            pictures.update(zip(labels, pixels, strict=True))
        return pictures

    first = by_label(found[:3])
    second = by_label(found[3:])
    return [(first[label] != second[label]).any() for label in first]


class Noise:
    """A transform of the user's, which draws from several generators."""

    def __call__(self, image):
        cut = Crop(16, "random")(image)
        return (
            cut // 2 + np.uint8(random.randrange(60)) + np.uint8(np.random.randint(60))
        )


PIPELINES = {
    "ours": Compose([RandomResizedCrop(24), Flip(), Normalize()]),
    "crop": Compose([Resize(40), Crop((30, 20), "random", padding=4), Flip()]),
    "a function": Noise(),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_pixels_are_the_same_under_any_number_of_workers(root, name):
    dataset = files(root, PIPELINES[name])
    alone = epochs(dataset, n_processes=0)
    assert any(has_drawn_anew(alone))
    assert are_same(alone, epochs(dataset, n_processes=2))
    if name != "a function":
        assert are_same(alone, epochs(dataset, n_processes=2, backend="thread"))


@NEEDS_ALBUMENTATIONS
@pytest.mark.clients
def test_albumentations_pipelines_are_taken_as_they_are_and_seeded_per_sample(
    root, monkeypatch
):
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    import albumentations as A

    pipeline = A.Compose(
        [A.RandomResizedCrop((24, 24)), A.HorizontalFlip(p=0.5), A.GaussNoise(p=1.0)]
    )
    for transform in (pipeline, Compose([Resize(50), pipeline])):
        dataset = files(root, transform)
        alone = epochs(dataset, n_processes=0)
        assert alone[0][0].shape == (5, 24, 24, 3)
        assert are_same(alone, epochs(dataset, n_processes=1))
        assert all(has_drawn_anew(alone)), "each epoch draws anew"


def test_arrays_and_images_of_pillows_become_the_same():
    for transform in (
        Resize(24),
        Resize((30, 50)),
        Resize(24, "lanczos"),
        Crop(30),
        Crop(100, padding=10),
    ):
        found = plain(transform(PICTURE))
        assert (found == plain(transform(Image.fromarray(PICTURE)))).all()
        assert found.dtype == np.uint8


def test_resizing_is_pillows():
    wanted = np.asarray(
        Image.fromarray(PICTURE).resize((60, 45), Image.Resampling.BICUBIC)
    )
    assert (Resize((45, 60), "bicubic")(PICTURE) == wanted).all()
    grey = PICTURE[:, :, :1]
    wanted = np.asarray(
        Image.fromarray(grey[:, :, 0]).resize((60, 45), Image.Resampling.BILINEAR)
    )
    assert (Resize((45, 60))(grey)[:, :, 0] == wanted).all()
    assert Resize(31)(PICTURE).shape == (31, 31 * 124 // 93, 3), (
        "the shorter side has it"
    )
    assert Resize(31)(PICTURE.transpose(1, 0, 2)).shape == (31 * 124 // 93, 31, 3)


def test_pixels_of_other_types_are_resized_as_pillow_can_or_refused():
    for dtype in (np.int32, np.float32, np.uint16, bool):
        found = Resize((8, 10))(np.ones((40, 50, 1), dtype))
        assert found.dtype == dtype
        assert np.allclose(found, 1)
    for dtype, channels in [(np.int64, 1), (np.int32, 3), (np.float16, 1)]:
        with pytest.raises(TypeError, match="Cannot handle this data type"):
            Resize((8, 10))(np.ones((40, 50, channels), dtype))


def test_random_resized_crops_lie_within_the_picture_and_within_what_was_asked_for():
    crop = RandomResizedCrop(8, scale=(0.2, 0.6), ratio=(0.5, 2.0))
    shares = []
    ratios = []
    for _ in range(300):
        top, left, height, width = crop.part(300, 400)
        assert 0 <= top <= 300 - height
        assert 0 <= left <= 400 - width
        shares.append(height * width / 120_000)
        ratios.append(width / height)
    assert 0.19 < min(shares) < 0.25
    assert 0.5 < max(shares) < 0.61
    assert 0.49 < min(ratios) < 0.6
    assert 1.7 < max(ratios) < 2.02


def test_where_no_crop_fits_it_is_the_middle():
    _, left, height, width = RandomResizedCrop(8, scale=(1.0, 1.0)).part(10, 1000)
    assert (height, width) == (10, 13)
    assert abs(left - (1000 - width) / 2) < 1


def test_crops_are_in_the_middle_unless_at_random():
    assert (Crop(31)(PICTURE) == PICTURE[31:62, 46:77]).all()
    assert len({Crop(31, "random")(PICTURE).tobytes() for _ in range(20)}) > 10
    with pytest.raises(ValueError, match="it is too small; put Resize before"):
        Crop(100)(PICTURE)


def test_flips_happen_as_often_as_told():
    assert (Flip(p=1)(PICTURE) == PICTURE[:, ::-1]).all()
    assert Flip(p=0)(PICTURE) is PICTURE
    flips = sum((Flip()(PICTURE) != PICTURE).any() for _ in range(200))
    assert 60 < flips < 140


def test_normalizing_is_what_it_says():
    mean = np.array([0.485, 0.456, 0.406])
    std = np.array([0.229, 0.224, 0.225])
    wanted = (PICTURE / 255 - mean) / std
    found = Normalize()(PICTURE)
    assert (found.dtype, found.shape) == (np.float32, PICTURE.shape)
    assert np.abs(found - wanted).max() < 1e-5
    with pytest.raises(
        TypeError, match="Normalize takes uint8 of 3 channels, not float32 of 3"
    ):
        Normalize()(found)


def test_what_makes_no_sense_is_refused_at_construction():
    for make in (
        lambda: Resize(0),
        lambda: Resize((8, 8, 3)),
        lambda: ImageList([], RandomResizedCrop),
        lambda: ImageList([], [Flip()]),
        lambda: Crop(8, "corner"),
        lambda: Crop(8, padding=-1),
        lambda: Resize(8, "cubic"),
        lambda: RandomResizedCrop(8, scale=(1, 0.5)),
        lambda: RandomResizedCrop(8, ratio=(0, 0.5)),
        lambda: Normalize(std=(1, 1, 0)),
        lambda: RandomResizedCrop(8, scale=0.5),
        lambda: RandomResizedCrop(8, scale=("a", "b")),
        lambda: RandomResizedCrop(8, scale=(0.1, 0.5, 0.9)),
        lambda: RandomResizedCrop(8, scale=(0, 0)),
        lambda: RandomResizedCrop(8, scale=(128, 256)),
        lambda: RandomResizedCrop(8, ratio=None),
        lambda: Normalize((0.5,) * 3, (0.5,)),
        lambda: Flip(2),
        lambda: Flip(-0.5),
        lambda: Flip("often"),
        lambda: Compose(Resize(8)),
        lambda: Compose(Resize(8), Flip()),
    ):
        with pytest.raises(mpiter.OptionError):
            make()


@pytest.mark.parametrize(
    ("steps", "picture", "told"),
    [
        (
            [Normalize(), Resize(8)],
            PICTURE,
            "Resize, before what makes floats, such as Normalize",
        ),
        (
            [Normalize(), Normalize()],
            PICTURE,
            "put it behind the transforms of pixels, before those that make floats",
        ),
        (
            [Normalize()],
            PICTURE[:, :, :1],
            "3 channels, not uint8 of 1: .* a mean and a std for each channel",
        ),
        ([Resize(8)], PICTURE[:, :, 0], r"channels, not ndarray of shape \(\d+, \d+\)"),
    ],
)
def test_what_a_transform_cannot_take_is_told_with_the_order_to_put_them_in(
    steps, picture, told
):
    with pytest.raises(TypeError, match=told):
        Compose(steps)(picture)
