"""Sheets: what a worker writes the rows of a block to, in shared memory or to be sent
with the answer.

Runs in workers.  A ``Writer`` is sent to each worker once, and makes a sheet for each
block (rows of one batch). Values that fit no column are *sealed* (pickled, each by
itself) at once, and are always sent with the answer.
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
from ..samples.tree import (
    MANY,
    Aside,
    Column,
    Layout,
    Rows,
    check_memory,
    describe,
    scatter,
)
from ..samples.writing import Fetch, loop_for, places
from ..transport.memory import Arena
from . import seeding

# Slots for which a worker keeps columns and loops.
_MOST_SLOTS = 64


class Unsendable(Exception):
    """A sample can't be sent from its worker; the cause is the reason."""

    def __init__(self, sample: Any) -> None:
        super().__init__()
        self.sample = sample


@dataclass(eq=False)
class Sheet:
    """Takes the rows of one block, numbered from 0 on: writes them into columns, or
    seals them.
    """

    layout: Layout | None
    make: Callable[[bool], Fetch]
    columns: Sequence[Column]
    # Makes ``sealing``, which pickles values.
    new: Any
    # The columns are sent with the answer; else they lie in a slot.
    travels: bool = False
    sealing: Any = None
    # Of each sealed value; ~row if it is not a whole sample.
    rows: list[int] = field(default_factory=list)

    # The types that ``together`` takes.
    at_once: ClassVar[tuple[type, ...]] = (Rows, np.ndarray)

    def fetch(
        self, dataset: Any, keys: Any, row: int, cells: memoryview, seeded: bool
    ) -> None:
        """Fetch the samples of ``keys`` one by one, and write them to this sheet's rows
        ``row``, ``row + 1``, …
        """
        self.make(seeded)(dataset, keys, row, cells, self.odd, self.keep)

    def odd(self, row: int, sample: Any) -> None:
        self._seal(row, sample, sample)

    def keep(self, row: int, values: tuple[Any, ...], sample: Any) -> None:
        """Pickle a sample's values that have no column (the whole sample if there are
        no columns), for the answer.
        """
        at, value = (row, sample) if self.layout is None else (~row, values)
        self._seal(at, value, sample)

    def _seal(self, at: int, value: Any, sample: Any) -> None:
        if self.sealing is None:
            self.sealing = self.new()
        try:
            self.sealing.add(value)
        except Exception as error:
            raise Unsendable(sample) from error
        self.rows.append(at)

    def fail(self, row: int) -> None:
        """Note that fetching this row has failed, if such rows need a note."""

    def together(self, row: int, samples: Sequence[Any]) -> bool:
        """Write samples that were fetched at once as columns; return False if they
        don't fit.
        """
        asides: list[Sequence[Any]] = []
        if self.layout is None or not scatter(
            self.layout.tree, samples, iter(self.columns), row, asides
        ):
            return False
        for at, values in enumerate(zip(*asides, strict=True), row):
            self.keep(at, values, values)
        return True

    def payload(self) -> Any:
        """Return the columns (None in a slot), the rows of sealed values, and these;
        None if nothing is to be sent.
        """
        if self.sealing is None:
            sealed = None
        else:
            sealed = self.sealing.sealed()
        if self.travels:
            raw = [
                Raw(column.reshape(-1).view(np.uint8).data) for column in self.columns
            ]
        else:
            raw = None
        if raw is None and sealed is None:
            return None
        return (raw, self.rows, sealed)


class _ByReference(Sheet):
    """A sheet without columns: hands over the samples themselves, within this
    process.
    """

    at_once = (Rows, np.ndarray, list)

    def __init__(self, rows: int, looks: bool) -> None:
        super().__init__(None, _taking, (), Held)
        self._held, self._count, self._failed, self._looks = (
            Held(),
            rows,
            set[int](),
            looks,
        )

    def fetch(
        self, dataset: Any, keys: Any, row: int, cells: memoryview, seeded: bool
    ) -> None:
        taking = self.make(seeded)
        held = self._held
        # No other row could be written over it.
        if self._count == 1:
            taking(dataset, keys, row, cells, None, held.add)
            return
        taking(dataset, islice(keys, 1), row, cells, None, held.look)
        for sample in held.open()[:1] if self._count > MANY else ():
            check_memory(describe(sample), self._count)
        taking(
            dataset, keys, row + 1, cells, None, held.look if self._looks else held.add
        )

    def fail(self, row: int) -> None:
        self._failed.add(row)

    def together(self, row: int, samples: Sequence[Any]) -> bool:
        if is_whole := len(samples) == self._count:
            self._held.hold(samples)
        return is_whole

    def payload(self) -> Any:
        rows = range(self._count)
        return (
            None,
            [row for row in rows if row not in self._failed] if self._failed else rows,
            self._held.sealed(),
        )


# Layouts; a worker uses few.
_read = functools.lru_cache(maxsize=8)(pickle.loads)


@dataclass(eq=False)
class Writer:
    """Makes a worker's sheets; ``arena`` is the memory shared with the consumer
    process, if there is any.
    """

    arena: Arena | None
    seals: Any = Sealing
    # Loop and columns of slots that were used.
    _bound: dict[tuple[bytes, int, int], Any] = field(default_factory=dict)

    def sheet(
        self,
        brief: bytes,
        address: int | None,
        row: int,
        rows: int,
        looks: bool = False,
    ) -> Sheet:
        """Return a sheet for ``rows`` rows from ``row`` on, in the slot at ``address``,
        or to be sent if that is None.

        ``brief`` is the pickled layout, if any.  With ``looks``, every sample is
        checked for having been overwritten.
        """
        if not brief and self.seals is Held:
            return _ByReference(rows, looks)
        if self.seals is Held:
            seals = functools.partial(Held, copies=True)
        else:
            seals = self.seals
        if not brief:
            return Sheet(None, _bind(Aside(), ()), (), seals)
        layout = _read(brief)
        if address is None:
            layout = Layout(layout.tree, rows)
            columns = layout.columns(np.empty(layout.size, np.uint8))
            return Sheet(
                layout, _bind(layout.tree, columns), columns, seals, travels=True
            )
        key = (brief, address, row)
        bound = self._bound
        if key not in bound:
            if len(bound) >= _MOST_SLOTS:
                bound.clear()
            assert self.arena is not None
            columns = [
                column[row:]
                for column in layout.columns(memoryview(self.arena.map)[address:])
            ]
            bound[key] = _bind(layout.tree, [*map(places, columns)]), columns
        make, columns = bound[key]
        return Sheet(layout, make, columns, seals)


def _bind(tree: Any, columns: Sequence[Any]) -> Callable[[bool], Fetch]:
    """Return a function that returns the loop for ``columns``, with seeding for each
    sample or without.
    """
    step = functools.partial(seeding.step_to, 0)
    return functools.cache(lambda seeded: loop_for(tree, seeded)(*columns, step))


_taking = _bind(None, ())


class Packing:
    """Seals by the user's ``serializer=``, which packs all samples of a block at
    once.
    """

    def __init__(self, serializer: Any) -> None:
        self._serializer, self._samples = serializer, list[Any]()
        self.add: Callable[[Any], None] = self._samples.append

    def sealed(self) -> Any:
        return self._serializer.pack(self._samples)
