"""A machine of many cores that doesn't exist: what a load would take there, with a number of workers or with a pilot.

One pass over the batches, in the order in which they are planned: each is cut in pieces, and each piece goes to the
worker that is free first.  Workers that are more than the cores take longer in proportion.  It assumes of the engine
only that so many batches are on their way, and that they are handed out in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpiter.engine.pilot import Look

_PIECE_S = 8e-3  # of fetching: what a worker is given at a time
_ROOM_BYTES = 1 << 20


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
    start_s: float = 0.0  # until a new worker takes tasks
    worker_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """How it went: when each batch was handed out, what was there in the end, and the most memory at a time."""

    taken: tuple[float, ...]
    seconds: float
    workers: int
    peak_bytes: int

    def batch_s(self, first: int) -> float:
        """Seconds from one batch to the next, from this one on."""
        return (self.taken[-1] - self.taken[first]) / (len(self.taken) - 1 - first)


def simulate(load: Load, workers: int, batches: int, pilot: Any = None, cores: int = 64) -> Outcome:
    """Hand out so many batches; ``workers`` is what a pilot begins with."""
    free = [load.start_s] * workers
    taken: list[float] = []
    asked = waited = busy = 0.0
    peak, begins = 0, 0
    for batch in range(batches):
        flight = 2 + max(64, 3 * workers)  # batches that may be on their way
        planned = taken[batch - flight] if batch >= flight else 0.0
        pieces = _pieces(load, batch, max(1.0, workers / cores))
        ready = asked + sum(pieces)
        if workers:
            ready = 0.0
            for piece in pieces:
                done = max(heapq.heappop(free), planned) + piece
                heapq.heappush(free, done)
                ready = max(ready, done)
        busy += sum(pieces)
        taken.append(max(asked, ready))
        waited += max(0.0, ready - asked)
        step = load.steps[batch % len(load.steps)]
        now, asked = taken[-1], taken[-1] + step.cpu_s + step.wait_s
        peak = max(peak, workers * load.worker_bytes + flight * _ROOM_BYTES)
        if pilot is None or batch < begins:
            continue
        seen = Look(batch + 1, now - taken[0], waited, busy, flight, _ROOM_BYTES, workers * load.worker_bytes)
        wanted = pilot.look(batch + 1, workers, lambda seen=seen: seen)
        if wanted is not None:
            start = now + load.start_s
            free = sorted(free)[:wanted] + [start] * (wanted - workers)
            workers, begins = wanted, batch + 1
            heapq.heapify(free)
    return Outcome(tuple(taken), asked, workers, peak)


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
