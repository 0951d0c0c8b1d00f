"""The two transports of the core: ``slots``, rows written in place into shared memory, and ``packed``, rows sent along.

Both lay columns out by the first sample and use the same pen.  ``slots`` needs workers that share memory with us: one
copy a sample, none a batch; what is handed out are views on a leased slot.  ``packed`` needs nothing but a Pool: the
worker writes into a private buffer, which travels with the ticket and is copied once into the batch's own memory.
"""

from __future__ import annotations

import functools
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import OptionError
from ..samples.envelope import Apart, Raw, Sealer, as_raw, opened
from ..samples.fitting import Fitting, collect
from ..samples.layout import Contents, Layout, Pen, RowState
from ..samples.leaves import Column
from ..samples.reuse import Data
from .memory import Arena
from .slots import Slot, Slots
from .transport import OUT_OF_LINE, Host, Large, LoosePen, Room, Transport, Writer

_MOST_PENS = 64


def _layout_reader() -> Callable[[bytes], Layout]:
    """Remembers the layouts that briefs describe, a worker's few."""
    return functools.lru_cache(maxsize=8)(pickle.loads)


class RowPen:
    """A pen on some of a room's rows; what finds no room there goes along with the ticket."""

    def __init__(self, pen: Pen, first: int = 0, sends: bool = False) -> None:
        self.pen, self.stride = pen, pen.layout.stride
        self.first = first  # the batch's row that the memory's first row is
        self._sends = sends  # the memory must travel itself
        self.large: Large = []

    def write(self, row: int, samples: Sequence[Any], at_once: bool = False) -> None:
        large = self.pen.write(row - self.first, samples, at_once)
        if large:
            self.large += [(at + self.first, envelope) for at, envelope in large]

    def fail(self, row: int) -> None:
        self.pen.states[row - self.first] = RowState.FAILED

    def payload(self) -> Any:
        if not self._sends:
            return [(row, as_raw(large)) for row, large in self.large]
        parts = list(map(Raw, _raw(self.pen.states, self.pen.columns)))
        return self.first, self.pen.layout.rows, parts, self.large


def _raw(states: memoryview, columns: Sequence[Column]) -> list[memoryview]:
    """What of rows travels, and where it goes to: their states, and each column."""
    return [states, *(column.reshape(-1).view(np.uint8).data for column in columns)]


class SlotWriter:
    """The worker's end of ``slots``: a map of the arena."""

    def __init__(self, arena: Arena, sealer: Sealer) -> None:
        self._arena, self._sealer = arena, sealer
        self._layout = _layout_reader()
        self._pens: dict[tuple[bytes, int], Pen] = {}  # on the slots used lately, which are few
        self._data = Data()

    def pen(self, brief: bytes, address: tuple[int, ...], row: int, rows: int) -> Any:
        if not address:
            return LoosePen(self._sealer)
        pen = self._pens.get((brief, address[0]))
        if pen is None:
            if len(self._pens) >= _MOST_PENS:
                self._pens.clear()
            layout = self._layout(brief)
            room = memoryview(self._arena.map)[address[0] : address[0] + layout.size]
            pen = self._pens[brief, address[0]] = Pen(layout, room, self._sealer, data=self._data)
        return RowPen(pen)

    def __reduce__(self) -> tuple[Any, ...]:
        return SlotWriter, (self._arena, self._sealer)


