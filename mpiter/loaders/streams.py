"""Epochs of iterable datasets: each worker reads a shard, and batches come in turn.

A shard is a worker's part of the stream.
Each shard has its own pump with one worker, since an iterator can't move to another
process.  Shards that have ended are passed over, so the order doesn't depend on
timing.  A stream without a state is resumed by reading up to the place; one that shards
itself, only with the same number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..datasets.columns import users
from ..engine.alone import Alone, pump_for
from ..engine.options import Options
from ..engine.pump import Late, Pump
from ..errors import StateError, warn
from ..order.cursor import Cursor, Plan, Plans, Stretch
from ..order.order import Sequential
from ..samples.batch import samples_of
from ..stats import Stats, total
from ..worker import seeding
from ..worker.here import WorkerInfo, here
from .drawing import Start
from .shards import Mark, Wanted, arguments_of_state, check_threads_copies


class _Numbers(Plans):
    """Plans that request batch after batch of a shard by number, without an end."""

    def __init__(self, run: int) -> None:
        self._run = run

    def step(self, cursor: Cursor, number: int = 0) -> Plan:
        position = cursor.position
        row = Wanted(self._run, position)
        stretch = Stretch(0, cursor.epoch, position, (row,))
        after = cursor._replace(position=position + 1)
        return Plan(number, 1, (stretch,), cursor, after, has_keys=False)


def _init_shard(
    worker_init: Callable[[WorkerInfo], Any],
    shard: int,
    shards: int,
    seeds: bool,
    info: WorkerInfo,
) -> None:
    """Call ``worker_init`` with the shard's number as the worker's.

    Each shard's pump has a single worker, and to the pump that is worker 0.  With
    ``seeds``, the global generators are this worker's, and begin as those of worker
    number ``shard``.
    """
    if seeds:
        seeding.begin_with(info.seed, shard)
    here.now.worker = replace(info, id=shard, num_workers=shards)
    worker_init(here.now.worker)


@dataclass
class _Shard:
    """The record of how far one shard has been read, as JSON-able values."""

    batches: int = 0
    has_ended: bool = False
    # The fields of its last ``Mark``; empty if there is none.
    mark: list[Any] = field(default_factory=list)


class Streaming:
    """Keeps how far the shards of a stream have been read, in one epoch.

    The epoch begins at ``place`` and has ``count`` shards.  ``length`` is the number of
    elements that the user was told, None if nobody has asked for it.  ``before`` is
    where the epoch before has left the streams, if the same objects go on.
    """

    def __init__(
        self,
        place: Start,
        count: int,
        length: int | None = None,
        before: dict[str, Any] | None = None,
    ) -> None:
        self._epoch = place.epoch
        self.read = place.drawn  # batches, of all shards
        self._length = length
        # The elements that have come since the epoch began here.
        self._elements = 0
        nothing = {"is_own": False, "shards": [], "turn": 0}
        saved: dict[str, Any] = place.stream or before or nothing
        # Without a saved state the streams are where they should be, and needn't be
        # brought to their marks.
        self.are_there = place.stream is None
        self.is_own: bool = saved["is_own"]  # the stream shards itself
        self.turn = saved["turn"]  # the shard whose batch is next
        self.shards = [
            _Shard(shard["batches"], shard["has_ended"], shard["mark"])
            for shard in saved["shards"]
        ]
        # What the streams tell at the ends of their shards; None for a shard that isn't
        # there yet, or whose stream has no state.
        self.told: list[str | None] = [None] * count
        if not self.is_own:
            # Each worker reads the whole stream and keeps its shard, so one mark is
            # enough for all, and the state may come from another number of workers.
            mark = []
            if self.shards:
                mark = self.shards[0].mark
            self.shards = []
            for at in range(count):
                batches = len(range(at, self.read, count))
                self.shards.append(_Shard(batches, mark=mark))
            self.turn = self.read % count
        elif len(self.shards) != count:
            raise StateError(
                f"the state is of {len(self.shards)} workers, each with a shard of its "
                f"own making; this loader has {count}.  Use as many, or have the "
                "library shard: shards_itself = False in the stream's class says so."
            )

    def came(self, elements: int, dataset: object) -> None:
        """Count the elements of a batch; warn if more come than the user was told."""
        self._elements += elements
        if self._length is None or self._elements <= self._length:
            return
        text = (
            f"Length of IterableDataset {dataset} was reported to be {self._length} "
            f"(when accessing len(dataloader)), but {self._elements} samples have been "
            "fetched. "
        )
        if len(self.shards) > 1:
            text += (
                "For multiprocessing data-loading, this could be caused by not "
                "properly configuring the IterableDataset replica at each worker: "
                "have its __iter__ give the part that get_worker_info() says, or say "
                "shards_itself = False in its class, and each worker gets its part."
            )
        warn(text, UserWarning)

    def place(self, position: int) -> Start:
        """Return the place to save: after the batches that the shards have read."""
        shards = self.shards
        # Each shard reads the whole stream, so the mark of one is saved: of the one
        # that has read most, from which least has to be read again.
        if not self.is_own:
            shards = [max(shards, key=_elements_before)]
        stream = self._saved(self.turn, shards)
        return Start(self._epoch, self.read, drawn=self.read, stream=stream)

    def after(self) -> dict[str, Any] | None:
        """Return where the next epoch begins, if the same streams go on.

        None if one of them hasn't told where it is.
        """
        shards = []
        for text in self.told:
            if text is None:
                return None
            mark = Mark(0, 0, False, text)
            shards.append(_Shard(mark=[*mark]))
        if not self.is_own:
            shards = shards[:1]
        return self._saved(0, shards)

    def _saved(self, turn: int, shards: list[_Shard]) -> dict[str, Any]:
        saved = []
        for shard in shards:
            saved.append(
                {
                    "batches": shard.batches,
                    "has_ended": shard.has_ended,
                    "mark": [*shard.mark],
                }
            )
        return {"is_own": self.is_own, "turn": turn, "shards": saved}


def _elements_before(shard: _Shard) -> int:
    """Return the number of elements before a shard's mark; -1 if it has none."""
    if not shard.mark:
        return -1
    return Mark(*shard.mark).elements


