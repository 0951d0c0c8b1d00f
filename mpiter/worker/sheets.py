"""Where a worker writes the rows of a block: into the slot of its batch, or on a sheet that travels with the answer.

Runs in workers.  A ``Writer`` travels to each worker once, and makes a sheet for each block.  What fits no column is
sealed at once and goes with the answer as well, whatever the rest does.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from ..samples.copying import Held, HeldCopies
from ..samples.envelope import Raw, Sealing
from ..samples.layout import Layout, check_memory
from ..samples.leaves import Aside, Column
from ..samples.rows import Rows
from ..samples.tree import describe, scatter
from ..samples.writing import Fetch, loop_for
from ..transport.memory import Arena
from . import forks, seeding

_MOST_SLOTS = 64  # whose columns a worker remembers


class Serializer(Protocol):
    """A way of one's own for samples to travel, for experiments: ``serializer=`` takes an object."""

    def pack(self, samples: list[Any]) -> Any:
        """In a worker: what is to be pickled instead of the samples of a block."""

    def unpack(self, packed: Any) -> Sequence[Any]:
        """In the consumer process: the samples, which are the user's own."""


class Unsendable(Exception):
    """A sample cannot leave its worker; the cause says why."""

    def __init__(self, sample: Any) -> None:
        super().__init__()
        self.sample = sample


class Sheet:
    """The rows of one block, numbered from 0 on."""

    at_once: tuple[type, ...] = (Rows, np.ndarray)  # what may be written ``together``

    def __init__(
        self, layout: Layout | None, make: Callable[[bool], Fetch], columns: Sequence[Column], new: Any
    ) -> None:
        self._layout, self._make, self._columns, self._new = layout, make, columns, new
        self._sealing: Any = None
        self._rows: list[int] = []  # of what is sealed: the row of a whole sample, ~row of values that have no column

    def fetch(self, dataset: Any, keys: Any, row: int, cells: memoryview, seeded: bool) -> None:
        """Ask for one sample after the other, and write it."""
        self._make(seeded)(dataset, keys, row, cells, self.odd, self.keep, forks.generation)

    def odd(self, row: int, sample: Any) -> None:
        """Take a sample that doesn't fit the columns."""
        self._seal(row, sample, sample)

    def keep(self, row: int, values: tuple[Any, ...], sample: Any) -> None:
        """Take the values of a sample that have no column; where there are no columns that is the sample."""
        if self._layout is None:
            self._seal(row, sample, sample)
        else:
            self._seal(~row, values, sample)

    def _seal(self, at: int, value: Any, sample: Any) -> None:
        if self._sealing is None:
            self._sealing = self._new()
        try:
            self._sealing.add(value)
        except BaseException as error:
            raise Unsendable(sample) from error
        self._rows.append(at)

    def fail(self, row: int) -> None:
        """There is no sample for this row."""

    def check_size(self) -> None:
        """Refuse a block of rows like the first one that no memory could hold."""

    def together(self, row: int, samples: Sequence[Any]) -> bool:
        """Write samples that have come in columns; False if they don't fit, or have not."""
        asides: list[Sequence[Any]] = []
        if self._layout is None or not scatter(self._layout.tree, samples, iter(self._columns), row, asides):
            return False
        for at, values in enumerate(zip(*asides, strict=True), row):
            self.keep(at, values, values)
        return True

    def payload(self) -> Any:
        """What travels: the columns unless they lie in a slot, the rows of what is sealed, and that."""
        return None if self._sealing is None else (None, self._rows, self._sealing.sealed())


class _ByReference(Sheet):
    """No columns: the samples themselves are handed over, within this process."""

    at_once = (Rows, np.ndarray, list)

    def __init__(self, rows: int) -> None:
        super().__init__(None, _taking, (), Held)
        self._held, self._count, self._failed = Held(), rows, set[int]()

    def fetch(self, dataset: Any, keys: Any, row: int, cells: memoryview, seeded: bool) -> None:
        taking, held = self._make(seeded), self._held
        taking(dataset, islice(keys, 1), row, cells, None, held.begin, forks.generation)
        taking(dataset, keys, row + 1, cells, None, held.add, forks.generation)

    def fail(self, row: int) -> None:
        self._failed.add(row)

    def check_size(self) -> None:
        for sample in self._held.open()[:1]:
            check_memory(describe(sample), self._count)

    def together(self, row: int, samples: Sequence[Any]) -> bool:
        if is_whole := len(samples) == self._count:
            self._held.hold(samples)
        return is_whole

    def payload(self) -> Any:
        rows = range(self._count)
        return None, [row for row in rows if row not in self._failed] if self._failed else rows, self._held.sealed()


class _Travelling(Sheet):
    """Columns of its own, which go with the answer."""

    def payload(self) -> Any:
        raw = [Raw(column.reshape(-1).view(np.uint8).data) for column in self._columns]
        return raw, self._rows, None if self._sealing is None else self._sealing.sealed()


_read = functools.lru_cache(maxsize=8)(pickle.loads)  # the layouts that briefs describe, a worker's few


@dataclass(eq=False)
class Writer:
    """The worker's end of the way back; ``arena`` is what it shares with the consumer process, if anything."""

    arena: Arena | None
    seals: Any = Sealing
    _bound: dict[tuple[bytes, int, int], Any] | None = None  # the columns of slots used lately, and their loops

    def sheet(self, brief: bytes, address: int | None, row: int, rows: int) -> Sheet:
        """A sheet for the rows from ``row`` on of the slot at ``address``."""
        if not brief and self.seals is Held:
            return _ByReference(rows)
        seals = HeldCopies if self.seals is Held else self.seals
        if not brief:
            return Sheet(None, _bind(Aside(), ()), (), seals)
        layout = _read(brief)
        if address is None:
            layout = Layout(layout.tree, rows)
            columns = layout.columns(np.empty(layout.size, np.uint8))
            return _Travelling(layout, _bind(layout.tree, columns), columns, seals)
        self._bound = self._bound or {}
        if (found := self._bound.get((brief, address, row))) is None:
            if len(self._bound) >= _MOST_SLOTS:
                self._bound.clear()
            assert self.arena is not None
            columns = [column[row:] for column in layout.columns(memoryview(self.arena.map)[address:])]
            found = self._bound[brief, address, row] = _bind(layout.tree, columns), columns
        make, columns = found
        return Sheet(layout, make, columns, seals)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.arena, self.seals)


def _bind(tree: Any, columns: Sequence[Column]) -> Callable[[bool], Fetch]:
    """The loops for these columns, made when they are needed: with seeds for each sample, or without."""

    @functools.cache
    def make(seeded: bool) -> Fetch:
        return loop_for(tree, seeded)(*columns, functools.partial(seeding.step_to, 0), forks)

    return make


_taking = _bind(None, ())


class Packing:
    """Samples for a serializer of the user's, all those of a block at once."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer, self._samples = serializer, list[Any]()
        self.add: Callable[[Any], None] = self._samples.append

    def sealed(self) -> Any:
        return self._serializer.pack(self._samples)
