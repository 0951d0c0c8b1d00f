"""A machine of many cores that doesn't exist: what a load would take there, with a number of workers or with a pilot.

One pass over the batches, in the order in which they are planned: each is cut in pieces, and each piece goes to the
worker that is free first.  Workers that are more than the cores take longer in proportion.  It assumes of the engine
only that so many batches are on their way, and that they are handed out in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpiter.engine.pilot import Look

_PIECE_S = 8e-3  # of fetching: what a worker is given at a time


class Service(NamedTuple):
    """What something takes: seconds of a processor, and of waiting for a disk, a network or a GPU."""

    cpu_s: float
    wait_s: float = 0.0


@dataclass(frozen=True)
class Load:
    """What is to be done; samples and steps begin again from the first when they run out."""

    samples: Sequence[Service]
    steps: Sequence[Service] = (Service(0.0),)
    batch_size: int = 32
    task_s: float = 0.0  # that a worker spends on each piece, beside its samples
    batch_s: float = 0.0  # that the consumer spends on each batch, beside its step
    start_s: float = 0.0  # until a new worker takes tasks
    room_bytes: int = 1 << 20
    worker_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """How it went: when each batch was handed out, what was there in the end, and the most memory at a time."""

    taken: tuple[float, ...]
    seconds: float
    workers: int
    peak_bytes: int

    def batch_s(self, first: int, last: int = -1) -> float:
        """Seconds from one batch to the next."""
        last %= len(self.taken)
        return (self.taken[last] - self.taken[first]) / (last - first)


def window(workers: int) -> int:
    """Batches that may be on their way."""
    return 2 + max(64, 3 * workers)


def simulate(
    load: Load, workers: int, batches: int = 500, pilot: Any = None, cores: int = 64, most_bytes: float = 1 << 40
) -> Outcome:
    """Hand out so many batches; ``workers`` is what a pilot begins with, ``most_bytes`` what batches may take."""
    free = [load.start_s] * workers
    taken: list[float] = []
    asked = waited = busy = 0.0
    peak, begins = 0, 0
    for batch in range(batches):
        flight = min(window(workers), max(1, int(most_bytes / 8 / load.room_bytes)))
        planned = taken[batch - flight] if batch >= flight else 0.0
        pieces = _pieces(load, batch, max(1.0, workers / cores))
        ready = asked + sum(pieces)
        if workers:
            ready = 0.0
            for piece in pieces:
                done = max(heapq.heappop(free), planned) + load.task_s + piece
                heapq.heappush(free, done)
                ready = max(ready, done)
        busy += sum(pieces)
        taken.append(max(asked, ready))
        waited += max(0.0, ready - asked)
        step = load.steps[batch % len(load.steps)]
        now, asked = taken[-1], taken[-1] + load.batch_s + step.cpu_s + step.wait_s
        peak = max(peak, workers * load.worker_bytes + flight * load.room_bytes)
        if pilot is None or batch < begins:
            continue
        size, memory = load.room_bytes, workers * load.worker_bytes
        seen = Look(batch + 1, now - taken[0], waited, busy, flight, size, memory)
        wanted = pilot.look(batch + 1, workers, _saying(seen))
        if wanted is not None:
            start = now + load.start_s
            free = sorted(free)[:wanted] + [start] * (wanted - workers)
            workers, begins = wanted, batch + 1
            heapq.heapify(free)
    return Outcome(tuple(taken), asked, workers, peak)


def _saying(seen: Look) -> Callable[[], Look]:
    return lambda: seen


def _pieces(load: Load, batch: int, crowd: float) -> list[float]:
    """Seconds of each piece of a batch, where processors are shared by so many workers each."""
    count, first = len(load.samples), batch * load.batch_size
    pieces, piece = [], 0.0
    for sample in (load.samples[row % count] for row in range(first, first + load.batch_size)):
        piece += crowd * sample.cpu_s + sample.wait_s
        if piece >= _PIECE_S:
            pieces.append(piece)
            piece = 0.0
    return [*pieces, piece] if piece else pieces
