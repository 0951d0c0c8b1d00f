"""Sheets: what a worker writes the rows of a block to.

A sheet lies in shared memory, or is sent with the answer.  Runs in workers.  A
``Writer`` is sent to each worker once, and makes a sheet for each block (rows of one
batch). Values that fit no column are *sealed* (pickled, each by itself) at once, and
are always sent with the answer.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ..samples import leaf
from ..samples.copying import Held, Look, Refilled
from ..samples.envelope import Raw, Sealing
from ..samples.kinds import Column
from ..samples.ragged import Area
from ..samples.rows import Rows
from ..samples.tree import (
    MANY,
    Aside,
    Layout,
    Node,
    check_memory,
    describe,
    scatter,
)
from ..samples.writing import ROW, Fetch, loop_for, places
from ..transport.memory import Arena
from . import seeding

# For so many slots a worker keeps columns and loops.
_MOST_SLOTS = 64

# Returns the loop that fetches samples: with a seed for each, or without.
_Bound = Callable[[bool], Fetch]


class Payload(NamedTuple):
    """All that is sent with an answer, because it lies in no slot.

    Rows are counted in the block; ``Seals.sealed`` has made ``odd`` and ``asides``.
    """

    # The columns of the block, unless they lie in a slot or there are none.
    columns: list[Raw] | None = None
    # Samples that fit no columns, sealed, and the row of each.
    odd: Any = None
    odd_rows: Sequence[int] = ()
    # Of samples in the columns, the values that have no column: a tuple for each.
    asides: object = None
    aside_rows: Sequence[int] = ()


class Seals(Protocol):
    """Takes the values that fit no column, and returns them as one object to send."""

    def add(self, value: object) -> None: ...

    def add_together(self, columns: Sequence[Sequence[object]]) -> bool:
        """Take a tuple for each row of ``columns``; return False to get them singly."""
        ...

    def sealed(self) -> object: ...


class Unsendable(Exception):
    """A sample can't be sent from its worker; the cause is the reason."""

    def __init__(self, sample: object) -> None:
        super().__init__()
        self.sample = sample


class _Sealed:
    """Values of a block that were sealed so far, and their rows."""

    def __init__(self, seals: Seals) -> None:
        self._seals = seals
        self.rows: list[int] = []

    def add(
        self,
        row: int,
        value: object,
        sample: object,
    ) -> None:
        """Seal ``value``, which is ``sample`` or a part of it."""
        try:
            self._seals.add(value)
        except Exception as error:
            raise Unsendable(sample) from error
        self.rows.append(row)

    def add_together(
        self,
        first: int,
        columns: Sequence[Sequence[object]],
    ) -> None:
        """Seal a tuple for each row of ``columns``; they are rows from ``first`` on."""
        if self._seals.add_together(columns):
            self.rows.extend(range(first, first + len(columns[0])))
            return
        for row, values in enumerate(zip(*columns, strict=True), first):
            self.add(row, values, values)

    def sealed(self) -> object:
        return self._seals.sealed()


class Sheet(Protocol):
    """Takes the rows of one block, numbered from 0 on."""

    @property
    def at_once(self) -> tuple[type, ...]:
        """The types of samples, fetched at once, that ``together`` takes."""
        ...

    @property
    def row(self) -> int:
        """The row that is being fetched, or has failed."""
        ...

    def fetch(
        self,
        dataset: Any,
        keys: Iterator[Any],
        row: int,
        seeded: bool,
    ) -> None:
        """Fetch the samples of ``keys`` one by one, and take them from ``row`` on."""

    def together(
        self,
        row: int,
        samples: Sequence[Any],
    ) -> bool:
        """Take samples that were fetched at once; return False if they don't fit."""
        ...

    def fail(self, row: int) -> None:
        """Note that fetching this row has failed, if such rows need a note."""

    def payload(self) -> Payload | None:
        """Return what is to be sent with the answer, or None if that is nothing."""
        ...


