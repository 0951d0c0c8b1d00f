"""Image folders, packed and staged ones, are read through every loader.

These are ``batches()``, both ``DataLoader`` and torch's own.  Every dataset gives what
a plain loop reads from the folder.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from loader_kinds import NO_TORCH
from picture_sets import BROKEN, FORMS, KINDS, LENGTH, are_same, drawn, plain

import mpiter
from mpiter.images import BrokenImage, ImageFolder

CELLS = [("folder", "uint8"), ("packed and staged", "float32 CHW")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return drawn(tmp_path_factory.mktemp("pictures"))


def alone(dataset: Any, epochs: int = 2, **options: Any) -> Any:
    """Return what a plain loop reads."""
    with mpiter.batches(
        dataset, 4, seed=3, n_processes=0, epochs=epochs, **options
    ) as stream:
        return plain(stream)


def loaded(loader: Any, epochs: int = 2) -> Any:
    with loader:
        return list(itertools.chain.from_iterable(plain(loader) for _ in range(epochs)))


@pytest.mark.parametrize(("kind", "form"), CELLS)
def test_batches_and_the_loader_give_what_the_folder_holds(whole, tmp_path, kind, form):
    wanted = alone(ImageFolder(whole, **FORMS[form]))
    assert wanted[0][0].dtype == (np.uint8 if form == "uint8" else np.float32)
    dataset = KINDS[kind](whole, tmp_path, **FORMS[form])
    with mpiter.batches(dataset, 4, seed=3, n_processes=1, epochs=2) as stream:
        assert are_same(plain(stream), wanted)
    assert are_same(
        loaded(mpiter.DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=1)),
        wanted,
    )


def test_broken_pictures_are_left_out_or_named(tmp_path):
    broken = drawn(tmp_path, broken=True)
    dataset = KINDS["packed and staged"](broken, tmp_path, **FORMS["uint8"])
    with mpiter.batches(
        dataset, 4, seed=3, n_processes=1, on_error=mpiter.Skip(most=2)
    ) as stream:
        assert are_same(
            plain(stream),
            alone(ImageFolder(broken, **FORMS["uint8"]), 1, on_error="skip"),
        )
        assert sorted(index for index, _ in stream.stats().skips) == list(BROKEN)
        assert all(
            "04.jpg" in error or "11.jpg" in error for _, error in stream.stats().skips
        )
    with (
        mpiter.DataLoader(dataset, 4) as loader,
        pytest.raises(BrokenImage, match=r"04\.jpg"),
    ):
        plain(loader)


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "form"), CELLS)
def test_the_loader_for_torch_gives_what_the_folder_holds(whole, tmp_path, kind, form):
    torch = pytest.importorskip("torch", reason=NO_TORCH)

    def seeded(dataset, workers):
        torch.manual_seed(5)
        return loaded(
            mpiter.torch.DataLoader(dataset, 4, shuffle=True, num_workers=workers)
        )

    wanted = seeded(ImageFolder(whole, **FORMS[form]), 0)
    assert wanted[0][0].dtype == (np.uint8 if form == "uint8" else np.float32)
    assert are_same(seeded(KINDS[kind](whole, tmp_path, **FORMS[form]), 1), wanted)


@pytest.mark.torch
@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning", "ignore:This DataLoader will create"
)
def test_torchs_own_loader_takes_them(whole, tmp_path):
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    expected = [ImageFolder(whole, **FORMS["fixed"])[index] for index in range(LENGTH)]
    dataset = KINDS["packed and staged"](whole, tmp_path, **FORMS["fixed"])
    loader = torch.utils.data.DataLoader(
        dataset, 5, num_workers=2, multiprocessing_context="fork"
    )
    pictures, labels = (torch.cat(parts).numpy() for parts in zip(*loader, strict=True))
    assert (pictures == np.stack([picture for picture, _ in expected])).all()
    assert labels.tolist() == [label for _, label in expected]
    assert dataset.fetch.held().all()
