"""What takes the place of a dataset's ``fetch``: the copy if there is one, else the store, whose bytes are kept then.

Runs wherever the dataset does: in the workers of whatever loader, in the consumer's own process, in the threads that
copy ahead.  Guarantees that a sample which somebody is copying is waited for, not read from the store twice, unless
that takes longer than a sample should; that what is kept stays; that the store's errors are the dataset's, and the
tier's end the copying only.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..datasets.access import of_class
from ..errors import warn
from .counts import Cell, Counts
from .ledger import Ledger

# How long a reader waits for who is copying his sample, who may hang or be stopped, in another program too: longer than
# a sample of a slow store usually takes, much shorter than anybody lets a worker be silent (``sample_timeout``).
_PATIENCE_S = 5.0


class Shelf(Protocol):
    """Where the copies of one dataset are."""

    ledger: Ledger

    def key(self, index: int, source: Any) -> Any: ...
    def get(self, key: Any) -> bytes | None: ...
    def has(self, key: Any) -> bool: ...
    def put(self, key: Any, data: bytes) -> bool: ...
    def claim(self, key: Any, patience: float = 0.0) -> contextlib.AbstractContextManager[bool]: ...
    def held(self) -> set[Any]: ...


class StagedFetch:
    """``dataset.fetch`` of a dataset that is staged."""

    def __init__(self, dataset: Any, shelf: Shelf, counts: Counts, tier: str) -> None:
        self._dataset, self._shelf, self._counts = dataset, shelf, counts
        self._before = getattr(dataset, "__dict__", {}).get("fetch")  # of another tier, behind this one
        self.tiers: list[str] = [tier, *getattr(self._before, "tiers", ())]
        self._too_large: set[int] = set()  # samples for which there was no room, as far as this process has copied
        self._has_told = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_has_told": False, "_too_large": set()}

    def __call__(self, index: int) -> bytes:
        index = operator.index(index)
        key = self._shelf.key(index, self._dataset.source(index))
        data = self._shelf.get(key)
        if data is None:
            return self._fetched(index, key)
        self._counts.read(Cell.HITS, len(data))
        return data

    def _fetched(self, index: int, key: Any) -> bytes:
        if self._has_ended or (self._is_full and not self._shelf.has(key)):  # a damaged one has its room
            return self._fallen_back(index)
        with contextlib.ExitStack() as stack:
            try:
                is_ours = stack.enter_context(self._shelf.claim(key, _PATIENCE_S))
            except OSError:  # the tier cannot be asked
                return self._fallen_back(index)
            data = self._shelf.get(key)
            if data is not None:  # it was copied meanwhile
                self._counts.read(Cell.HITS, len(data))
                return data
            data = self._fallen_back(index)
            if is_ours:
                self._keep(key, data)
            return data

    def _fallen_back(self, index: int) -> bytes:
        data = self._from_store(index)
        self._counts.read(Cell.STORE_READS, len(data))
        return data

    def _from_store(self, index: int) -> bytes:
        fetch = of_class(self._dataset, "fetch") if self._before is None else self._before
        found = fetch(index)
        if not isinstance(found, (bytes, bytearray, memoryview)):
            raise TypeError(f"fetch({index}) of the dataset returned {type(found).__name__}; staging keeps bytes.")
        return bytes(found)

    @property
    def _is_full(self) -> bool:
        return self._shelf.ledger.is_full

    @property
    def _has_ended(self) -> bool:
        try:
            _ = self._is_full
        except OSError as error:  # the tier is gone
            self._counts.end(error)
        why = self._counts.why_ended
        if why and not self._has_told:
            self._has_told = True
            warn(f"nothing more is staged: {why}. What is there is used; the rest comes from the store.")
        return bool(why)

    def _keep(self, key: Any, data: bytes) -> bool:
        """False: there was no room."""
        self._counts.add(Cell.DAMAGED, self._shelf.has(key))
        try:
            if self._shelf.put(key, data):
                self._counts.kept(len(data), time.monotonic_ns())
                return True
            self._counts.add(Cell.REFUSED)
        except OSError as error:
            self._counts.end(error)
        return False

    def copy(self, index: int) -> bool:
        """Copy a sample if nobody has; False: there is nothing more to be done, or hardly anything."""
        if self._counts.why_ended or self._is_full:
            return False
        key = self._shelf.key(index, self._dataset.source(index))
        if index in self._too_large or self._shelf.has(key):
            return True
        with self._shelf.claim(key) as is_ours:
            if is_ours and not self._shelf.has(key) and not self._keep(key, self._from_store(index)):
                self._too_large.add(index)  # it is not read in vain again
                total = self._counts.total
                return total(Cell.REFUSED) <= total(Cell.KEPT) + total(Cell.FOUND)
        return True

    def held(self) -> NDArray[np.bool_]:
        """Which of the samples the tier has."""
        there = self._shelf.held()
        return np.fromiter((key in there for key in self._keys()), bool, len(self._dataset))

    def found(self) -> int:
        """How many copies there are of these samples."""
        there = self._shelf.held()
        return len(there.intersection(self._keys())) if there else 0

    def _keys(self) -> Iterator[Any]:
        return (self._shelf.key(index, self._dataset.source(index)) for index in range(len(self._dataset)))
