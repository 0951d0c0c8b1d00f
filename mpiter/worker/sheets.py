"""Where a worker writes the rows of a block: into the slot of its batch, or on a sheet that travels with the answer.

Runs in workers.  A ``Writer`` travels to each worker once, and makes a sheet for each block.  What fits no column is
sealed at once and goes with the answer as well, whatever the rest does.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from ..samples.copying import Held
from ..samples.envelope import Raw, Sealing
from ..samples.tree import MANY, Aside, Column, Layout, Rows, check_memory, describe, scatter
from ..samples.writing import Fetch, loop_for, places
from ..transport.memory import Arena
from . import home, seeding

_MOST_SLOTS = 64  # whose columns a worker remembers


class Unsendable(Exception):
    """A sample cannot leave its worker; the cause says why."""

    def __init__(self, sample: Any) -> None:
        super().__init__()
        self.sample = sample


@dataclass(eq=False)
class Sheet:
    """The rows of one block, numbered from 0 on."""

    layout: Layout | None
    make: Callable[[bool], Fetch]
    columns: Sequence[Column]
    new: Any  # makes what seals
    travels: bool = False  # the columns go with the answer; else they lie in a slot
    sealing: Any = None
    rows: list[int] = field(default_factory=list)  # of what is sealed: of a whole sample, ~row of values without column

    at_once: ClassVar[tuple[type, ...]] = (Rows, np.ndarray)  # what may be written ``together``

    def fetch(self, dataset: Any, keys: Any, row: int, cells: memoryview, seeded: bool) -> None:
        """Ask for one sample after the other, and write it."""
        self.make(seeded)(dataset, keys, row, cells, self.odd, self.keep, home.generation)

    def odd(self, row: int, sample: Any) -> None:
        """Take a sample that doesn't fit the columns."""
        self._seal(row, sample, sample)

    def keep(self, row: int, values: tuple[Any, ...], sample: Any) -> None:
        """Take the values of a sample that have no column: all of it where there are no columns."""
        if self.layout is None:
            self._seal(row, sample, sample)
        else:
            self._seal(~row, values, sample)

    def _seal(self, at: int, value: Any, sample: Any) -> None:
        if self.sealing is None:
            self.sealing = self.new()
        try:
            self.sealing.add(value)
        except BaseException as error:
            raise Unsendable(sample) from error
        self.rows.append(at)

    def fail(self, row: int) -> None:
        """Note that this row has no sample."""

    def together(self, row: int, samples: Sequence[Any]) -> bool:
        """Write samples that came as columns; False if they don't fit or are no columns."""
        asides: list[Sequence[Any]] = []
        if self.layout is None or not scatter(self.layout.tree, samples, iter(self.columns), row, asides):
            return False
        for at, values in enumerate(zip(*asides, strict=True), row):
            self.keep(at, values, values)
        return True

    def payload(self) -> Any:
        """The columns unless they lie in a slot, the rows that are sealed, and the sealed values."""
        sealed = None if self.sealing is None else self.sealing.sealed()
        raw = [Raw(column.reshape(-1).view(np.uint8).data) for column in self.columns] if self.travels else None
        return None if raw is None and sealed is None else (raw, self.rows, sealed)


class _ByReference(Sheet):
    """No columns: the samples themselves are handed over, within this process."""

    at_once = (Rows, np.ndarray, list)

    def __init__(self, rows: int, looks: bool) -> None:
        super().__init__(None, _taking, (), Held)
        self._held, self._count, self._failed, self._looks = Held(), rows, set[int](), looks

    def fetch(self, dataset: Any, keys: Any, row: int, cells: memoryview, seeded: bool) -> None:
        taking, held = self.make(seeded), self._held
        first, further = (held.look, held.look) if self._looks else (held.begin, held.add)
        taking(dataset, islice(keys, 1), row, cells, None, first, home.generation)
        for sample in held.open()[:1] if self._count > MANY else ():
            check_memory(describe(sample), self._count)
        taking(dataset, keys, row + 1, cells, None, further, home.generation)

    def fail(self, row: int) -> None:
        self._failed.add(row)

    def together(self, row: int, samples: Sequence[Any]) -> bool:
        if is_whole := len(samples) == self._count:
            self._held.hold(samples)
        return is_whole

    def payload(self) -> Any:
        rows = range(self._count)
        return None, [row for row in rows if row not in self._failed] if self._failed else rows, self._held.sealed()


_read = functools.lru_cache(maxsize=8)(pickle.loads)  # the layouts that briefs a worker's few


@dataclass(eq=False)
class Writer:
    """Makes the sheets of a worker; ``arena`` is the memory that it shares with the consumer process, if any."""

    arena: Arena | None
    seals: Any = Sealing
    _bound: dict[tuple[bytes, int, int], Any] = field(default_factory=dict)  # slots used lately: loops and columns

    def sheet(self, brief: bytes, address: int | None, row: int, rows: int, looks: bool = False) -> Sheet:
        """A sheet for the rows from ``row`` on of the slot at ``address``.

        ``looks`` asks that objects which don't travel are looked at once more, each of them.
        """
        if not brief and self.seals is Held:
            return _ByReference(rows, looks)
        seals = functools.partial(Held, copies=True) if self.seals is Held else self.seals
        if not brief:
            return Sheet(None, _bind(Aside(), ()), (), seals)
        layout = _read(brief)
        if address is None:
            layout = Layout(layout.tree, rows)
            columns = layout.columns(np.empty(layout.size, np.uint8))
            return Sheet(layout, _bind(layout.tree, columns), columns, seals, travels=True)
        key, bound = (brief, address, row), self._bound
        if key not in bound:
            if len(bound) >= _MOST_SLOTS:
                bound.clear()
            assert self.arena is not None
            columns = [column[row:] for column in layout.columns(memoryview(self.arena.map)[address:])]
            bound[key] = _bind(layout.tree, [*map(places, columns)]), columns
        make, columns = bound[key]
        return Sheet(layout, make, columns, seals)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.arena, self.seals)


def _bind(tree: Any, columns: Sequence[Any]) -> Callable[[bool], Fetch]:
    """The loops for these columns, made when they are needed: with seeds for each sample, or without."""

    step = functools.partial(seeding.step_to, 0)
    return functools.cache(lambda seeded: loop_for(tree, seeded)(*columns, step, home))


_taking = _bind(None, ())


class Packing:
    """Samples for a ``serializer=`` of the user's, which packs all those of a block at once."""

    def __init__(self, serializer: Any) -> None:
        self._serializer, self._samples = serializer, list[Any]()
        self.add: Callable[[Any], None] = self._samples.append

    def sealed(self) -> Any:
        return self._serializer.pack(self._samples)
