"""Slots, and the memory that they are ranges of, are tested here one by one."""

from __future__ import annotations

import _thread
import contextlib
import operator
import os
from collections import deque
from functools import partial

import pytest

from mpiter.bell import Bell
from mpiter.errors import SharedMemoryFull
from mpiter.transport.memory import Arena
from mpiter.transport.slots import Slots

PAGE = 4096


class Counted(Bell):
    """A bell that counts how often it is rung."""

    def __init__(self, rung):
        super().__init__()
        self.ring = partial(rung.append, 1)


@contextlib.contextmanager
def small_arena():
    """Make an arena.

    It isn't a fixture, because pytest would keep it until after the check for what is
    left.
    """
    made = Arena(1 << 26)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("asked", ["none waits", "one waits"])
def test_ctrl_c_is_not_lost_while_a_slot_comes_home(asked):
    returned = []
    with small_arena() as arena:
        slots = Slots(arena, PAGE, Counted(returned))
        slots.resize(PAGE)
        held = [slots.lease(slots.acquire())]
        if asked == "one waits":
            assert slots.acquire() is None
        # ``map`` runs no bytecode between its two calls.  So Ctrl-C is still pending
        # while the slot comes back, and would be raised in a callback with bytecode.
        call = operator.methodcaller("__call__")
        with pytest.raises(KeyboardInterrupt):
            list(map(call, [_thread.interrupt_main, held.clear]))
        assert len(returned) == (asked == "one waits")
        assert slots.acquire() is not None


def test_a_batch_dropped_since_the_last_slot_was_acquired_makes_room_for_a_lease():
    with small_arena() as arena:
        slots = Slots(arena, 2 * PAGE, Bell())
        slots.resize(PAGE)
        held = [slots.lease(slots.acquire())]
        slots.acquire()
        assert not slots.can_lease(1)
        held.clear()
        assert slots.can_lease(1)


def test_a_slot_on_its_way_home_is_taken_in_once():
    class Slow(deque):
        """Delays the last step of the callback that returns a slot."""

        def __init__(self):
            super().__init__()
            self.on_the_way = []

        def append(self, lease):
            self.on_the_way.append(lease)

    with small_arena() as arena:
        slots = Slots(arena, PAGE, Bell())
        slots.resize(PAGE)
        home = slots._home = Slow()
        seen = slots.lease(slots.acquire())
        del seen
        # The lease has ended, so the slot is leased again, though the callback hasn't
        # reported the end yet.
        seen = slots.lease(slots.acquire())
        # Now it does, too late.  If the slot were freed by that, two batches would have
        # the same memory.
        super(Slow, home).append(home.on_the_way.pop())
        assert slots.acquire() is None
        del seen
        assert len(home.on_the_way) == 1
        assert slots.acquire() is not None


@pytest.mark.parametrize("portable", [False, True])
def test_memory_that_the_system_refuses_is_an_error_and_the_range_is_free_again(
    portable, monkeypatch
):
    if portable:
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.delattr(os, "posix_fallocate")
    with small_arena() as arena:

        def refused(*args):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite" if portable else "posix_fallocate", refused)
            with pytest.raises(SharedMemoryFull) as caught:
                arena.allocate(PAGE)
        assert isinstance(caught.value.__cause__, OSError)
        assert arena.allocate(PAGE) == 0


def test_a_full_reserve_is_an_error_with_numbers():
    with small_arena() as arena:
        arena.allocate(60 << 20)
        with pytest.raises(
            SharedMemoryFull,
            match=r"a slot of 8\.4 MB does not fit: .*67\.1 MB of address space",
        ):
            arena.allocate(8 << 20)
        assert arena.allocate(1 << 20) == 60 << 20
