"""Slots: equal rooms in the arena, lent to batches and to the user, and back again in any order.

A lease is a ctypes object on the slot's memory; every array made on it keeps it alive through its ``base``, and its
weak reference's callback brings the slot home, in whichever thread drops the last view.  All else runs in the prefetch
thread.  Guarantees that a slot is never written while anything can still see it, that a hoarding user never starves the
engine (``can_lease``), and that the callbacks are C from end to end: they take no lock of ours, since the garbage
collector may run them anywhere, and no Ctrl-C is lost in them, as it would be in a callback written in Python.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..bell import Bell
from ..errors import SharedMemoryFull
from .memory import Arena

_SPARE = 8  # free slots kept beyond as many as were in use lately…
_FADING = 0.99  # …at each use what was needed before counts for less: what kept batches took is given back in the end


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A range of the arena that holds one batch."""

    start: int
    size: int


class _Lease(weakref.ref[Any]):
    """A weak reference by which a slot comes home when the user drops it."""

    __slots__ = ("ringer", "slot")
    slot: Slot
    ringer: _Ringer | None  # one more, which wakes the loop if it waits for a slot


class _Ringer(weakref.ref[Any]):
    """Rings the bell when the user drops a slot; all of it runs in C."""

    __slots__ = ("ring",)
    ring: Callable[[], object]


_ring = operator.methodcaller("ring")


@functools.lru_cache(maxsize=64)
def _memory_type(size: int) -> Any:
    return ctypes.c_char * size


class Slots:
    """The slots of one layout at a time; those of earlier layouts go home to the arena."""

    def __init__(self, arena: Arena, most_bytes: int, bell: Bell) -> None:
        self._arena = arena
        self._most_bytes = most_bytes  # the arena's share that slots may take
        self._bell = bell
        self._free: list[Slot] = []  # last in, first out: the hottest is used first
        self._home: deque[_Lease] = deque()  # filled by the callbacks
        self._leases: dict[Slot, _Lease] = {}
        self.is_refused = False  # the system gave no more memory
        self._need = 0.0
        self.size = 0
        self.count = 0
        self.bytes = 0

    def resize(self, size: int) -> None:
        """Change the size of the slots that are handed out."""
        self.collect()
        self.size = size
        self.shrink(keep=0)

    def acquire(self) -> Slot | None:
        """A free slot, or None while there is none; the bell is rung when one comes home."""
        self.collect()
        free = self._free
        if not free and (slot := self._grow()) is not None:
            return slot
        if not free:
            self._listen()  # and look again: something may have come home meanwhile
        if not free:
            return self._grow()
        slot = free.pop()
        self._need = max(self.count - len(free), _FADING * self._need)
        if len(free) > self._need + _SPARE:
            self.shrink(keep=int(self._need) + _SPARE)
        return slot

    def can_lease(self, reserve: int) -> bool:
        """Would the engine still have ``reserve`` slots to work with?"""
        if self.count - len(self._leases) > reserve:
            return True
        self.collect()
        to_come = 0 if self.is_refused else max(0, self._most_bytes - self.bytes) // max(self.size, 1)
        return self.count - len(self._leases) + to_come > reserve

    def lease(self, slot: Slot) -> Any:
        """The slot's memory as an object to build arrays on; the slot comes home when it is dropped."""
        memory = _memory_type(slot.size).from_buffer(self._arena.map, slot.start)
        watch = _Lease(memory, self._home.append)
        watch.slot, watch.ringer = slot, None
        self._leases[slot] = watch
        return memory

    def view(self, slot: Slot) -> memoryview:
        """The slot's memory, for the engine, without a lease."""
        return memoryview(self._arena.map)[slot.start : slot.start + slot.size]

    def give_back(self, slot: Slot) -> None:
        """Return a slot that was never leased."""
        if slot.size == self.size:
            self._free.append(slot)
        else:
            self._retire(slot)

    def lose(self) -> None:
        """Give up a slot that will never come back."""
        self.count -= 1

    def collect(self) -> None:
        """Take in the slots whose leases have ended."""
        while self._home:
            self._take_in(self._home.popleft())

    def _listen(self) -> None:
        """Have every lease ring when it ends, and take in those that are ending now."""
        for watch in list(self._leases.values()):
            if (memory := watch()) is None:
                self._take_in(watch)
            elif watch.ringer is None:
                watch.ringer = _Ringer(memory, _ring)
                watch.ringer.ring = self._bell.ring

    def _take_in(self, watch: _Lease) -> None:
        if self._leases.get(watch.slot) is watch:
            del self._leases[watch.slot]
            self.give_back(watch.slot)

    def shrink(self, keep: int) -> None:
        """Give the memory of slots beyond ``keep`` free ones back to the system."""
        while len(self._free) > keep:
            self._retire(self._free.pop(0))

    def close(self) -> None:
        """Give free slots back; leased ones live as long as their views."""
        for watch in self._leases.values():
            watch.ringer = None
        self.collect()
        self.shrink(0)
        del self._arena

    @property
    def leased(self) -> int:
        """Slots that the user can still see."""
        return len(self._leases) - len(self._home)

    def _grow(self) -> Slot | None:
        fits = self.bytes + self.size <= self._most_bytes or self.count == 0
        if self.is_refused or not fits:
            return None
        try:
            slot = Slot(self._arena.allocate(self.size), self.size)
        except SharedMemoryFull:
            if not self.count:
                raise
            self.is_refused = True
            return None
        self.count += 1
        self.bytes += slot.size
        return slot

    def _retire(self, slot: Slot) -> None:
        self._arena.free(slot.start, slot.size)
        self.count -= 1
        self.bytes -= slot.size
        self.is_refused = False
