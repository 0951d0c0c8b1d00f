"""torch's loader over a Ray cluster: the batches of torch's own, in tensors that one may write into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray_here
from datasets import Built
from loaders import NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

import mpiter.torch  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("ray")]

BUILDS: dict[str, Any] = {
    "arrays and numbers": lambda i: (np.full((64, 64), i, np.float32), i),
    "tensors by name": lambda i: {"x": torch.full((64, 64), float(i)), "y": f"sample {i}"},
    "tensors of several lengths": lambda i: torch.full((1 + i % 3,), i),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "collated here": {"batch_size": 4},
    "collated there": {"batch_size": 4, "collate_fn": list},
    "one by one": {"batch_size": None},
}


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with ray_here.started() as ray:
        yield ray


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_batches_are_those_of_torchs_loader_and_ones_own(build: Any, options: dict[str, Any]) -> None:
    if build is BUILDS["tensors of several lengths"] and "collate_fn" not in options and options["batch_size"]:
        options = {**options, "batch_size": 1}  # what torch collates
    dataset = Built(build, 12)
    with mpiter.torch.DataLoader(dataset, num_workers=2, backend="ray", **options) as loader:
        for ours, theirs in zip(loader, torch.utils.data.DataLoader(dataset, **options), strict=True):
            assert described(ours) == described(theirs)
            for tensor in tensors_in(ours):
                tensor += 1
        assert loader.stats().workers == 2


def test_a_state_goes_to_processes_here_and_back() -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(3)}
    dataset = Built(BUILDS["arrays and numbers"], 40)
    with mpiter.torch.DataLoader(dataset, num_workers=2, backend="ray", **options) as loader:
        batches = iter(loader)
        labels = [next(batches)[1] for _ in range(3)]
        state = loader.state_dict()
    with mpiter.torch.DataLoader(dataset, num_workers=1, **options) as loader:
        loader.load_state_dict(state)
        batches = iter(loader)
        labels += [next(batches)[1] for _ in range(3)]
        state = loader.state_dict()
    with mpiter.torch.DataLoader(dataset, num_workers=1, backend="ray", **options) as loader:
        loader.load_state_dict(state)
        labels += [label for _, label in loader]
    assert sorted(torch.cat(labels).tolist()) == [*range(40)]


def described(batch: Any) -> Any:
    """What it is, to compare."""
    if isinstance(batch, dict):
        return {key: described(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch), [*map(described, batch)]
    return type(batch), getattr(batch, "dtype", None), batch.tolist() if hasattr(batch, "tolist") else batch


def tensors_in(batch: Any) -> list[Any]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]
