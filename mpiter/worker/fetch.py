"""The function that every Pool calls to fetch a block (rows of one batch).

Guarantees that an exception in a dataset becomes a fault (the record of a row that
failed) and is never raised into the Pool; and that each sample is written before the
next is fetched, so a dataset may overwrite its memory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..samples.copying import Copies, Refilled
from . import home, seeding
from .block import (
    Block,
    Done,
    Fault,
    Place,
    as_array,
    listed,
    make_block,
    take_down,
    unsendable,
)
from .board import CELL
from .here import NONE, AllLeftOut, here
from .sheets import Unsendable
from .worker import Worker, worker_for

# Least time between two blocks whose samples are all checked for having been
# overwritten.
_LOOK_S = 0.25
_clock = time.monotonic


def _fetch_run(fields: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the fields of the answer to the block with these fields;
    ``Pool.map_async`` calls this function.

    Plain tuples are pickled in a quarter of the time that named ones take.
    """
    block = make_block(fields)
    worker = worker_for(block.dataset)
    if worker.startup is not None:
        return Done(
            block.number,
            worker.info.id,
            notices=worker.take_notices(),
            startup=worker.startup,
        )[:]
    is_first = worker.blocks == 0 and worker.owns_globals
    # Not earlier, while all workers start: it takes some 20 ms of processor time.
    if is_first:
        home.limit_loaded_libraries()
    cells = worker.cells
    cells[CELL.block], cells[CELL.since], cells[CELL.active] = (
        block.number,
        time.monotonic_ns(),
        1,
    )
    # A dataset may have an iterator of its own.
    outer = here.now
    here.now = worker.frame
    born = home.generation
    try:
        done = _watched(block, worker)
    except BaseException as error:
        # A bug of ours, most likely; still it must not be raised into the Pool.
        if home.generation != born:
            raise
        rows = [block.sample(at) for at in range(block.rows)]
        faults = tuple(
            take_down(error, *found, worker) for found in rows if found is not None
        )
        done = Done(block.number, worker.info.id, block.rows, faults=faults)
    finally:
        here.now = outer
        cells[CELL.active] = 0
    if worker.frame.notices or worker.seeds:
        done = done._replace(notices=worker.take_notices(), drawn=worker.seeds)
    worker.blocks += 1
    if is_first:
        home.limit_loaded_libraries()
    return done[:]


def _watched(block: Block, worker: Worker) -> Done:
    """Fetch a block; if the dataset draws from global generators, fetch it again with
    these seeded per sample.

    Threads share these generators, so a thread's first block is only watched, to warn
    of them.
    """
    owns = worker.owns_globals
    if not owns and worker.blocks:
        return fetch(block, worker, NONE)
    while True:
        seeds = worker.seeds if owns else NONE
        if seeds == seeding.GLOBALS:
            return fetch(block, worker, seeds)
        before = worker.mark or seeding.globals_mark()
        done = fetch(block, worker, seeds)
        worker.mark = seeding.globals_mark()
        drawn = seeding.drawn_between(before, worker.mark)
        if drawn <= seeds:
            return done
        if not owns:
            worker.frame.notices.append(
                f"{type(worker.dataset).__qualname__} draws from the global random "
                "generators, which threads share: its samples depend on timing. Draw "
                "from mpiter.get_rng() instead, or use processes."
            )
            return done
        worker.seeds = seeds | drawn  # and this block is fetched again


def fetch(block: Block, worker: Worker, seeds: frozenset[str]) -> Done:
    """Return the answer to a block, with the global generators in ``seeds`` seeded for
    each sample.
    """
    began = _clock()
    cpu_s = time.thread_time()
    looks = began - worker.looked > _LOOK_S
    if looks:
        worker.looked = began
    fetching = _Fetching(block, worker, seeds, looks)
    for stretch in block.stretches:
        fetching.stretch(*stretch)
        if fetching.is_over:
            break
    try:
        if fetching.is_over:
            payload = None
        else:
            payload = fetching.sheet.payload()
    except Refilled:
        worker.copies = True
        return fetch(block, worker, seeds)
    seconds = _clock() - began
    cpu_s = time.thread_time() - cpu_s
    queue_s = max(0.0, began - block.sent)
    came = (
        block.number,
        worker.info.id,
        block.rows,
        seconds,
        payload,
        tuple(fetching.faults),
    )
    return Done(*came, began=began, queue_s=queue_s, cpu_s=cpu_s)


