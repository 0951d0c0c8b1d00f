"""Rooms: the memory of batches in flight, laid out by the first sample, and laid out anew when many samples don't fit.

Runs in the prefetch thread.  A *slot* is shared memory for one batch, a *column* one value of all its samples, an
*aside* a value that has no column.  Guarantees that layouts only ever widen (a leaf that varies leaves the columns), so
that they settle; that a slot is the consumer's alone once it is handed out; and that a consumer which keeps batches
gets more slots, then copies, and never waits for its own batches.  A wrong layout costs speed, not correctness: a row
that doesn't fit is sent as an object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..bell import Bell
from ..errors import OptionError
from ..rules import Rules
from ..samples.tree import Aside, Contents, Layout, Node, describe, is_record, merge, scatter
from ..transport.memory import Arena
from ..transport.slots import Slot, Slots

_COMMON = 4  # lay out anew when one row in four did not fit
_ASIDE = Aside()


@dataclass(slots=True, eq=False)
class Room:
    """The memory of one batch: a slot and its layout; both are None if the batch's samples are sent as objects."""

    layout: Layout | None = None
    brief: bytes = b""  # the layout, pickled
    slot: Slot | None = None
    address: int | None = None  # where workers write; None: the rows are sent with the answers


OBJECTS = Room()


@dataclass(frozen=True, slots=True)
class Host:
    """What rooms need from their iterator."""

    rules: Rules
    arena: Arena
    most_bytes: int  # for batches in flight and batches that the consumer keeps
    dumps: Callable[[Any], bytes]  # pickles something for a worker
    bell: Bell  # rung when a slot comes home after ``take`` had none
    warn: Callable[[str], None]  # warns the user in the coming next()


