"""A machine of many cores that doesn't exist, and what a load would take there.

One pass over the batches, in the order in which they are planned: each is cut in
pieces, and each piece goes to the worker that is free first.  Workers that are more
than the cores take longer in proportion.  It assumes of the engine only that so many
batches are on their way, and that they are handed out in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Samples that a worker is given at a time.
_PIECE_S = 8e-3


class Service(NamedTuple):
    """The seconds that something takes of a processor, and those that it waits.

    It waits for a disk, a network or a GPU.
    """

    cpu_s: float
    wait_s: float = 0.0


@dataclass(frozen=True)
class Load:
    """The work of a training.

    Samples and steps begin again from the first when they run out.
    """

    samples: Sequence[Service]
    steps: Sequence[Service] = (Service(0.0),)
    batch_size: int = 32
    # Seconds that a worker spends on each piece, beside its samples.
    task_s: float = 0.0
    # Seconds that the consumer spends on each batch, beside its step.
    batch_s: float = 0.0
    room_bytes: int = 1 << 20
    worker_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """The result: when each batch was handed out, and the most memory at a time."""

    taken: tuple[float, ...]
    peak_bytes: int


def window(workers: int) -> int:
    """Return the number of batches that may be on their way."""
    return 2 + max(64, 3 * workers)


def simulate(
    load: Load,
    workers: int,
    batches: int = 500,
    cores: int = 64,
    most_bytes: float = 1 << 40,
) -> Outcome:
    """Hand out so many batches, which may take ``most_bytes`` together."""
    free = [0.0] * workers
    taken: list[float] = []
    asked = 0.0
    peak = 0
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
        taken.append(max(asked, ready))
        step = load.steps[batch % len(load.steps)]
        asked = taken[-1] + load.batch_s + step.cpu_s + step.wait_s
        peak = max(peak, workers * load.worker_bytes + flight * load.room_bytes)
    return Outcome(tuple(taken), peak)


def _pieces(load: Load, batch: int, crowd: float) -> list[float]:
    """Return the seconds of each piece of a batch, with so many workers."""
    count = len(load.samples)
    first = batch * load.batch_size
    pieces = []
    piece = 0.0
    for sample in (
        load.samples[row % count] for row in range(first, first + load.batch_size)
    ):
        piece += crowd * sample.cpu_s + sample.wait_s
        if piece >= _PIECE_S:
            pieces.append(piece)
            piece = 0.0
    return [*pieces, piece] if piece else pieces
