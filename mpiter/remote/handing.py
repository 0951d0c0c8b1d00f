"""What a pump hands out, in the words of receipts: which samples, of which epoch, at which place.

Runs in the consumer's thread, between the making of a batch and its being handed out.  Guarantees that nothing is noted
which was only fetched ahead, and that a run which goes on from elsewhere is noted as such, before what comes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from ..engine.run import Delivery
from ..errors import OptionError
from ..loaders.drawing import Sliced
from ..order.cursor import Cursor, Pace, Plan, Plans
from ..order.order import Given, Order, Sequential, Shuffled
from ..order.ranks import Shard
from ..samples.batch import samples_of
from ..worker.task import Fault
from .receipts import Receipts, digest

_ENDLESS = 1 << 62
Kind = Literal["batch", "skipped", "failed"]
Words = tuple[Any, int | None, int | None]  # an order's name, if it has one, its seed and its length


def handing(receipts: Any) -> Handing:
    """What ``receipts=`` stands for."""
    if isinstance(receipts, Handing):
        return receipts
    if isinstance(receipts, (str, os.PathLike)):
        receipts = Receipts(receipts)
    if not isinstance(receipts, Receipts):
        raise OptionError(f"receipts={receipts!r:.60} is no folder; pass a path, or mpiter.remote.receipts.Receipts.")
    return Handing(receipts)


class Handing:
    """One loader's receipts; travels with its options, and has a file of its own in another process."""

    def __init__(self, receipts: Receipts, promised: tuple[int | None, int | None] = (None, None)) -> None:
        self.receipts, self._promised = receipts, promised

    def __reduce__(self) -> Any:
        return Handing, (self.receipts, self._promised)

    def promise(self, length: int | None, step: int | None) -> None:
        """Each epoch has each of so many samples once, whoever draws them, but for fewer than ``step`` at its end."""
        self._promised = length, step

    def go(self, cursor: Cursor, plans: Plans, shard: Shard | None) -> Notes:
        """A run begins here; of a loader's epochs, several may be under way."""
        return Notes(self.receipts, self._promised, cursor, plans, shard)

    def close(self) -> None:
        """Give the file back."""
        self.receipts.close()


