"""``receipts="folder"``: a JSON line for each batch that this rank was handed, for ``mpiter audit`` to count.

Runs in the consumer's thread, between the making of a batch and its being handed out.  A rank writes a file of its own
for each start of its program.  Guarantees that a line goes to the system before its batch goes to the user, so that a
trainer which is killed leaves behind what it was handed; that nothing is noted which was only fetched ahead; and that
a full disk ends the file, with one warning, and never the training.
"""

from __future__ import annotations

import json
import logging
import os
import time
import weakref
from collections.abc import Iterable
from numbers import Integral
from typing import Any, Literal, Self

import numpy as np

from .engine.run import Delivery
from .errors import OptionError
from .loaders.drawing import Sliced
from .order.cursor import Cursor, Pace, Plan, Plans
from .order.order import Sampled
from .order.ranks import Shard
from .order.share import Share

__all__ = ["Receipts"]

VERSION = 1
ENDING = ".receipts"
_log = logging.getLogger("mpiter")
Kind = Literal["batch", "skipped", "failed"]


class Receipts:
    """Writes down what one rank of a training is handed, into a folder that all ranks and restarts share.

    Args:
        folder: made if there is none.  One for each loader: what comes later stands for a restart of what is there.
        rank: which of the ``size`` programs this is; None: as their launcher says.

    Our own loaders take it, or the folder alone, as ``receipts=``; for any other loader:

    >>> import tempfile
    >>> from mpiter.audit import audit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Receipts(folder, rank=0, size=1) as receipts:
    ...         receipts.begin(epoch=0, place=0, length=4)  # where the training starts, or goes on
    ...         receipts.handed(0, 0, keys=[2, 0])  # epoch, place before the batch, its samples
    ...         receipts.handed(0, 1, keys=[3, 1])
    ...         receipts.end(0)
    ...     audit(folder).is_sound
    True
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int | None = None, size: int | None = None) -> None:
        self.folder = os.path.realpath(folder)
        self._given = None if rank is None and size is None else Shard(rank, size)
        self._shard = self._given or Shard()
        try:
            os.makedirs(self.folder, exist_ok=True)
        except (OSError, ValueError) as error:
            raise OptionError(f"receipts={os.fspath(folder)!r:.200}: the folder cannot be made ({error}).") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise OptionError(f"receipts={os.fspath(folder)!r:.200}: this program may not write there.")
        self._promised: tuple[int | None, int | None] = None, None  # the length of an epoch, and its last step's
        self._writer = (-1, 0, 0)  # the process, and its rank and size: another one takes another file
        self._file = ""
        self._descriptor: int | None = None
        self._release: Any = None
        self._is_broken = False

    def __reduce__(self) -> Any:
        return _again, (self.folder, self._given, self._promised)

    # -- what our loaders say ------------------------------------------------------------------------------------

    def promise(self, length: int | None, step: int | None) -> None:
        """Each epoch has each of so many samples once, whatever the sampler, but for fewer than ``step`` at its end."""
        self._promised = length, step

    def go(self, cursor: Cursor, plans: Plans, shard: Shard | None) -> Notes:
        """A run begins at ``cursor``; of a loader's epochs, several may be under way."""
        return Notes(self, self._promised, cursor, plans, shard)

    def sit(self, shard: Shard | None) -> Share:
        """This rank's share: as the constructor was told, else as ``shard`` says, else the launcher."""
        if self._given is None and shard is not None:
            self._shard = shard
        return self._shard.share()

    # -- what any loader says ------------------------------------------------------------------------------------

    def begin(self, epoch: int, place: int, *, length: int | None = None, step: int | None = None) -> None:
        """The training goes on from here: what was noted before at this place, or beyond it, is void.

        A *place* is a number that grows from batch to batch, and that a saved state brings back: of samples, or of
        batches.  ``length`` promises that each epoch has each of the samples 0 to ``length - 1`` once; ``step``: of
        the last samples, fewer than so many may be left out.
        """
        share = self._shard.share()
        if self._writer != (writer := (os.getpid(), share.rank, share.size)):
            self.close()  # of a forked process it is the parent's descriptor too, which stays open there
            now = time.time_ns()
            self._file = os.path.join(self.folder, f"rank-{share.rank}-of-{share.size}-{now:x}-{os.getpid()}{ENDING}")
            self._writer, self._is_broken = writer, False
            self._write({"receipts": VERSION, "rank": share.rank, "size": share.size, "time": now / 1e9})
        self._write({"from": [int(epoch), int(place)], "length": length, "step": step})

    def handed(self, epoch: int, place: int, keys: Any, *, fills: int = 0, kind: Kind = "batch") -> None:
        """A batch: its place (before it), and the ``keys`` of its samples, which are whole numbers or strings.

        The last ``fills`` of them come a second time, to fill up an epoch's last step.  Of another ``kind`` are samples
        that were left out because they failed, and those in whose batch's place came an error.
        """
        self._write({kind: [int(epoch), int(place)], "keys": plain(keys), "fills": fills})

    def end(self, epoch: int) -> None:
        """The epoch was gone through to its end."""
        self._write({"end": int(epoch)})

    def close(self) -> None:
        """Close the file; a later note opens it again."""
        self._descriptor = None
        if self._release is not None:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: dict[str, Any]) -> None:
        if self._is_broken:
            return
        if not self._file:
            raise OptionError("receipts begin with begin(epoch, place): where does the training start?")
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
                self._release = weakref.finalize(self, os.close, self._descriptor)
            if os.write(self._descriptor, data) < len(data):
                raise OSError("the disk is full")
        except OSError as error:
            self._is_broken = True
            _log.warning("the receipts %s cannot be written, and end here: %s", self._file, str(error))


