"""The caller's own thread as a worker, where there are no others.

Runs in the consumer's thread.  Fetches blocks with the code of all workers, and a usual batch in a loop with nothing
else in it.  Guarantees that the caller's random generators are found as they were, whatever happens; that Ctrl-C passes
through; and that what had come of a batch when a sample raised is not asked for again.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from ..errors import WorkerStartError
from ..rules import Rules
from ..samples.copying import Held, glimpse, is_its_own
from . import home, seeding
from .block import Block, Done
from .board import LINE_BYTES
from .fetch import fetch
from .here import NONE, WorkerInfo, here
from .sheets import Writer
from .worker import Worker, call_hooks, settle_at


class CallersWorker:
    """A worker for one dataset; ``copies`` asks for private copies of the samples."""

    def __init__(self, dataset: Any, worker_init: Any, rules: Rules, copies: bool) -> None:
        cells = memoryview(bytearray(LINE_BYTES)).cast("q")
        worker = Worker(WorkerInfo(0, 1, rules.seed, None, "serial"), rules, Writer(None, Held), cells)
        try:
            settle_at(worker, dataset, copies=rules.batch_size > 1)
            call_hooks(worker.info, worker_init)
        except Exception as error:
            raise WorkerStartError(f"worker 0 could not start:\n\n{traceback.format_exc()}") from error
        worker.copies |= copies
        self._worker, self._dataset = worker, dataset
        self._callers, self._born = seeding.Kept(), home.generation
        self._is_list = type(dataset) in (list, tuple, range)  # no code of the user's runs when it is read

    @property
    def is_plain(self) -> bool:
        """Are samples asked for one by one, without seeds or copies?"""
        worker = self._worker
        return worker.reader is None and not (worker.seeds or worker.copies)

    def fetch(self, block: Block) -> Done:
        """Fetch a block as any worker does."""
        worker, callers = self._worker, self._callers
        outer, here.now = here.now, worker.frame
        if worker.rules.seeds_samples:
            callers.keep()
        try:
            while True:
                done = fetch(block, worker, worker.seeds)
                if not worker.rules.seeds_samples or (drawn := callers.drawn()) <= worker.seeds:
                    return done
                worker.seeds |= drawn  # and this batch is fetched again
        finally:
            if worker.rules.seeds_samples:
                callers.restore()
            here.now, worker.dataset = outer, self._dataset

    def read(self, keys: list[Any], seed: int, epoch: int, position: int) -> Sequence[Any] | None:
        """The samples of a whole batch, one by one; None if ``fetch`` must do it.

        After an error ``fetch`` goes on with the samples that came before it; else it asks for all of them again.
        """
        if self._is_list:
            with contextlib.suppress(Exception):  # an order sampler's keys need not be there
                return itemgetter(*keys)(self._dataset) if len(keys) > 1 else (self._dataset[keys[0]],)
            return None
        worker, callers, born, rows = self._worker, self._callers, self._born, list[Any]()
        dataset, frame, outer = worker.dataset, worker.frame, here.now
        rest, first, problem, drawn, add = iter(keys), None, None, NONE, rows.append
        if worker.rules.seeds_samples:
            callers.keep()
        frame.at = lambda: (seed, epoch, position + len(rows))
        frame.seeds, frame.beyond, frame.drawn, frame.keys = NONE, 0, None, keys
        here.now = frame
        try:
            add(dataset[next(rest)])
            first = None if is_its_own(rows) else glimpse(rows[0])
            for key in rest:
                add(dataset[key])
        except BaseException as error:
            home.end_child(born, error)
            problem = error
        finally:
            here.now, frame.at, frame.keys = outer, None, None
        if home.generation != born:
            home.end_child(born)
        if worker.rules.seeds_samples and (drawn := callers.drawn()):
            callers.restore()
            worker.seeds |= drawn
        is_refilled = first is not None and glimpse(rows[0]) != first
        if problem is None and not (drawn or is_refilled):
            return rows
        if isinstance(problem, KeyboardInterrupt):
            raise problem
        worker.copies = is_refilled
        if problem is not None and not (drawn or is_refilled):
            self.give_again(rows, problem)
        return None

    def give_again(self, samples: Iterable[Any], *errors: BaseException) -> None:
        """Have the next fetch begin with these samples, which have come already."""
        self._worker.dataset = _Begun(self._dataset, samples, errors) if samples or errors else self._dataset


class _Begun:
    """A dataset whose first samples have come already, and then an error perhaps."""

    def __init__(self, dataset: Any, samples: Iterable[Any], errors: Iterable[BaseException]) -> None:
        self._dataset, self._samples, self._errors = dataset, iter(samples), iter(errors)

    def __getitem__(self, key: Any) -> Any:
        for sample in self._samples:
            return sample
        for error in self._errors:
            raise error
        return self._dataset[key]
