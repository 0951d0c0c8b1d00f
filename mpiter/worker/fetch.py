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
from typing import Any, NamedTuple

from ..datasets.columns import takes_any_key
from ..errors import LeafError
from ..samples.copying import Copies, Refilled
from . import home, seeding
from .block import (
    Block,
    Done,
    Fault,
    Fields,
    Keys,
    Place,
    UnpackedKeys,
    key_at,
    listed,
    make_block,
    take_down,
    unpacked,
    unsendable,
)
from .board import CELL
from .here import NONE, AllLeftOut, here
from .sheets import ByReference, Payload, Sheet, Unsendable
from .underway import Closed, UnderWay
from .worker import Worker, worker_for

# The least time between two blocks whose samples are all checked for having been
# overwritten.
_LOOK_S = 0.25
# So many blocks of a thread are watched for draws from the global generators.
_WATCHED = 3
_clock = time.monotonic


def _fetch_run(fields: Fields) -> Fields:
    """Fetch a block, given by its fields, and return the fields of the answer.

    ``Pool.map_async`` calls this function.  Plain tuples are pickled in a quarter of
    the time that named ones take.
    """
    block = make_block(fields)
    worker = worker_for(block.dataset)
    if worker.startup is not None:
        return Done(
            block.number,
            worker.info.id,
            notices=worker.take_notices(),
            startup=worker.startup,
        ).fields()
    # Looking for libraries takes some 20 ms of processor time, which is scarce while
    # all workers start.  So it waits for the first block.
    is_first = worker.blocks == 0 and worker.owns_globals
    if is_first:
        home.limit_loaded_libraries()
    cells = worker.cells
    cells[CELL.block] = block.number
    cells[CELL.since] = time.monotonic_ns()
    cells[CELL.active] = 1
    # A dataset may itself read from an iterator in this thread, and that fetch must
    # find its own frame, then leave us ours.
    outer = here.now
    here.now = worker.frame
    born = home.generation
    try:
        done = _watched(block, worker)
    except BaseException as error:
        # A process that the dataset has forked from this worker must not answer for it,
        # and of an iterator that was closed no answer is wanted.
        if home.generation != born or isinstance(error, Closed):
            raise
        # Most likely this is a bug of ours.  Raised into the Pool it would end the
        # worker and say nothing of the rows, so all of them get it as their fault.
        faults = []
        for at in range(block.rows):
            found = block.sample(at)
            if found is not None:
                faults.append(take_down(error, *found, worker))
        done = Done(
            block.number,
            worker.info.id,
            block.rows,
            faults=tuple(faults),
        )
    finally:
        here.now = outer
        cells[CELL.active] = 0
    if worker.frame.notices or worker.seeds:
        done = done._replace(notices=worker.take_notices(), drawn=worker.seeds)
    worker.blocks += 1
    if is_first:
        home.limit_loaded_libraries()
    return done.fields()


def _watched(block: Block, worker: Worker) -> Done:
    """Fetch a block, with the global generators seeded that the dataset draws from.

    The first block that draws from one is fetched again, seeded for each sample.
    """
    if not worker.owns_globals:
        return _overheard(block, worker)
    while True:
        seeds = worker.seeds
        if seeds == seeding.GLOBALS:
            return fetch(block, worker, seeds)
        before = worker.mark or seeding.globals_mark()
        done = fetch(block, worker, seeds)
        worker.mark = seeding.globals_mark()
        drawn = seeding.drawn_between(before, worker.mark)
        if drawn <= seeds:
            return done
        # These samples depend on what the worker has drawn before.  They are fetched
        # again, with a seed for each.
        worker.seeds = seeds | drawn


def _overheard(block: Block, worker: Worker) -> Done:
    """Fetch a block in a thread, and warn if the global generators are drawn from.

    Threads share them, so they aren't seeded.  The program has them too, and may draw
    while a block is fetched: only draws in each of the first blocks are told.
    """
    if not worker.is_watched:
        return fetch(block, worker, NONE)
    before = seeding.globals_mark()
    done = fetch(block, worker, NONE)
    if not seeding.drawn_between(before, seeding.globals_mark()):
        worker.is_watched = False
    elif worker.blocks + 1 == _WATCHED:
        worker.is_watched = False
        name = type(worker.dataset).__qualname__
        worker.frame.notices.append(
            "while samples were fetched, the global random generators, which threads "
            f"share, were drawn from again and again: if {name} does so, its samples "
            "depend on timing. Draw from mpiter.get_rng() instead, or use processes."
        )
    return done


class Begun(NamedTuple):
    """The sheet of a whole batch whose reading was begun before it had a block.

    ``error`` is what the dataset raised for the sheet's row, if it did.  Otherwise all
    rows are there.
    """

    sheet: ByReference
    error: BaseException | None


