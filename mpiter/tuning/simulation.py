"""What an iterator would do: the engine's real loop, run in virtual time on a machine that may not exist.

The loop decides as it always does (when to plan, how to cut, how far ahead, whom its pilot adds or lets go); workers,
memory, consumer and clock are made up, from service times that were recorded or drawn.  Guarantees the same outcome for
the same load; assumes that workers get in each other's way at the processor alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..engine.pilot import Pilot, Setting
from ..engine.prefetch import _PrefetchLoop
from ..engine.run import Delivery, Run
from ..engine.tally import Tally
from ..order.cursor import Cursor, Pace
from ..order.order import Sequential
from ..rules import Rules
from ..stats import Stats
from .virtual import SHARE, Call, Clock, Crew, Rooms, Service

__all__ = ["Load", "Machine", "Outcome", "Service", "simulate"]


@dataclass(frozen=True)
class Load:
    """What is to be done.  Samples and steps begin again from the first when they run out.

    Attributes:
        samples: what fetching each sample takes, in the order of the epoch.
        steps: what the consumer does with each batch.
        batch_size: samples in a batch.
        room_bytes: memory of one batch.
        task_s: processor seconds that a worker spends on each task, beside its samples.
        batch_s: processor seconds that the consumer spends on each batch, beside its step.
        start_s: until a new worker takes tasks.
        worker_bytes: memory of a worker.
    """

    samples: Sequence[Service]
    steps: Sequence[Service] = (Service(0.0),)
    batch_size: int = 32
    room_bytes: int = 1 << 20
    task_s: float = 0.0
    batch_s: float = 0.0
    start_s: float = 0.0
    worker_bytes: int = 0


@dataclass(frozen=True)
class Machine:
    """Where it is done; ``capacity`` says how many cores' worth of work 1, 2, … busy threads do together."""

    capacity: Sequence[float] = (1.0,)
    memory_bytes: int = 1 << 40

    @classmethod
    def of(cls, cores: int, memory_bytes: int = 1 << 40) -> Machine:
        """So many whole cores."""
        return cls(tuple(float(count) for count in range(1, cores + 1)), memory_bytes)


@dataclass(frozen=True)
class Outcome:
    """How it went.

    Attributes:
        seconds: until the last step was done.
        batches: handed out.
        waits: of the consumer, in seconds, for each batch.
        worker_busy_s: seconds of all workers together on fetching.
        taken: when each batch was handed out.
        changes: after how many batches the pilot changed what.
        peak_bytes: of workers and batches, at the most.
        stats: at the end.
    """

    seconds: float
    batches: int
    waits: tuple[float, ...]
    worker_busy_s: float
    taken: tuple[float, ...]
    changes: tuple[tuple[int, Setting], ...]
    peak_bytes: int
    stats: Stats

    @property
    def waited_s(self) -> float:
        """By the consumer, in all."""
        return sum(self.waits)

    @property
    def start_s(self) -> float:
        """Until the first batch came."""
        return self.waits[0]

    def waited(self, first: int = 0) -> float:
        """By the consumer, a share of the time from the ``first`` batch to the last one."""
        return sum(self.waits[first + 1 :]) / (self.taken[-1] - self.taken[first])

    def batch_s(self, first: int = 0, last: int | None = None) -> float:
        """Seconds from one batch to the next, from the ``first`` to the ``last`` one."""
        last = self.batches - 1 if last is None else last
        return (self.taken[last] - self.taken[first]) / (last - first)


def simulate(
    load: Load,
    machine: Machine,
    workers: int,
    n_prefetch: int = 2,
    batches: int = 500,
    pilot: Pilot | None = None,
    run_ahead: int | None = None,
    in_order: bool = True,
    most_workers: int | None = None,
) -> Outcome:
    """Hand out so many batches; ``workers`` is what a pilot begins with, ``most_workers`` what it may come to."""
    if workers == 0:
        return _alone(load, machine, batches)
    rules = Rules(
        workers=max(workers, most_workers or workers),
        workers_first=workers,
        batch_size=load.batch_size,
        n_prefetch=n_prefetch,
        run_ahead=run_ahead,
        in_order=in_order,
    )
    return _World(load, machine, rules, batches, pilot).run()


def _alone(load: Load, machine: Machine, batches: int) -> Outcome:
    """The consumer fetches itself."""
    now, waits, taken, speed, count = 0.0, [], [], machine.capacity[0], len(load.samples)
    for batch in range(batches):
        rows = range(batch * load.batch_size, (batch + 1) * load.batch_size)
        fetched = [load.samples[row % count] for row in rows]
        spent = sum(one.cpu_s for one in fetched) / speed + sum(one.wait_s for one in fetched)
        now += spent
        waits.append(spent)
        taken.append(now)
        step = load.steps[batch % len(load.steps)]
        now += (step.cpu_s + load.batch_s) / speed + step.wait_s
    busy_s = sum(waits)
    stats = Stats(batches=batches, samples=batches * load.batch_size, wait_s=busy_s, fetch_s=busy_s, seconds=now)
    return Outcome(now, batches, tuple(waits), busy_s, tuple(taken), (), load.room_bytes, stats)


