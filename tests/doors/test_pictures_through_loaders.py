"""Image folders, packed and staged ones, through ``batches()``, both ``DataLoader`` and torch's own.

Every dataset gives what the folder gives that one loop reads by itself.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from loaders import NO_TORCH
from picture_sets import BROKEN, FORMS, KINDS, LENGTH, are_same, drawn, plain

import mpiter
from mpiter.echo import Echo
from mpiter.images import BrokenImage, ImageFolder

each_kind = pytest.mark.parametrize("kind", KINDS)
each_form = pytest.mark.parametrize("form", [form for form in FORMS if form != "fixed"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return drawn(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return drawn(tmp_path_factory.mktemp("pictures"), broken=True)


def alone(dataset: Any, epochs: int = 2, **options: Any) -> Any:
    """What the caller's own loop finds."""
    with mpiter.batches(dataset, 4, seed=3, n_processes=0, epochs=epochs, **options) as stream:
        return plain(stream)


def loaded(loader: Any, epochs: int = 2) -> Any:
    with loader:
        return list(itertools.chain.from_iterable(plain(loader) for _ in range(epochs)))


# -- batches() and mpiter.DataLoader ---------------------------------------------------------------------------------


@each_form
@each_kind
def test_batches_and_the_loader_give_what_the_folder_holds(whole, tmp_path, kind, form):
    wanted = alone(ImageFolder(whole, **FORMS[form]))
    assert wanted[0][0].dtype == (np.uint8 if form == "uint8" else np.float32)
    dataset = KINDS[kind](whole, tmp_path, **FORMS[form])
    with mpiter.batches(dataset, 4, seed=3, n_processes=2, epochs=2) as stream:
        assert are_same(plain(stream), wanted)
    assert are_same(loaded(mpiter.DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=2)), wanted)


@each_kind
def test_batches_and_the_loader_resume_within_an_epoch(whole, tmp_path, kind):
    wanted = alone(ImageFolder(whole, **FORMS["uint8"]), epochs=1)
    dataset = KINDS[kind](whole, tmp_path, **FORMS["uint8"])
    with mpiter.batches(dataset, 4, seed=3, n_processes=2) as stream:
        assert are_same(plain(stream, 2), wanted[:2])
        state = stream.state_dict()
    with mpiter.batches(dataset, 4, seed=9, n_processes=1) as stream:
        stream.load_state_dict(state)
        assert are_same(plain(stream), wanted[2:])
    with mpiter.DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=2) as loader:
        assert are_same(plain(loader, 2), wanted[:2])
        state = loader.state_dict()
    with mpiter.DataLoader(dataset, 4, shuffle=True, num_workers=1) as loader:
        loader.load_state_dict(state)
        assert are_same(plain(loader), wanted[2:])


@each_kind
@pytest.mark.parametrize("echo", [Echo(2, shuffle_buffer=4), Echo(2, "augmented", 4), Echo(2, "batch")], ids=repr)
def test_batches_and_the_loader_echo_them(whole, tmp_path, kind, echo):
    wanted = alone(ImageFolder(whole, **FORMS["uint8"]), echo=echo)
    dataset = KINDS[kind](whole, tmp_path, **FORMS["uint8"])
    with mpiter.batches(dataset, 4, seed=3, n_processes=2, epochs=2, echo=echo) as stream:
        assert are_same(plain(stream), wanted)
    assert are_same(loaded(mpiter.DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=2, echo=echo)), wanted)


@each_kind
def test_broken_pictures_are_left_out_or_named(broken, tmp_path, kind):
    dataset = KINDS[kind](broken, tmp_path, **FORMS["uint8"])
    with mpiter.batches(dataset, 4, seed=3, n_processes=2, on_error=mpiter.Skip(most=2)) as stream:
        assert are_same(plain(stream), alone(ImageFolder(broken, **FORMS["uint8"]), 1, on_error="skip"))
        assert sorted(index for index, _ in stream.stats().skips) == list(BROKEN)
        assert all("04.jpg" in error or "11.jpg" in error for _, error in stream.stats().skips)
        with pytest.raises(mpiter.SampleError, match=r"Skip\(most=2\)"):
            plain(stream)
    with mpiter.DataLoader(dataset, 4, num_workers=2) as loader, pytest.raises(BrokenImage, match=r"04\.jpg"):
        plain(loader)


# -- mpiter.torch.DataLoader and torch's own ---------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason=NO_TORCH)


@pytest.mark.torch
@each_form
@each_kind
def test_the_loader_for_torch_gives_what_the_folder_holds(torch, whole, tmp_path, kind, form):
    def seeded(dataset, workers):
        torch.manual_seed(5)
        return loaded(mpiter.torch.DataLoader(dataset, 4, shuffle=True, num_workers=workers))

    wanted = seeded(ImageFolder(whole, **FORMS[form]), 0)
    assert wanted[0][0].dtype == (np.uint8 if form == "uint8" else np.float32)
    assert sorted(label for _, labels in wanted for label in labels) == sorted([0, 1, 2] * (2 * LENGTH // 3))
    assert are_same(seeded(KINDS[kind](whole, tmp_path, **FORMS[form]), 2), wanted)


@pytest.mark.torch
@each_kind
def test_the_loader_for_torch_resumes_within_an_epoch(torch, whole, tmp_path, kind):
    dataset = KINDS[kind](whole, tmp_path, **FORMS["uint8"])
    with mpiter.torch.DataLoader(dataset, 4, shuffle=True, num_workers=2) as loader:
        numbers = iter(loader)
        plain(numbers, 2)
        state = loader.state_dict()
        rest = plain(numbers)
    with mpiter.torch.DataLoader(dataset, 4, shuffle=True, num_workers=1) as loader:
        loader.load_state_dict(state)
        assert are_same(plain(loader), rest)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "method"),
    [*itertools.product(KINDS, [None, "fork"]), ("packed and staged", "spawn"), ("staged to a folder", "forkserver")],
)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_torchs_own_loader_takes_them(torch, whole, tmp_path, kind, method):
    expected = [ImageFolder(whole, **FORMS["fixed"])[index] for index in range(LENGTH)]
    dataset = KINDS[kind](whole, tmp_path, **FORMS["fixed"])
    workers = {"num_workers": 2, "multiprocessing_context": method, "persistent_workers": True} if method else {}
    loader = torch.utils.data.DataLoader(dataset, 5, **workers)
    for _ in range(2):
        pictures, labels = (torch.cat(parts).numpy() for parts in zip(*loader, strict=True))
        assert (pictures == np.stack([picture for picture, _ in expected])).all()
        assert labels.tolist() == [label for _, label in expected]
    if "staged" in kind:
        assert dataset.fetch.held().all()