@dataclass(eq=False)
class Written:
    """A sheet that writes samples into columns, or seals them."""

    layout: Layout | None
    make: _Bound
    columns: Sequence[Column]
    # Called once a value has to be sealed.
    new: Callable[[], Seals]
    # The worker's line on the board, which has the row that is being fetched.
    cells: memoryview
    # The columns are sent with the answer.  Otherwise they lie in a slot.
    travels: bool = False
    # Samples that fit no columns, and values of others that have no column.
    apart: _Sealed | None = None
    asides: _Sealed | None = None

    # The types that ``together`` takes.
    at_once: ClassVar[tuple[type, ...]] = (Rows, np.ndarray)

    @property
    def row(self) -> int:
        return int(self.cells[ROW])

    def fetch(
        self,
        dataset: Any,
        keys: Iterator[Any],
        row: int,
        seeded: bool,
    ) -> None:
        self.make(seeded)(dataset, keys, row, self.cells, self.odd, self.keep)

    def odd(
        self,
        row: int,
        sample: object,
    ) -> None:
        """Seal a sample that fits no columns."""
        if self.apart is None:
            self.apart = _Sealed(self.new())
        self.apart.add(row, sample, sample)

    def keep(
        self,
        row: int,
        values: tuple[object, ...],
        sample: object,
    ) -> None:
        """Seal a sample's values that have no column.

        Without columns that is the whole sample.
        """
        if self.layout is None:
            self.odd(row, sample)
            return
        if self.asides is None:
            self.asides = _Sealed(self.new())
        self.asides.add(row, values, sample)

    def fail(self, row: int) -> None:
        pass

    def together(
        self,
        row: int,
        samples: Sequence[Any],
    ) -> bool:
        if self.layout is None:
            return False
        asides: list[Sequence[Any]] = []
        columns = iter(self.columns)
        if not scatter(self.layout.tree, samples, columns, row, asides):
            return False
        if asides:
            if self.asides is None:
                self.asides = _Sealed(self.new())
            self.asides.add_together(row, asides)
        return True

    def payload(self) -> Payload | None:
        columns: list[Raw] | None = None
        if self.travels:
            columns = []
            assert self.layout is not None
            for (kind, _), column in zip(self.layout.leaves, self.columns, strict=True):
                for array in kind.sent(column):
                    flat = array.reshape(-1).view(np.uint8)
                    columns.append(Raw(flat.data))
        odd: object = None
        odd_rows: Sequence[int] = ()
        if self.apart is not None:
            odd = self.apart.sealed()
            odd_rows = self.apart.rows
        asides: object = None
        aside_rows: Sequence[int] = ()
        if self.asides is not None:
            asides = self.asides.sealed()
            aside_rows = self.asides.rows
        if columns is None and not odd_rows and not aside_rows:
            return None
        return Payload(columns, odd, odd_rows, asides, aside_rows)


class ByReference:
    """A sheet that takes the samples themselves, in this process.

    It is also the sealed object of its payload.  Without ``cells`` the row isn't noted
    on the board, where only a supervisor looks.
    """

    __slots__ = ("_cells", "_count", "_failed", "_looks", "_looks_at_all", "_samples")
    at_once = (Rows, np.ndarray, list)

    def __init__(
        self,
        rows: int,
        cells: memoryview | None = None,
        looks: bool = False,
    ) -> None:
        self._count = rows
        self._cells = cells
        self._looks_at_all = looks
        # A list with a sample for each row, None for one that failed; or all samples
        # in columns.
        self._samples: Any = []
        self._looks: list[Look] = []
        self._failed: set[int] = set()

    @property
    def row(self) -> int:
        return len(self._samples)

    def fetch(
        self,
        dataset: Any,
        keys: Iterator[Any],
        row: int,
        seeded: bool,
    ) -> None:
        add = self._samples.append
        cells = self._cells
        # The first sample is looked at again in the end: it shows whether the dataset
        # uses its memory for the next ones.  A single row has none beside it.
        looks = self._count > 1
        for key in keys:
            if cells is not None:
                cells[ROW] = self.row
            if seeded:
                seeding.step_to(0)
            sample = dataset[key]
            # If this fails, it is the row's fault, and the sample isn't added.
            if looks:
                looks = self._look(sample)
            add(sample)

    def _look(self, sample: object) -> bool:
        """Look at a sample; return True if the next one is to be looked at as well."""
        self._looks.append(Look(sample))
        if self._count > MANY and len(self._looks) == 1:
            check_memory(describe(sample), self._count)
        return self._looks_at_all

    def fail(self, row: int) -> None:
        self._failed.add(row)
        self._samples.append(None)

    def together(
        self,
        row: int,
        samples: Sequence[Any],
    ) -> bool:
        is_whole = len(samples) == self._count
        if is_whole:
            self._samples = samples
        return is_whole

    def check(self) -> None:
        """Raise Refilled if a sample has overwritten the memory of an earlier one."""
        for look in self._looks:
            if look.has_changed():
                raise Refilled

    def open(self) -> Any:
        """Return the samples of the rows that haven't failed."""
        if not self._failed:
            return self._samples
        return [self._samples[row] for row in self._rows()]

    def _rows(self) -> Sequence[int]:
        if not self._failed:
            return range(self._count)
        return [row for row in range(self._count) if row not in self._failed]

    def payload(self) -> Payload:
        self.check()
        return Payload(odd=self, odd_rows=self._rows())


