"""The book of unfinished rows: which batches are on their way, what of them is with a worker, what must be cut again.

Runs in the prefetch thread alone.  Guarantees that every planned row is asked for until it is settled exactly once,
that batches leave in order (or, if asked, as they finish), and that a room is given up only when no worker can write
into it any more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..order.cursor import Plan
from ..samples.envelope import opened
from ..transport.transport import Room
from ..worker.board import Line
from ..worker.task import Fault, Piece, Task, Ticket


@dataclass(slots=True, eq=False)
class Assembly:
    """A batch on its way."""

    plan: Plan
    missing: int  # rows
    room: Room | None = None
    faults: list[Fault] = field(default_factory=list)
    error: Exception | None = None  # of the batch as a whole
    asked: int = 0  # rows that have been entered to be fetched
    tasks_out: int = 0  # tasks in flight that may write into its room
    abandoned: bool = False
    is_suspect: bool = False  # it was out when workers died: row by row from now on, and the board names the culprit

    @property
    def is_complete(self) -> bool:
        return self.missing == 0 and self.tasks_out == 0


@dataclass(slots=True)
class _TaskOut:
    """A task in flight."""

    pieces: tuple[Piece, ...]
    assemblies: tuple[Assembly, ...]  # one for each piece


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row that was in a worker's hands when it died."""

    batch: int
    row: int
    index: Any = field(compare=False)  # a list of keys, perhaps, which no set could hold
    epoch: int
    position: int


