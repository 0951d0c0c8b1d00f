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

from ..engine.alone import Alone
from ..engine.options import Options
from ..engine.pump import Late, Pump, pump_for
from ..errors import StateError, warn
from ..order.cursor import Cursor, Plan, Plans, Stretch
from ..order.order import Sequential
from ..samples.batch import samples_of
from ..stats import Stats, total
from ..worker.info import WorkerInfo, enter
from .resuming import Place
from .shards import Batching, Mark, Streamed, Wanted
from .walk import Told


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
        self.pumps = [pump_for(self._options(recipe, shard), samples_of, late, _elements_of) for shard in range(count)]

    def _options(self, recipe: Options, shard: int) -> Options:
        init, count = recipe.worker_init, recipe.workers
        return replace(
            recipe,
            dataset=self._shards[shard],
            worker_init=None if init is None else _AsShard(init, shard, count),
            n_workers=1 if recipe.n_workers else 0,
            n_prefetch=max(1, recipe.first_n_prefetch // count),
            run_ahead=None if recipe.run_ahead is None else recipe.run_ahead // count,
        )

    def send(self, epoch: int, seed: int, starts: list[int], marks: list[Mark | None], is_own: bool) -> None:
        """Have each shard's batches fetched from its start on; ``is_own`` says of those with marks who sharded."""
        self._runs += 1
        for pump, shard, start, mark in zip(self.pumps, self._shards, starts, marks, strict=True):
            if mark is not None:
                shard.marks = {self._runs: (mark, is_own)}
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


def _elements_of(opened: Any) -> int | None:
    """How many are in the batch of a shard; None where it has come to its end."""
    parcel = opened[0]
    return None if _is_end(parcel) else parcel[2]


def _is_end(parcel: tuple[Any, ...]) -> bool:
    return len(parcel) < 2


def begun(told: Told) -> dict[str, Any]:
    """How far the shards of a stream have got that has told its place and gives its next batch first."""
    mark = Mark(0, 0, False, json.dumps(told))
    return {"is_own": False, "turn": 0, "shards": [_Shard(mark=mark).saved()]}


@dataclass
class _Shard:
    """How far one shard has been handed out."""

    batches: int = 0
    has_ended: bool = False
    mark: Mark | None = None  # where its stream could go on, if that tells its place

    def saved(self) -> dict[str, Any]:
        """As JSON-able values."""
        mark = self.mark
        if mark is not None and isinstance(mark.told, StateError):
            raise StateError(f"what the stream's state_dict() returns cannot be saved: {mark.told}")
        values = [] if mark is None else [*mark._replace(told=json.loads(mark.told))]
        return {"batches": self.batches, "has_ended": self.has_ended, "mark": values}


def _loaded(saved: dict[str, Any]) -> _Shard:
    values = saved["mark"]
    mark = Mark(*values)._replace(told=json.dumps(values[3])) if values else None
    return _Shard(saved["batches"], saved["has_ended"], mark)


class StreamPass:
    """One epoch of a stream under way."""

    def __init__(
        self, place: Place, seed: int, shards: int, generators: dict[str, Any], tell: Callable[[], Told | None]
    ) -> None:
        self.epoch, self.seed, self.generators = place.epoch, seed, generators
        self._tell = tell  # of the stream itself, if it is read here
        self.pump: ShardPumps | None = None
        self.aside: Any = None  # no sampler draws
        self.has_ended = False
        self._to_skip = place.skipped
        self._shards = [_Shard() for _ in range(shards)]
        self._turn = 0  # whose batch is next
        self.batches = self.left_out = 0
        self._is_own = False  # do the streams shard themselves?
        if place.stream is not None:
            self._set_out_from(place, place.stream)

    def _set_out_from(self, place: Place, saved: dict[str, Any]) -> None:
        shards, count = [_loaded(shard) for shard in saved["shards"]], len(self._shards)
        self.batches, self._is_own = place.batches, bool(saved["is_own"])
        if not self._is_own:
            mark = shards[0].mark
            self._shards = [_Shard(len(range(at, place.batches, count)), mark=mark) for at in range(count)]
            self._turn = place.batches % count
            return
        if len(shards) != count:
            raise StateError(
                f"the state is of {len(shards)} workers, each with a shard of its own making; this loader has "
                f"{count}.  Use as many, or have the library shard: a stream that doesn't ask get_worker_info()."
            )
        self._turn, self._shards = saved["turn"], shards

    def place(self) -> Place:
        """Where it could go on."""
        shards = self._shards
        if not self._is_own:  # each reads all: who has read most tells
            shards = [max(shards, key=lambda shard: shard.mark.elements if shard.mark else -1)]
        if not self.batches and shards[0].mark is None and (told := self._tell()) is not None:
            return Place(self.epoch, generators=self.generators, skipped=self._to_skip, stream=begun(told))
        stream = {"is_own": self._is_own, "turn": self._turn, "shards": [shard.saved() for shard in shards]}
        return Place(self.epoch, self.batches, generators=self.generators, skipped=self._to_skip, stream=stream)

    def go(self) -> None:
        """Have the batches from here on fetched."""
        assert self.pump is not None
        starts = [shard.batches for shard in self._shards]
        marks = [shard.mark for shard in self._shards]
        if self.batches and not any(marks):
            warn(f"the stream has no state_dict(), so its first {self.batches} batches are read again to go on after.")
        self.pump.send(self.epoch, self.seed, starts, marks, self._is_own)

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
                    batch, self._is_own, _, *mark = parcel
                    shard.mark = Mark(*mark) if mark else shard.mark
                    return batch
            self._turn = (self._turn + 1) % len(self._shards)
        raise StopIteration

    def _take(self, shard: _Shard, pump: Pump | Alone) -> Any:
        """What comes of a shard: a parcel, its end, or an error in a batch's place.  Then it is the next one's turn."""
        try:
            parcel = pump.next()[0]
            shard.has_ended = _is_end(parcel)
        finally:
            came = pump.cursor.position > shard.batches
            shard.batches = pump.cursor.position
            if came and not shard.has_ended:
                self.batches += 1
                self._turn = (self._turn + 1) % len(self._shards)
        return parcel