def warn_of_state(stream: object) -> None:
    """Warn if ``stream`` has a state that can't be part of a loader's."""
    asked = arguments_of_state(stream)
    if not asked:
        return
    name = type(stream).__name__
    warn(
        f"{name}.state_dict() can't be called without {asked}, so a loader's state "
        "doesn't include it: on resuming, the stream is read again up to its place, "
        "which is right only if its order is the same then.  Otherwise save what "
        f"{name}.state_dict(…) returns, give it to load_state_dict() of the new "
        "stream, and don't load this state."
    )


class ShardPumps:
    """Joins the pumps of all shards, with the interface of a single pump.

    Its cursor counts batches.
    """

    cursor: Cursor
    skipped = 0
    _plans: Streaming

    def __init__(self, recipe: Options, late: Late, stays: bool) -> None:
        count = recipe.workers
        self._runs = 0
        self._stays = stays
        self._dataset = users(recipe.dataset)
        if recipe.backend.in_process and count > 1:
            check_threads_copies(self._dataset)
        self._shards = [
            recipe.dataset.of_shard(at, count, recipe.fetches_here, stays)
            for at in range(count)
        ]
        init = recipe.worker_init
        seeds = not recipe.backend.in_process
        run_ahead = recipe.run_ahead
        if run_ahead is not None:
            run_ahead //= count
        self.pumps: list[Pump | Alone] = []
        for at, shard in enumerate(self._shards):
            shards_init = init
            if init:
                shards_init = partial(_init_shard, init, at, count, seeds)
            options = recipe.changed(
                dataset=shard,
                worker_init=shards_init,
                n_workers=0 if recipe.fetches_here else 1,
                n_prefetch=max(1, recipe.n_prefetch // count),
                run_ahead=run_ahead,
            )
            self.pumps.append(pump_for(options, samples_of, late, _unwrapped))

    def go(self, cursor: Cursor, plans: Streaming, seed: int) -> None:
        """Make each shard's pump fetch from where ``plans`` say that the shard is."""
        self.cursor = cursor
        self._plans = plans
        has_mark = any(shard.mark for shard in plans.shards)
        if plans.read and not has_mark:
            warn(
                f"the stream has no state that can be saved, so its first {plans.read} "
                "batches are read again."
            )
        self._runs += 1
        for pump, streamed, shard in zip(
            self.pumps, self._shards, plans.shards, strict=True
        ):
            if shard.mark and not plans.are_there:
                # A shard that had ended is asked once more, for what its stream tells
                # at its end: the next epoch needs that.
                shard.has_ended &= not self._stays
                streamed.marks = {self._runs: (Mark(*shard.mark), plans.is_own)}
                pump.refresh()
            here = Cursor(shard.batches, cursor.epoch, False, Sequential(0))
            pump.go(here, _Numbers(self._runs), seed)

    def start(self) -> None:
        for pump in self.pumps:
            pump.start()

    def known_tokens(self) -> int:
        raise AttributeError(
            "step_tokens isn't known: a stream doesn't tell the tokens of its samples."
        )

    def next(self, passed: Callable[[], object] | None = None) -> Any:
        try:
            return self._next(self._plans)
        finally:
            self.cursor = self.cursor._replace(position=self._plans.read)

    def _next(self, plans: Streaming) -> Any:
        while not all(shard.has_ended for shard in plans.shards):
            shard = plans.shards[plans.turn]
            pump = self.pumps[plans.turn]
            if not shard.has_ended:
                batch, plans.is_own, elements, *told = self._take(plans, shard, pump)
                if not shard.has_ended:
                    plans.came(elements, self._dataset)
                    shard.mark = told or shard.mark
                    return batch
                if told:
                    (plans.told[plans.turn],) = told
            plans.turn = (plans.turn + 1) % len(plans.shards)
        raise StopIteration

    def _take(
        self,
        plans: Streaming,
        shard: _Shard,
        pump: Pump | Alone,
    ) -> tuple[Any, ...]:
        """Return a shard's next item, made by ``Streamed``.

        Unless it is the end of the shard, the next shard's turn follows.
        """
        try:
            parcel: tuple[Any, ...] = pump.next()[0]
            shard.has_ended = not parcel[2]
        finally:
            # A batch counts as read if the pump has gone behind it, also when an error
            # was raised in its place or Ctrl-C came meanwhile.
            came = pump.cursor.position > shard.batches
            shard.batches = pump.cursor.position
            if came and not shard.has_ended:
                plans.read += 1
                plans.turn = (plans.turn + 1) % len(plans.shards)
        return parcel

    def wake(self) -> None:
        """Do nothing: a stream has no sampler that could give more keys."""

    def refresh(self) -> None:
        for pump in self.pumps:
            pump.refresh()

    def close(self) -> None:
        for pump in self.pumps:
            pump.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        found = list[int]()
        for pump in self.pumps:
            found += pump.worker_pids
        return tuple(found)

    def stats(self) -> Stats:
        return total([pump.stats() for pump in self.pumps])


def _unwrapped(opened: list[tuple[Any, ...]]) -> tuple[Any, int]:
    """Return the batch in what a shard has given, and the number of its elements.

    At the shard's end there are none.
    """
    batch, _, elements, *_ = opened[0]
    return batch, elements