class PackedWriter:
    """The worker's end of ``packed``: private buffers."""

    on_rows: type[RowPen] = RowPen

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._layout = _layout_reader()
        self._memories: list[tuple[np.ndarray[Any, Any], weakref.ref[Any]]] = []  # and who uses them
        self._data = Data()

    def pen(self, brief: bytes, address: tuple[int, ...], row: int, rows: int) -> Any:
        if not address:
            return LoosePen(self._sealer)
        layout = Layout(self._layout(brief).tree, rows)
        memory = self._memory(layout.size).data
        memory[:rows] = bytes(rows)  # RowState.TODO
        return self.on_rows(Pen(layout, memory, self._sealer, True, self._data), row, sends=True)

    def _memory(self, size: int) -> np.ndarray[Any, Any]:
        """Some that was used before, if all that lay there is on its way."""
        unused = [memory for memory, user in self._memories if user() is None and memory.size >= size]
        memory = unused[0] if unused else np.empty(size, np.uint8)
        view = memory[:size]  # which lives as long as anything refers to what it shows
        in_use = [(other, user) for other, user in self._memories if user() is not None]
        self._memories = [*in_use, (memory, weakref.ref(view))]
        return view

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._sealer,)


class _LaidOutRoom:
    """A batch on its way, in memory that is laid out."""

    address: tuple[int, ...] = (0,)

    def __init__(self, fitting: Fitting, rows: int, memory: memoryview) -> None:
        assert fitting.layout is not None
        self._layout, self._rows = fitting.layout, rows
        self.brief = fitting.brief
        self._memory = memory
        self._memory[: self._layout.rows] = bytes(self._layout.rows)  # RowState.TODO
        self._large: dict[int, Any] = {}
        self._failed: set[int] = set()

    def put(self, row: int, sample: Any) -> None:
        self._large.update(Pen(self._layout, self._memory, Apart).write(row, [sample]))

    def fail(self, row: int) -> None:
        self._failed.add(row)
        self._memory[row] = RowState.FAILED  # a worker that died may have left half of something there

    def receive(self, payload: Any) -> None:
        for row, large in payload or ():
            self._large[row] = large.memory if isinstance(large, Raw) else large

    def _collect(self, memory: Any, copy: bool = False) -> Contents:
        return collect(self._layout, memory, self._rows, self._large, frozenset(self._failed), copy)

    def discard(self) -> None: ...
    def quarantine(self) -> None: ...


class _SlotRoom(_LaidOutRoom):
    def __init__(self, transport: SlotTransport, slot: Slot, rows: int) -> None:
        super().__init__(transport.fitting, rows, transport.slots.view(slot))
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


class _PrivateRoom(_LaidOutRoom):
    """Ordinary memory; the rows come one by one.  For when the user holds every slot and there can be no more."""

    address: tuple[int, ...] = ()

    def __init__(self, fitting: Fitting, rows: int) -> None:
        assert fitting.layout is not None
        super().__init__(fitting, rows, memoryview(np.empty(fitting.layout.size, np.uint8).data))

    def receive(self, payload: Any) -> None:
        for row, sealed in payload:
            self.put(row, opened(sealed)[0])

    def contents(self) -> Contents:
        return self._collect(self._memory)


class _Packed(_LaidOutRoom):
    """A room that is filled from the buffers that workers send, or into which the Pool has read them already."""

    def destinations(self, row: int, rows: int, sizes: Sequence[int]) -> list[memoryview] | None:
        """Where the large ones of a piece's buffers go; the small ones come with the rest."""
        large = [part for part in self._rows_of(row, rows) if part.nbytes >= OUT_OF_LINE]
        return large if [part.nbytes for part in large] == list(sizes) else None

    def _rows_of(self, row: int, rows: int) -> list[memoryview]:
        columns = [column[row : row + rows] for column in self._layout.columns(self._memory)]
        return _raw(self._memory[row : row + rows], columns)

    def receive(self, payload: Any) -> None:
        first, rows, parts, large = payload
        for mine, part in zip(self._rows_of(first, rows), parts, strict=True):
            if not _is_same_memory(mine, part.memory):
                mine[:] = part.memory
        self._large.update(large)


def _is_same_memory(one: Any, other: Any) -> bool:
    """Do these begin at one place?"""
    return bool(np.frombuffer(one, np.uint8).ctypes.data == np.frombuffer(other, np.uint8).ctypes.data)


