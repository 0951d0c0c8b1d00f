"""Does the trainer wait for data, for which part of it, and how many workers would hide it?

Pure: from what ``stats()`` has counted, by the capacity model.  A batch takes the workers so much processor time and so
much waiting (for a disk, say), the trainer so long, and so much of that is processor time too; all share the cores.
What a worker waited for a core is told apart by the system, so that a machine that is busy with other things doesn't
make samples look dear.  Assumes that a trainer computes all the time where nobody has counted it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .. import machine
from ..stats import NUMBERS, Stats
from .capacity import most_workers

WORTH_TELLING = 0.05  # of the trainer's time
_HIDDEN = 1.02  # workers that can deliver so many times what the trainer takes hide what they do
_LEAST_BATCHES = 2
_ROUNDING = 1e-6
_UNKNOWN = "nothing is predicted: threads under a GIL may wait for each other, which can't be told apart"


@dataclass(frozen=True, slots=True)
class Times:
    """What a batch takes, on the average.

    Attributes:
        trainer_s: the trainer, from one ``next()`` to the next, without what it waited.
        trainer_cpu_s: processor time of the trainer's process, without workers.
        waited_s: that the trainer waited.
        cpu_s: processor time of workers.
        io_s: that workers waited for something else than a core.
        delay_s: that workers waited for a core.
        read_s: of ``cpu_s`` and ``io_s``, in the dataset's ``read()``, where one sees inside.
        pack_s: of ``cpu_s``, on writing samples.
        samples: in it.
        workers: that there were.
    """

    trainer_s: float
    trainer_cpu_s: float
    waited_s: float
    cpu_s: float
    io_s: float
    delay_s: float
    read_s: float
    pack_s: float
    samples: float
    workers: int

    @property
    def batch_s(self) -> float:
        return self.trainer_s + self.waited_s

    @property
    def worker_s(self) -> float:
        """Of a worker that always has a core."""
        return self.cpu_s + self.io_s


def times(now: Stats, since: Stats | None = None) -> Times | None:
    """What a batch took since then, or since the first one; None: there were too few."""
    before = since if since is not None and since.seconds else None
    start = Stats(wait_s=now.start_s, batches=1, samples=round(now.samples / max(now.batches, 1)))
    gone = {name: getattr(now, name) - getattr(before or start, name) for name in NUMBERS}
    batches = gone["batches"]
    if batches < _LEAST_BATCHES or not gone["seconds"]:
        return None
    of_workers = batches if before else now.batches  # who have begun with the first one
    fetched, cpu, delay = (
        gone["fetch_s"] + gone["pack_s"],
        gone["fetch_cpu_s"],
        gone["fetch_delay_s"],
    )
    trainer_s, worker_cpu_s = max(0.0, gone["seconds"] - gone["wait_s"]) / batches, cpu / of_workers
    own_cpu_s = gone["own_cpu_s"] / batches
    if now.threads or not now.workers:  # who are in the same process
        own_cpu_s = max(0.0, own_cpu_s - worker_cpu_s)
    return Times(
        trainer_s=trainer_s,
        trainer_cpu_s=own_cpu_s if now.own_cpu_s else trainer_s,
        waited_s=gone["wait_s"] / batches,
        cpu_s=worker_cpu_s,
        io_s=max(0.0, fetched - cpu - delay) / of_workers,
        delay_s=delay / of_workers,
        read_s=gone["read_s"] / of_workers,
        pack_s=gone["pack_s"] / of_workers,
        samples=gone["samples"] / batches,
        workers=now.workers,
    )


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

    def __str__(self) -> str:
        count, rate = some(self.workers, "worker"), f"{rate_told(self.samples_per_s)} samples/s predicted"
        if self.hides:
            return f"{count} would hide it: {rate}"
        if self.is_most:
            return f"more than {count} would help: {rate} with {self.workers}"
        return f"no more than {count} would help: {rate}; then samples must become cheaper"


@dataclass(frozen=True, slots=True)
class Verdict:
    """In numbers; ``str()`` is the line.

    Attributes:
        bound: by "data" or the "trainer".
        waited: by the trainer, a share of the time.
        fetching: of the workers' time, in ``dataset[i]``…
        reading: …of that in its ``read()``; None where one doesn't see inside…
        waiting: …and of that waiting for something else than a core.
        short_of_cores: of the workers' time that they were busy, waiting for a core.
        advice: how many workers; None: workers are threads, of which one doesn't know what they wait for.
    """

    bound: str
    waited: float
    fetching: float
    reading: float | None
    waiting: float
    short_of_cores: float
    advice: Advice | None

    def __str__(self) -> str:
        parts = [f"{self.bound}-bound: the trainer waited {self.waited:.0%} of the time"]
        if self.bound == "data":
            of_it = f"{self.waiting:.0%} waiting" if self.reading is None else f"{self.reading:.0%} reading"
            parts.append(f"{self.fetching:.0%} of a worker's time is dataset[i], of it {of_it}")
            if self.short_of_cores >= WORTH_TELLING:
                parts.append(f"{self.short_of_cores:.0%} is waiting for a core")
            parts.append(_UNKNOWN if self.advice is None else str(self.advice))
        elif self.advice is not None and self.advice.hides:
            count = self.advice.workers
            parts.append(f"{some(count, 'worker')} would do" if count else "it would hardly wait without workers")
        return "; ".join(parts)


def verdict(now: Stats, since: Stats | None = None, capacity: Sequence[float] | None = None) -> Verdict | None:
    """The verdict on what was done since then, or since the first batch; None: too early."""
    found = times(now, since)
    if found is None:
        return None
    capacity = capacity or [float(count) for count in range(1, machine.cores() + 1)]
    waited = min(1.0, found.waited_s / found.batch_s) if found.batch_s else 0.0
    busy = found.worker_s + found.delay_s
    workers_s = max(found.workers, 1) * found.batch_s
    inside = max(busy - found.pack_s, 1e-12)
    may_wait_for_each_other = bool(now.threads) and machine.gil_is_in_use()
    return Verdict(
        bound="data" if waited >= WORTH_TELLING else "trainer",
        waited=waited,
        fetching=min(1.0, inside / workers_s) if workers_s else 0.0,
        reading=min(1.0, found.read_s / inside) if found.read_s else None,
        waiting=min(1.0, found.io_s / inside),
        short_of_cores=found.delay_s / busy if busy else 0.0,
        advice=None if may_wait_for_each_other else advised(found, capacity),
    )


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
