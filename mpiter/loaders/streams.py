"""Epochs of iterable datasets: a worker for each shard, their batches taken in turn.

Runs in the consumer process.  Each shard has a pump of its own with one worker, since a stream is read where it was
begun.  Batches come from one shard after the other, those that have ended being passed over, so the order doesn't
depend on timing.  Guarantees exact resume: by the stream's own state where it has one, else by reading up to there;
under another number of workers only where the library shards, and a StateError says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from ..engine.options import Options
from ..engine.pump import Late, Pump
from ..errors import StateError, warn
from ..order.cursor import Cursor, Plan, Plans, Stretch
from ..order.order import Sequential
from ..samples.batch import samples_of
from ..stats import Stats, total
from ..worker.info import WorkerInfo, enter
from .resuming import Place
from .shards import Batching, Mark, Streamed, Wanted


class _Numbers(Plans):
    """Plans that ask for batch after batch by epoch and number, without an end."""

    def __init__(self, run: int) -> None:
        self._run = run  # so that a reading is never taken for that of an earlier run

    def step(self, cursor: Cursor, number: int = 0) -> Plan:
        stretch = Stretch(0, cursor.epoch, cursor.position, (Wanted(self._run, cursor.epoch, cursor.position),))
        return Plan(number, 1, (stretch,), cursor, cursor._replace(position=cursor.position + 1))


class _AsShard:
    """A worker's beginning, for one of many that believes it is the only one."""

    def __init__(self, worker_init: Any, shard: int, shards: int) -> None:
        self._worker_init, self._shard, self._shards = worker_init, shard, shards

    def __call__(self, info: WorkerInfo) -> None:
        info_here = replace(info, id=self._shard, num_workers=self._shards)
        enter(info_here)
        self._worker_init(info_here)