def _again(folder: str, given: Shard | None, promised: tuple[int | None, int | None]) -> Receipts:
    receipts = Receipts(folder) if given is None else Receipts(folder, given.rank, given.size)
    receipts.promise(*promised)
    return receipts


def receipts_for(given: Any) -> Receipts:
    """What the option ``receipts=`` stands for."""
    if isinstance(given, (str, os.PathLike)):
        return Receipts(given)
    if not isinstance(given, Receipts):
        raise OptionError(f"receipts={given!r:.60} is no folder; pass a path, or mpiter.receipts.Receipts.")
    return given


def plain(keys: Iterable[Any]) -> list[int | str]:
    """Keys as they are written: whole numbers, and others as text."""
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "iu":
        return keys.tolist()  # type: ignore[no-any-return]
    return [int(key) if isinstance(key, Integral) else str(key)[:200] for key in keys]


class Notes:
    """What is handed out of one run, in the words of receipts."""

    def __init__(
        self, receipts: Receipts, promised: tuple[int | None, int | None], here: Cursor, plans: Plans, shard: Any
    ) -> None:
        self._receipts, self._here, self._shard = receipts, here, shard  # what comes next follows the place
        self._length, self._step = promised
        if len(here.order) and not isinstance(here.order, Sampled):
            self._length = len(here.order)
        self._end = here.epoch + 1  # an epoch that the run doesn't come to
        pace = plans.pace(here.epoch) if isinstance(plans, Sliced) else plans
        if isinstance(pace, Pace):
            self._step = pace.share.step(pace.batch_size) if pace.drop_last else None
            self._end = pace.epochs or 0
        self._samples = plans.samples if isinstance(plans, Sliced) else None  # of all ranks, by our batches
        self._is_begun = False  # in the file

    def note(self, delivery: Delivery, has_come: bool) -> None:
        """This is about to be handed out: as a batch, or as the error or the end that it is."""
        plan, was_begun, self._is_begun = delivery.plan, self._is_begun, False  # Ctrl-C in here has it begun anew
        if plan is None and delivery.error is not None:  # the loop's own
            self._is_begun = was_begun
            return
        if not was_begun:
            self._share = self._receipts.sit(self._shard)
            self._receipts.begin(self._here.epoch, self._place(self._here), length=self._length, step=self._step)
        last = self._end if plan is None else plan.after.epoch
        if plan is not None:
            bad = {(one.epoch, one.position) for one in delivery.faults}
            self._note("batch" if has_come else "skipped" if delivery.is_empty else "failed", plan, bad)
        for epoch in range(self._here.epoch, last):
            self._receipts.end(epoch)
        self._here = self._here._replace(epoch=max(last, self._here.epoch)) if plan is None else plan.after
        self._is_begun = True

    def _place(self, cursor: Cursor) -> int:
        """In samples, where that is known: loaders count batches."""
        return cursor.position if self._samples is None else self._samples(cursor.position)

    def _note(self, kind: Any, plan: Plan, bad: set[tuple[int, int]]) -> None:
        own = (plan.rows if plan.samples is None else plan.samples) - plan.fills
        for row, epoch, position, indices in plan.stretches:
            at = epoch, self._place(plan.before if epoch == plan.before.epoch else plan.after._replace(position=0))
            keys = plain(indices if plan.samples is None else indices[0])
            if self._length is None:  # its sampler may repeat samples: what is judged is that none of its draws is lost
                apart = 1 if self._shard else self._share.size  # each rank's sampler draws for itself
                keys = [(position + one) * apart + self._share.rank * (apart > 1) for one in range(len(keys))]
            keys, fills = keys[: max(0, own - row)], keys[max(0, own - row) :]
            if kind != "batch":
                fills = []  # they have come before
            elif bad:
                left_out = [key for one, key in enumerate(keys) if (epoch, position + one) in bad]
                fills = [key for one, key in enumerate(fills, len(keys)) if (epoch, position + one) not in bad]
                keys = [key for one, key in enumerate(keys) if (epoch, position + one) not in bad]
                self._receipts.handed(*at, left_out, kind="skipped")
            self._receipts.handed(*at, keys + fills, fills=len(fills), kind=kind)
