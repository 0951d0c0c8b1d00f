"""Fetching without workers: the caller's own thread acts as the worker.

An ordinary batch is fetched by a bare loop over its keys.  Where that stops, the code
that all workers run goes on; it also fetches any other batch.  Guarantees that the
caller's random generators are left as they were, even after an error; that Ctrl-C and
SystemExit are raised; and that samples fetched before one raised an error aren't
fetched again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from ..datasets.gathering import Gather, gather_of
from ..errors import WorkerStartError, with_traceback
from ..rules import Rules
from ..samples.copying import Held
from . import seeding
from .block import Block, Done, Indices
from .board import LINE_BYTES
from .fetch import Begun, fetch
from .here import NONE, WorkerInfo, here
from .sheets import ByReference, Writer
from .worker import Worker, WorkerInit, call_hooks, settle_at

BatchT = TypeVar("BatchT")

_LEAST_KEPT = 1 << 20  # bytes
_MOST_KEPT = 31 << 20  # bytes; glibc keeps memory for blocks of up to 32 MB only


class CallersWorker:
    """Fetches from one dataset in the caller's thread.

    With ``copies``, samples are copied as they come.
    """

    def __init__(
        self,
        dataset: Any,
        worker_init: WorkerInit | None,
        rules: Rules,
        copies: bool,
    ) -> None:
        cells = memoryview(bytearray(LINE_BYTES)).cast("q")
        info = WorkerInfo(0, 1, rules.seed, None, "serial")
        worker = Worker(info, rules, Writer(None, Held), cells)
        try:
            settle_at(worker, dataset, copies=rules.batch_size > 1)
            call_hooks(worker.info, worker_init)
        except Exception as error:
            raise WorkerStartError(
                f"worker 0 could not start: {with_traceback(error)}"
            ) from error
        worker.copies |= copies
        self._worker = worker
        self._dataset = dataset
        # What ``read`` has begun; the next ``fetch`` goes on with it.
        self._begun: Begun | None = None
        # The bytes of a batch that glibc keeps memory for.
        self._kept = _LEAST_KEPT
        self._callers = seeding.Kept()
        # Reading one of these runs no code of the user's.
        self._is_list = type(dataset) in (list, tuple, range)
        # Where batches are lists of samples, nothing is gathered: rows read one by one
        # would be views of the user's own columns.
        self.gather: Gather | None = None
        if not rules.as_samples:
            self.gather = gather_of(dataset)

    @property
    def is_plain(self) -> bool:
        """True if samples are gathered, or fetched one by one with nothing around it.

        Then no generator is seeded, and no sample copied.
        """
        if self.gather is not None:
            return True
        worker = self._worker
        if worker.reader is not None or worker.under_way is not None:
            return False
        return not (worker.seeds or worker.copies)

    def fetch(self, block: Block) -> Done:
        worker = self._worker
        callers = self._callers
        begun = self._begun
        self._begun = None
        outer = here.now
        here.now = worker.frame
        callers.keep()
        try:
            while True:
                done = fetch(block, worker, worker.seeds, begun)
                drawn = callers.drawn()
                if drawn <= worker.seeds:
                    if worker.frame.notices:
                        done = done._replace(notices=worker.take_notices())
                    return done
                # These samples depend on the state in which the generators happened to
                # be.  The batch is fetched again, with a seed for each sample.
                worker.seeds |= drawn
                begun = None
        finally:
            callers.restore()
            here.now = outer

    def keep_memory(self, nbytes: int) -> None:
        """Have glibc keep the memory of a batch of ``nbytes`` for the next batches.

        In the caller's own process no limit of glibc's is set. But it gives memory back
        only once twice as much lies free as the largest block that was freed so far
        had, and a batch and its samples are just about that: the pages of all of them
        would be new for each batch, a tenth of the time of decoding pictures.
        """
        if nbytes <= self._kept:
            return
        self._kept = nbytes
        # This array is freed at once, without a page of it being touched.
        size = min(nbytes * 3 // 2, _MOST_KEPT)
        np.empty(size, np.uint8)

    def read(
        self,
        keys: Indices | Sequence[Any],
        seed: int,
        epoch: int,
        position: int,
        opens: Callable[[Sequence[Any]], BatchT],
    ) -> BatchT | None:
        """Return a whole batch, made by ``opens``, or None if ``fetch`` must be called.

        Called for batches within an epoch, after one that ``fetch`` has measured.
        ``fetch`` goes on with the sheet where the reading has stopped, so no sample is
        asked for again unless it depends on the state of a global generator.
        """
        if type(keys) is np.ndarray:
            keys = keys.tolist()
        if self._is_list:
            # The keys of an order sampler may be missing in the list; ``fetch`` then
            # finds out which.
            with contextlib.suppress(Exception):
                if len(keys) > 1:
                    return opens([*itemgetter(*keys)(self._dataset)])
                return opens([self._dataset[keys[0]]])
            return None
        worker = self._worker
        callers = self._callers
        frame = worker.frame
        outer = here.now
        sheet = ByReference(len(keys))
        problem: BaseException | None = None
        callers.keep()
        frame.at = lambda: (seed, epoch, position + sheet.row)
        frame.seeds = NONE
        frame.beyond = 0
        frame.drawn = None
        here.now = frame
        try:
            sheet.fetch(worker.dataset, iter(keys), 0, seeded=False)
        except BaseException as error:
            # It is judged below, when the caller's generators are as they were and the
            # thread's frame is back in its place.
            problem = error
        finally:
            here.now = outer
            frame.at = None
            if drawn := callers.drawn():
                callers.restore()
                worker.seeds |= drawn
        # Ctrl-C is the caller's, so it is raised here and no sample is blamed.
        if isinstance(problem, (KeyboardInterrupt, SystemExit)):
            raise problem
        if drawn:
            return None
        if problem is None:
            # This fails if one sample has overwritten another, or if the samples can't
            # be stacked.  ``fetch`` then finds the same, and can name the sample.
            with contextlib.suppress(Exception):
                sheet.check()
                return opens(sheet.open())
        self._begun = Begun(sheet, problem)
        return None

    def close(self) -> None:
        """End what reads samples beside this thread, if anything does."""
        if self._worker.under_way is not None:
            self._worker.under_way.close()

    def begin_anew(self) -> None:
        """Forget the samples of a batch that no ``fetch`` has asked for."""
        self._begun = None
