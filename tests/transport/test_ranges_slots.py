"""Who has which range of memory: ranges and slots against plain models, leases against everything that can hold one."""

from __future__ import annotations

import _thread
import contextlib
import gc
import itertools
import operator
import random
from collections import deque
from functools import partial

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import mpiter.transport.memory
from mpiter import SharedMemoryFull
from mpiter.bell import Bell
from mpiter.transport.memory import Arena, Ranges
from mpiter.transport.slots import Slots

PAGE = 4096


class Counted(Bell):
    """Notes each time it is rung."""

    def __init__(self, rung):
        super().__init__()
        self.ring = partial(rung.append, 1)


class RangesModel(RuleBasedStateMachine):
    """Ranges against an array that says of each byte who has it."""

    SIZE = 64

    def __init__(self):
        super().__init__()
        self.ranges = Ranges(self.SIZE)
        self.taken: list[tuple[int, int]] = []
        self.used = [False] * self.SIZE

    @rule(size=st.integers(1, 30))
    def take(self, size):
        start = self.ranges.take(size)
        fits = [at for at in range(self.SIZE - size + 1) if not any(self.used[at : at + size])]
        assert start == (fits[0] if fits else None)
        if start is not None:
            self.used[start : start + size] = [True] * size
            self.taken.append((start, size))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data):
        start, size = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.used[start : start + size] = [False] * size
        self.ranges.give(start, size)

    @invariant()
    def neighbours_are_joined(self):
        runs = [(key, len(list(run))) for key, run in itertools.groupby(self.used)]
        at, free = 0, []
        for is_used, length in runs:
            if not is_used:
                free.append((at, at + length))
            at += length
        assert self.ranges._free == free


class SmallArena:
    """Ordinary memory in the place of an arena; refuses beyond its size."""

    def __init__(self, size=64 * PAGE):
        self.map = bytearray(size)
        self.ranges, self.handed_out, self.limit = Ranges(size), {}, size

    def allocate(self, size):
        used = sum(self.handed_out.values())
        start = self.ranges.take(size) if used + size <= self.limit else None
        if start is None:
            raise SharedMemoryFull("no more")
        self.handed_out[start] = size
        return start

    def free(self, start, size):
        assert self.handed_out.pop(start) == size, "a range was given back that was not handed out"
        self.ranges.give(start, size)


