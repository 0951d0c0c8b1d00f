"""Mixtures and packed rows come alike by every iterator, loader and backend.

They resume exactly from every state, and workers that are killed lose nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import Documents, lognormal, tokens_in
from outside import Futures
from scripts import lives_still, wait_until

import mpiter
from mpiter.echo import Echo
from mpiter.testing import check_dataset, check_resume

PARTS = {
    "web": Documents(lognormal(120, most=32)),
    "code": Documents(lognormal(50, 1, most=32), 121),
}
WEIGHTS = {"web": 3, "code": 2}
WHOLE = PARTS["web"].tokens() + PARTS["code"].tokens()


def mixture(short: Any = "renormalise") -> Any:
    return mpiter.Mix(PARTS, WEIGHTS, short)


def packed(short: Any = "renormalise", how: Any = "fit") -> Any:
    return mpiter.Pack(mixture(short), 64, how, window=30)


def mixed_packs(short: Any = "renormalise") -> Any:
    packs = {name: mpiter.Pack(part, 64, window=30) for name, part in PARTS.items()}
    return mpiter.Mix(packs, WEIGHTS, short)


DATASETS: dict[str, Any] = {
    "a mixture, stopped": mixed_packs("stop"),
    "packed": packed(),
    "packed and cut": packed(how="cut"),
    "mixed packs": mixed_packs(),
    "mixed packs, repeated": mixed_packs("repeat"),
}
each = pytest.mark.parametrize("kind", DATASETS)


def plain(batch: Any) -> dict[str, Any]:
    """Return a batch as lists, whatever it is made of."""
    columns = getattr(batch, "columns", batch)
    return {name: np.asarray(column).tolist() for name, column in columns.items()}


def expected(kind: str, count: int) -> list[Any]:
    """Return the first batches, over epochs that run on into the next."""
    iterator = mpiter.SerialIterator(DATASETS[kind], 4, shuffle=True, seed=2)
    return [plain(batch) for batch in itertools.islice(iterator, count)]


def epochs_expected(kind: str) -> tuple[list[Any], list[Any]]:
    """Return the batches of two epochs, each with a last one of its own."""
    with mpiter.batches(DATASETS[kind], 4, n_processes=0, seed=2, epochs=1) as first:
        found = [plain(batch) for batch in first]
    with mpiter.DataLoader(DATASETS[kind], 4, shuffle=True, seed=2) as loader:
        assert [plain(batch) for batch in loader] == found
        return found, [plain(batch) for batch in loader]


BACKENDS = {
    "processes": {"n_processes": 2},
    "threads": {"n_processes": 2, "backend": "thread"},
    "an executor": {"n_processes": 1, "backend": Futures()},
}


@each
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_workers_give_what_is_given_without(kind: str, backend: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 2, **BACKENDS[backend]}
    with mpiter.MultiprocessIterator(DATASETS[kind], 4, **options) as iterator:
        found = [plain(batch) for batch in itertools.islice(iterator, 30)]
    assert found == expected(kind, 30)


@each
def test_iterators_that_do_not_repeat_and_loaders_give_epochs(kind: str) -> None:
    first, second = epochs_expected(kind)
    options: dict[str, Any] = {"repeat": False, "shuffle": True, "seed": 2}
    for make in (
        lambda: mpiter.SerialIterator(DATASETS[kind], 4, **options),
        lambda: mpiter.MultithreadIterator(DATASETS[kind], 4, n_threads=2, **options),
    ):
        with make() as iterator:
            assert [plain(batch) for batch in iterator] == first
    with mpiter.DataLoader(
        DATASETS[kind], 4, shuffle=True, seed=2, num_workers=1
    ) as loader:
        assert len(loader) == len(first)
        found = [plain(batch) for _ in range(2) for batch in loader]
    assert found == first + second


@pytest.mark.torch
def test_torchs_loader_gives_the_same_as_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from mpiter.torch import DataLoader, DevicePrefetcher

    for kind, dataset in DATASETS.items():
        with DataLoader(dataset, 4, shuffle=True, seed=2) as loader:
            ahead = DevicePrefetcher(loader, "cpu")
            found = list[Any]()
            for _ in range(2):
                for batch in ahead:
                    assert isinstance(batch["tokens"], torch.Tensor)
                    found.append(plain(batch))
        first, second = epochs_expected(kind)
        assert found == first + second


@pytest.mark.chainer
def test_chainers_updater_is_fed_with_rows() -> None:
    pytest.importorskip("chainer", reason="Chainer is not installed")
    from chainer.dataset import concat_examples
    from chainer.training import StandardUpdater

    import mpiter.chainer

    class Optimizer:
        """Notes what it is called with."""

        target = None

        def __init__(self) -> None:
            self.seen: list[Any] = []

        def update(self, lossfun: Any, **fields: Any) -> None:
            self.seen.append(plain(fields))

        def new_epoch(self, auto: bool = False) -> None:
            pass

    optimizer = Optimizer()
    optimizer.target = lambda **fields: None  # type: ignore[assignment]
    with mpiter.chainer.MultiprocessIterator(
        DATASETS["packed"], 4, n_processes=1, shuffle=True, seed=2
    ) as iterator:
        updater = StandardUpdater(iterator, optimizer, concat_examples)
        for _ in range(30):
            updater.update()
    assert optimizer.seen == expected("packed", 30)


# -- states ----------------------------------------------------------------------------


@each
def test_every_state_resumes(kind: str) -> None:
    dataset = DATASETS[kind]
    for make in (
        lambda: mpiter.SerialIterator(dataset, 5, shuffle=True, seed=2),
        lambda: mpiter.batches(dataset, 5, n_processes=0, epochs=2),
        lambda: mpiter.DataLoader(dataset, 5, shuffle=True, drop_last=True),
        lambda: Echo(mpiter.batches(dataset, 5, n_processes=0), 2, shuffle_buffer=20),
    ):
        assert check_resume(make, batches=9) == 10


def test_a_training_with_a_checkpoint_resumes() -> None:
    for kind in ("packed", "mixed packs, repeated"):

        def train(path: Path, workers: int, kind: str = kind) -> Any:
            loader = mpiter.DataLoader(
                DATASETS[kind], 24, shuffle=True, num_workers=workers
            )
            model: dict[str, Any] = {"seen": [], "tokens": 0}
            with loader, mpiter.Checkpoint(path, loader, model=model) as checkpoint:
                for _ in checkpoint.epochs(2):
                    for batch in checkpoint.steps(loader):
                        model["seen"].append(batch["tokens"].tolist())
                        model["tokens"] += loader.step_tokens
            return model

        assert check_resume(train, interruptions=3, workers=(0,)) == 3


@each
def test_the_check_of_datasets_passes(kind: str) -> None:
    assert check_dataset(DATASETS[kind], samples=12, n_processes=1).samples == 12


# -- workers ---------------------------------------------------------------------------


def test_workers_stay_from_epoch_to_epoch() -> None:
    for dataset in (packed(), mixed_packs(), packed("repeat")):
        with mpiter.DataLoader(dataset, 8, shuffle=True, num_workers=1) as loader:
            seen = set[tuple[int, ...]]()
            for _ in range(3):
                for _batch in loader:
                    seen.add(tuple(loader.worker_pids))
        assert len(seen) == 1


@pytest.mark.death
@pytest.mark.parametrize("seed", range(2))
def test_workers_killed_at_any_moment_lose_and_repeat_nothing(seed: int) -> None:
    rng = random.Random(seed)
    how = rng.choice(["fit", "cut"])
    given = list[Any]()
    state: str | None = None
    kills = 0
    while True:
        options = {"num_workers": 2, "prefetch_factor": 1, "shuffle": True}
        batch_size = rng.randint(1, 4)
        with mpiter.DataLoader(packed(how=how), batch_size, **options) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(state))
            batches = iter(loader)
            for batch in itertools.islice(batches, rng.randint(5, 20)):
                given.append({name: column.copy() for name, column in batch.items()})
                if rng.random() < 0.3 and kills < 4:
                    pid = rng.choice(loader.worker_pids)
                    # The one killed before may not have been replaced yet.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
                    wait_until(lambda pid=pid: not lives_still(pid), "it is dead")
            if loader.is_new_epoch:
                break
            state = json.dumps(loader.state_dict())
    assert kills >= 2
    assert tokens_in(given) == WHOLE
