"""The two transports of the core: ``slots``, rows written in place into shared memory, and ``packed``, rows sent along.

Both plan columns from the first sample and use the same pen.  ``slots`` needs workers that share memory with us: one
copy a sample, none a batch; what is handed out are views on a leased slot.  ``packed`` needs nothing but a Pool: the
worker writes into a private buffer, which travels with the ticket and is copied once into the batch's own memory.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from .envelope import Apart, Sealer, opened
from .errors import OptionError
from .layout import Layout, Pen, RowState
from .memory import Arena
from .planner import Planner, collect
from .slots import Slot, Slots
from .transport import Contents, Large, LoosePen, Room, Site, Transport, Writer

_MOST_AT_ONCE = 64  # rows written at once: numpy's cost per call is then negligible
_BYTES_AT_ONCE = 1 << 22  # …unless they are so large that they would have left the cache


class _LayoutReader:
    """Remembers the layouts that briefs describe, a worker's few."""

    def __init__(self) -> None:
        self._known: dict[bytes, Layout] = {}

    def __call__(self, brief: bytes) -> Layout:
        layout = self._known.get(brief)
        if layout is None:
            if len(self._known) > 8:
                self._known.clear()
            layout = self._known[brief] = pickle.loads(brief)
        return layout

    def __reduce__(self) -> tuple[Any, ...]:
        return _LayoutReader, ()


class _RowPen:
    """A pen on some of a room's rows; what finds no room there goes along with the ticket."""

    def __init__(
        self, layout: Layout, memory: memoryview, sealer: Sealer, first: int = 0, sends: memoryview | None = None
    ) -> None:
        self._pen = Pen(layout, memory, sealer, together=sends is not None)
        self.stride = max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // layout.row_bytes))
        self._first = first  # the batch's row that the memory's first row is
        self._rows = layout.rows
        self._sends = sends  # memory that must travel itself
        self._large: Large = []

    def write(self, row: int, samples: Sequence[Any]) -> None:
        large = self._pen.write(row - self._first, samples)
        if large:
            self._large += [(at + self._first, envelope) for at, envelope in large]

    def fail(self, row: int) -> None:
        self._pen.states[row - self._first] = RowState.FAILED

    def payload(self) -> Any:
        return self._large if self._sends is None else (self._first, self._rows, bytes(self._sends), self._large)


class SlotWriter:
    """The worker's end of ``slots``: a map of the arena."""

    def __init__(self, arena: Arena, sealer: Sealer) -> None:
        self._arena, self._sealer = arena, sealer
        self._layout = _LayoutReader()

    def pen(self, brief: bytes, address: tuple[int, ...], row: int, rows: int) -> Any:
        if not address:
            return LoosePen(self._sealer)
        layout = self._layout(brief)
        room = memoryview(self._arena.map)[address[0] : address[0] + layout.size]
        return _RowPen(layout, room, self._sealer)