class Rooms:
    """Hands out the memory for the batches of one iterator.

    With ``in_slots``, workers write into the slots themselves; else they send the rows, which are copied there here.
    """

    def __init__(self, host: Host, copy: bool, in_slots: bool, as_objects: bool) -> None:
        self._host, self._copy, self._in_slots, self._as_objects = host, copy, in_slots, as_objects
        self.bytes = 0  # of one room
        self._rows = 1  # of the largest batch so far
        self._tree: Node | None = None
        self._layout: Layout | None = None
        self._brief = b""
        self._warned = False
        self.slots = Slots(host.arena, host.most_bytes, host.bell)

    @property
    def is_new(self) -> bool:
        """True until the layout of the samples (shapes and dtypes of their columns) is known."""
        return self._tree is None

    @property
    def waits_for_a_sample(self) -> bool:
        """True if a first sample must come before a batch can have a room."""
        return self._tree is None and not self._as_objects

    def learn(self, sample: Any) -> None:
        """Lay out rooms for samples like ``sample``."""
        self._tree = tree = describe(sample)
        if self._host.rules.as_samples and is_record(tree):
            self._tree = _ASIDE  # pickled as a whole: taking records apart and putting them together costs more

    def take(self, rows: int) -> Room | None:
        """Return a room for ``rows`` rows, or None if it must wait for a slot to be freed, which rings the bell."""
        if self._as_objects or self._tree is None:
            return OBJECTS
        if rows > self._rows or self._layout is None:
            self._rows = max(rows, self._rows)
            self._lay_out(self._tree)
        if (slot := self.slots.acquire()) is not None:
            return Room(self._layout, self._brief, slot, slot.start if self._in_slots else None)
        return None if self.slots.count > self.slots.leased else OBJECTS  # the consumer has them all

    def _lay_out(self, tree: Node) -> None:
        self._tree, self._layout = tree, Layout(tree, self._rows)
        self._brief, self.bytes = self._host.dumps(self._layout), self._layout.size
        self.slots.resize(self._layout.size)

    def fill(self, room: Room, row: int, rows: int, columns: list[Any]) -> None:
        """Write ``rows`` rows that were sent as ``columns`` into the columns of ``room``, from row ``row`` on."""
        assert room.layout is not None
        assert room.slot is not None
        for column, raw in zip(room.layout.columns(self.slots.view(room.slot)), columns, strict=True):
            mine = column[row : row + rows]
            mine.reshape(-1).view("u1")[:] = memoryview(raw.memory)

    def place(self, room: Room, odd: dict[int, Any], asides: dict[int, Any]) -> None:
        """Write the samples in ``odd`` that fit into their columns; values that have no column go into ``asides``."""
        if room.layout is None or room.slot is None:
            return
        columns = room.layout.columns(self.slots.view(room.slot))
        for row, sample in list(odd.items()):
            values: list[Any] = []
            if scatter(room.layout.tree, [sample], iter(columns), row, values):
                del odd[row]
                asides[row] = tuple([some[0] for some in values])

    def contents(
        self, room: Room, rows: int, odd: dict[int, Any], asides: dict[int, Any], failed: frozenset[int], is_lost: bool
    ) -> Contents:
        """Return the batch's contents, leased or copied; with ``is_lost``, a worker may still write into the slot."""
        layout, slot = room.layout, room.slot
        if layout is None or slot is None:
            return Contents(_ASIDE, rows, objects=[*map(odd.get, range(rows))], failed=failed)
        copied = is_lost or self._copy or self._runs_short()
        columns = layout.columns(self.slots.view(slot) if copied else self.slots.lease(slot), rows)
        contents = Contents(layout.tree, rows, columns, odd=odd, failed=failed, copied=copied)
        if layout.asides:
            nothing = (None,) * layout.asides
            contents.asides = [asides.get(row, nothing) for row in range(rows)]
        if copied:
            contents.columns = [column.copy() for column in columns]
            self.give_back(room, is_lost)
        if odd and len(odd) * _COMMON >= rows and layout is self._layout:
            self._widen(odd)
        return contents

    def _widen(self, odd: dict[int, Any]) -> None:
        """Lay out anew so that the samples in ``odd`` fit too."""
        tree = self._tree
        assert tree is not None
        for sample in odd.values():
            tree = merge(tree, describe(sample)) or tree
        if tree != self._tree:
            self._lay_out(tree)

    def give_back(self, room: Room, is_lost: bool = False) -> None:
        """Take back a room that was not handed out; with ``is_lost``, its slot is never used again."""
        if room.slot is None:
            return
        if is_lost:
            self.slots.lose()
        else:
            self.slots.give_back(room.slot)

    def close(self) -> None:
        self.slots.close()

    def _runs_short(self) -> bool:
        """Return True if the consumer keeps so many batches that too few slots would be left for the loop."""
        reserve = self._host.rules.reserve
        if self.slots.can_lease(reserve):
            return False
        if not self._warned:
            self._warned = True
            self._host.warn(self._why_it_copies(reserve))
        return True

    def _why_it_copies(self, reserve: int) -> str:
        slots, megabytes = self.slots, self.slots.bytes / 1e6
        if slots.is_refused:
            return (
                f"memory is short: the {slots.count} slots there are ({megabytes:.0f} MB) just serve the workers, so "
                f"batches are handed out as copies. Lower batch_size or n_prefetch, or free memory."
            )
        if slots.leased <= reserve:
            return (
                f"a batch of {slots.size / 1e6:.0f} MB leaves no room for {reserve + 1} of them "
                f"within {self._host.most_bytes / 1e6:.0f} MB of shared memory, so batches are handed out as copies. "
                f"Lower batch_size, n_prefetch or n_processes."
            )
        return (
            f"{slots.leased} batches are kept alive, all that fits into {megabytes:.0f} MB of shared memory; further "
            f"ones are copied until some are dropped. Keep fewer batches, or pass copy=True."
        )


def check_serializer(serializer: Any) -> None:
    """Refuse an unknown serializer."""
    if serializer not in ("slots", "packed") and not (hasattr(serializer, "pack") and hasattr(serializer, "unpack")):
        raise OptionError(
            f"serializer={serializer!r:.60} is unknown; use 'slots', 'packed' or an object with pack and unpack."
        )