class _VirtualTally(Tally):
    """Counts in virtual time."""

    __slots__ = ("clock",)
    clock: Clock

    def handed_out(self, samples: int, size: int, fresh: int | None = None) -> None:
        if self.began is None:
            self.began, self.start_s = self.clock.now, self.wait_s
        self.batches += 1
        self.samples += samples
        self.payload_bytes += size

    def look(self, looks: bool = True) -> dict[str, Any]:
        return {} if self.began is None else {"seconds": self.clock.now - self.began}

    def ordered(self, began: float, ended: float) -> None:
        """Real time is of no interest."""

    delivered = ordered


class _World(_PrefetchLoop):
    """The loop, its workers and its consumer."""

    _crew: Any  # the made-up one

    def __init__(self, load: Load, machine: Machine, rules: Rules, batches: int, pilot: Pilot | None) -> None:
        self._load, self._batches = load, batches
        self._clock = Clock(machine.capacity)
        tally = _VirtualTally()
        tally.clock = self._clock
        most_rooms = max(rules.reserve, machine.memory_bytes // SHARE // max(load.room_bytes, 1))
        self.rooms = Rooms(load.room_bytes, most_rooms, self.wake)
        super().__init__(rules, self.rooms, self._hire, tally, pilot)  # type: ignore[arg-type]
        self._bell.close()
        self._bell = self._call = Call()
        self._memory_bytes = machine.memory_bytes
        self._taken_at: list[float] = []
        self._waits: list[float] = []
        self._changes: list[tuple[int, Setting]] = []
        self._in_hand: Any = None
        self._asks_since: float | None = 0.0  # the consumer waits; None: it is at work
        self._peak_bytes = 0
        self._own_cpu_s = 1e-9  # 0 would mean that nobody knows

    def _hire(self, callbacks: Any) -> Crew:
        load, rules = self._load, self._rules
        width = rules.workers if rules.workers_first is None else rules.workers_first
        return Crew(
            self._clock, load.samples, width, load.task_s, load.start_s, self._memory_bytes, self._something_happened
        )

    def run(self) -> Outcome:
        length = self._batches * self._load.batch_size
        pace = Pace(self._load.batch_size, wrap=False, epochs=1)
        self._staff(Run(1, Cursor(0, 0, False, Sequential(length)), 0, pace))
        self._thread = threading.Thread()  # which is never started: the loop believes that somebody else consumes
        crew = self._crew
        while not self._is_over:
            self._turn()
        seconds, stats = self._clock.now, self.stats()
        self._dispose()
        return Outcome(
            seconds=seconds,
            batches=self.tally.batches,
            waits=tuple(self._waits),
            worker_busy_s=crew.busy_s,
            taken=tuple(self._taken_at),
            changes=tuple(self._changes),
            peak_bytes=self._peak_bytes,
            stats=stats,
        )

    @property
    def _is_over(self) -> bool:
        return self._asks_since is not None and len(self._taken_at) == self._batches

    # -- the consumer ------------------------------------------------------------------------------------------------

    def _something_happened(self) -> bool:
        """Let the consumer take what there is for it; is there something for the loop to do?"""
        if self._asks_since is not None and len(self._communicator):
            self._take(self._asks_since)
        has_rung = self._call.has_rung
        self._call.hush()
        return has_rung or self._is_over

    def _take(self, since: float) -> None:
        delivery: Delivery = self._communicator.get(lambda: True, lambda waited: None)
        if delivery.error is not None:
            raise delivery.error
        if delivery.contents is None:
            return
        now, number, load = self._clock.now, len(self._taken_at), self._load
        self._asks_since = None
        self.tally.waited(since, now)
        self.tally.handed_out(delivery.contents.rows, load.room_bytes)
        self._taken_at.append(now)
        self._waits.append(now - since)
        self._peak_bytes = max(self._peak_bytes, self._used_bytes)
        if self._in_hand is not None:
            self._in_hand.free()
        self._in_hand = delivery.contents
        step = load.steps[number % len(load.steps)]
        self._own_cpu_s += step.cpu_s + load.batch_s
        self._clock.spend(step.cpu_s + load.batch_s, step.wait_s, self._ask)

    def _ask(self) -> None:
        self._asks_since = self._clock.now

    # -- what would be read of the machine ---------------------------------------------------------------------------

    @property
    def _used_bytes(self) -> int:
        workers: int = self._crew.present
        return workers * self._load.worker_bytes + self.rooms.out * self._load.room_bytes

    def stats(self, looks: bool = True) -> Stats:
        width = self._setting.workers
        worker_bytes = width * self._load.worker_bytes
        return replace(super().stats(looks), worker_bytes=worker_bytes, own_cpu_s=self._own_cpu_s)

    def _steer(self, crew: Any) -> None:
        before = self._setting
        super()._steer(crew)
        if self._setting != before:
            self._changes.append((self.tally.batches, self._setting))
