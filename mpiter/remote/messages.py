"""What is large of an answer, from an MPI rank to the trainer's as messages of their own.

``answer`` runs in the ranks that fetch, ``Receiver`` is a thread in the trainer's.  mpi4py's own way sends an answer
while both ends look from time to time, which takes a third of a second for 5 MB on one machine; here both ends stay at
it, which takes 2 ms.  Guarantees that an answer is passed on once all of it is there; assumes that a rank does one
thing after the other.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

_TAG = 27182  # of messages in COMM_WORLD, where mpi4py.futures sends nothing
_LARGE = 1 << 14  # bytes
_PAUSES_S = 0.00002, 0.001  # between two looks, when something has just come and when nothing has for long


def is_possible() -> bool:
    """May several threads of this process talk to MPI at a time?"""
    from mpi4py import MPI

    return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)


def answer(func: Callable[[Any], Any], item: Any, apart: bool) -> tuple[bytes, int, int]:
    """What ``func`` returns, pickled, and from which rank how many of its buffers have been sent apart, if they may."""
    from mpi4py import MPI

    large: list[memoryview] = []
    callback = partial(_stays, large=large) if apart else None
    pickled = pickle.dumps(func(item), protocol=5, buffer_callback=callback)
    for buffer in large:
        MPI.COMM_WORLD.Send([buffer, MPI.BYTE], 0, _TAG)
    return pickled, MPI.COMM_WORLD.Get_rank(), len(large)


def _stays(buffer: pickle.PickleBuffer, large: list[memoryview]) -> bool:
    raw = buffer.raw()
    if raw.nbytes < _LARGE:
        return True
    large.append(raw)
    return False


def _opened(pickled: bytes, buffers: list[Any]) -> Any:
    for buffer in buffers:
        if isinstance(buffer, MemoryError):
            raise buffer
    return pickle.loads(pickled, buffers=buffers)


class Receiver:
    """Puts answers together again, for as long as somebody uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0  # guarded by _lock
        self._buffers: defaultdict[int, deque[Any]] = defaultdict(deque)  # by rank; guarded by _lock
        self._awaited: defaultdict[int, deque[tuple[Any, ...]]] = defaultdict(deque)  # likewise
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Somebody uses it."""
        with self._lock:
            self._users += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._receive, name="mpiter-messages", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Somebody uses it no more."""
        with self._lock:
            self._users -= 1

    def take(
        self,
        answered: tuple[bytes, int, int],
        callback: Callable[[Any], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        """Call back with the answer, here or in the thread that brings what is missing."""
        pickled, rank, large = answered
        with self._lock:
            self._awaited[rank].append((pickled, large, callback, failed))
        self._pass_on(rank)

    def _pass_on(self, rank: int) -> None:
        while True:
            with self._lock:
                awaited, buffers = self._awaited[rank], self._buffers[rank]
                if not awaited or len(buffers) < awaited[0][1]:
                    return
                pickled, large, callback, failed = awaited.popleft()
                mine = [buffers.popleft() for _ in range(large)]
            try:
                found = _opened(pickled, mine)
            except Exception as error:
                failed(error)
            else:
                callback(found)

    def _receive(self) -> None:
        from mpi4py import MPI

        status, pause = MPI.Status(), 0.0
        while True:
            message = MPI.COMM_WORLD.Improbe(MPI.ANY_SOURCE, _TAG, status)
            if message is None:
                with self._lock:
                    if not self._users:
                        self._thread = None
                        return
                time.sleep(pause)
                pause = min(_PAUSES_S[1], max(_PAUSES_S[0], 1.5 * pause))
                continue
            pause = 0.0
            rank, size = status.Get_source(), status.Get_count(MPI.BYTE)
            try:
                buffer: Any = np.empty(size, np.uint8)
                room = buffer
            except MemoryError as error:
                buffer, room = error, np.empty(0, np.uint8)
            with contextlib.suppress(MPI.Exception):  # what there is no room for is cut off, but has to be taken
                message.Recv([room, MPI.BYTE])
            with self._lock:
                self._buffers[rank].append(buffer)
            self._pass_on(rank)
