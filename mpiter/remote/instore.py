"""Batches that stay where they arrive: views on the arrays that workers have sent, which an object store holds.

A worker writes its rows into one private array, laid out as the batch's memory, and sends that.  What covers a batch is
the batch: its columns are read-only views, which keep the array alive; what came in several pieces is put together in
ordinary memory, read-only as well.  ``copy=True`` gives writable private arrays.  Guarantees that no more of the store
is kept alive by the user than he may have: beyond that he gets copies, with one warning.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np

from .. import machine
from ..errors import SharedMemoryFull
from ..samples.envelope import Apart
from ..samples.fitting import Fitting, collect
from ..samples.layout import Contents, Layout, Pen, RowState
from ..transport.transport import Host, Room, Writer
from ..transport.transports import PackedTransport, PackedWriter, RowPen


class _WholePen(RowPen):
    def payload(self) -> Any:
        return self.first, self.pen.layout.rows, self.pen.states.obj, self.large


class InStoreWriter(PackedWriter):
    """The worker's end: what lies in a private buffer is sent as one array."""

    on_rows = _WholePen


class _Lent(weakref.ref[Any]):
    """Notices when the user has let go of an array."""

    __slots__ = ("size",)
    size: int


class _InStoreRoom:
    """A batch on its way: what has arrived of it."""

    address: tuple[int, ...] = (0,)

    def __init__(self, transport: InStore, layout: Layout, brief: bytes) -> None:
        self._transport, self._layout, self.brief = transport, layout, brief
        self._arrived: list[tuple[int, int, Any]] = []  # the first row, how many, the array
        self._own: Any = None  # ordinary memory, if it takes that
        self._large: dict[int, Any] = {}
        self._failed: set[int] = set()

    def put(self, row: int, sample: Any) -> None:
        self._large.update(Pen(self._layout, memoryview(self._memory()), Apart).write(row, [sample]))

    def fail(self, row: int) -> None:
        self._failed.add(row)

    def receive(self, payload: Any) -> None:
        *piece, large = payload
        self._arrived.append(tuple(piece))
        self._large.update(large)

    def contents(self) -> Contents:
        rows, copies = self._layout.rows, self._transport.copies
        is_whole = self._own is None and len(self._arrived) == 1 and self._arrived[0][1] == rows
        memory = self._arrived[0][2] if is_whole else self._together()
        must_copy = is_whole and (copies or not self._transport.lend(memory))
        if not copies:
            memory.flags.writeable = False
        self._arrived.clear()
        contents = collect(self._layout, memory, rows, self._large, frozenset(self._failed), must_copy)
        if not copies:
            for column in contents.columns:
                column.flags.writeable = False
        return contents

    def _memory(self) -> Any:
        if self._own is None:
            self._own = np.empty(self._layout.size, np.uint8)
            self._own[: self._layout.rows] = RowState.TODO
        return self._own

    def _together(self) -> Any:
        """All pieces in one memory: of each, the rows that were finished."""
        memory = self._memory()
        columns = self._layout.columns(memory)
        for first, rows, array in self._arrived:
            done = int(np.count_nonzero(array[:rows]))  # RowState: they are finished in order
            memory[first : first + done] = array[:done]
            for mine, theirs in zip(columns, Layout(self._layout.tree, rows).columns(array), strict=True):
                mine[first : first + done] = theirs[:done]
        return memory

    def discard(self) -> None: ...
    def quarantine(self) -> None: ...  # workers don't write into it


class InStore(PackedTransport):
    """Of batches that may stay in the store of whoever carries them."""

    def bind(self, host: Host) -> None:
        self._host, self.copies = host, self._copy
        most = host.most_bytes // (2 * host.rules.reserve)
        self.fitting = Fitting(most, self.has_margins, host.dumps, host.rules.as_samples)
        self._home: deque[_Lent] = deque()  # filled by the callbacks, which are C
        self._lent: dict[int, _Lent] = {}
        self._lent_bytes = 0

    def writer(self) -> Writer:
        return InStoreWriter(self._host.sealer)

    def room(self, rows: int) -> Room:
        layout = Layout(self.fitting.make_room(rows).tree, rows)
        if layout.size > self._host.most_bytes and layout.size > (available := machine.memory_available()):
            raise SharedMemoryFull(
                f"a batch of {layout.size / 1e6:.1f} MB does not fit: {available / 1e6:.1f} MB of memory are "
                f"available; lower batch_size."
            )
        return _InStoreRoom(self, layout, self.fitting.brief)

    def lend(self, memory: Any) -> bool:
        """May the user have this array, and keep it as long as he likes?"""
        while self._home:
            back = self._home.popleft()
            self._lent_bytes -= self._lent.pop(id(back)).size
        if self._lent_bytes + memory.nbytes > self._host.most_bytes:
            if not self._warned:
                self._warned = True
                self._host.warn(self._too_much(memory.nbytes))
            return False
        owner = memory
        while isinstance(owner.base, np.ndarray):  # what views of it will refer to
            owner = owner.base
        watch = _Lent(owner, self._home.append)
        watch.size = memory.nbytes
        self._lent[id(watch)] = watch
        self._lent_bytes += watch.size
        return True

    def _too_much(self, size: int) -> str:
        """Why a batch of this size is copied."""
        if not self._lent:
            return (
                f"a batch of {size / 1e6:.0f} MB is more of the object store than one may keep, "
                f"{self._host.most_bytes / 1e6:.0f} MB: others need room; it is copied, as further ones are. Make "
                f"batches smaller, pass copy=True, or give Ray a larger object store."
            )
        return (
            f"{len(self._lent)} batches are kept alive, {self._lent_bytes / 1e6:.0f} MB of the object store, and one "
            f"of {size / 1e6:.0f} MB more is too much: others need room; it is copied, as further ones are until some "
            f"are dropped. Keep fewer batches, make them smaller, pass copy=True, or give Ray a larger object store."
        )

    def close(self) -> None:
        """What the user keeps stays his."""
