"""The book of unfinished rows: which batches are on their way, what of them is with a worker, what must be asked again.

Runs in the prefetch thread alone.  Guarantees that every planned row is asked for until it is settled exactly once,
that batches leave in order (or, if asked, as they finish), and that a room is given up only when no worker can write
into it any more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..order.cursor import Plan, Stretch
from ..worker.block import Block, Done, Fault, Keys, Place
from ..worker.board import Line
from .rooms import OBJECTS, Room


@dataclass(slots=True, eq=False)
class Assembly:
    """A batch on its way."""

    plan: Plan
    missing: int  # rows
    room: Room | None  # None: before it is known what samples are like
    odd: dict[int, Any] = field(default_factory=dict)  # samples that came as objects, by row
    asides: dict[int, Any] = field(default_factory=dict)  # values that have no column, by row
    faults: list[Fault] = field(default_factory=list)
    error: Exception | None = None  # of the batch as a whole
    out: int = 0  # blocks with workers, which may write into its room
    is_abandoned: bool = False
    is_suspect: bool = False  # it was out when workers died: a worker that dies of a row of it is seen to do so
    is_lost: bool = False  # its room: a worker that would not die may write into it

    @property
    def is_complete(self) -> bool:
        return self.missing == 0 and self.out == 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row that was in a worker's hands when it died."""

    place: Place
    index: Any = field(compare=False)  # a list of keys, perhaps, which no set could hold


_Uncut = tuple[Assembly, int, int]  # rows of a batch that are with no worker, from one on to before another