class Ledger:
    """Unfinished rows, from plan to completion."""

    def __init__(self, in_order: bool = True, is_blind: bool = False) -> None:
        self._in_order = in_order
        self._is_blind = is_blind  # nobody sees which row a worker has in hand: suspects go out one by one
        self._assemblies: OrderedDict[int, Assembly] = OrderedDict()
        self._uncut: deque[tuple[Piece, Assembly]] = deque()
        self.uncut_rows = 0  # that are with no worker and not settled
        self._sent: dict[int, _TaskOut] = {}

    @property
    def batches(self) -> int:
        return len(self._assemblies)

    @property
    def tasks(self) -> int:
        return len(self._sent)

    def enter(self, plan: Plan, room: Room | None) -> Assembly:
        """A batch is to be made; in ``room``, or, before there is a layout, from a first sample."""
        assembly = Assembly(plan, plan.rows, room)
        self._assemblies[plan.number] = assembly
        self.ask_on(assembly)
        return assembly

    def ask_on(self, assembly: Assembly) -> None:
        """Ask for the rest of a batch; as long as it has no room, for one sample more, which may show what it needs."""
        for piece in _pieces(assembly):
            if assembly.room is None:
                piece = piece.first(1)
            self._uncut.append((piece, assembly))
            self.uncut_rows += piece.rows
            assembly.asked += piece.rows
            if assembly.room is None:
                return

    def probed(self, ticket: Ticket) -> Assembly | None:
        """The batch without a room of which a task, yet to be settled, has fetched a sample."""
        sent = self._sent.get(ticket.number)
        return sent.assemblies[0] if sent is not None and sent.assemblies[0].room is None else None

    def seat(self, assembly: Assembly, room: Room) -> None:
        """Give a batch its room after all."""
        assembly.room = room
        for fault in assembly.faults:
            if fault.ends_row:
                room.fail(fault.row)
        self.ask_on(assembly)

    def go_on_without(self, assembly: Assembly, skips: bool) -> None:
        """The first sample has failed: ask for another one, or for no more of its batch."""
        if skips:
            self.ask_on(assembly)
        else:
            assembly.missing -= assembly.plan.rows - assembly.asked

    def cut(self, number: int, rows: int) -> tuple[bytes, tuple[Piece, ...], bool]:
        """Take up to ``rows`` rows for task ``number``: the brief of their rooms, the pieces, and whether any is
        suspect."""
        taken: list[tuple[Piece, Assembly]] = []
        brief = _brief(self._uncut[0][1])
        rows = rows if self._uncut[0][1].room and not (self._is_blind and self._uncut[0][1].is_suspect) else 1
        while self._uncut and rows > 0 and _brief(self._uncut[0][1]) == brief:
            piece, assembly = self._uncut.popleft()
            if (count := piece.rows) > rows:
                if taken and taken[-1][1] is not assembly:  # a batch is not begun that would wait for another task
                    self._uncut.appendleft((piece, assembly))
                    break
                self._uncut.appendleft((piece.rest(rows), assembly))
                piece, count = piece.first(rows), rows
            rows -= count
            self.uncut_rows -= count
            assembly.tasks_out += 1
            taken.append((piece, assembly))
        self._sent[number] = _TaskOut(tuple(p for p, _ in taken), tuple(a for _, a in taken))
        return brief, self._sent[number].pieces, any(assembly.is_suspect for _, assembly in taken)

    def recall(self, numbers: Collection[int], quarantined: bool = False) -> int:
        """These tasks will not be answered: what they asked for is uncut again; how many rows.

        Whoever had them is dead.  ``quarantined``: or would not die, and may write into their rooms at any time.
        """
        before = self.uncut_rows
        for number in sorted(numbers, reverse=True):
            if (sent := self._sent.pop(number, None)) is None:
                continue
            for piece, assembly in zip(reversed(sent.pieces), reversed(sent.assemblies), strict=True):
                assembly.tasks_out -= 1
                assembly.is_suspect = True
                if quarantined and assembly.room is not None:
                    assembly.room.quarantine()
                if assembly.abandoned:
                    self._give_up(assembly)
                    continue
                self._uncut.appendleft((piece, assembly))
                self.uncut_rows += piece.rows
        return self.uncut_rows - before

    def recall_all(self, quarantined: bool = False) -> int:
        """No task will be answered any more."""
        return self.recall(list(self._sent), quarantined)

    def in_hand(self, line: Line) -> Suspect | None:
        """The row that a worker's line names, if it was asked for in the task that the line names."""
        sent = self._sent.get(line.task)
        for piece in sent.pieces if sent is not None else ():
            at = line.row - piece.row
            if piece.batch == line.batch and 0 <= at < piece.rows:
                return Suspect(piece.batch, line.row, piece.keys[at], piece.epoch, piece.position + at)
        return None

    def count_as_failed(self, fault: Fault) -> None:
        """A row that is with no worker counts as failed, and is not asked for again."""
        uncut: deque[tuple[Piece, Assembly]] = deque()
        found: Assembly | None = None
        for piece, assembly in self._uncut:
            at = fault.row - piece.row
            if piece.batch != fault.batch or not 0 <= at < piece.rows:
                uncut.append((piece, assembly))
                continue
            uncut.extend((part, assembly) for part in (piece.first(at), piece.rest(at + 1)) if part.rows)
            self.uncut_rows -= 1
            assembly.missing -= 1
            _enter(fault, assembly)
            found = assembly
        self._uncut = uncut
        if found is not None and found.room is None:
            self.ask_on(found)

    def settle(self, ticket: Ticket) -> bool:
        """Enter what a worker finished; what it didn't is uncut again, before everything else (True if any)."""
        sent = self._sent.pop(ticket.number, None)
        if sent is None:
            return False  # recalled: of a thread that was given up
        left, again = ticket.rows, []
        for at, (piece, assembly) in enumerate(zip(sent.pieces, sent.assemblies, strict=True)):
            done = min(left, count := piece.rows)
            left -= done
            assembly.tasks_out -= 1
            if assembly.abandoned:
                self._give_up(assembly)  # a late answer to what nobody waits for any more
                continue
            assembly.missing -= done
            if at < len(ticket.payloads) and assembly.room is not None:
                assembly.room.receive(ticket.payloads[at])
            if done < count:
                again.append((piece.rest(done), assembly))
                self.uncut_rows += count - done
        self._uncut.extendleft(reversed(again))
        for fault in ticket.faults:
            self._enter_fault(fault, sent)
        return bool(again)

    def _enter_fault(self, fault: Fault, sent: _TaskOut) -> None:
        for piece, assembly in zip(sent.pieces, sent.assemblies, strict=True):
            if piece.batch == fault.batch and not assembly.abandoned:
                _enter(fault, assembly)
                return

    def _deliverable(self) -> Iterator[Assembly]:
        """Batches that can be handed over."""
        for assembly in self._assemblies.values():
            if assembly.is_complete:
                yield assembly
            elif self._in_order:
                return

    def completed(self) -> list[Assembly]:
        """Batches that can be handed over, taken out of the book."""
        found = list(self._deliverable())
        for assembly in found:
            del self._assemblies[assembly.plan.number]
        return found

    def deliverable(self) -> int:
        """How many batches can be handed over."""
        return sum(1 for _ in self._deliverable())

    def held_up(self) -> int:
        """Batches of which nothing is left to be given out, behind one that isn't complete."""
        assemblies = iter(self._assemblies.values())
        first = next(assemblies, None)
        if first is None or first.is_complete:
            return 0
        uncut = {assembly.plan.number for _, assembly in self._uncut}
        return sum(assembly.plan.number not in uncut for assembly in assemblies)

    def destinations(self, task: Task, sizes: Sequence[int]) -> Sequence[memoryview] | None:
        """Where in the rooms the buffers of a task's answer belong; None if they are to be received as they come."""
        sent = self._sent.get(task.number)
        if sent is None or len(sent.pieces) > 1:
            return None
        destinations = getattr(sent.assemblies[0].room, "destinations", None)
        return destinations(sent.pieces[0].row, sent.pieces[0].rows, sizes) if destinations else None

    def abandon(self) -> None:
        """Nobody waits for these batches any more."""
        self._uncut.clear()
        self.uncut_rows = 0
        for assembly in self._assemblies.values():
            assembly.abandoned = True
            self._give_up(assembly)
        self._assemblies.clear()

    def _give_up(self, assembly: Assembly) -> None:
        if assembly.tasks_out == 0 and assembly.room is not None:
            assembly.room.discard()
            assembly.room = None


def _pieces(assembly: Assembly) -> Iterator[Piece]:
    """What has not been asked for yet."""
    plan, address, asked = assembly.plan, assembly.room.address if assembly.room else (), assembly.asked
    for row, epoch, position, indices in plan.stretches:
        keys = indices.tobytes() if isinstance(indices, np.ndarray) else indices
        piece = Piece(plan.number, row, epoch, position, keys, address)
        if row + piece.rows > asked:
            yield piece.rest(asked - row) if asked > row else piece


def _enter(fault: Fault, assembly: Assembly) -> None:
    assembly.faults.append(fault)
    if assembly.room is not None and fault.ends_row:
        assembly.room.fail(fault.row)


def _brief(assembly: Assembly) -> bytes:
    return assembly.room.brief if assembly.room else b""


def first_sample(ticket: Ticket) -> Any:
    """The sample that a task without a room brought along."""
    return opened(ticket.payloads[0][0][1])[0]
