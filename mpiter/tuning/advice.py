"""How many workers hide what they do, by the capacity model.

Pure.  A batch takes the workers so much processor time and so much waiting (for a disk, say), the trainer so long, and
so much of that is processor time too; all share the cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .capacity import most_workers

_HIDDEN = 1.02  # workers that can deliver so many times what the trainer takes hide what they do
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Times:
    """What a batch takes, on the average.

    Attributes:
        trainer_s: the trainer, from one ``next()`` to the next, without what it waited.
        trainer_cpu_s: processor time of the trainer's process, without workers.
        cpu_s: processor time of workers.
        io_s: that workers waited for something else than a core.
        samples: in it.
        workers: that there were.
    """

    trainer_s: float
    trainer_cpu_s: float
    cpu_s: float
    io_s: float
    samples: float
    workers: int

    @property
    def worker_s(self) -> float:
        """Of a worker that always has a core."""
        return self.cpu_s + self.io_s


def predicted_s(of: Times, workers: int, capacity: Sequence[float]) -> float:
    """What a batch would take with so many workers, where ``capacity`` is what 1, 2, … busy threads do together."""
    if not workers:
        return of.trainer_s + of.worker_s
    return max(of.worker_s / workers, _shortest_s(of, capacity))


def _shortest_s(of: Times, capacity: Sequence[float]) -> float:
    """What a batch takes however many workers there are."""
    return max(of.trainer_s, (of.cpu_s + of.trainer_cpu_s) / capacity[-1])


@dataclass(frozen=True, slots=True)
class Advice:
    """As many workers as hide all that they do; where that takes too many, or no number does, as many as are of use.

    Attributes:
        workers: so many.
        samples_per_s: predicted.
        hides: is it all hidden?
        is_most: might more be of use?  So many are never tried.
    """

    workers: int
    samples_per_s: float
    hides: bool
    is_most: bool


def advised(found: Times, capacity: Sequence[float]) -> Advice:
    """How many workers."""
    most = max(most_workers(len(capacity)), found.workers)
    needed = fewest(found, capacity)
    wanted = most_useful(found, capacity) if needed is None else needed
    workers, is_most = int(min(wanted, most)), wanted > most
    rate = found.samples / max(predicted_s(found, workers, capacity), 1e-12)
    return Advice(workers, rate, hides=needed is not None and not is_most, is_most=is_most)


def fewest(found: Times, capacity: Sequence[float]) -> float | None:
    """Workers that load a batch while the trainer has the one before; None where no number does."""
    if found.worker_s <= (_HIDDEN - 1) * found.trainer_s:
        return 0
    if _HIDDEN * found.cpu_s + found.trainer_cpu_s > capacity[-1] * found.trainer_s:
        return None
    return _whole(found.worker_s * _HIDDEN, found.trainer_s)


def most_useful(found: Times, capacity: Sequence[float]) -> float:
    """Workers beyond which the cores are all busy."""
    return max(1, _whole(found.worker_s, _shortest_s(found, capacity)))


def _whole(service_s: float, every_s: float) -> float:
    """Workers that together are done as often as that."""
    return math.ceil(service_s / every_s - _ROUNDING) if every_s else math.inf


def some(count: int, noun: str) -> str:
    """So many of them."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rate_told(value: float) -> str:
    """So many a second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