class _PackedSlotRoom(_Packed, _SlotRoom):
    """…in a slot, which is warm from the batch before."""

    def quarantine(self) -> None:
        """Workers don't write into it."""


class _PackedPrivateRoom(_Packed, _PrivateRoom):
    """…in ordinary memory."""

    address: tuple[int, ...] = (0,)


class SlotTransport:
    """Shared slots, leased to the user."""

    needs_shared_memory = has_margins = True
    _in_slot, _in_private = _SlotRoom, _PrivateRoom

    def __init__(self, copy: bool = False) -> None:
        self._copy = copy
        self._warned = False

    def bind(self, host: Host) -> None:
        self._host = host
        most = host.most_bytes // (2 * host.rules.reserve)
        self.fitting = Fitting(most, self.has_margins, host.dumps, host.rules.as_samples)
        self._arena: Arena = host.arena()
        self.slots = Slots(self._arena, host.most_bytes, host.bell)

    def lay_out(self, sample: Any) -> None:
        self.fitting.begin(sample)

    def follow(self, contents: Contents) -> None:
        self.fitting.follow(contents)

    @property
    def is_laid_out(self) -> bool:
        return self.fitting.layout is not None

    @property
    def room_bytes(self) -> int:
        return self.fitting.layout.size if self.fitting.layout else 0

    def writer(self) -> Writer:
        return SlotWriter(self._arena, self._host.sealer)

    def room(self, rows: int) -> Room | None:
        layout = self.fitting.make_room(rows)
        if layout.size != self.slots.size:
            self.slots.resize(layout.size)
        slot = self.slots.acquire()
        if slot is not None:
            return self._in_slot(self, slot, rows)
        return None if self.slots.count > self.slots.leased else self._in_private(self.fitting, rows)

    def close(self) -> None:
        self.slots.close()

    def must_copy(self) -> bool:
        """Did the user ask for copies, or does he keep so many batches that slots run short?"""
        if self._copy or self.slots.can_lease(self._host.rules.reserve):
            return self._copy
        if not self._warned:
            self._warned = True
            self._host.warn(self._why_it_copies())
        return True

    def _why_it_copies(self) -> str:
        slots, megabytes = self.slots, self.slots.bytes / 1e6
        if slots.is_refused:
            return (
                f"memory is short: the {slots.count} slots there are ({megabytes:.0f} MB) just serve the workers, so "
                f"batches are handed out as copies. Lower batch_size or n_prefetch, or free memory."
            )
        if slots.leased <= self._host.rules.reserve:
            return (
                f"a batch of {slots.size / 1e6:.0f} MB leaves no room for {self._host.rules.reserve + 1} of them "
                f"within {self._host.most_bytes / 1e6:.0f} MB of shared memory, so batches are handed out as copies. "
                f"Lower batch_size, n_prefetch or n_processes."
            )
        return (
            f"{slots.leased} batches are kept alive, all that fits into {megabytes:.0f} MB of shared memory; further "
            f"ones are copied until some are dropped. Keep fewer batches, or pass copy=True."
        )


class PackedTransport(SlotTransport):
    """Rows packed into buffers that travel with the tickets, as envelopes do; here they lie in slots of our own."""

    has_margins = needs_shared_memory = False
    _in_slot, _in_private = _PackedSlotRoom, _PackedPrivateRoom

    def writer(self) -> Writer:
        return PackedWriter(self._host.sealer)


def transport_for(serializer: Any, copy: bool) -> Transport:
    """The transport that the ``serializer=`` argument asks for."""
    if serializer == "slots":
        return SlotTransport(copy)
    if serializer == "packed":
        return PackedTransport(copy)
    if isinstance(serializer, type) and hasattr(serializer, "room"):
        serializer = serializer()  # a new one for each iterator
    if isinstance(serializer, str) or not hasattr(serializer, "room"):
        raise OptionError(f"serializer={serializer!r:.60} is unknown; use 'slots', 'packed' or a transport object.")
    return serializer  # type: ignore[no-any-return]
