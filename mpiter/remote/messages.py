"""What is large of an answer, from an MPI rank to the trainer's as messages of their own.

``answer`` runs in a rank that fetches, ``opened`` in mpi4py's thread in the trainer's.  mpi4py's own way sends while
both ends look from time to time, which takes a third of a second for 5 MB on one machine; here a thread at each end
stays at it, which takes 2 ms.  Where several threads may not talk to MPI, answers travel whole.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

_TAGS = 27182, 1000  # the first, and how many, of messages in COMM_WORLD, where mpi4py.futures sends nothing
_LARGE = 1 << 14  # bytes
_sent = itertools.count()  # answers of this rank


def answer(func: Callable[[Any], Any], item: Any) -> tuple[bytes, int, int, list[int]]:
    """Pickle what ``func`` returns; tell which rank sends how much of it apart, and under what tag."""
    from mpi4py import MPI

    large: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LARGE or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            return True
        large.append(raw)
        return False

    def send() -> None:
        for raw in large:
            MPI.COMM_WORLD.Send([raw, MPI.BYTE], 0, tag)

    pickled = pickle.dumps(func(item), protocol=5, buffer_callback=stays)
    tag = _TAGS[0] + next(_sent) % _TAGS[1]
    if large:
        threading.Thread(target=send, name="mpiter-answer", daemon=True).start()
    return pickled, MPI.COMM_WORLD.Get_rank(), tag, [raw.nbytes for raw in large]


def opened(pickled: bytes, rank: int, tag: int, sizes: list[int]) -> Any:
    """What a rank has answered; waits for what it is sending apart."""
    from mpi4py import MPI

    buffers = [np.empty(size, np.uint8) for size in sizes]
    for buffer in buffers:
        MPI.COMM_WORLD.Recv([buffer, MPI.BYTE], rank, tag)
    return pickle.loads(pickled, buffers=buffers)