# Reads layouts, of which a worker uses few.
_read = functools.lru_cache(maxsize=8)(pickle.loads)


@dataclass(eq=False)
class Writer:
    """Makes a worker's sheets; ``arena`` is the memory shared with the consumer."""

    arena: Arena | None
    seals: Callable[[], Seals] = Sealing
    # Pickled, the leaves that the program has added.
    leaves: Sequence[bytes] = ()
    # The loop and the columns of each slot that was used.
    _bound: dict[tuple[bytes, int, int], tuple[_Bound, list[Column]]] = field(
        default_factory=dict
    )

    def learn_leaves(self) -> None:
        """Make the program's own kinds of leaves known in a worker process."""
        leaf.receive([*map(pickle.loads, self.leaves)])

    def sheet(
        self,
        brief: bytes,
        address: int | None,
        row: int,
        rows: int,
        cells: memoryview,
        looks: bool = False,
    ) -> Sheet:
        """Return a sheet for ``rows`` rows of a batch, from ``row`` on.

        It lies in the slot at ``address``, or is sent if that is None.  ``brief`` is
        the pickled layout, if any.  With ``looks``, every sample is checked for having
        been overwritten.
        """
        if self.seals is Held and not brief:
            return ByReference(rows, cells, looks)
        seals = self.seals
        if not brief:
            make = _bind(Aside(), ())
            return Written(None, make, (), seals, cells)
        layout = _read(brief)
        if address is None:
            layout = Layout(layout.tree, rows)
            memory = np.empty(layout.size, np.uint8)
            columns = layout.columns(memory)
            make = _bind(layout.tree, columns)
            _begin(columns, rows)
            return Written(layout, make, columns, seals, cells, travels=True)
        key = (brief, address, row)
        bound = self._bound
        if key not in bound:
            if len(bound) >= _MOST_SLOTS:
                bound.clear()
            assert self.arena is not None
            slot = memoryview(self.arena.map)[address:]
            columns = [column[row:] for column in layout.columns(slot)]
            make = _bind(layout.tree, [*map(places, columns)])
            bound[key] = (make, columns)
        make, columns = bound[key]
        if layout.is_ragged:
            _begin(columns, rows)
        return Written(layout, make, columns, seals, cells)


def _begin(columns: Sequence[Any], rows: int) -> None:
    """Prepare the ragged ones among ``columns`` for a block of ``rows`` rows."""
    for column in columns:
        if isinstance(column, Area):
            column.begin(rows)


def _bind(tree: Node, columns: Sequence[Any]) -> _Bound:
    """Return a function that returns the loop for ``columns``.

    Its argument says whether the loop seeds the generators for each sample.
    """
    step = functools.partial(seeding.step_to, 0)

    @functools.cache
    def make(seeded: bool) -> Fetch:
        return loop_for(tree, seeded)(*columns, step)

    return make


class Packing:
    """Seals by the user's ``serializer=``, which packs a block's samples at once."""

    def __init__(self, serializer: Any) -> None:
        self._serializer = serializer
        self._samples: list[Any] = []
        self.add: Callable[[Any], None] = self._samples.append

    def add_together(self, columns: Sequence[Sequence[object]]) -> bool:
        return False

    def sealed(self) -> object:
        return self._serializer.pack(self._samples)
