"""Receipts: by ``Receipts("folder")`` each rank logs every batch that it is handed.

``mpiter audit`` checks the logs.  A *receipt* is a line of JSON; docs/receipts.md
describes the format.  A rank begins a new file whenever its program starts.  Guarantees
that the system has the line before the user has the batch, so that a killed trainer
leaves a log of what it was handed; and that a full disk ends the log, with one warning,
but never the training.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .datasets.columns import offered, users
from .errors import OptionError
from .hook import Coming, Failed, HandedOut, Hook, Planned, Position, Setting
from .order.ranks import Shard

__all__ = ["Receipts"]

ENDING = ".receipts.jsonl"
Folder = str | os.PathLike[str]
Components = Callable[[list[Any]], dict[str, int]]
# The number of samples of an epoch, if it is known, and that of a full step.
Terms = tuple[int | None, int]
_log = logging.getLogger("mpiter")


def _plain(key: object) -> object:
    """Return a sampler's key as a value that JSON has."""
    if isinstance(key, np.generic):
        return key.item()
    return repr(key)[:200]


_encoder = json.JSONEncoder(default=_plain)


class Receipts(Hook):
    """Logs the batches that one rank of a training is handed.

    All ranks and restarts share a folder.

    Args:
        folder: is created if missing.  Two loaders need two folders: a rank's second
            log would count as its restart.
        rank: this program's number among the ``size`` programs; None: as the launcher
            says.
        length: your promise that each epoch has each of the samples 0 to ``length - 1``
            once, which the audit checks.

    Iterators and loaders take it as ``hooks=``.

    >>> import mpiter, tempfile
    >>> from mpiter.audit import audit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     notes = Receipts(folder, rank=0, size=1)
    ...     with mpiter.batches(range(10), 4, n_processes=0, hooks=notes) as stream:
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
        if not folder or not isinstance(folder, (str, os.PathLike)):
            raise OptionError(f"Receipts({folder!r:.60}) must name a folder.")
        self.shard = Shard(rank, size)
        self.length = length
        self.folder = os.path.realpath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self._lock = threading.RLock()
        # The process id, the rank and the number of ranks that the file is for.  If one
        # of them changes, a new file is begun.
        self._writer = (-1, 0, 1)
        # The file's path.  It is empty once the file couldn't be written.
        self._file = ""
        self._descriptor: int | None = None
        # Closes the descriptor.
        self._release: Callable[[], object] | None = None
        self._is_writing = False

    def __reduce__(self) -> tuple[type[Receipts], tuple[Any, ...]]:
        shard = self.shard
        return Receipts, (self.folder, shard.rank, shard.size, self.length)

    def check(self, setting: Setting) -> None:
        if not setting.in_order:
            raise OptionError(
                "receipts need in_order=True: else no audit could tell lost batches "
                "from coming ones."
            )
        if not setting.has_keys:
            name = type(setting.dataset).__name__
            raise OptionError(
                f"receipts are about keys, and {name} is read as a stream, which has "
                "none; pass a dataset with [] and len()."
            )

    def for_loop(self, setting: Setting) -> Notes:
        """Return the hook that logs each batch of one loop."""
        components = offered(users(setting.dataset), "components_of")
        return Notes(self, setting.shard, components)

    def _begin(
        self,
        epoch: int,
        place: int,
        terms: Terms,
        shard: Shard | None,
    ) -> None:
        """Log that the training starts or resumes here.

        What was logged before from this place on becomes void.  A *place* grows from
        batch to batch.  ``shard`` says which rank this is if the constructor wasn't
        told.
        """
        if shard is None or self.shard.rank is not None:
            shard = self.shard
        share = shard.share()
        length, step = terms
        writer = (os.getpid(), share.rank, share.size)
        with self._lock:
            if self._writer != writer:
                # In a forked process this closes the file here only: the parent's
                # descriptor stays open.
                self.close()
                name = (
                    f"rank-{share.rank}-of-{share.size}-{time.time_ns():x}-"
                    f"{os.getpid()}{ENDING}"
                )
                self._file = os.path.join(self.folder, name)
                self._writer = writer
            record = {
                "epoch": epoch,
                "place": place,
                "receipts": 1,
                "rank": share.rank,
                "size": share.size,
                "length": length,
                "step": step,
            }
            self._write(record)

    def close(self) -> None:
        """Close the file; another line opens it again."""
        with self._lock:
            # The garbage collector may end another loop while this thread writes.
            if self._is_writing:
                return
            self._descriptor = None
            if self._release is not None:
                self._release()

    def _write(self, record: dict[str, Any]) -> None:
        text = _encoder.encode(record | {"time": time.time()})
        line = text.encode() + b"\n"
        with self._lock:
            if not self._file:
                return
            try:
                self._append(line)
            except OSError as error:
                self.close()
                _log.warning(
                    "the receipts %s cannot be written, and end here: %s",
                    self._file,
                    str(error),
                )
                self._file = ""

    def _append(self, line: bytes) -> None:
        self._is_writing = True
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
        finally:
            self._is_writing = False


class Notes(Hook):
    """The hook that logs what one loop hands out.

    A loader may have several loops at a time, one for each epoch.
    """

    def __init__(
        self,
        receipts: Receipts,
        shard: Shard | None,
        components: Components | None = None,
    ) -> None:
        self._receipts = receipts
        self._shard = shard
        # The dataset's optional method ``components_of``: it tells how many of the
        # samples with these keys are from each of its components.
        self._components = components

    def begun(self, position: Position, coming: Coming) -> None:
        # A batch that Ctrl-C kept from the user was logged, and comes again: the next
        # line is a beginning, which makes void what was logged from its place on.
        self._coming = coming
        # The place before the next batch.
        self._next = position
        # The first epoch that isn't logged as ended.
        self._epoch = position.epoch
        # The terms as they were logged last.  None has the next batch log the beginning
        # first.
        self._terms: Terms | None = None

    def handed_out(
        self,
        batch: HandedOut,
        samples: int | None,
        began: float,
        ended: float,
    ) -> None:
        if not batch.is_end:
            is_skipped = batch.is_empty
            is_failed = samples is None and not is_skipped
            self.batch(batch.plan, batch.faults, is_skipped, is_failed)
        elif batch.error is None:
            self.end()

    def close(self) -> None:
        self._receipts.close()

    def batch(
        self,
        plan: Planned,
        faults: Sequence[Failed],
        is_skipped: bool = False,
        is_failed: bool = False,
    ) -> None:
        """Log a batch that is about to be handed out.

        It may instead be skipped as a whole, or replaced by an error.
        """
        # The number of samples before those that fill up a step.
        own = (plan.samples or 0) - plan.fills
        terms = self._terms
        # Where a training is resumed, too few samples may be left of an epoch for
        # another batch.  Then the epoch ends here without one.
        if plan.before.epoch > self._epoch:
            terms = self._go_by(terms, self._next, self._next.position)
            self._end_before(plan.before.epoch)
        for stretch in plan.stretches:
            epoch = stretch.epoch
            place = plan.before.position
            here = plan.before
            if epoch != plan.before.epoch:
                place = 0
                here = plan.after
            terms = self._go_by(terms, here, place)
            keys = stretch.indices
            bad = set[int]()
            for fault in faults:
                if fault.epoch == epoch:
                    bad.add(fault.position - stretch.position)
            count = len(keys)
            rows = list[int]()
            if faults and not is_failed:
                rows = [at for at in range(count) if is_skipped or at in bad]
            fills = max(0, min(count, stretch.row + count - own))
            record: dict[str, Any] = {"epoch": epoch, "place": place}
            # Without a shard, each of several ranks has an order of its own, and the
            # position in it says nothing about all of them.
            _, _, ranks = self._receipts._writer
            if self._shard is not None or ranks == 1:
                record["at"] = stretch.position
            if isinstance(keys, np.ndarray):
                record["keys"] = keys.tolist()
            else:
                record["keys"] = list(keys)
            if fills:
                record["fills"] = fills
            if rows:
                record["skipped"] = rows
            if is_failed:
                record["failed"] = is_failed
            elif self._components is not None:
                came = set(range(count - fills)).difference(rows)
                told = self._components([record["keys"][at] for at in sorted(came)])
                if told:
                    record["components"] = told
            self._receipts._write(record)
        self._end_before(plan.after.epoch)
        self._next = plan.after
        self._terms = terms

    def end(self) -> None:
        """Log that the last epoch has ended, because there are no more batches."""
        self._terms = self._go_by(self._terms, self._next, self._next.position)
        self._end_before(self._coming.epochs or self._epoch + 1)

    def _go_by(self, before: Terms | None, here: Position, place: int) -> Terms:
        """Return the terms of the epoch of ``here``, from ``place`` on.

        They are logged if they differ from those ``before``.
        """
        length = self._coming.covers(here) or self._receipts.length
        step = self._coming.drops
        terms = (length, step)
        if before != terms:
            self._receipts._begin(here.epoch, place, terms, self._shard)
        return terms

    def _end_before(self, epoch: int) -> None:
        for one in range(self._epoch, epoch):
            self._receipts._write({"epoch": one})
        self._epoch = max(self._epoch, epoch)