class PackedWriter:
    """The worker's end of ``packed``: private buffers."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._layout = _LayoutReader()

    def pen(self, brief: bytes, address: tuple[int, ...], row: int, rows: int) -> Any:
        if not address:
            return LoosePen(self._sealer)
        layout = Layout(self._layout(brief).tree, rows)
        memory = memoryview(bytearray(layout.size))
        return _RowPen(layout, memory, self._sealer, row, sends=memory)


class _PlannedRoom:
    """A batch on its way, in memory laid out by the plan."""

    address: tuple[int, ...] = (0,)

    def __init__(self, planner: Planner, rows: int, memory: memoryview) -> None:
        assert planner.layout is not None
        self._planner, self._layout, self._rows = planner, planner.layout, rows
        self.brief = planner.brief
        self._memory = memory
        self._memory[: self._layout.rows] = bytes(self._layout.rows)  # RowState.TODO
        self._large: dict[int, Any] = {}
        self._failed: set[int] = set()

    def place(self, row: int, sample: Any) -> None:
        self._large.update(Pen(self._layout, self._memory, Apart).write(row, [sample]))

    def fail(self, row: int) -> None:
        self._failed.add(row)
        self._memory[row] = RowState.FAILED  # a worker that died may have left half of something there

    def receive(self, payload: Any) -> None:
        if payload:
            self._large.update(payload)

    def _collect(self, memory: Any, copy: bool = False) -> Contents:
        contents = collect(self._layout, memory, self._rows, self._large, frozenset(self._failed), copy)
        if contents.odd or self._large:
            self._planner.follow(contents.odd, self._large, self._rows)
        return contents

    def discard(self) -> None: ...
    def quarantine(self) -> None: ...


class _SlotRoom(_PlannedRoom):
    def __init__(self, transport: SlotTransport, slot: Slot, rows: int) -> None:
        super().__init__(transport.planner, rows, transport.slots.view(slot))
        self._transport, self._slot = transport, slot
        self._is_quarantined = False
        self.address = (slot.start,)

    def contents(self) -> Contents:
        if not self._is_quarantined and not self._transport.must_copy():
            return self._collect(self._transport.slots.lease(self._slot))
        try:
            return self._collect(self._memory, copy=True)
        finally:
            self.discard()

    def discard(self) -> None:
        if self._is_quarantined:
            self._transport.slots.lose()
        else:
            self._transport.slots.give_back(self._slot)

    def quarantine(self) -> None:
        self._is_quarantined = True


class _PrivateRoom(_PlannedRoom):
    """Ordinary memory; the rows come one by one.  For when the user holds every slot and there can be no more."""

    address: tuple[int, ...] = ()

    def __init__(self, planner: Planner, rows: int) -> None:
        assert planner.layout is not None
        super().__init__(planner, rows, memoryview(np.empty(planner.layout.size, np.uint8).data))

    def receive(self, payload: Any) -> None:
        for row, sealed in payload:
            self.place(row, opened(sealed)[0])

    def contents(self) -> Contents:
        return self._collect(self._memory)


class _PackedRoom(_PrivateRoom):
    """Ordinary memory, filled from the buffers that the workers send."""

    address: tuple[int, ...] = (0,)

    def receive(self, payload: Any) -> None:
        first, rows, memory, large = payload
        theirs = Layout(self._layout.tree, rows)
        columns = zip(self._layout.columns(self._memory), theirs.columns(memory), strict=True)
        for mine, arrived in columns:
            mine[first : first + rows] = arrived
        self._memory[first : first + rows] = memoryview(memory)[:rows]
        self._large.update(large)


class _Planned:
    """What both transports do about the plan."""

    planner: Planner
    has_margins = True

    def bind(self, site: Site) -> None:
        self._site = site
        most = site.most_bytes // (2 * site.reserve)
        self.planner = Planner(site.batch_size, most, self.has_margins, site.dumps)

    def plan(self, sample: Any) -> None:
        self.planner.plan(sample)

    @property
    def planned(self) -> bool:
        return self.planner.layout is not None

    @property
    def room_bytes(self) -> int:
        return self.planner.layout.size if self.planner.layout else 0

    def close(self) -> None: ...


class SlotTransport(_Planned):
    """Shared slots, leased to the user."""

    def __init__(self, copy: bool = False) -> None:
        self._copy = copy
        self._warned = False

    def bind(self, site: Site) -> None:
        super().bind(site)
        self._arena: Arena = site.arena()
        self.slots = Slots(self._arena, site.most_bytes, site.returned)

    def writer(self) -> Writer:
        return SlotWriter(self._arena, self._site.sealer)

    def room(self, rows: int) -> Room | None:
        assert self.planner.layout is not None
        if self.planner.layout.size != self.slots.size:
            self.slots.resize(self.planner.layout.size)
        slot = self.slots.acquire()
        if slot is not None:
            return _SlotRoom(self, slot, rows)
        return None if self.slots.count > self.slots.leased else _PrivateRoom(self.planner, rows)

    def close(self) -> None:
        self.slots.close()

    def must_copy(self) -> bool:
        """Did the user ask for copies, or does he keep so many batches that slots run short?"""
        if self._copy or self.slots.can_lease(self._site.reserve):
            return self._copy
        if not self._warned:
            self._warned = True
            self._site.warn(self._why_it_copies())
        return True

    def _why_it_copies(self) -> str:
        slots, megabytes = self.slots, self.slots.bytes / 1e6
        if slots.is_refused:
            return (
                f"memory is short: the {slots.count} slots there are ({megabytes:.0f} MB) just serve the workers, so "
                f"batches are handed out as copies. Lower batch_size or n_prefetch, or free memory."
            )
        if slots.leased <= self._site.reserve:
            return (
                f"a batch of {slots.size / 1e6:.0f} MB leaves no room for {self._site.reserve + 1} of them within "
                f"{self._site.most_bytes / 1e6:.0f} MB of shared memory, so batches are handed out as copies. Lower "
                f"batch_size, n_prefetch or n_processes."
            )
        return (
            f"{slots.leased} batches are kept alive, all that fits into {megabytes:.0f} MB of shared memory; further "
            f"ones are copied until some are dropped. Keep fewer batches, or pass copy=True."
        )


class PackedTransport(_Planned):
    """Rows packed into buffers that travel with the tickets, as envelopes do."""

    has_margins = False

    def writer(self) -> Writer:
        return PackedWriter(self._site.sealer)

    def room(self, rows: int) -> Room | None:
        return _PackedRoom(self.planner, rows)


def transport_for(serializer: Any, copy: bool) -> Transport:
    """The transport that the ``serializer=`` argument asks for."""
    if serializer == "slots":
        return SlotTransport(copy)
    if serializer == "packed":
        return PackedTransport()
    if isinstance(serializer, type) and hasattr(serializer, "room"):
        serializer = serializer()  # a new one for each iterator
    if isinstance(serializer, str) or not hasattr(serializer, "room"):
        raise OptionError(f"serializer={serializer!r:.60} is unknown; use 'slots', 'packed' or a transport object.")
    return serializer  # type: ignore[no-any-return]
