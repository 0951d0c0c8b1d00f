"""Copies in memory: one piece of it for each dataset, which all its workers find, gone with the program.

Runs wherever samples are fetched or copied.  A table says where each sample lies and how long it is; the bytes stand
one after another, and stay as long as the dataset.  Guarantees that the copies of all datasets together stay within the
capacity, and that none is made where the machine would be short of memory.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import machine
from .claims import Claims
from .ledger import BYTES, Ledger
from .own import Own
from .sheet import Sheet

_HEADROOM = 1 << 28  # bytes of memory that are left to everybody else


class Memory:
    """The tier: its bound."""

    def __init__(self, capacity: int) -> None:
        self.ledger = Ledger(capacity, Sheet(BYTES))
        self._shelves: list[tuple[weakref.ref[MemoryShelf], int, Ledger]] = []  # samples, and what each has

    def __getstate__(self) -> dict[str, Any]:
        return {"ledger": self.ledger, "_shelves": []}

    def add(self, shelf: MemoryShelf, samples: int, own: Ledger) -> None:
        """One more shelf."""
        self._shelves.append((weakref.ref(shelf), samples, own))

    def reclaim(self) -> tuple[int, int]:
        """Take back the room of shelves that are gone: how many samples they were for, and how many they had.

        Not done the moment they go (``weakref.finalize``): this thread may have the ledger's lock then.
        """
        gc.collect()  # a staged dataset and its fetch refer to each other
        samples = held = 0
        for gone in [one for one in self._shelves if one[0]() is None]:
            self._shelves.remove(gone)
            size, items = gone[2].used
            self.ledger.reserve(-size, -items)
            samples, held = samples + gone[1], held + items
        return samples, held


class MemoryShelf:
    """The copies of one dataset: a place for each sample."""

    def __init__(self, memory: Memory, samples: int) -> None:
        self.ledger = memory.ledger
        self._samples = samples
        self._own = Ledger(self.ledger.capacity, Sheet(BYTES))  # of this dataset: where the next copy goes
        self._claims = Own(_claims_on, Sheet(1))
        self._start = 16 * samples
        self._sheet = Sheet(self._start + self.ledger.capacity)
        self._table = Own(_table_in, self._sheet, samples)
        memory.add(self, samples, self._own)

    def key(self, index: int, source: str) -> int:
        """Of a sample: its number."""
        if not -self._samples <= index < self._samples:
            raise IndexError(f"{index} is no index of {self._samples} samples")
        return index % self._samples

    def get(self, key: int) -> bytes | None:
        """The copy; None if there is none."""
        line = self._table()[key]
        length = int(line[1])  # before the place: whoever writes them may be between the two
        if not length:
            return None
        at, data = int(line[0]), b""
        while left := length - 1 - len(data):  # beyond 2 GB it comes in parts
            data += os.pread(self._sheet.fd, left, at + len(data))
        return data

    def has(self, key: int) -> bool:
        return bool(self._table()[key, 1])

    def put(self, key: int, data: bytes) -> bool:
        """Keep a copy; False if there is no room.  Assumes that ``key`` is claimed."""
        if self.has(key):
            return True
        if len(data) + _HEADROOM > machine.memory_available():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        if not self.ledger.reserve(len(data)):
            return False
        at = self._start + self._own.advance(len(data))
        done = 0
        while done < len(data):
            done += os.pwrite(self._sheet.fd, memoryview(data)[done:], at + done)
        line = self._table()[key]
        line[0] = at
        line[1] = len(data) + 1
        return True

    @contextlib.contextmanager
    def claim(self, key: int, patience: float = 0.0) -> Iterator[bool]:
        """Is this sample ours to copy, at once or within so many seconds?"""
        with self._claims().claim(key, patience) as is_ours:
            yield is_ours

    def held(self) -> set[int]:
        """The keys of all copies."""
        return set(np.flatnonzero(self._table()[:, 1]).tolist())


def _claims_on(sheet: Sheet) -> Claims:
    return Claims(sheet.path)


def _table_in(sheet: Sheet, samples: int) -> Any:
    """Where each copy begins, and its length + 1; 0 where there is none."""
    return np.frombuffer(sheet.map(max(16 * samples, 1)), np.int64, 2 * samples).reshape(-1, 2)
