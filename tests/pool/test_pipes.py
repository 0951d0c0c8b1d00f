"""What is said over a pipe pair arrives whole and in order, wherever it is cut; and the bell that wakes who waits."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiter.bell import Bell
from mpiter.pool import pipes
from mpiter.pool.pipes import READY, Answer, PoolEnd, WorkerEnd

LARGE = pipes.OUT_OF_LINE


class Wire:
    """Both ends of a pair of pipes, in one process."""

    def __init__(self, destinations: Any = None, wide: bool = True) -> None:
        self.their_tasks, tasks = multiprocessing.Pipe(duplex=False)
        answers, self.their_answers = multiprocessing.Pipe(duplex=False)
        if wide:  # room for what is sent before anybody reads
            pipes._widen(answers.fileno())
        self.worker = WorkerEnd(self.their_tasks, self.their_answers)
        self.pool = PoolEnd(tasks, answers, destinations or fresh)

    def close(self) -> None:
        self.pool.close()
        for end in (self.their_tasks, self.their_answers):
            end.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def speak(self, raw: bytes) -> None:
        """Exactly these bytes of answers, which must fit into the pipe."""
        assert os.write(self.their_answers.fileno(), raw) == len(raw)

    def hang_up(self) -> None:
        self.their_answers.close()

    def heard(self) -> list[tuple[int, Any]]:
        return [(answer.number, answer.open()) for answer in self.pool.receive()]


def fresh(number: int, sizes: Sequence[int]) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


def on_the_wire(number: int, value: Any) -> bytes:
    return b"".join(map(bytes, pipes._packed(number, value)))


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as wire:
        yield wire


def capacity(end: Any) -> int:
    return fcntl.fcntl(end.fileno(), fcntl.F_GETPIPE_SZ)


# -- tasks ---------------------------------------------------------------------------------------------------------


def test_tasks_arrive_as_they_were_sent_and_the_end_is_the_end(wire: Wire) -> None:
    sent = [(0, b"x"), (7, b"y" * 1000), (1 << 40, b"z")]
    assert all(wire.pool.send(*task) for task in sent)
    assert wire.pool.send_end()
    assert [wire.worker.receive() for _ in range(4)] == [*sent, None]


def test_there_are_no_more_tasks_when_the_pool_is_gone(wire: Wire) -> None:
    wire.pool.send(3, b"last")
    wire.pool.close()
    assert wire.worker.receive() == (3, b"last")
    assert wire.worker.receive() is None


@pytest.mark.parametrize("cut", range(1, 24))
def test_half_a_task_of_a_pool_that_is_gone_is_none(wire: Wire, cut: int) -> None:
    os.write(wire.pool.tasks.fileno(), (pipes._TASK.pack(3, 10) + bytes(10))[:cut])
    wire.pool.close()
    assert wire.worker.receive() is None


def test_what_a_full_pipe_does_not_take_waits_until_there_is_room(wire: Wire) -> None:
    tasks = [(number, bytes([number]) * 50_000) for number in range(20)]
    taken = [wire.pool.send(*task) for task in tasks]
    assert taken[0]
    assert not taken[-1]
    assert taken == sorted(taken, reverse=True), "what comes later stands in line"
    assert not wire.pool.flush()
    received = []
    while len(received) < len(tasks):
        wire.pool.flush()
        received.append(wire.worker.receive())
    assert received == tasks
    assert wire.pool.flush()


def test_many_tasks_that_wait_are_written_though_no_system_call_takes_them_all(wire: Wire) -> None:
    tasks = [(number, b"%d" % number * 100) for number in range(3 * pipes._MOST_PARTS)]
    filling = bytes(capacity(wire.pool.tasks) - pipes._TASK.size)
    assert wire.pool.send(1, filling)
    assert not any(wire.pool.send(*task) for task in tasks)
    assert wire.worker.receive() == (1, filling)
    received = []
    while len(received) < len(tasks):
        wire.pool.flush()
        received.append(wire.worker.receive())
    assert received == tasks


def test_tasks_for_the_dead_are_dropped(wire: Wire) -> None:
    wire.pool.send(1, bytes(1 << 20))
    wire.their_tasks.close()
    assert wire.pool.flush()
    assert wire.pool.send(2, b"x")
    assert wire.pool.send_end()


# -- answers -------------------------------------------------------------------------------------------------------


def test_answers_arrive_as_they_were_sent(wire: Wire) -> None:
    values = [None, "text", [1, 2.5], np.arange(10), np.arange(2000), {"a": np.ones((50, 50)), "b": b"x" * 9000}]
    for number, value in enumerate(values):
        wire.worker.send(number, value)
    heard = wire.heard()
    assert [number for number, _ in heard] == list(range(len(values)))
    for (_, value), sent in zip(heard, values, strict=True):
        np.testing.assert_equal(value, sent)
    assert wire.heard() == []


def test_the_first_message_of_all_says_that_one_is_ready(wire: Wire) -> None:
    wire.worker.send(READY, None)
    assert wire.heard() == [(READY, None)]


def test_what_cannot_be_pickled_leaves_nothing_in_the_pipe(wire: Wire) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        wire.worker.send(0, [np.arange(10_000), threading.Lock()])
    wire.worker.send(1, "next")
    assert wire.heard() == [(1, "next")]


def test_large_buffers_are_not_part_of_the_pickle_and_small_ones_are(wire: Wire) -> None:
    wire.worker.send(0, [np.zeros(LARGE - at % 2, np.uint8) for at in range(4)])
    (answer,) = wire.pool.receive()
    assert [buffer.nbytes for buffer in answer.buffers] == [LARGE, LARGE]
    assert len(answer.pickled) < 3 * LARGE


def test_buffers_are_read_into_their_places_wherever_those_are() -> None:
    room, asked = bytearray(6 * LARGE), []

    def destinations(number: int, sizes: Sequence[int]) -> list[memoryview]:
        asked.append((number, list(sizes)))
        return [memoryview(room)[4 * LARGE : 6 * LARGE], memoryview(room)[LARGE : 2 * LARGE]]

    with Wire(destinations) as wire:
        wire.worker.send(5, (np.full(2 * LARGE, 1, np.uint8), np.full(LARGE, 2, np.uint8)))
        ((number, (one, two)),) = wire.heard()
    assert (number, asked) == (5, [(5, [2 * LARGE, LARGE])])
    assert room == bytes(LARGE) + b"\2" * LARGE + bytes(2 * LARGE) + b"\1" * 2 * LARGE
    assert np.shares_memory(one, np.frombuffer(room, np.uint8))
    one[0] = 9
    assert room[4 * LARGE] == 9
    assert int(two[0]) == 2


def test_an_array_that_is_not_in_one_piece_travels_too(wire: Wire) -> None:
    array = np.arange(40_000).reshape(200, 200)
    wire.worker.send(0, (array[::2, ::3], array.T, np.asfortranarray(array)))
    ((_, (sliced, turned, columns)),) = wire.heard()
    assert np.array_equal(sliced, array[::2, ::3])
    assert np.array_equal(turned, array.T)
    assert np.array_equal(columns, array)


@pytest.mark.parametrize("count", [pipes._MOST_PARTS - 1, pipes._MOST_PARTS, 3 * pipes._MOST_PARTS + 1])
def test_more_buffers_than_one_system_call_writes(wire: Wire, count: int) -> None:
    value = [np.full(LARGE, at % 251, np.uint8) for at in range(count)]
    sending = threading.Thread(target=wire.worker.send, args=(0, value))
    sending.start()
    heard: list[Any] = []
    while not heard:
        connection.wait([wire.pool.answers])
        heard += wire.heard()
    sending.join()
    ((_, back),) = heard
    assert len(back) == count
    assert all(np.array_equal(one, other) for one, other in zip(back, value, strict=True))


def test_an_answer_that_is_more_than_the_pipe_holds_is_waited_for_by_nobody(wire: Wire) -> None:
    """Whoever reads gets what is there and comes back later."""
    value = np.random.default_rng(0).integers(0, 256, 20 << 20, dtype=np.uint8)
    sending = threading.Thread(target=wire.worker.send, args=(0, value))
    sending.start()
    looks, heard = 0, []
    while not heard:
        connection.wait([wire.pool.answers])
        looks += 1
        heard += wire.heard()
    sending.join()
    assert looks > 1
    assert np.array_equal(heard[0][1], value)


def test_of_the_dead_all_that_is_complete_counts_and_no_more(wire: Wire) -> None:
    wire.worker.send(0, "whole")
    wire.worker.send(1, np.arange(10_000))
    wire.speak(on_the_wire(2, np.arange(10_000))[:50_000])
    wire.hang_up()
    assert [number for number, _ in wire.heard()] == [0, 1]
    assert wire.heard() == []


def test_of_nothing_nothing_is_heard(wire: Wire) -> None:
    assert wire.heard() == []
    wire.hang_up()
    assert wire.heard() == []


def test_many_answers_at_once_are_all_heard_though_they_end_where_a_read_ends(wire: Wire) -> None:
    """A read that brings exactly what was asked for doesn't say that there is no more."""
    head = len(on_the_wire(0, b""))
    for extra in range(-3, 4):
        size = pipes._AT_ONCE - head + extra
        wire.worker.send(0, b"")
        wire.worker.send(1, bytearray(size - 60))
        wire.worker.send(2, "last")
        assert [number for number, _ in wire.heard()] == [0, 1, 2]


