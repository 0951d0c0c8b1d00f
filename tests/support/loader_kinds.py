"""Both loaders behind one face: what they share is tested once, in NumPy's words and in
torch's.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import mpiter

NO_TORCH = "torch is not installed: run `python3 tests --all`"
# Before the fork server starts, which then needs to import it only once.
if importlib.util.find_spec("torch"):
    import mpiter.torch

KINDS = ("numpy", pytest.param("torch", marks=pytest.mark.torch))
# For scripts
IMPORTS = {
    "numpy": "from mpiter import DataLoader",
    "torch": "from mpiter.torch import DataLoader",
}
both_kinds = pytest.mark.parametrize("kind", KINDS)


def loader_class(kind: str) -> Any:
    """The loader of this kind; without torch the test is skipped."""
    if kind == "numpy":
        return mpiter.DataLoader
    pytest.importorskip("torch", reason=NO_TORCH)
    return mpiter.torch.DataLoader


class Maker:
    """Makes loaders of one kind, each with so many workers, and closes them in the
    end.
    """

    def __init__(self, kind: str, workers: int, opened: contextlib.ExitStack) -> None:
        self.kind = kind
        self.workers = workers
        self._opened = opened
        self.class_ = loader_class(kind)

    def __call__(self, dataset: Any, batch_size: Any = 1, **options: Any) -> Any:
        options = {"num_workers": self.workers, **options}
        # What has no meaning then, and is refused.
        if not options["num_workers"]:
            options.pop("persistent_workers", None)
        if "batch_sampler" not in options:
            options["batch_size"] = batch_size
        return self._opened.enter_context(self.class_(dataset, **options))

    def seed(self, seed: int) -> None:
        """What shuffling depends on unless it is told otherwise."""
        if self.kind == "torch":
            _torch().manual_seed(seed)
        else:
            np.random.seed(seed)

    def globals(self) -> tuple[Any, ...]:
        """What a checkpoint of the user's holds of the global generators."""
        return (
            np.random.get_state(),
            _torch().get_rng_state() if self.kind == "torch" else None,
        )

    def restore(self, saved: tuple[Any, ...]) -> None:
        np.random.set_state(saved[0])
        if saved[1] is not None:
            _torch().set_rng_state(saved[1])

    def generator(self, seed: int) -> Any:
        """Return a generator for ``generator=``."""
        if self.kind == "torch":
            import torch

            return torch.Generator().manual_seed(seed)
        return np.random.default_rng(seed)


@contextlib.contextmanager
def makers(kind: str, workers: int) -> Iterator[Maker]:
    with contextlib.ExitStack() as opened:
        yield Maker(kind, workers, opened)


def plain(batch: Any) -> Any:
    """A batch of any loader in Python's own lists, dicts and numbers."""
    if hasattr(batch, "tolist"):
        return batch.tolist()
    if isinstance(batch, dict):
        return {name: plain(part) for name, part in batch.items()}
    return (
        [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else batch
    )


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [value for one in lists for value in one]


def epoch(loader: Any) -> list[Any]:
    return [plain(batch) for batch in loader]


def some(batches: Any, count: int) -> list[Any]:
    """The next ``count`` of them, without looking whether there are more."""
    return [plain(next(batches)) for _ in range(count)]


def until_the_end(batches: Any) -> tuple[list[Any], list[Exception]]:
    """What an iterator gives, errors among it, when next() is called again after
    each.
    """
    given: list[Any] = []
    errors: list[Exception] = []
    while len(errors) < 50:
        try:
            given.append(plain(next(batches)))
        except StopIteration:
            return given, errors
        except Exception as error:
            errors.append(error)
    raise AssertionError(f"one error after the other: {errors}")


def _torch() -> Any:
    return importlib.import_module("torch")