class SlotsModel(RuleBasedStateMachine):
    """Slots under any sequence of requests: none is ever handed out while somebody can see it."""

    MOST = 10 * PAGE

    def __init__(self):
        super().__init__()
        self.arena = SmallArena(16 * PAGE)
        self.slots = Slots(self.arena, self.MOST, Bell())
        self.slots.resize(PAGE)
        self.held, self.leased = [], []
        self.stamp = itertools.count(1)

    @rule()
    def acquire(self):
        try:
            slot = self.slots.acquire()
        except SharedMemoryFull:
            assert self.slots.count == 0, "only the first slot may not be refused"
            return
        if slot is None:
            assert not self.slots.can_grow
            return
        assert slot.size == self.slots.size
        for other in [*self.held, *(taken for taken, _, _ in self.leased)]:
            assert slot.start >= other.start + other.size or other.start >= slot.start + slot.size
        self.held.append(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lease(self, data):
        slot = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        view = np.frombuffer(self.slots.lease(slot), np.uint8)
        stamp = next(self.stamp) % 251
        view[:] = stamp
        self.leased.append((slot, view, stamp))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data):
        self.slots.give_back(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def let_go(self, data):
        self.leased.pop(data.draw(st.integers(0, len(self.leased) - 1)))

    @rule(pages=st.integers(1, 3))
    def resize(self, pages):
        self.slots.resize(pages * PAGE)

    @rule(keep=st.integers(0, 3))
    def shrink(self, keep):
        self.slots.shrink(keep)

    @rule(limit=st.integers(1, 16))
    def the_machine_has_other_plans(self, limit):
        self.arena.limit = limit * PAGE

    @invariant()
    def the_books_are_right(self):
        self.slots.collect()
        assert self.slots.leased == len(self.leased)
        assert self.slots.count == len(self.arena.handed_out)
        assert self.slots.bytes == sum(self.arena.handed_out.values())
        assert self.slots.count == len(self.held) + len(self.leased) + len(self.slots._free)
        assert all((view == stamp).all() for _, view, stamp in self.leased), "somebody wrote into a leased slot"


TestRanges = RangesModel.TestCase
TestRanges.settings = settings(max_examples=40, stateful_step_count=40)
TestSlots = SlotsModel.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.fixture
def slots():
    made = Slots(SmallArena(), 8 * PAGE, Bell())
    made.resize(PAGE)
    return made


def array_on(slots, slot):
    return np.frombuffer(slots.lease(slot), np.float64).reshape(4, -1)


HOLDERS = {
    "a row": lambda a: a[1],
    "a column": lambda a: a[:, 2:3],
    "one dimension more": lambda a: a[None, ::-1].T,
    "its base as an array": lambda a: np.asarray(a.base),
    "the owner itself": lambda a: a.base.base if a.base.base is not None else a.base,
    "a memoryview": memoryview,
    "a memoryview of a row": lambda a: memoryview(a[2])[3:5],
    "another dtype": lambda a: a.view(np.uint8),
    "a structured field": lambda a: a.view([("x", "f4"), ("y", "f4")])["y"],
    "a masked array": lambda a: np.ma.masked_array(a, copy=False),
    "DLPack": lambda a: np.from_dlpack(a),
    "a capsule": lambda a: a.__dlpack__(),
    "a flat iterator": lambda a: a.flat,
}


@pytest.mark.parametrize("holder", list(HOLDERS))
def test_a_slot_stays_away_as_long_as_anything_sees_it(slots, holder):
    slot = slots.acquire()
    array = array_on(slots, slot)
    held = HOLDERS[holder](array)
    del array
    gc.collect()
    slots.collect()
    assert slots.leased == 1
    del held
    gc.collect()
    slots.collect()
    assert slots.leased == 0
    assert slots.acquire() == slot


@pytest.mark.torch
def test_a_tensor_keeps_its_slot_away(slots):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'mpiter[torch]'")
    tensor = torch.from_numpy(array_on(slots, slots.acquire()))[1].unbind(0)[2:]
    slots.collect()
    assert slots.leased == 1
    del tensor
    slots.collect()
    assert slots.leased == 0


def test_leases_come_home_in_any_order_and_say_so():
    returned = []
    slots = Slots(SmallArena(), 8 * PAGE, Counted(returned))
    slots.resize(PAGE)
    views = [array_on(slots, slots.acquire()) for _ in range(8)]
    assert slots.acquire() is None
    random.Random(0).shuffle(views)
    while views:
        views.pop()
    assert len(returned) == 8
    slots.collect()
    assert slots.leased == 0
    assert slots.count == 8


def test_a_return_is_told_of_only_when_a_slot_was_asked_for_in_vain():
    returned = []
    slots = Slots(SmallArena(), 2 * PAGE, Counted(returned))
    slots.resize(PAGE)
    first, second = (array_on(slots, slots.acquire()) for _ in range(2))
    del first
    assert not returned
    third = array_on(slots, slots.acquire())
    assert slots.acquire() is None
    assert slots.acquire() is None
    del second
    assert len(returned) == 1
    del third
    assert len(returned) == 2


def test_a_slot_on_its_way_home_is_taken_in_once(slots):
    class Slow(deque):
        """The callback's last step has not been taken yet."""

        def __init__(self):
            super().__init__()
            self.on_the_way = []

        def append(self, lease):
            self.on_the_way.append(lease)

    home = slots._home = Slow()
    arrays = [array_on(slots, slots.acquire()) for _ in range(8)]
    arrays.pop()
    again = slots.acquire()
    seen = slots.lease(again)
    super(Slow, home).append(home.on_the_way.pop())
    slots.collect()
    assert slots.acquire() is None
    del seen
    assert len(home.on_the_way) == 1


@pytest.mark.parametrize("asked", ["nobody waits", "somebody waits"])
def test_ctrl_c_is_not_lost_while_a_slot_comes_home(asked):
    returned = []
    slots = Slots(SmallArena(), PAGE, Counted(returned))
    slots.resize(PAGE)
    held = [slots.lease(slots.acquire())]
    if asked == "somebody waits":
        assert slots.acquire() is None
    with pytest.raises(KeyboardInterrupt):  # not a step of Python between the interrupt and the return
        list(map(operator.methodcaller("__call__"), [_thread.interrupt_main, held.clear]))
    assert len(returned) == (asked == "somebody waits")
    assert slots.acquire() is not None


def test_the_hottest_slot_is_used_first(slots):
    first, second = slots.acquire(), slots.acquire()
    slots.give_back(second)
    slots.give_back(first)
    assert slots.acquire() == first


def test_a_hoarding_user_is_noticed_before_the_engine_starves(slots):
    reserve = 3
    working, hoard = [slots.acquire() for _ in range(reserve + 1)], []
    while slots.can_lease(reserve):
        hoard.append(array_on(slots, working.pop(0)))
        more = slots.acquire()
        working += [more] if more else []
    assert len(hoard) == 8 - reserve
    assert len(working) == reserve
    hoard.pop()
    assert slots.can_lease(reserve)


def test_growth_that_is_refused_is_not_asked_for_again_until_memory_came_back():
    slots = Slots(SmallArena(2 * PAGE), 100 * PAGE, Bell())
    slots.resize(PAGE)
    first, second = slots.acquire(), slots.acquire()
    assert slots.acquire() is None
    assert not slots.can_grow
    slots.give_back(first)
    assert slots.acquire() == first
    slots.give_back(second)
    slots.shrink(0)
    assert slots.can_grow


def test_the_first_slot_that_is_refused_is_an_error():
    slots = Slots(SmallArena(PAGE), 100 * PAGE, Bell())
    slots.resize(2 * PAGE)
    with pytest.raises(SharedMemoryFull):
        slots.acquire()


def test_slots_of_an_earlier_size_go_home_to_the_arena():
    arena = SmallArena()
    slots = Slots(arena, 8 * PAGE, Bell())
    slots.resize(PAGE)
    leased, free = array_on(slots, slots.acquire()), slots.acquire()
    slots.give_back(free)
    slots.resize(2 * PAGE)
    assert sum(arena.handed_out.values()) == PAGE
    del leased
    slots.collect()
    assert not arena.handed_out
    assert slots.acquire().size == 2 * PAGE


def test_what_is_leased_outlives_closing():
    arena = Arena(1 << 26)
    slots = Slots(arena, 1 << 20, Bell())
    slots.resize(PAGE)
    view = array_on(slots, slots.acquire())
    view[...] = 3
    slots.close()
    arena.close()
    del arena, slots
    gc.collect()
    assert (view == 3).all()


@contextlib.contextmanager
def arena_of(portable):
    """Not a fixture: pytest would keep it beyond the look into the house."""
    made = Arena(1 << 26, portable=portable)
    try:
        yield made
    finally:
        made.close()


both_kinds = pytest.mark.parametrize("portable", [False, True], ids=["memfd", "portable"])


@both_kinds
def test_ranges_of_an_arena_hold_what_is_written_and_are_used_again(portable):
    with arena_of(portable) as arena:
        first, second = arena.allocate(PAGE), arena.allocate(3 * PAGE + 1)
        assert second % PAGE == 0
        arena.map[first : first + PAGE] = b"a" * PAGE
        arena.map[second : second + PAGE] = b"b" * PAGE
        assert arena.map[first] == ord("a")
        arena.free(first, PAGE)
        assert arena.map[second] == ord("b")
        assert arena.allocate(PAGE) == first
        arena.free(second, 3 * PAGE + 1)
        assert arena.allocate(4 * PAGE) == second


@both_kinds
def test_a_full_reserve_is_an_error_with_numbers(portable):
    with arena_of(portable) as arena:
        arena.allocate(60 << 20)
        with pytest.raises(SharedMemoryFull, match=r"a slot of 8\.4 MB does not fit: .*67\.1 MB are reserved"):
            arena.allocate(8 << 20)
        assert arena.allocate(1 << 20) == 60 << 20


@both_kinds
def test_a_full_machine_is_an_error_with_numbers(portable, monkeypatch):
    with arena_of(portable) as arena:
        monkeypatch.setattr(mpiter.transport.memory.machine, "memory_available", lambda: 70 << 20)
        with pytest.raises(SharedMemoryFull, match=r" 6\.3 MB of memory are available.*lower batch_size"):
            arena.allocate(10 << 20)
        arena.allocate(1 << 20)


@both_kinds
def test_memory_that_the_system_refuses_is_an_error_and_the_range_is_free_again(portable, monkeypatch):
    with arena_of(portable) as arena:

        def refused(*args):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(mpiter.transport.memory.os, "posix_fallocate", refused)
            patch.setattr(mpiter.transport.memory.os, "pwrite", refused)
            with pytest.raises(SharedMemoryFull) as caught:
                arena.allocate(PAGE)
        assert isinstance(caught.value.__cause__, OSError)
        assert arena.allocate(PAGE) == 0