class ShardPumps:
    """A pump for each shard."""

    def __init__(self, recipe: Options, stream: Any, batching: Batching, late: Late) -> None:
        count = recipe.workers
        self._runs = 0
        in_loop = not recipe.n_workers
        self._shards = [Streamed(stream, batching, shard, count, is_callers=in_loop) for shard in range(count)]
        self.pumps = [Pump(self._options(recipe, shard), samples_of, late) for shard in range(count)]

    def _options(self, recipe: Options, shard: int) -> Options:
        init, count = recipe.worker_init, recipe.workers
        return replace(
            recipe,
            dataset=self._shards[shard],
            worker_init=None if init is None else _AsShard(init, shard, count),
            n_workers=min(1, recipe.n_workers or 0),
            n_prefetch=max(1, recipe.n_prefetch // count),
            run_ahead=None if recipe.run_ahead is None else recipe.run_ahead // count,
        )

    def send(self, epoch: int, seed: int, starts: list[int], marks: list[Mark | None]) -> None:
        """Have each shard's batches fetched from its start on."""
        self._runs += 1
        for pump, shard, start, mark in zip(self.pumps, self._shards, starts, marks, strict=True):
            if mark is not None or (shard.mark is not None and shard.mark.epoch == epoch):
                shard.mark = mark
                pump.refresh()
            pump.go(Cursor(start, epoch, False, Sequential(0)), _Numbers(self._runs), seed)
        for pump in self.pumps:
            pump.start()

    def refresh(self) -> None:
        for pump in self.pumps:
            pump.refresh()

    def close(self) -> None:
        for pump in self.pumps:
            pump.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return tuple(pid for pump in self.pumps for pid in pump.worker_pids)

    def stats(self) -> Stats:
        return total([pump.stats() for pump in self.pumps])


@dataclass
class _Shard:
    """How far one shard has been handed out."""

    batches: int = 0
    has_ended: bool = False
    mark: tuple[Any, ...] = ()  # as a reading gives it; nothing if the stream doesn't tell its place


class StreamPass:
    """One epoch of a stream under way."""

    def __init__(self, place: Place, seed: int, shards: int, generators: dict[str, Any]) -> None:
        self.epoch, self.seed, self.generators = place.epoch, seed, generators
        self.pump: ShardPumps | None = None
        self.aside: Any = None  # no sampler draws
        self.has_ended = False
        self._to_skip = place.skipped
        self._shards = [_Shard() for _ in range(shards)]
        self._turn = 0  # whose batch is next
        self.batches = 0
        self._is_own = False  # do the streams shard themselves?
        if place.stream is not None:
            self._set_out_from(place, place.stream)

    def _set_out_from(self, place: Place, saved: dict[str, Any]) -> None:
        count = len(self._shards)
        self.batches, self._is_own = place.batches, bool(saved["is_own"])
        if not self._is_own:
            mark = _text(saved["shards"][0]["mark"])
            for at, shard in enumerate(self._shards):
                shard.batches = max(0, -(-(place.batches - at) // count))
                shard.mark = mark and (max(0, -(-(mark[0] - at) // count)), *mark[1:])
            self._turn = place.batches % count
            return
        if len(saved["shards"]) != count:
            raise StateError(
                f"the state is of {len(saved['shards'])} workers, each with a shard of its own making; this loader has "
                f"{count}.  Use as many, or have the library shard: a stream that doesn't ask get_worker_info()."
            )
        self._turn = saved["turn"]
        for shard, told in zip(self._shards, saved["shards"], strict=True):
            shard.batches, shard.has_ended, shard.mark = told["batches"], told["has_ended"], _text(told["mark"])

    def place(self) -> Place:
        """Where it could go on."""
        shards = self._shards
        if not self._is_own:  # each reads all: who has read most tells, and counts the batches of all
            at = max(range(len(shards)), key=lambda at: shards[at].mark[1:2])
            ahead = shards[at]
            mark = ahead.mark and ((ahead.mark[0] - 1) * len(shards) + at + 1, *ahead.mark[1:])
            shards = [replace(ahead, mark=mark)]
        told = [{"batches": one.batches, "has_ended": one.has_ended, "mark": _values(one.mark)} for one in shards]
        stream = {"is_own": self._is_own, "turn": self._turn, "shards": told}
        return Place(self.epoch, self.batches, generators=self.generators, skipped=self._to_skip, stream=stream)

    def go(self) -> None:
        """Have the batches from here on fetched."""
        assert self.pump is not None
        starts = [shard.batches for shard in self._shards]
        marks = [Mark(self.epoch, *_values(shard.mark)) if shard.mark else None for shard in self._shards]
        if self.batches and not any(marks):
            warn(f"the stream has no state_dict(), so its first {self.batches} batches are read again to go on after.")
        self.pump.send(self.epoch, self.seed, starts, marks)

    def skip(self, batches: int) -> None:
        """Leave some out: a stream must read them all the same."""
        self._to_skip += batches

    def next(self) -> Any:
        """The next batch."""
        while self._to_skip:
            self._to_skip -= 1
            try:
                self._next()
            except StopIteration:
                raise
            except Exception:  # of a batch that nobody wants
                continue
        return self._next()

    def _next(self) -> Any:
        while self.pump is not None and not all(shard.has_ended for shard in self._shards):
            shard, pump = self._shards[self._turn], self.pump.pumps[self._turn]
            if not shard.has_ended:
                parcel = self._take(shard, pump)
                if not shard.has_ended:
                    batch, self._is_own, *mark = parcel
                    shard.mark = tuple(mark) or shard.mark
                    return batch
            self._turn = (self._turn + 1) % len(self._shards)
        raise StopIteration

    def _take(self, shard: _Shard, pump: Pump) -> Any:
        """What comes of a shard: a parcel, its end, or an error in a batch's place.  Then it is the next one's turn."""
        try:
            parcel = pump.next()[0]
            shard.has_ended = len(parcel) < 2
        finally:
            came = pump.cursor.position > shard.batches
            shard.batches = pump.cursor.position
            if came and not shard.has_ended:
                self.batches += 1
                self._turn = (self._turn + 1) % len(self._shards)
        return parcel


def _values(mark: tuple[Any, ...]) -> list[Any]:
    """A mark as JSON-able values."""
    if mark and isinstance(mark[3], StateError):
        raise StateError(f"what the stream's state_dict() returns cannot be saved: {mark[3]}")
    return [*mark[:3], json.loads(mark[3])] if mark else []


def _text(mark: list[Any]) -> tuple[Any, ...]:
    """The mark again."""
    return (*mark[:3], json.dumps(mark[3])) if mark else ()