class Ledger:
    """Unfinished rows, from plan to completion; ``give_back`` takes a room that was not handed out."""

    def __init__(self, give_back: Callable[[Room, bool], None], in_order: bool = True, is_blind: bool = False) -> None:
        self._give_back, self._in_order = give_back, in_order
        self._is_blind = is_blind  # the board doesn't show which row a worker has in hand: suspects go out one by one
        self._assemblies: OrderedDict[int, Assembly] = OrderedDict()
        self._uncut: deque[_Uncut] = deque()
        self._out: dict[int, tuple[Block, Assembly]] = {}

    @property
    def batches(self) -> int:
        return len(self._assemblies)

    @property
    def blocks(self) -> int:
        """How many are with workers."""
        return len(self._out)

    @property
    def is_cut(self) -> bool:
        """Is all of it with workers?"""
        return not self._uncut

    def enter(self, plan: Plan, room: Room | None) -> None:
        """A batch is to be made."""
        assembly = self._assemblies[plan.number] = Assembly(plan, plan.rows, room)
        self._uncut.append((assembly, 0, plan.rows))

    def seat(self, take: Callable[[int], Room | None]) -> list[Assembly]:
        """It is known now what samples are like: give the batches that were begun before their rooms."""
        found = [assembly for assembly in self._assemblies.values() if assembly.room is None]
        for assembly in found:
            assembly.room = take(assembly.plan.rows) or OBJECTS
        return found

    def cut(
        self, number: int, parts: int, address: Callable[[Room], int | None], dataset: int, seed: int, sent: float
    ) -> Block:
        """Take a block: of the first batch with rows to be asked for, one of so many equal parts; of 0, a row."""
        assembly, first, stop = self._uncut.popleft()
        rows = -(-assembly.plan.rows // parts) if parts and not (self._is_blind and assembly.is_suspect) else 1
        if first + rows < stop:
            self._uncut.appendleft((assembly, first + rows, stop))
            stop = first + rows
        room, plan = assembly.room or OBJECTS, assembly.plan
        stretches = tuple(_part(plan.stretches, first, stop))
        place, singly = (plan.number, first, stop - first, stretches), assembly.is_suspect
        block = Block(number, dataset, seed, *place, room.brief, address(room), singly, sent)
        assembly.out += 1
        self._out[number] = block, assembly
        return block

    def recall(self, numbers: Collection[int], is_lost: bool = False) -> int:
        """These blocks will not be answered: their rows are asked for again, first of all; how many they are.

        The worker that had them is dead.  ``is_lost``: or would not die, and may write into their rooms at any time.
        """
        rows = 0
        for number in sorted(numbers, reverse=True):
            if (found := self._out.pop(number, None)) is None:
                continue
            block, assembly = found
            assembly.out -= 1
            assembly.is_suspect = True
            assembly.is_lost |= is_lost
            if assembly.is_abandoned:
                self._give_up(assembly)
                continue
            self._uncut.appendleft((assembly, block.row, block.row + block.rows))
            rows += block.rows
        return rows

    def recall_all(self, is_lost: bool = False) -> None:
        """No block will be answered any more."""
        self.recall(list(self._out), is_lost)

    def in_hand(self, line: Line) -> Suspect | None:
        """The row that a worker's line names, if it was asked for in the block that the line names."""
        found = self._out.get(line.block)
        sample = found[0].sample(line.row) if found is not None else None
        return None if sample is None else Suspect(*sample)

    def count_as_failed(self, fault: Fault) -> None:
        """A row that is with no worker counts as failed, and is not asked for again."""
        uncut: deque[_Uncut] = deque()
        for assembly, first, stop in self._uncut:
            if assembly.plan.number != fault.batch or not first <= fault.row < stop:
                uncut.append((assembly, first, stop))
                continue
            around = (assembly, first, fault.row), (assembly, fault.row + 1, stop)
            uncut.extend(part for part in around if part[1] < part[2])
            assembly.missing -= 1
            assembly.faults.append(fault)
        self._uncut = uncut

    def settle(self, done: Done) -> tuple[Block, Assembly] | None:
        """Enter that a block is done; None if nobody waits for it any more."""
        found = self._out.pop(done.number, None)
        if found is None:
            return None  # recalled: of a thread that was given up
        block, assembly = found
        assembly.out -= 1
        if assembly.is_abandoned:
            self._give_up(assembly)  # a late answer
            return None
        assembly.missing -= block.rows
        assembly.faults.extend(done.faults)
        return found

    def ask_no_more(self, assembly: Assembly) -> None:
        """A batch has failed: what is left of it is not wanted."""
        for other, first, stop in self._uncut:
            if other is assembly:
                assembly.missing -= stop - first
        self._uncut = deque(part for part in self._uncut if part[0] is not assembly)

    def _deliverable(self) -> Iterator[Assembly]:
        for assembly in self._assemblies.values():
            if assembly.is_complete:
                yield assembly
            elif self._in_order:
                return

    def completed(self, most: int) -> list[Assembly]:
        """Batches that can be handed over, taken out of the book."""
        found = list[Assembly]()
        for assembly in self._deliverable():
            if len(found) >= most:
                break
            found.append(assembly)
        for assembly in found:
            del self._assemblies[assembly.plan.number]
        return found

    def abandon(self) -> None:
        """Nobody waits for these batches any more."""
        self._uncut.clear()
        for assembly in self._assemblies.values():
            assembly.is_abandoned = True
            self._give_up(assembly)
        self._assemblies.clear()

    def _give_up(self, assembly: Assembly) -> None:
        if assembly.out == 0 and assembly.room is not None:
            self._give_back(assembly.room, assembly.is_lost)
            assembly.room = None


def _part(stretches: Iterable[Stretch], first: int, stop: int) -> Iterator[tuple[int, int, int, Keys]]:
    """What of a batch's stretches, which may be countless, lies between two rows."""
    for row, epoch, position, keys in stretches:
        if row >= stop:
            return
        begin, end = max(first, row) - row, min(stop, row + len(keys)) - row
        if begin < end:
            some = keys if end - begin == len(keys) else keys[begin:end]
            yield row + begin, epoch, position + begin, some.tobytes() if isinstance(some, np.ndarray) else some