values = st.recursive(
    st.none()
    | st.integers()
    | st.binary(max_size=50)
    | st.sampled_from([LARGE - 1, LARGE, LARGE + 1, 3 * LARGE]).map(lambda size: np.arange(size, dtype=np.uint8)),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@given(sent=st.lists(values, min_size=1, max_size=4), data=st.data())
def test_wherever_answers_are_cut_they_arrive_whole_and_as_soon_as_they_are_complete(
    sent: list[Any], data: st.DataObject
) -> None:
    messages = [on_the_wire(number, value) for number, value in enumerate(sent)]
    whole = b"".join(messages)
    ends = np.cumsum([len(message) for message in messages]).tolist()
    near = st.sampled_from(ends).flatmap(lambda end: st.integers(max(0, end - 30), min(len(whole), end + 30)))
    cuts = sorted({0, len(whole), *data.draw(st.lists(near | st.integers(0, len(whole)), max_size=12))})
    heard: list[Any] = []
    with Wire() as wire:
        for start, stop in itertools.pairwise(cuts):
            wire.speak(whole[start:stop])
            heard += wire.heard()
            assert len(heard) == sum(end <= stop for end in ends)
    assert [number for number, _ in heard] == list(range(len(sent)))
    for (_, value), original in zip(heard, sent, strict=True):
        np.testing.assert_equal(value, original)


@given(sent=st.lists(st.binary(min_size=1, max_size=3000), max_size=8), most=st.integers(1, 5000))
def test_however_little_a_read_brings_tasks_arrive_whole(sent: list[bytes], most: int) -> None:
    genuine = os.read
    with Wire() as wire, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipes.os, "read", lambda descriptor, size: genuine(descriptor, min(size, most)))
        for number, pickled in enumerate(sent):
            assert wire.pool.send(number, pickled)
        wire.pool.send_end()
        assert [wire.worker.receive() for _ in sent] == list(enumerate(sent))
        assert wire.worker.receive() is None


