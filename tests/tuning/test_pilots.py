"""Pilots in the air: what they see of real workers, and what they do with it."""

from __future__ import annotations

import mmap
import os

import numpy as np

import mpiter
from mpiter import machine

_MUCH = 128 << 20


class Large:
    """Samples that take a look at each page of a large array."""

    def __init__(self) -> None:
        self.values = np.ones((64, _MUCH // 64), np.uint8)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return int(self.values[index, :: mmap.PAGESIZE].sum())


def test_what_a_process_shares_is_not_its_own() -> None:
    before = machine.resident_bytes(os.getpid())
    touched = bytes(_MUCH // mmap.PAGESIZE)
    with mmap.mmap(-1, _MUCH) as shared:
        shared[:: mmap.PAGESIZE] = touched
        assert abs(machine.resident_bytes(os.getpid()) - before) < _MUCH // 4
    with mmap.mmap(-1, _MUCH, mmap.MAP_PRIVATE) as own:
        own[:: mmap.PAGESIZE] = touched
        assert machine.resident_bytes(os.getpid()) - before > _MUCH * 3 // 4


def test_a_dataset_that_is_there_once_makes_no_worker_large() -> None:
    with mpiter.batches(Large(), 4, n_processes=1, shuffle=False) as stream:
        for _ in stream:
            seen = stream.stats()
        assert 0 < seen.worker_bytes < _MUCH
