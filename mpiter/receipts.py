"""Receipts: with ``receipts="folder"`` each rank logs every batch that it is handed,
for ``mpiter audit`` to check.

A *receipt* is a line of JSON; docs/receipts.md describes the format.  A rank begins a
new file whenever its program starts.  Guarantees that the system has the line before
the user has the batch, so that a killed trainer leaves a log of what it was handed; and
that a full disk ends the log, with one warning, but never the training.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from .engine.delivery import Delivery
from .engine.hook import Hook
from .order.cursor import Cursor, Pace, Plan, Plans
from .order.order import Given, Sequential, Shuffled
from .order.ranks import Shard
from .worker.block import Fault

__all__ = ["Receipts"]

ENDING = ".receipts.jsonl"
Folder = str | os.PathLike[str]
# The samples of an epoch, if known, and those of a full step.
Terms = tuple[int | None, int]
_log = logging.getLogger("mpiter")
_encoder = json.JSONEncoder(
    default=lambda key: key.item() if isinstance(key, np.generic) else repr(key)[:200]
)


class Receipts:
    """Logs the batches that one rank of a training is handed, in a folder that all
    ranks and restarts share.

    Args:
        folder: is created if missing.  Two loaders need two folders: a rank's second
            log would count as its restart.
        rank: this program's number among the ``size`` programs; None: as the launcher
            says.
        length: your promise that each epoch has each of the samples 0 to ``length - 1``
            once, which the audit checks.

    Iterators and loaders take it, or only the folder, as ``receipts=``.

    >>> import mpiter, tempfile
    >>> from mpiter.audit import audit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     receipts = Receipts(folder, rank=0, size=1)
    ...     with mpiter.batches(range(10), 4, n_processes=0, receipts=receipts) as stream:
    ...         batches = list(stream)
    ...     audit(folder).is_sound
    True
    """

    def __init__(
        self,
        folder: Folder,
        rank: int | None = None,
        size: int | None = None,
        length: int | None = None,
    ) -> None:
        self.shard = Shard(rank, size)
        self.length = length
        # Samples of a full step: fewer may be left out at the end; set by a loader with
        # drop_last.
        self.step = 0
        self.folder = os.path.realpath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self._lock = threading.RLock()
        # Process id, rank, size; if they change, a new file is begun.
        self._writer = (-1, 0, 1)
        # Its path; none any more once it couldn't be written.
        self._file = ""
        self._descriptor: int | None = None
        self._release: Any = None

    def __reduce__(self) -> Any:
        return Receipts, (self.folder, self.shard.rank, self.shard.size, self.length)

    def hook(self, shard: Shard | None) -> Notes:
        """Return the hook that logs each batch that is handed out; ``shard`` is this
        process's part.
        """
        return Notes(self, shard)

    def _begin(self, epoch: int, place: int, terms: Terms, shard: Shard | None) -> None:
        """Log that the training starts or resumes here; what was logged before from
        this place on becomes void.

        A *place* grows from batch to batch.  ``shard`` says which rank this is if the
        constructor wasn't told.
        """
        share = (
            self.shard if shard is None or self.shard.rank is not None else shard
        ).share()
        (length, step), writer = terms, (os.getpid(), share.rank, share.size)
        with self._lock:
            if self._writer != writer:
                # In a forked process; the parent's descriptor stays open.
                self.close()
                name = f"rank-{share.rank}-of-{share.size}-{time.time_ns():x}-{os.getpid()}{ENDING}"
                self._file = os.path.join(self.folder, name)
                self._writer = writer
            of = {
                "receipts": 1,
                "rank": share.rank,
                "size": share.size,
                "length": length,
                "step": step,
            }
            self._write({"epoch": epoch, "place": place} | of)

    def close(self) -> None:
        """Close the file; another line opens it again."""
        with self._lock:
            self._descriptor = None
            if self._release is not None:
                self._release()

    def _write(self, record: dict[str, Any]) -> None:
        line = _encoder.encode(record | {"time": time.time()}).encode() + b"\n"
        with self._lock:
            if not self._file:
                return
            try:
                if self._descriptor is None:
                    self._descriptor = os.open(
                        self._file,
                        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                        0o666,
                    )
                    self._release = weakref.finalize(self, os.close, self._descriptor)
                if os.write(self._descriptor, line) < len(line):
                    raise OSError("the disk is full")
            except OSError as error:
                self.close()
                _log.warning(
                    "the receipts %s cannot be written, and end here: %s",
                    self._file,
                    str(error),
                )
                self._file = ""


class Notes(Hook):
    """The hook that logs what one loop hands out; a loader may have several loops at a
    time, one for each epoch.
    """

    def __init__(self, receipts: Receipts, shard: Shard | None) -> None:
        self._receipts = receipts
        self._shard = shard

    def begun(self, cursor: Cursor, plans: Plans) -> None:
        self._plans = plans
        # Before the next batch; the first epoch not logged as ended.
        self._next, self._epoch = cursor, cursor.epoch
        # As logged last; None: log ``begin`` before the next batch.
        self._terms: Terms | None = None

    def handed_out(
        self, delivery: Delivery, samples: int | None, began: float, ended: float
    ) -> None:
        if not delivery.is_end:
            is_skipped = delivery.is_empty
            self.batch(
                delivery.plan,
                delivery.faults,
                is_skipped,
                is_failed=samples is None and not is_skipped,
            )
        elif delivery.error is None:
            self.end()

    def close(self) -> None:
        self._receipts.close()

    def batch(
        self,
        plan: Plan,
        faults: Sequence[Fault],
        is_skipped: bool = False,
        is_failed: bool = False,
    ) -> None:
        """Log a batch that is about to be handed out, is skipped as a whole, or is
        replaced by an error.
        """
        own = (plan.rows if plan.samples is None else plan.samples) - plan.fills
        terms = self._terms
        # So that the next batch logs ``begin`` if Ctrl-C interrupts this one.
        self._terms = None
        # Resumed where too few samples are left of an epoch for another batch.
        if plan.before.epoch > self._epoch:
            terms = self._go_by(terms, self._next)
            self._end_before(plan.before.epoch)
        for row, epoch, position, indices in plan.stretches:
            if epoch == plan.before.epoch:
                here = plan.before
            else:
                here = plan.after._replace(position=0)
            terms = self._go_by(terms, here)
            keys: Any
            if plan.samples is None:
                keys = indices
            else:
                keys = indices[0]
            bad = {
                fault.position - position for fault in faults if fault.epoch == epoch
            }
            rows: Sequence[int] = ()
            if faults and not is_failed:
                rows = [at for at in range(len(keys)) if is_skipped or at in bad]
            fills = max(0, min(len(keys), row + len(keys) - own))
            record: dict[str, Any] = {"epoch": epoch, "place": here.position}
            # Else the rank has an order of its own.
            if self._shard is not None or self._receipts._writer[-1] == 1:
                record["at"] = position
            record["keys"] = (
                keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
            )
            more = {"fills": fills, "skipped": rows, "failed": is_failed}
            self._receipts._write(
                record | {name: value for name, value in more.items() if value}
            )
        self._end_before(plan.after.epoch)
        self._next = plan.after
        self._terms = terms

    def end(self) -> None:
        """Log that the last epoch has ended, because there are no more batches."""
        self._terms = self._go_by(self._terms, self._next)
        self._end_before(self._plans.epochs or self._epoch + 1)

    def _go_by(self, before: Terms | None, here: Cursor) -> Terms:
        """Return the terms from ``here`` on; log them if they differ from those
        ``before``.
        """
        length = self._receipts.length
        step = self._receipts.step
        if isinstance(here.order, (Shuffled, Sequential, Given)) and len(here.order):
            length = len(here.order)
        if isinstance(self._plans, Pace):
            step = (
                self._plans.share.step(self._plans.batch_size) * self._plans.drop_last
            )
        elif self._shard is not None:
            step *= self._shard.share().size
        if before != (length, step):
            self._receipts._begin(
                here.epoch, here.position, (length, step), self._shard
            )
        return length, step

    def _end_before(self, epoch: int) -> None:
        for one in range(self._epoch, epoch):
            self._receipts._write({"epoch": one})
        self._epoch = max(self._epoch, epoch)