@given(value=values, most=st.integers(1, 20_000))
def test_however_little_a_write_takes_answers_arrive_whole(value: Any, most: int) -> None:
    genuine = os.writev

    def writev(descriptor: int, parts: Sequence[Any]) -> int:
        return genuine(descriptor, [b"".join(map(bytes, parts))[:most]])

    with Wire() as wire, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipes.os, "writev", writev)
        wire.worker.send(3, value)
        ((number, back),) = wire.heard()
    assert number == 3
    np.testing.assert_equal(back, value)


@given(st.lists(st.binary(max_size=9), max_size=9), st.data())
def test_what_is_left_after_a_write_is_what_was_not_written(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    written = data.draw(st.integers(0, len(whole)))
    rest = pipes._rest(list(parts), written)
    assert b"".join(map(bytes, rest)) == whole[written:]
    assert written < len(whole) or not any(len(part) for part in rest)


def test_the_end_of_what_a_worker_sends_is_noticed(wire: Wire) -> None:
    wire.worker.send(0, "last")
    assert wire.heard() == [(0, "last")]
    assert not wire.pool.has_ended
    wire.hang_up()
    assert wire.heard() == []
    assert wire.pool.has_ended


def test_only_pipes_that_carry_much_are_widened() -> None:
    with Wire(wide=False) as wire:
        usual = capacity(wire.pool.tasks)
        wire.worker.send(0, "little")
        wire.heard()
        assert capacity(wire.pool.answers) == usual
        wire.worker.send(1, np.zeros(LARGE, np.uint8))
        wire.heard()
        assert capacity(wire.pool.answers) > usual


def test_what_was_received_is_not_kept() -> None:
    destinations = [np.zeros(LARGE, np.uint8)]
    received = weakref.ref(destinations[0])
    with Wire(lambda number, sizes: [destinations.pop().data]) as wire:
        wire.worker.send(0, np.ones(LARGE, np.uint8))
        assert len(wire.heard()) == 1
        assert received() is None


def test_where_pipes_cannot_be_widened_narrow_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    with Wire() as wire:
        wire.worker.send(0, np.arange(1000))
        assert len(wire.heard()) == 1


def test_an_answer_is_opened_when_somebody_wants_it() -> None:
    answer = Answer(0, pickle.dumps("x"), ())
    assert answer.open() == "x"


# -- the bell ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["eventfd", "pipe"])
def bell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bell]:
    if request.param == "pipe" and hasattr(os, "eventfd"):
        monkeypatch.delattr(os, "eventfd")
    bell = Bell()
    yield bell
    bell.close()


