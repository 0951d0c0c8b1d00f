"""Datasets whose code forks: the child that comes back ends there, and the worker goes on as if nothing had been."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpiter

pytestmark = [
    pytest.mark.death,
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # fork from a process with threads
]

LENGTH, FORKS = 24, {3, 10, 11, 20}
CODES = {"return": 0, "error": 1, "sys.exit": 7, "error that cannot be told": 1}


def fork(manner: str) -> int:
    """Fork a child that leaves the dataset's code; the exit code with which it then ends."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # the child's traceback
    if manner == "error that cannot be told":
        sys.stderr.close()
    if manner.startswith("error"):
        raise ValueError("of a child")
    if manner == "sys.exit":
        sys.exit(CODES[manner])
    return -1


class Forking:
    """``(i, code)``, where the code is that of a child."""

    def __init__(self, manner: str) -> None:
        self.manner = manner

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, fork(self.manner) if index in FORKS else CODES[self.manner]


class ForkingTogether(Forking):
    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        code = fork(self.manner)
        return [(index, code) for index in indices]


class ForkingStream:
    def __init__(self, manner: str) -> None:
        self.samples = Forking(manner)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return (self.samples[index] for index in range(LENGTH))


class Plain(Forking):
    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, CODES[self.manner]


class ForkingInit:
    def __init__(self, manner: str) -> None:
        self.manner = manner

    def __call__(self, info: Any) -> None:
        assert fork(self.manner) in (CODES[self.manner], -1)


class ForkingCollate(ForkingInit):
    def __call__(self, samples: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        code = fork(self.manner)
        return np.array([index for index, _ in samples]), np.full(len(samples), code)


WAYS: dict[str, Callable[[str], Any]] = {
    "samples": lambda manner: mpiter.batches(Forking(manner), 4, n_processes=2, shuffle=False),
    "forked workers": lambda manner: mpiter.batches(
        Forking(manner), 4, n_processes=2, shuffle=False, backend=mpiter.Process("fork")
    ),
    "many at once": lambda manner: mpiter.batches(ForkingTogether(manner), 4, n_processes=0, shuffle=False),
    # one thread, since libraries that are loaded (filelock) refuse forks of two at once
    "threads": lambda manner: mpiter.batches(Forking(manner), 4, n_processes=1, shuffle=False, backend="thread"),
    "worker_init": lambda manner: mpiter.batches(
        Plain(manner), 4, n_processes=2, shuffle=False, worker_init=ForkingInit(manner)
    ),
    "collate": lambda manner: mpiter.DataLoader(Plain(manner), 4, num_workers=2, collate_fn=ForkingCollate(manner)),
    "stream": lambda manner: mpiter.DataLoader(ForkingStream(manner), 4, num_workers=2),
}


@pytest.mark.parametrize(("way", "manner"), [*zip(WAYS, itertools.cycle(CODES))])
def test_the_child_of_a_dataset_that_forks_ends_when_it_leaves_the_dataset(way: str, manner: str) -> None:
    with WAYS[way](manner) as loader:
        batches = list(loader)
    rows = [np.atleast_1d(column).tolist() for batch in batches for column in [batch[0]]]
    codes = {int(code) for batch in batches for code in np.atleast_1d(batch[1])}
    assert [index for row in rows for index in row] == [*range(LENGTH)]
    assert codes == {CODES[manner]}
