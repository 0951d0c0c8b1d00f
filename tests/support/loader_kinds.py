"""Both loaders behind one interface, so that one test can check both.

They are ``mpiter.DataLoader`` and ``mpiter.torch.DataLoader``.
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
# This is imported before the fork server starts, which then imports it only once.
if importlib.util.find_spec("torch"):
    import mpiter.torch

KINDS = ("numpy", pytest.param("torch", marks=pytest.mark.torch))
# Scripts import the loader of a kind by these lines.
IMPORTS = {
    "numpy": "from mpiter import DataLoader",
    "torch": "from mpiter.torch import DataLoader",
}
both_kinds = pytest.mark.parametrize("kind", KINDS)


def loader_class(kind: str) -> Any:
    """Return the loader of this kind, or skip the test without torch."""
    if kind == "numpy":
        return mpiter.DataLoader
    pytest.importorskip("torch", reason=NO_TORCH)
    return mpiter.torch.DataLoader


class Maker:
    """Makes loaders of one kind, and closes them in the end.

    By default each has ``workers`` workers.
    """

    def __init__(self, kind: str, workers: int, opened: contextlib.ExitStack) -> None:
        self.kind = kind
        self.workers = workers
        self._opened = opened
        self.class_ = loader_class(kind)

    def __call__(self, dataset: Any, batch_size: Any = 1, **options: Any) -> Any:
        options = {"num_workers": self.workers, **options}
        # Loaders without workers refuse this option.
        if not options["num_workers"]:
            options.pop("persistent_workers", None)
        if "batch_sampler" not in options:
            options["batch_size"] = batch_size
        return self._opened.enter_context(self.class_(dataset, **options))

    def seed(self, seed: int) -> None:
        """Seed the generator that shuffling uses by default."""
        if self.kind == "torch":
            _torch().manual_seed(seed)
        else:
            np.random.seed(seed)

    def globals(self) -> tuple[Any, ...]:
        """Return the global generators' states, as a user's checkpoint holds them."""
        of_torch = None
        if self.kind == "torch":
            of_torch = _torch().get_rng_state()
        return np.random.get_state(), of_torch

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
    """Turn a batch of any loader into Python's own lists, dicts and numbers."""
    if hasattr(batch, "tolist"):
        return batch.tolist()
    if isinstance(batch, dict):
        return {name: plain(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [value for one in lists for value in one]


def epoch(loader: Any) -> list[Any]:
    return [plain(batch) for batch in loader]


def some(batches: Any, count: int) -> list[Any]:
    """Return the next ``count`` batches, without looking whether there are more."""
    return [plain(next(batches)) for _ in range(count)]


def until_the_end(batches: Any) -> tuple[list[Any], list[Exception]]:
    """Return the batches and the errors of an iterator.

    After each error ``next()`` is called again.
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
