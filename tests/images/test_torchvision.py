"""torchvision's pipelines give the same samples for any number of workers.

They are taken as they are, from both versions of its transforms.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from loader_kinds import NO_TORCH
from picture_sets import LENGTH, are_same, drawn, plain
from PIL import Image

import mpiter
from mpiter.images import Compose, Flip, Resize

torch = pytest.importorskip("torch", reason=NO_TORCH)
if not importlib.util.find_spec("torchvision"):
    pytest.skip(
        "torchvision is not installed: run `python3 tests --all`",
        allow_module_level=True,
    )

# isort: off
# This module must be imported before torchvision.
from torchvision_here import Folder  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402
# isort: on

pytestmark = pytest.mark.torch

MEAN = STD = (0.5, 0.5, 0.5)
DRAWS = (
    v1.RandomResizedCrop(16),
    v1.RandomHorizontalFlip(),
    v1.ColorJitter(0.4, 0.4, 0.4),
)
PIPELINES: dict[str, Any] = {
    "v1": v1.Compose(
        [*DRAWS, v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(p=0.5)]
    ),
    "v1, one by itself": v1.RandomCrop(20),
    "v2": v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(16, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.GaussianBlur(3)]),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
            v2.ToPureTensor(),
        ]
    ),
    "v2, tensors of its own": v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(16), v2.RandomPhotometricDistort()]
    ),
    "v2, images of Pillow's": v2.Compose([v2.RandomResizedCrop(16), v2.RandAugment()]),
    "among ours": Compose(
        [Resize(30), v1.RandomCrop(16), Flip(), v2.RandomRotation(20)]
    ),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return drawn(tmp_path_factory.mktemp("pictures"))


def epochs(dataset: Any, **options: Any) -> Any:
    with mpiter.batches(dataset, 5, seed=3, epochs=2, **options) as stream:
        return plain(stream)


@pytest.mark.parametrize("name", ["v1", "v2", "among ours"])
def test_pixels_are_the_same_for_any_number_of_workers(root, name):
    dataset = Folder(root, PIPELINES[name])
    alone = epochs(dataset, n_processes=0)
    half = len(alone) // 2
    seen = [
        {x.tobytes() for pictures, _ in part for x in pictures}
        for part in (alone[:half], alone[half:])
    ]
    assert not seen[0] & seen[1], "each epoch draws anew"
    assert len(seen[0]) == LENGTH
    assert are_same(epochs(dataset, n_processes=2), alone)


@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "among ours"])
def test_a_sample_is_what_the_pipeline_makes_of_pillows_image(root, name):
    dataset = Folder(root, PIPELINES[name])
    # Every decoder gives the same pixels for a PNG.
    with Image.open(dataset.source(0)) as image:
        for seed in range(3):
            torch.manual_seed(seed)
            wanted = PIPELINES[name](image.convert("RGB"))
            torch.manual_seed(seed)
            found, _ = dataset[0]
            assert type(found) is (
                np.ndarray if isinstance(wanted, Image.Image) else type(wanted)
            )
            assert np.array_equal(np.asarray(found), np.asarray(wanted))