def is_heard(bell: Bell) -> bool:
    return bool(connection.wait([bell], 0))


def test_a_bell_is_heard_until_it_is_hushed(bell: Bell) -> None:
    assert not is_heard(bell)
    bell.ring()
    assert is_heard(bell)
    assert is_heard(bell)
    bell.hush()
    assert not is_heard(bell)
    bell.hush()


def test_ringing_often_is_ringing_once_and_holds_nobody_up(bell: Bell) -> None:
    for _ in range(100_000):  # more than a pipe holds
        bell.ring()
    while is_heard(bell):
        bell.hush()
    bell.ring()
    assert is_heard(bell)


def test_a_bell_wakes_who_waits(bell: Bell) -> None:
    ringing = threading.Thread(target=bell.ring)
    ringing.start()
    assert connection.wait([bell]) == [bell]
    ringing.join()


def test_whoever_is_ringing_when_a_bell_is_closed_rings_nobody_elses(bell: Bell) -> None:
    number, ring = bell.fileno(), bell.ring
    bell.close()
    bell.close()
    bell.ring()
    with contextlib.ExitStack() as others:
        reused = [Bell() for _ in range(3)]
        for other in reused:
            others.callback(other.close)
        ring()
        assert number not in [other.fileno() for other in reused]
        assert not any(map(is_heard, reused))
    del ring
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_the_garbage_collector_may_ring(bell: Bell) -> None:
    class Thing:
        pass

    thing: Any = Thing()
    thing.itself = thing
    weakref.finalize(thing, bell.ring)
    del thing
    gc.collect()
    assert is_heard(bell)


def test_no_ctrl_c_is_lost_in_a_bell(bell: Bell) -> None:
    """It is no Python code that rings: the interrupt comes in the one who rang it, after the ringing."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT) or bell.ring()
    bell.ring()
    assert is_heard(bell)