class _Fetching:
    """The fetch of one block; it also records samples that fail in a row that is made
    of several.
    """

    def __init__(
        self, block: Block, worker: Worker, seeds: frozenset[str], looks: bool
    ) -> None:
        self._block = block
        self._worker = worker
        self._cells = worker.cells
        self._seeds = seeds
        self.sheet = worker.writer.sheet(
            block.brief, block.address, block.row, block.rows, looks
        )
        self.faults: list[Fault] = []
        frame = worker.frame
        frame.seeds = seeds
        frame.beyond = 0
        frame.drawn = None
        self._born = home.generation

    @property
    def is_over(self) -> bool:
        """True if a sample has failed and errors aren't skipped, so that the batch
        becomes an error.
        """
        return bool(self.faults) and not self._worker.rules.skips_errors

    def stretch(self, row: int, epoch: int, position: int, indices: Any) -> None:
        """Fetch the rows from ``row`` on, whose keys are ``indices``; all are of one
        epoch.
        """
        block = self._block
        cells = self._cells
        frame = self._worker.frame
        seed = block.seed
        first = row - block.row
        offset = position - first
        keys = listed(indices)
        frame.at = lambda: (seed, epoch, offset + cells[CELL.row])
        frame.hearer = self
        self._first = first
        self._epoch = epoch
        self._position = position
        self._keys = keys
        try:
            if not self._read_together(first, indices, keys):
                worker = self._worker
                self._write(
                    Copies(worker.dataset) if worker.copies else worker.dataset,
                    keys,
                    first,
                )
        finally:
            frame.hearer = None
        if self._is_forked:
            whose = type(self._worker.info.dataset).__qualname__
            raise RuntimeError(
                f"{whose} forked this process, which returned from the dataset as if "
                "it were the worker. End it with os._exit() or sys.exit()."
            )

    def _write(self, dataset: Any, keys: Iterable[Any], row: int) -> None:
        """Fetch and write the samples of ``keys`` from ``row`` on; an exception becomes
        the fault of its row.
        """
        rest = iter(keys)
        cells = self._cells
        sheet = self.sheet
        seeded = bool(self._seeds) and not getattr(
            self._worker.dataset, "seeds_itself", False
        )
        while not self.is_over:
            try:
                sheet.fetch(dataset, rest, row, cells, seeded)
                return
            except BaseException as error:
                row = cells[CELL.row]
                self._fail(error, row)
                row += 1

    def _fail(self, error: BaseException, row: int) -> None:
        self.let_pass(error)
        place, index = self._found(row)
        if isinstance(error, Unsendable):
            error = unsendable(
                error.sample, f"dataset[{index!r:.60}]", error.__cause__ or error
            )
        # Its samples have faults; the last one now says that the row is lost.
        if isinstance(error, AllLeftOut):
            last = max(
                at for at, fault in enumerate(self.faults) if fault.row == place[1]
            )
            self.faults[last] = replace(self.faults[last], ends_row=True)
        else:
            self.faults.append(take_down(error, place, index, self._worker))
        self.sheet.fail(row)

    def _found(self, row: int) -> tuple[Place, Any]:
        at = row - self._first
        return (
            self._block.batch,
            self._block.row + row,
            self._epoch,
            self._position + at,
        ), self._keys[at]

    def _read_together(self, row: int, indices: Any, keys: list[Any]) -> bool:
        """Fetch the samples by one call of the dataset's reader; return False if it
        must be done one by one.
        """
        worker = self._worker
        cells = self._cells
        count = len(keys)
        if (
            worker.reader is None
            or count < 2
            or self._seeds
            or self._block.singly
            or isinstance(indices, tuple)
        ):
            return False
        cells[CELL.row], cells[CELL.active] = row, 2
        seeding.begin_anew()
        samples: Any = ()
        try:
            samples = worker.reader(as_array(indices))
        except BaseException as error:
            # Fetched again sample by sample, which shows the one that fails.
            self.let_pass(error)
        cells[CELL.active] = 1
        if seeding.begin_anew():
            # It draws: each sample needs the generator of its own position.
            worker.reader = None
            return False
        if len(samples) != count:
            return False
        # Written one by one below, to find the sample that can't be sent.
        with contextlib.suppress(Unsendable):
            if type(samples) in self.sheet.at_once and self.sheet.together(
                row, samples
            ):
                return True
        self._write(Copies(samples) if worker.copies else samples, range(count), row)
        return True

    def part(self, error: BaseException, key: Any, at: int) -> None:
        """Record the failure of one sample: number ``at`` of the several that make up
        the row being fetched.
        """
        self.let_pass(error)
        batch, row, epoch, position = self._found(self._cells[CELL.row])[0]
        # Else it is a retry.
        if (row, position + at) not in (
            (known.row, known.position) for known in self.faults
        ):
            fault = take_down(
                error, (batch, row, epoch, position + at), key, self._worker
            )
            self.faults.append(replace(fault, ends_row=False))

    def let_pass(self, error: BaseException) -> None:
        """Raise Ctrl-C or SystemExit again in the caller's own thread; in a worker
        every exception is the dataset's.

        In a process that the dataset has forked from the worker, raise any exception,
        which ends it.
        """
        is_callers = self._worker.info.backend == "serial"
        if self._is_forked or (
            is_callers and isinstance(error, (KeyboardInterrupt, SystemExit))
        ):
            raise error

    @property
    def _is_forked(self) -> bool:
        """True in a process that the dataset has forked from the worker during this
        fetch.
        """
        return home.generation != self._born and self._worker.info.backend != "serial"
