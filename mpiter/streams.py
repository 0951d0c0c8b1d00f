"""Epochs of iterable datasets: a worker for each shard, their batches taken in turn.

Runs in the consumer process.  Each shard has an engine of its own with one worker, since a stream is read where it was
begun.  Batches come from one shard after the other, those that have ended being passed over, so the order doesn't
depend on timing.  Guarantees exact resume: by the stream's own state where it has one, else by reading up to there;
under another number of workers only where the library shards, and a StateError says so.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from typing import Any

from .batch import samples_of
from .cursor import Cursor, Plan, Stretch
from .engine import Engine
from .errors import StateError
from .info import WorkerInfo, enter
from .options import Options
from .order import Sequential
from .resuming import Place
from .shards import Cut, Mark, Streamed, Wanted
from .stats import Stats, total


class _Numbers:
    """Plans that ask for batch after batch by epoch and number, without an end."""

    batch_size = 1

    def __init__(self, run: int) -> None:
        self._run = run  # so that a reading is never taken for that of an earlier run

    def knows(self, cursor: Cursor) -> bool:
        return True

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


class Fleet:
    """An engine for each shard."""

    def __init__(self, recipe: Options, stream: Any, cut: Cut) -> None:
        count = recipe.workers
        self._runs = 0
        self._shards = [Streamed(stream, cut, shard, count) for shard in range(count)]
        self.engines = [Engine(self._options(recipe, shard), samples_of) for shard in range(count)]

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
        for engine, shard, start, mark in zip(self.engines, self._shards, starts, marks, strict=True):
            if mark is not None or (shard.mark is not None and shard.mark.epoch == epoch):
                shard.mark = mark
                engine.refresh()
            engine.go(_Numbers(self._runs), Cursor(start, epoch, False, Sequential(0)), seed)
        for engine in self.engines:
            engine.start()

    def refresh(self) -> None:
        for engine in self.engines:
            engine.refresh()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return tuple(pid for engine in self.engines for pid in engine.worker_pids)

    def stats(self) -> Stats:
        return total([engine.stats() for engine in self.engines])


@dataclass
class _Shard:
    """How far one shard has been handed out."""

    batches: int = 0
    has_ended: bool = False
    mark: tuple[Any, ...] = ()  # elements read, were these all, and the stream's own state; nothing if it has none


class StreamTrip:
    """One epoch of a stream under way."""

    def __init__(self, place: Place, seed: int, shards: int, luck: dict[str, Any]) -> None:
        self.epoch, self.seed, self.luck = place.epoch, seed, luck
        self.engine: Fleet | None = None
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
            mark = tuple(saved["shards"][0]["mark"])
            for at, shard in enumerate(self._shards):
                shard.batches, shard.mark = max(0, -(-(place.batches - at) // count)), mark
            self._turn = place.batches % count
            return
        if len(saved["shards"]) != count:
            raise StateError(
                f"the state is of {len(saved['shards'])} workers, each with a shard of its own making; this loader has "
                f"{count}.  Use as many, or have the library shard: a stream that doesn't ask get_worker_info()."
            )
        self._turn = saved["turn"]
        for shard, told in zip(self._shards, saved["shards"], strict=True):
            shard.batches, shard.has_ended, shard.mark = told["batches"], told["has_ended"], tuple(told["mark"])

    def place(self) -> Place:
        """Where it could go on."""
        shards = self._shards if self._is_own else [max(self._shards, key=lambda shard: shard.mark[:1])]
        told = [{"batches": one.batches, "has_ended": one.has_ended, "mark": list(one.mark)} for one in shards]
        stream = {"is_own": self._is_own, "turn": self._turn, "shards": told}
        try:
            json.dumps(told)
        except (TypeError, ValueError) as error:
            raise StateError(f"what the stream's state_dict() returns is no JSON: {error}.") from error
        return Place(self.epoch, self.batches, luck=self.luck, skipped=self._to_skip, stream=stream)

    def go(self) -> None:
        """Have the batches from here on fetched."""
        assert self.engine is not None
        starts = [shard.batches for shard in self._shards]
        marks = [Mark(self.epoch, shard.batches, *shard.mark) if shard.mark else None for shard in self._shards]
        if self.batches and not any(marks):
            warnings.warn(
                f"the stream has no state_dict(), so its first {self.batches} batches are read again to go on after.",
                RuntimeWarning,
                stacklevel=4,
            )
        self.engine.send(self.epoch, self.seed, starts, marks)

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
        while self.engine is not None and not all(shard.has_ended for shard in self._shards):
            shard, engine = self._shards[self._turn], self.engine.engines[self._turn]
            if not shard.has_ended:
                parcel = self._take(shard, engine)
                if not shard.has_ended:
                    batch, self._is_own, *mark = parcel
                    shard.mark = tuple(mark)
                    return batch
            self._turn = (self._turn + 1) % len(self._shards)
        raise StopIteration

    def _take(self, shard: _Shard, engine: Engine) -> Any:
        """What comes of a shard: a parcel, its end, or an error in a batch's place.  Then it is the next one's turn."""
        try:
            parcel = next(engine)[0]
            shard.has_ended = len(parcel) < 2
        finally:
            came = engine.batches > shard.batches
            shard.batches = engine.batches
            if came and not shard.has_ended:
                self.batches += 1
                self._turn = (self._turn + 1) % len(self._shards)
        return parcel
