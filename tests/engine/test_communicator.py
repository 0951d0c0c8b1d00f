"""The queue between prefetch thread and consumer: each interleaving is forced by events, none is hoped for."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from mpiter.engine.communicator import Terminated, _Communicator

PATIENCE = 20  # seconds until a thread that should have come counts as hung


def in_thread(function, *args):
    """Run ``function`` in a thread of its own; a future of what it returns."""
    future: Future = Future()

    def run():
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def alive():
    return True


def never(seconds):
    raise AssertionError("stalled")


def ignore(seconds):
    pass


class Waits:
    """Lets a test see that somebody has begun to wait on a condition (its lock is then free)."""

    def __init__(self, communicator, name):
        self.condition, self.begun = getattr(communicator, name), threading.Event()
        self.original = self.condition.wait_for

        def wait_for(predicate, timeout=None):
            if not predicate():
                self.begun.set()  # we hold the lock: whoever takes it next finds us waiting
            return self.original(predicate, timeout)

        self.condition.wait_for = wait_for

    def until_begun(self):
        assert self.begun.wait(PATIENCE)
        with self.condition:  # free only once the wait has let go of it
            pass


@pytest.mark.parametrize("n_prefetch", [1, 2, 5])
def test_no_more_than_n_prefetch_are_queued(n_prefetch):
    queue = _Communicator(n_prefetch)
    assert queue.put(range(n_prefetch + 3), 0) is True
    assert queue.waiting == n_prefetch + 3
    for expected in range(n_prefetch + 3):
        assert len(queue) == min(n_prefetch, n_prefetch + 3 - expected)
        assert queue.get(alive, never) == expected
    assert queue.waiting == 0


def test_a_put_waits_while_somebody_stands_in_line():
    queue = _Communicator(1)
    waits = Waits(queue, "_not_full")
    assert queue.put(["a", "b", "c"], 0) is True
    putting = in_thread(queue.put, ["d"], 0)
    waits.until_begun()
    assert queue.get(alive, never) == "a"
    assert not putting.done()
    assert queue.get(alive, never) == "b"
    assert putting.result(PATIENCE) is True
    assert [queue.get(alive, never), queue.get(alive, never)] == ["c", "d"]


def test_a_put_of_nothing_returns_at_once():
    assert _Communicator(1).put([], 0) is True


def test_a_consumer_that_came_first_gets_what_comes():
    queue = _Communicator(1)
    waits = Waits(queue, "_not_empty")
    getting = in_thread(queue.get, alive, ignore)
    waits.until_begun()
    assert queue.put(["late"], 0) is True
    assert getting.result(PATIENCE) == "late"


def test_reset_drops_what_is_queued_and_what_stands_in_line():
    queue = _Communicator(1)
    waits = Waits(queue, "_not_full")
    assert queue.put(["old", "older"], 0) is True
    putting = in_thread(queue.put, ["oldest"], 0)
    waits.until_begun()
    queue.reset(1)
    assert putting.result(PATIENCE) is False
    assert len(queue) == 0
    assert queue.put(["new"], 1) is True
    assert queue.get(alive, never) == "new"


def test_a_late_put_of_an_earlier_run_is_dropped():
    queue = _Communicator(2)
    queue.reset(1)
    assert queue.put(["late"], 0) is False
    assert len(queue) == 0


def test_a_reset_does_not_disturb_a_waiting_consumer():
    queue = _Communicator(1)
    waits = Waits(queue, "_not_empty")
    getting = in_thread(queue.get, alive, ignore)
    waits.until_begun()
    queue.reset(1)
    assert queue.put(["old"], 0) is False
    assert queue.put(["new"], 1) is True
    assert getting.result(PATIENCE) == "new"


def test_terminate_wakes_a_waiting_put():
    queue = _Communicator(1)
    waits = Waits(queue, "_not_full")
    queue.put([1, 2], 0)
    putting = in_thread(queue.put, [3], 0)
    waits.until_begun()
    queue.terminate()
    with pytest.raises(Terminated):
        putting.result(PATIENCE)


def test_terminate_wakes_a_waiting_get():
    queue = _Communicator(1)
    waits = Waits(queue, "_not_empty")
    getting = in_thread(queue.get, alive, ignore)
    waits.until_begun()
    queue.terminate()
    with pytest.raises(Terminated):
        getting.result(PATIENCE)


def test_after_terminate_both_sides_are_told_at_once():
    queue = _Communicator(1)
    queue.put(["left"], 0)
    queue.terminate()
    queue.terminate()
    with pytest.raises(Terminated):
        queue.get(alive, never)
    with pytest.raises(Terminated):
        queue.put(["more"], 0)


def test_the_garbage_collector_may_terminate_in_whoever_has_the_lock():
    queue = _Communicator(1)

    def deliveries():
        yield "a delivery"
        queue.terminate()  # a finalizer, say, of an iterator that nobody holds any more

    in_thread(queue.put, deliveries(), 0).result(PATIENCE)
    with pytest.raises(Terminated):
        queue.put([], 0)


def test_a_consumer_notices_that_the_thread_has_died():
    with pytest.raises(Terminated):
        _Communicator(1).get(lambda: False, never)


def test_a_consumer_that_waits_long_is_told_so_and_may_give_up():
    told = []

    def stalled(seconds):
        told.append(seconds)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        _Communicator(1).get(alive, stalled)
    assert told[0] > 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_consumer_calls_back_once_when_he_has_taken_so_many(count):
    queue, calls = _Communicator(9), []
    queue.put(range(6), 0)
    queue.get(alive, never)
    queue.call_when_taken(queue.taken + count, lambda: calls.append(queue.taken))
    for _ in range(5):
        queue.get(alive, never)
    assert calls == [1 + count]


def test_what_was_taken_meanwhile_calls_back_at_once():
    queue, calls = _Communicator(3), []
    queue.put([1], 0)
    taken = queue.taken
    queue.get(alive, never)
    queue.call_when_taken(taken + 1, lambda: calls.append("already"))
    assert calls == ["already"]


def test_many_deliveries_through_a_narrow_queue_arrive_once_and_in_order():
    queue = _Communicator(2)
    putting = in_thread(lambda: [queue.put(range(at, at + 3), 0) for at in range(0, 300, 3)])
    assert [queue.get(alive, ignore) for _ in range(300)] == list(range(300))
    assert all(putting.result(PATIENCE))