def fetch(
    block: Block,
    worker: Worker,
    seeds: frozenset[str],
    begun: Begun | None = None,
) -> Done:
    """Return the answer to a block.

    The global generators in ``seeds`` are seeded for each sample. A block of one
    stretch that was ``begun`` already goes on from there.
    """
    began = _clock()
    cpu_began = time.thread_time()
    looks = began - worker.looked > _LOOK_S
    if looks:
        worker.looked = began
    fetching = _Fetching(block, worker, seeds, looks, begun)
    payload: Payload | None = None
    under_way = worker.under_way
    try:
        for stretch in block.stretches:
            fetching.stretch(*stretch)
            if fetching.is_over:
                break
        if not fetching.is_over:
            payload = fetching.sheet.payload()
    except Refilled:
        # Samples that were held by reference have been overwritten by later ones, so
        # this block is fetched again, and from now on samples are copied.
        worker.copies = True
        return fetch(block, worker, seeds)
    finally:
        # It refers to the sheet, which may have the samples themselves.
        worker.frame.at = None
        if under_way is not None:
            under_way.drop(block.number)
            under_way.alone.discard(block.number)
    seconds = _clock() - began
    cpu_s = time.thread_time() - cpu_began
    if under_way is not None:
        cpu_s += under_way.take_cpu_s()
    queue_s = max(0.0, began - block.sent)
    return Done(
        number=block.number,
        worker=worker.info.id,
        rows=block.rows,
        seconds=seconds,
        payload=payload,
        faults=tuple(fetching.faults),
        began=began,
        queue_s=queue_s,
        cpu_s=cpu_s,
    )