class Notes:
    """What is handed out of one run."""

    def __init__(
        self,
        receipts: Receipts,
        promised: tuple[int | None, int | None],
        cursor: Cursor,
        plans: Plans,
        shard: Shard | None,
    ) -> None:
        self.receipts, (self._length, self._step) = receipts, promised
        self._end = cursor.epoch + 1  # an epoch that the run doesn't come to
        pace = plans.pace(cursor.epoch) if isinstance(plans, Sliced) else plans
        if isinstance(pace, Pace):
            self._step = pace.share.step(pace.batch_size) if pace.drop_last else None
            self._end = pace.epochs or 0
        self._samples = plans.samples if isinstance(plans, Sliced) else None  # of all ranks, by our batches
        self._here, self._shard = cursor, shard  # what comes next follows this place
        self._is_begun = False  # in the file
        self._epoch, self._order = cursor.epoch, cursor.order  # that the file knows of…
        self._words: Words = (None, None, None)  # …in these words
        self._is_apart = False  # each rank has an order of its own

    def note(self, delivery: Delivery, has_come: bool) -> None:
        """This is about to be handed out: as a batch, or as the error or the end that it is."""
        was_begun, self._is_begun = self._is_begun, False  # what Ctrl-C leaves half noted is begun anew
        if delivery.plan is not None:
            self._begin(was_begun)
            kind: Kind = "batch" if has_come else "skipped" if delivery.is_empty else "failed"
            self._note(kind, delivery.plan, delivery)
            self._here = delivery.plan.after
        elif delivery.error is None:
            self._begin(was_begun)
            self._end_before(self._end)
        self._is_begun = was_begun or delivery.plan is not None or delivery.error is None

    def _begin(self, was_begun: bool) -> None:
        if was_begun:
            return
        share = self.receipts.sit(self._shard)
        self._is_apart = self._shard is None and share.size > 1
        self._epoch, self._order = self._here.epoch, self._here.order
        self._tell(_words(self._order), self._epoch, self._place(self._here))

    def _tell(self, words: Words, epoch: int, place: int) -> None:
        """From here on it goes by this order."""
        self._words = words
        name, seed, length = words
        length = self._length if length is None else length
        self.receipts.begin(epoch, place, length=length, order=name, seed=seed, step=self._step)

    def _follow(self, order: Order, epoch: int, place: int) -> None:
        self._order, words = order, _words(order)
        if words != self._words:
            self._tell(words, epoch, place)

    def _place(self, cursor: Cursor) -> int:
        """In samples, where that is known: loaders count batches."""
        return cursor.position if self._samples is None else self._samples(cursor.position)

    def _end_before(self, epoch: int) -> None:
        for one in range(self._epoch, epoch):
            self.receipts.end(one)
        self._epoch = max(self._epoch, epoch)

    def _note(self, kind: Kind, plan: Plan, delivery: Delivery) -> None:
        before, after, contents = plan.before, plan.after, None
        faults: Sequence[Fault] = ()
        if before.epoch != self._epoch:
            self._end_before(before.epoch)
        if kind == "batch" and delivery.contents is not None:
            faults = delivery.faults
            contents = digest(samples_of(delivery.contents)) if self.receipts.contents else None
        own = (plan.rows if plan.samples is None else plan.samples) - plan.fills
        for row, epoch, position, indices in plan.stretches:
            here = before if epoch == before.epoch else after._replace(position=0)
            place = self._place(here)
            if here.order is not self._order:
                self._follow(here.order, epoch, place)
            keys: Any = indices if plan.samples is None else indices[0]
            fills = min(len(keys), max(0, row + len(keys) - own)) if plan.fills else 0
            if len(keys) < own + plan.fills:  # of what is filled up or crosses an epoch's end no part has a hash
                contents = None
            at = epoch, place
            positions: tuple[int, ...] = (position, len(keys))
            length = len(here.order) or _ENDLESS
            bad = faults and {fault.position - position for fault in faults if fault.epoch == epoch}
            own_rows = len(keys) - fills
            if bad:
                there = [row for row in range(own_rows) if row in bad]
                self._record("skipped", at, [keys[row] for row in there], _runs(there, position, length))
                there = [row for row in range(len(keys)) if row not in bad]
                fills = sum(row >= own_rows for row in there)
                keys, positions = [keys[row] for row in there], _runs(there, position, length)
            elif fills:
                keys = keys if kind == "batch" else keys[:own_rows]  # who fills up has come before
                positions = _runs(range(len(keys)), position, length)
            self._record(kind, at, keys, positions, fills, contents)
        if after.epoch != self._epoch:
            self._end_before(after.epoch)

    def _record(
        self,
        kind: Kind,
        at: tuple[int, int],
        keys: Any,
        positions: tuple[int, ...] | None,
        fills: int = 0,
        contents: bytes | None = None,
    ) -> None:
        if self._is_apart and self._words[0] is None:
            positions = None
        if not len(keys):
            return
        if kind == "batch":
            self.receipts.handed(*at, keys, positions=positions, fills=fills, contents=contents)
        elif kind == "skipped":
            self.receipts.skipped(*at, keys, positions=positions)
        else:
            self.receipts.failed(*at, keys, positions=positions)


def _words(order: Order) -> Words:
    if isinstance(order, Shuffled):
        return "shuffled", order.seed, len(order)
    if isinstance(order, Sequential) and len(order):
        return "sequential", None, len(order)
    return None, None, len(order) if isinstance(order, Given) else None


def _runs(rows: Iterable[int], position: int, length: int) -> tuple[int, ...]:
    """Where these rows lie in the order: first, count, first, count, …; what is beyond its end, at its beginning."""
    found: list[int] = []
    for row in rows:
        at = position + row if position + row < length else (position + row) % length
        if found and found[-2] + found[-1] == at:
            found[-1] += 1
        else:
            found += [at, 1]
    return tuple(found)
