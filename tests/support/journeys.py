"""One batch on its way through a room, in this process, without workers."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from mpiter.engine.delivery import Delivery
from mpiter.engine.rooms import Rooms
from mpiter.order.cursor import Plan
from mpiter.rules import Rules
from mpiter.samples.batch import samples_of
from mpiter.samples.envelope import Sealed, dumps
from mpiter.transport.slots import Slots
from mpiter.worker.board import LINE_BYTES
from mpiter.worker.sheets import Writer

CANARY = 0xA5
CELLS = memoryview(bytearray(LINE_BYTES)).cast("q")


class Memory:
    """An arena for one slot, all of whose bytes have been written before."""

    def allocate(self, size):
        self.map = bytearray([CANARY]) * (size + 64)
        return 0

    def free(self, start, size): ...


class Journey:
    """Does with one batch what a worker and the consumer do, in this process."""

    def __init__(self, batch, first=None, spare=0, travels=False, copy=False):
        self.memory = Memory()
        bell = SimpleNamespace(ring=lambda: None)
        slots = Slots(self.memory, 1 << 40, bell)
        rules = Rules(1, as_samples=False)
        self.rooms = Rooms(
            rules,
            slots,
            dumps,
            pytest.fail,
            copy,
            in_slots=not travels,
            as_objects=False,
        )
        self.rooms.learn(batch[0] if first is None else first, 1)
        self.begin_anew(batch, spare)

    def begin_anew(self, batch, spare=0):
        """Begin another batch, which is laid out as the last one has shown."""
        self.batch = batch
        self.room = self.rooms.take(len(batch) + spare)
        self.delivery = Delivery(Plan(0, len(batch), (), None, None), self.room)
        self.layout = self.room.layout
        self.odd = self.delivery.odd
        self.asides = self.delivery.asides

    def sheet(self, row, rows):
        return Writer(self.memory).sheet(
            self.room.brief, self.room.address, row, rows, CELLS
        )

    def fetch(self, row, some, seeded=False):
        """Fetch these samples as a worker does, into the rows from ``row`` on."""
        sheet = self.sheet(row, len(some))
        sheet.fetch(some, iter(range(len(some))), 0, seeded)
        self.arrive(row, len(some), sheet)

    def arrive(self, row, rows, sheet):
        payload = pickle.loads(pickle.dumps(sheet.payload(), 5))
        if payload is None:
            return
        if payload.columns is not None:
            self.rooms.fill(self.room, row, rows, payload.columns)
        self.delivery.store(row, payload, Sealed.open)

    def write(self, at_once=None, start=0, seeded=False):
        """Fetch all samples in blocks of ``at_once`` rows."""
        step = at_once or len(self.batch)
        for row in range(0, len(self.batch), step):
            self.fetch(start + row, self.batch[row : row + step], seeded)
        return self

    def contents(self, failed=frozenset()):
        return self.rooms.contents(self.delivery, failed)

    def read(self):
        return samples_of(self.contents())
