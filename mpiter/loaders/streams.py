"""Epochs of iterable datasets: a worker for each shard, their batches taken in turn.

Runs in the consumer process.  Each shard has a pump of its own with one worker, since a stream is read where it was
begun.  Batches come from one shard after the other, those that have ended being passed over, so the order doesn't
depend on timing.  Guarantees exact resume: by the stream's own state where it has one, else by reading up to there;
under another number of workers only where the library shards, and a StateError says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..engine.options import Options
from ..engine.pump import Late, pump_for
from ..errors import StateError, warn
from ..order.cursor import Cursor, Plan, Plans, Stretch
from ..order.order import Sequential
from ..samples.batch import samples_of
from ..stats import Stats, total
from ..worker.info import WorkerInfo, enter
from .place import Place
from .shards import Batching, Mark, Streamed, Wanted
from .walk import Told, savable


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
        count, self._runs = recipe.workers, 0
        self._shards = [Streamed(stream, batching, at, count, is_callers=not recipe.n_workers) for at in range(count)]
        self.pumps = [
            pump_for(
                replace(
                    recipe,
                    dataset=shard,
                    worker_init=recipe.worker_init and _AsShard(recipe.worker_init, at, count),
                    n_workers=1 if recipe.n_workers else 0,
                    n_prefetch=max(1, recipe.first_n_prefetch // count),
                    run_ahead=None if recipe.run_ahead is None else recipe.run_ahead // count,
                ),
                samples_of,
                late,
                _elements_of,
            )
            for at, shard in enumerate(self._shards)
        ]

    def send(self, epoch: int, seed: int, shards: list[Shard], is_own: bool) -> None:
        """Have each shard's batches fetched from there on; ``is_own`` says of those with marks who sharded."""
        self._runs += 1
        for pump, streamed, shard in zip(self.pumps, self._shards, shards, strict=True):
            if shard.mark is not None:
                streamed.marks = {self._runs: (shard.mark, is_own)}
                pump.refresh()
            pump.go(Cursor(shard.batches, epoch, False, Sequential(0)), _Numbers(self._runs), seed)
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


def _elements_of(opened: Any) -> int | None:
    """How many are in the batch of a shard; None where it has come to its end."""
    parcel = opened[0]
    return None if _is_end(parcel) else parcel[2]


def _is_end(parcel: tuple[Any, ...]) -> bool:
    return len(parcel) < 2


@dataclass
class Shard:
    """How far one shard has been handed out."""

    batches: int = 0
    has_ended: bool = False
    mark: Mark | None = None  # where its stream could go on, if that tells its place

    def saved(self) -> dict[str, Any]:
        """The same as JSON-able values."""
        mark: list[Any] = []
        if self.mark is not None:
            savable(self.mark.told, "stream's")
            mark = [*self.mark._replace(told=json.loads(self.mark.told))]
        return {"batches": self.batches, "has_ended": self.has_ended, "mark": mark}


def _loaded(saved: dict[str, Any]) -> Shard:
    mark = Mark(*saved["mark"]) if saved["mark"] else None
    return Shard(saved["batches"], saved["has_ended"], mark and mark._replace(told=json.dumps(mark.told)))


def begun(told: Told) -> dict[str, Any]:
    """How far the shards of a stream have got that has told its place and gives its next batch first."""
    return {"is_own": False, "turn": 0, "shards": [Shard(mark=Mark(0, 0, False, json.dumps(told))).saved()]}


class StreamPass:
    """One epoch of a stream under way."""

    aside: Any = None  # no sampler draws
    pump: ShardPumps | None = None
    batches = 0  # that have been handed out
    left_out = 0  # …and that were skipped on the way
    has_ended = False

    def __init__(
        self, place: Place, seed: int, count: int, generators: dict[str, Any], tell: Callable[[], Any]
    ) -> None:
        self.epoch, self.begun, self._seed, self._generators = place.epoch, place.position, seed, generators
        self._tell = tell  # how far the stream itself is, if it is read here
        self._read, self._to_skip = place.drawn, place.position - place.drawn
        saved = place.stream or {"is_own": False}
        self._is_own: bool = saved["is_own"]  # do the streams shard themselves?
        if not self._is_own:
            mark = _loaded(saved["shards"][0]).mark if place.stream else None
            self._shards = [Shard(len(range(at, self._read, count)), mark=mark) for at in range(count)]
            self._turn = self._read % count  # whose batch is next
            return
        self._shards, self._turn = [_loaded(shard) for shard in saved["shards"]], saved["turn"]
        if len(self._shards) != count:
            raise StateError(
                f"the state is of {len(self._shards)} workers, each with a shard of its own making; this loader has "
                f"{count}.  Use as many, or have the library shard: a stream that doesn't ask get_worker_info()."
            )

    @property
    def position(self) -> int:
        return self._read + self._to_skip

    def place(self) -> Place:
        """Where it could go on."""
        shards, stream = self._shards, None
        if not self._is_own:  # each reads all: the one that has read most tells
            shards = [max(shards, key=lambda shard: shard.mark.elements if shard.mark else -1)]
        if not self._read and shards[0].mark is None:
            stream = self._tell()
        stream = stream or {"is_own": self._is_own, "turn": self._turn, "shards": [shard.saved() for shard in shards]}
        return Place(self.epoch, self.position, self._generators, self._read, stream=stream)

    def go(self) -> None:
        """Have the batches from here on fetched."""
        assert self.pump is not None
        if self._read and not any(shard.mark for shard in self._shards):
            warn(f"the stream has no state_dict(), so its first {self._read} batches are read again to go on after.")
        self.pump.send(self.epoch, self._seed, self._shards, self._is_own)

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
            except Exception:  # of a batch that isn't wanted
                continue
        batch = self._next()
        self.batches += 1
        return batch

    def _next(self) -> Any:
        while self.pump is not None and not all(shard.has_ended for shard in self._shards):
            shard, pump = self._shards[self._turn], self.pump.pumps[self._turn]
            if not shard.has_ended:
                parcel = self._take(shard, pump)
                if not shard.has_ended:
                    batch, self._is_own, _, *mark = parcel
                    shard.mark = Mark(*mark) if mark else shard.mark
                    return batch
            self._turn = (self._turn + 1) % len(self._shards)
        raise StopIteration

    def _take(self, shard: Shard, pump: Any) -> Any:
        """What comes of a shard: a parcel, its end, or an error in a batch's place.  Then it is the next one's turn."""
        try:
            parcel = pump.next()[0]
            shard.has_ended = _is_end(parcel)
        finally:
            came = pump.cursor.position > shard.batches
            shard.batches = pump.cursor.position
            if came and not shard.has_ended:
                self._read += 1
                self._turn = (self._turn + 1) % len(self._shards)
        return parcel
