"""Rooms, the memory of batches in flight: laid out by the first sample.

They are laid out anew when many samples don't fit.  Guarantees that layouts only ever
widen (a leaf that varies leaves the columns), so that they settle; that a slot is the
consumer's alone once it is handed out; and that a consumer which keeps batches gets
more slots, then copies, and never waits for its own batches.  A wrong layout costs
speed, not correctness: a row that doesn't fit is sent as an object.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ..errors import LeafError
from ..rules import Rules
from ..samples.copying import copied
from ..samples.envelope import Raw
from ..samples.rows import Rows
from ..samples.tree import (
    MANY,
    Aside,
    Contents,
    Layout,
    Node,
    check_memory,
    describe,
    is_record,
    merge,
    scatter,
    texts_of,
    with_room_for,
    with_texts,
)
from ..transport.slots import Slots
from .delivery import OBJECTS, Delivery, Room

# Rooms are laid out anew when one row in so many did not fit.
_COMMON = 4
# Ragged columns get more room if rows found none twice in so many batches.
_OFTEN = 16
# A layout is taken to stay if so many batches have come that are as it expects.
_SETTLED = 16
_ASIDE = Aside()


class Rooms:
    """Hands out the memory for the batches of one iterator.

    ``slots`` lend the memory, and ``dumps`` pickles a layout for the workers.  ``warn``
    warns the user in the coming ``next()``.  With ``in_slots``, workers write into the
    slots themselves; else they send the rows, which are copied there here.  With
    ``as_objects``, all samples are sent as objects.
    """

    def __init__(
        self,
        rules: Rules,
        slots: Slots,
        dumps: Callable[[Any], bytes],
        warn: Callable[[str], None],
        copy: bool,
        in_slots: bool,
        as_objects: bool,
    ) -> None:
        self._rules = rules
        self.slots = slots
        self._dumps = dumps
        self._warn = warn
        self._copy = copy
        self._in_slots = in_slots
        self._as_objects = as_objects
        # The size of one room.
        self.bytes = 0
        # The rows of the largest batch so far.
        self._rows = 1
        self._tree: Node | None = None
        self._layout: Layout | None = None
        self._brief = b""
        self._warned = False
        # The number of batches so far, and of those before the last one whose rows
        # found no room in their ragged columns.
        self._batches = 0
        self._was_full = -_OFTEN
        # The number of batches before the present layout.
        self._laid_out = 0
        # A column of texts was given up, since other values came.
        self._gave_up_texts = False

    @property
    def is_new(self) -> bool:
        """True until the shapes and dtypes of the samples' columns are known."""
        return self._tree is None

    @property
    def are_settled(self) -> bool:
        """True if the last batches were as the layout expects them.

        Those in flight were planned with this layout, and where it is to change, their
        rows travel as objects.
        """
        since = max(self._laid_out, self._was_full)
        return self._layout is not None and self._batches - since >= _SETTLED

    def waits_for_a_sample(self, rows: int) -> bool:
        """Return True if a batch of ``rows`` rows needs a first sample for its room."""
        return self._tree is None and (not self._as_objects or rows > MANY)

    def learn(
        self,
        sample: object,
        rows: int,
    ) -> None:
        """Lay out rooms for samples like ``sample``; its batch has ``rows`` rows."""
        tree = describe(sample)
        if self._as_objects:
            check_memory(tree, rows)
        self._tree = tree
        # Where batches are lists, taking records apart and putting them together again
        # costs more than pickling each as a whole.
        if self._rules.as_samples and is_record(tree):
            self._tree = _ASIDE

    def take(self, rows: int) -> Room | None:
        """Return a room for ``rows`` rows.

        Return None if the room must wait for a slot to be freed, which rings the bell.
        """
        if self._as_objects or self._tree is None:
            return OBJECTS
        if rows > self._rows or self._layout is None:
            self._rows = max(rows, self._rows)
            self._lay_out(self._tree)
        slot = self.slots.acquire()
        if slot is not None:
            address = None
            if self._in_slots:
                address = slot.start
            return Room(self._layout, self._brief, slot, address)
        # If the consumer keeps all slots, waiting for one could last forever: it may be
        # waiting for this batch.
        if self.slots.count > self.slots.leased:
            return None
        return OBJECTS

    def _lay_out(self, tree: Node) -> None:
        layout = Layout(tree, self._rows)
        self._tree = tree
        self._layout = layout
        self._laid_out = self._batches
        self._brief = self._dumps(layout)
        self.bytes = layout.size
        self.slots.resize(layout.size)

    def fill(
        self,
        room: Room,
        row: int,
        rows: int,
        columns: list[Raw],
    ) -> None:
        """Write ``columns`` of ``rows`` rows into ``room``, from row ``row`` on."""
        assert room.layout is not None
        assert room.slot is not None
        memory = self.slots.view(room.slot)
        ours = room.layout.columns(memory)
        sent = (raw.memory for raw in columns)
        for (leaf, _), column in zip(room.layout.leaves, ours, strict=True):
            leaf.fill(column, row, rows, sent)

    def place(self, batch: Delivery) -> dict[int, LeafError]:
        """Write the batch's samples that came as objects, and fit, into its columns.

        Return the errors of those that a leaf of the program's can't take apart, by
        row.
        """
        errors = dict[int, LeafError]()
        room = batch.room
        # The values of a ragged column have no place that follows from the row.
        if room.layout is None or room.slot is None or room.layout.is_ragged:
            return errors
        memory = self.slots.view(room.slot)
        columns = room.layout.columns(memory)
        tree = room.layout.tree
        for row, sample in list(batch.odd.items()):
            values: list[Any] = []
            try:
                if scatter(tree, [sample], iter(columns), row, values):
                    # A dataset in a thread may use the memory of these values again.
                    batch.asides[row] = tuple([copied(some[0]) for some in values])
                    del batch.odd[row]
            except LeafError as error:
                errors[row] = error
        return errors

    def contents(
        self,
        batch: Delivery,
        failed: frozenset[int],
    ) -> Contents:
        """Return the batch's contents without the rows that failed.

        Its columns are leased, or copied if a lease must not be given.
        """
        layout = batch.room.layout
        slot = batch.room.slot
        rows = batch.plan.rows
        odd = batch.odd
        if layout is None or slot is None:
            objects = [*map(odd.get, range(rows))]
            return Contents(_ASIDE, rows, objects=objects, failed=failed)
        copies = batch.is_lost or self._copy or self._runs_short()
        memory: object
        if copies:
            memory = self.slots.view(slot)
        else:
            memory = self.slots.lease(slot)
        self._batches += 1
        columns = layout.columns(memory, rows)
        contents = Contents(
            layout.tree, rows, columns, odd=odd, failed=failed, copied=copies
        )
        if batch.all_asides is not None:
            contents.asides = batch.all_asides
            if layout is self._layout and not self.are_settled:
                self._lay_out_texts(layout.tree, batch.all_asides)
        elif layout.asides:
            nothing = (None,) * layout.asides
            contents.asides = [batch.asides.get(row, nothing) for row in range(rows)]
        if copies:
            contents.columns = [column.copy() for column in columns]
            self.give_back(batch)
        # If it is an older layout, a wider one is in use already.
        if odd and layout is self._layout:
            # These samples go to the consumer as they are.  If a leaf of the program's
            # can't take one apart, the consumer gets the error when it stacks them.
            with contextlib.suppress(LeafError):
                self._widen(layout, [*odd.values()], rows)
        return contents

    def _lay_out_texts(self, tree: Node, asides: Rows) -> None:
        """Give texts a column each, where samples come together with their texts."""
        if self._gave_up_texts:
            return
        wider = with_texts(tree, iter(asides.columns), self._rows)
        if wider != tree:
            self._lay_out(wider)

    def _widen(self, layout: Layout, odd: list[Any], rows: int) -> None:
        """Widen the layout if many samples did not fit, so that those like them will.

        ``odd`` are these, of a batch of ``rows`` rows.
        """
        tree = layout.tree
        if len(odd) * _COMMON >= rows:
            for sample in odd:
                tree = merge(tree, describe(sample), ragged=True) or tree
        # Rows that fit, but for their length, found no room.  A single batch may be
        # longer than all others, and a block of few rows longer than the mean.
        is_too_long = tree == layout.tree and layout.is_ragged
        if is_too_long:
            if rows < layout.rows:
                return
            batches = self._batches - self._was_full
            self._was_full = self._batches
            if batches > _OFTEN:
                return
        long = []
        for sample in odd:
            if merge(tree, describe(sample), ragged=True) == tree:
                long.append(sample)
        if long:
            tree = with_room_for(tree, long, self._rows)
        if tree != layout.tree:
            # Layouts only widen: what has left a column of texts doesn't come back.
            self._gave_up_texts |= texts_of(tree) < texts_of(layout.tree)
            self._lay_out(tree)

    def give_back(self, batch: Delivery) -> None:
        """Take back the room of a batch that isn't handed out.

        If a worker may still write there, its slot is never used again.
        """
        slot = batch.room.slot
        batch.room = OBJECTS
        if slot is not None and batch.is_lost:
            self.slots.lose()
        elif slot is not None:
            self.slots.give_back(slot)

    def _runs_short(self) -> bool:
        """Return True if, after a lease, too few slots would be left for the loop.

        The first time this is so, the user is warned.
        """
        slots = self.slots
        reserve = self._rules.reserve
        if slots.can_lease(reserve):
            return False
        megabytes = f"{slots.bytes / 1e6:.0f}"
        if not self._warned and (slots.is_refused or slots.leased <= reserve):
            self._warn(
                f"memory is short: the {slots.count} slots there are ({megabytes} MB) "
                "just serve the workers, so batches are handed out as copies. Lower "
                "batch_size or n_prefetch, or free memory."
            )
        elif not self._warned:
            self._warn(
                f"{slots.leased} batches are kept alive, all that fits into "
                f"{megabytes} MB of shared memory; further ones are copied until some "
                "are dropped. Keep fewer batches, or pass copy=True."
            )
        self._warned = True
        return True