class _Fetching:
    """The fetch of one block.

    It also records the samples that fail in a row that is made of several.
    """

    def __init__(
        self,
        block: Block,
        worker: Worker,
        seeds: frozenset[str],
        looks: bool,
        begun: Begun | None,
    ) -> None:
        self._block = block
        self._worker = worker
        self._cells = worker.cells
        self._seeds = seeds
        self._begun = begun
        self.sheet: Sheet
        if begun is None:
            self.sheet = worker.writer.sheet(
                block.brief,
                block.address,
                block.row,
                block.rows,
                worker.cells,
                looks,
            )
        else:
            self.sheet = begun.sheet
        self.faults: list[Fault] = []
        frame = worker.frame
        frame.seeds = seeds
        frame.beyond = 0
        frame.drawn = None
        self._born = home.generation
        # Of the stretch that is being fetched: the block's row with which it begins,
        # the epoch and position of that row, and the keys.
        self._first = 0
        self._epoch = 0
        self._position = 0
        self._keys: UnpackedKeys = ()

    @property
    def is_over(self) -> bool:
        """True if a sample has failed and errors aren't skipped: the batch fails."""
        return bool(self.faults) and not self._worker.rules.skips_errors

    def stretch(
        self,
        row: int,
        epoch: int,
        position: int,
        packed: Keys,
    ) -> None:
        """Fetch the rows from ``row`` on; all are of one epoch."""
        block = self._block
        sheet = self.sheet
        frame = self._worker.frame
        seed = block.seed
        first = row - block.row
        offset = position - first
        keys = unpacked(packed)
        frame.at = lambda: (seed, epoch, offset + sheet.row)
        frame.hearer = self
        self._first = first
        self._epoch = epoch
        self._position = position
        self._keys = keys
        try:
            if self._begun is not None:
                self._go_on(self._begun, keys)
            elif self._has_under_way:
                self._take_under_way(first, len(keys))
            elif not self._read_together(first, keys):
                self._read_singly(listed(keys), first)
        finally:
            frame.hearer = None
            frame.reading = None
        # The dataset has forked this process, and the call has returned in it as well.
        # If it went on, the consumer would get two answers to the block.
        if self._is_forked:
            whose = type(self._worker.info.dataset).__qualname__
            raise RuntimeError(
                f"{whose} forked this process, which returned from the dataset as if "
                "it were the worker. End it with os._exit() or sys.exit()."
            )

    def _go_on(self, begun: Begun, keys: UnpackedKeys) -> None:
        """Judge the error that the reading came to, then fetch the rows after it."""
        if begun.error is not None:
            row = begun.sheet.row
            self._fail(begun.error, row)
            self._read_singly(listed(keys[row + 1 :]), row + 1)

    @property
    def _has_under_way(self) -> bool:
        """True if the block's samples may be under way at the same time."""
        if self._worker.under_way is None:
            return False
        may = not (self._seeds or self._worker.copies)
        return may and not self._block.singly

    def _take_under_way(self, row: int, count: int) -> None:
        """Write rows in their order; their samples are under way, or are begun now."""
        block = self._block
        worker = self._worker
        under_way = worker.under_way
        assert under_way is not None
        arriving = under_way.begin(block.number, block.placed())
        self._cells[CELL.active] = 3
        self._write(arriving, range(row, row + count), row)
        self._cells[CELL.active] = 1

    def _read_singly(self, keys: Iterable[Any], row: int) -> None:
        dataset = self._worker.dataset
        if self._worker.under_way is not None:
            dataset = self._alone(self._worker.under_way)
        if self._worker.copies:
            dataset = Copies(dataset)
        self._write(dataset, keys, row)

    def _alone(self, under_way: UnderWay) -> Any:
        """Return the dataset, to read one row at a time with nothing beside it."""
        worker = self._worker
        self._cells[CELL.active] = 2
        under_way.settle()
        self._cells[CELL.active] = 1
        why = ""
        if worker.copies:
            why = "returns memory that it uses again for the next sample"
        elif self._seeds:
            why = (
                "draws from the global random generators, and not from mpiter.get_rng()"
            )
        if why and not worker.is_told_why_singly:
            worker.is_told_why_singly = True
            name = type(worker.info.dataset).__qualname__
            worker.frame.notices.append(
                f"{name} {why}. Samples that are under way at the same time would "
                "spoil each other, so they are read one by one, as with concurrency=1."
            )
        return under_way.singly(worker.frame)

    def _write(
        self,
        dataset: object,
        keys: Iterable[Any],
        row: int,
    ) -> None:
        """Fetch and write the samples of ``keys`` from ``row`` on.

        An exception becomes the fault of its row, and the next row follows.
        """
        rest = iter(keys)
        sheet = self.sheet
        seeded = bool(self._seeds)
        if seeded and getattr(self._worker.dataset, "seeds_itself", False):
            seeded = False
        while not self.is_over:
            try:
                sheet.fetch(dataset, rest, row, seeded)
                return
            except Refilled:
                # It is no sample's failure.
                raise
            except BaseException as error:
                row = sheet.row
                self._fail(error, row)
                row += 1

    def _fail(
        self,
        error: BaseException,
        row: int,
    ) -> None:
        self.let_pass(error)
        place, index = self._found(row)
        if isinstance(error, Unsendable):
            reason = error.__cause__ or error
            error = unsendable(error.sample, f"dataset[{index!r:.60}]", reason)
        if isinstance(error, AllLeftOut):
            # Each sample of the row has its own fault.  The last of these now says that
            # nothing is left of the row.
            faults = self.faults
            last = max(at for at, fault in enumerate(faults) if fault.row == place.row)
            faults[last] = replace(faults[last], ends_row=True)
        else:
            self.faults.append(take_down(error, place, index, self._worker))
        self.sheet.fail(row)

    def _found(self, row: int) -> tuple[Place, Any]:
        block = self._block
        at = row - self._first
        position = self._position + at
        place = Place(block.batch, block.row + row, self._epoch, position)
        return place, key_at(self._keys, at)

    def _read_together(
        self,
        row: int,
        keys: UnpackedKeys,
    ) -> bool:
        """Fetch the samples by one call of the dataset's reader.

        Return False if they must be fetched one by one.
        """
        worker = self._worker
        cells = self._cells
        count = len(keys)
        if worker.reader is None or count < 2 or self._seeds or self._block.singly:
            return False
        if isinstance(keys, tuple) and not takes_any_key(worker.dataset):
            return False
        cells[CELL.row] = row
        cells[CELL.active] = 2
        seeding.begin_anew()
        samples: Any = ()
        try:
            samples = worker.reader(keys)
        except BaseException as error:
            # The samples are fetched again one by one, which shows the one that fails.
            self.let_pass(error)
        cells[CELL.active] = 1
        if seeding.begin_anew():
            # The dataset draws, and each sample needs the generator of its own place.
            worker.reader = None
            return False
        if len(samples) != count:
            return False
        # If one of the samples can't be sent, or a leaf of the program's can't take it
        # apart, they are written one by one below: that finds it, and the others of the
        # batch are kept.
        with contextlib.suppress(Unsendable, LeafError):
            may_fit = type(samples) in self.sheet.at_once
            if may_fit and self.sheet.together(row, samples):
                return True
        if worker.copies:
            samples = Copies(samples)
        self._write(samples, range(count), row)
        return True

    def part(
        self,
        error: BaseException,
        key: object,
        at: int,
    ) -> None:
        """Record that sample ``at`` of the several in the row being fetched failed."""
        self.let_pass(error)
        place, _ = self._found(self.sheet.row)
        place = place._replace(position=place.position + at)
        # A dataset may try again, and one failed sample must not count as two.
        for known in self.faults:
            if known.row == place.row and known.position == place.position:
                return
        fault = take_down(error, place, key, self._worker)
        self.faults.append(replace(fault, ends_row=False))

    def let_pass(self, error: BaseException) -> None:
        """Raise ``error`` again if it isn't the failure of a sample.

        In the caller's own thread Ctrl-C and SystemExit aren't; in a worker every
        exception is the dataset's, but for the one of an iterator that was closed.  In
        a process that the dataset has forked from the worker, any exception is raised,
        which ends it.
        """
        if self._is_forked or isinstance(error, Closed):
            raise error
        is_callers = self._worker.info.backend == "serial"
        if is_callers and isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error

    @property
    def _is_forked(self) -> bool:
        """True in a process that the dataset has forked from the worker meanwhile."""
        return home.generation != self._born and self._worker.info.backend != "serial"
