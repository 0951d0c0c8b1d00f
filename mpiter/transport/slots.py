"""Slots: ranges of the arena (shared memory), all of one size.

A *slot* holds a batch and is leased to the user.  A *lease* is a ctypes object on the
slot's memory, and every array on that memory keeps it alive through its ``base``.  When
the last array is dropped, in any thread, the callback of a weak reference to the lease
returns the slot, in C only: callbacks in Python would lose a Ctrl-C.  All else runs in
the prefetch thread.  Guarantees that a slot isn't written while an array of this
process refers to it, and that many kept batches don't take all slots from the engine.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..bell import Bell
from ..errors import SharedMemoryFull
from .memory import Arena

# So many free slots are kept beyond those that were needed lately.
_SPARE = 8
# Each use reduces the earlier need by 1 %, so that memory is freed some time after a
# peak.
_FADING = 0.99
_Memory = ctypes.Array[ctypes.c_char]


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A range of the arena for one batch."""

    start: int
    size: int


class _Lease(weakref.ref[_Memory]):
    """A weak reference to a lease, whose callback returns the slot.

    That is when the user has dropped the last array on it.  The callback is the
    ``append`` of a deque, which runs in C only.
    """

    __slots__ = ("ringer", "slot")
    slot: Slot
    # A second weak reference, once the loop has waited for a slot.
    ringer: _Ringer | None


class _Ringer(weakref.ref[_Memory]):
    """A weak reference to a lease, whose callback rings the bell.

    That is when the slot is dropped.  It runs in C only, and before the callback of the
    lease, since the latest weak reference is called first.
    """

    __slots__ = ("ring",)
    ring: Callable[[], object]


_ring = operator.methodcaller("ring")


@functools.lru_cache(maxsize=64)
def _memory_type(size: int) -> type[_Memory]:
    return ctypes.c_char * size


class Slots:
    """The slots of an iterator, all of one size.

    After ``resize`` those of the old size are freed when they are returned.
    """

    def __init__(
        self,
        arena: Arena,
        most_bytes: int,
        bell: Bell,
    ) -> None:
        self._arena = arena
        # The bytes of the arena that slots may take.
        self.most_bytes = most_bytes
        self._bell = bell
        # The last one in is the first one out, since it is still in the caches.
        self._free: list[Slot] = []
        # Leases that have ended.  The callbacks add them, in any thread; the loop takes
        # them out.
        self._home: deque[_Lease] = deque()
        self._leases: dict[Slot, _Lease] = {}
        # True if the system gave no more memory.
        self.is_refused = False
        # The number of slots that were in use lately at one time.
        self._need = 0.0
        self.size = 0
        self.count = 0
        self.bytes = 0

    def resize(self, size: int) -> None:
        """Change the size of slots, and free those that are not in use."""
        self.collect()
        self.size = size
        self.shrink(keep=0)

    def acquire(self) -> Slot | None:
        """Return a free slot, or None if there is none.

        In that case the bell is rung when one is returned.
        """
        self.collect()
        free = self._free
        if not free:
            slot = self._grow()
            if slot is not None:
                return slot
            # The user may have dropped a batch since ``collect``, when nothing rang the
            # bell for it.  So this looks again while it has the bell rung for the other
            # leases; else the loop would wait for a slot that is free already.
            self._listen()
        if not free:
            return self._grow()
        slot = free.pop()
        in_use = self.count - len(free)
        self._need = max(in_use, _FADING * self._need)
        if len(free) > self._need + _SPARE:
            self.shrink(keep=int(self._need) + _SPARE)
        return slot

    def can_lease(self, reserve: int) -> bool:
        """Return True if the engine can spare one more slot.

        It would still have ``reserve`` slots to work with, or could create them.
        """
        if self.count - len(self._leases) > reserve:
            return True
        # The user may have dropped batches since a slot was acquired.
        self.collect()
        if self.is_refused:
            to_come = 0
        else:
            left = max(0, self.most_bytes - self.bytes)
            to_come = left // max(self.size, 1)
        return self.count - len(self._leases) + to_come > reserve

    def lease(self, slot: Slot) -> _Memory:
        """Return a lease: an object on the slot's memory to make arrays from.

        Dropping it returns the slot.
        """
        memory = _memory_type(slot.size).from_buffer(self._arena.map, slot.start)
        watch = _Lease(memory, self._home.append)
        watch.slot = slot
        watch.ringer = None
        self._leases[slot] = watch
        return memory

    def view(self, slot: Slot) -> memoryview:
        """Return the slot's memory for the engine, without a lease."""
        stop = slot.start + slot.size
        return memoryview(self._arena.map)[slot.start : stop]

    def give_back(self, slot: Slot) -> None:
        """Make a slot free again that was acquired but not leased."""
        if slot.size == self.size:
            self._free.append(slot)
        else:
            self._retire(slot)

    def lose(self) -> None:
        """Stop counting a slot that a lost worker may still write into.

        It is never used again.
        """
        self.count -= 1

    def collect(self) -> None:
        """Make the slots whose leases have ended free again."""
        while self._home:
            self._take_in(self._home.popleft())

    def _listen(self) -> None:
        """Have the end of each lease (the user's hold on a slot) wake the loop.

        Slots whose lease has ended are freed at once.
        """
        for watch in list(self._leases.values()):
            if (memory := watch()) is None:
                self._take_in(watch)
            elif watch.ringer is None:
                watch.ringer = _Ringer(memory, _ring)
                watch.ringer.ring = self._bell.ring

    def _take_in(self, watch: _Lease) -> None:
        # ``_listen`` may see that a lease has ended before the callback adds it to
        # ``_home``, so a lease may come here twice.  The second time the slot may be
        # free already, or leased anew.
        if self._leases.get(watch.slot) is watch:
            del self._leases[watch.slot]
            self.give_back(watch.slot)

    def shrink(self, keep: int) -> None:
        """Return the memory of all but ``keep`` free slots to the system."""
        while len(self._free) > keep:
            self._retire(self._free.pop(0))

    def close(self) -> None:
        """Free the slots that aren't leased.

        Leased ones live as long as the arrays on them.
        """
        # From now on nobody waits, so the bell needn't be rung.
        for watch in self._leases.values():
            watch.ringer = None
        self.collect()
        self.shrink(0)
        del self._arena

    @property
    def leased(self) -> int:
        # Some of the leases have ended, and their slots weren't taken back yet.
        return len(self._leases) - len(self._home)

    def _grow(self) -> Slot | None:
        # One slot there must be, even if it is larger than all of them should be.
        fits = self.bytes + self.size <= self.most_bytes
        if self.count and not fits:
            return None
        if self.is_refused:
            return None
        try:
            slot = Slot(self._arena.allocate(self.size), self.size)
        except SharedMemoryFull:
            # Without any slot no batch could ever be made.
            if not self.count:
                raise
            # With some, the loop waits for one of them.  Once the memory of a slot has
            # gone back to the system, there may be enough for another.
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
