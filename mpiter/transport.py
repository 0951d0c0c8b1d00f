"""How the rows of a batch get from the workers to the consumer: the interface, and what all transports share.

A transport is two-sided.  Its *writer* travels to each worker once and makes a pen for every piece of work; its
*rooms* live in the consumer process, one for each batch on its way.  A pen's payload goes back with the ticket and is
received by the room.  Guarantees of every transport: a row that a worker finished arrives exactly as it was, whatever
it is; the contents handed out are private to the user.  ``slots`` and ``packed`` plan columns from the first sample;
others (experiments, say) may carry samples as they like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .bell import Bell
from .envelope import Sealer, seal
from .tree import Column, Node

Large = list[tuple[int, Any]]  # what rows carry that found no room: an envelope, and the first row of it


@dataclass(slots=True)
class Contents:
    """A batch as it arrived: columns where the samples agree, objects where they don't."""

    tree: Node
    rows: int
    columns: list[Column] = field(default_factory=list)
    asides: list[Sequence[Any]] | None = None  # a tuple of values for each row
    odd: dict[int, Any] = field(default_factory=dict)  # whole samples, by row
    failed: frozenset[int] = frozenset()
    copied: bool = False


class WorkerPen(Protocol):
    """Writes the rows of one piece, in a worker."""

    stride: int  # rows that are best written at once

    def write(self, row: int, samples: Sequence[Any]) -> None: ...
    def fail(self, row: int) -> None: ...
    def payload(self) -> Any: ...


class Writer(Protocol):
    """A transport's end in a worker; travels there once, by pickle."""

    def pen(self, brief: bytes, address: tuple[int, ...], row: int, rows: int) -> WorkerPen: ...


class Room(Protocol):
    """Where one batch grows, seen from the consumer process.

    It may have ``places(row, rows, sizes)`` as well: where the large buffers of a payload are to be read to.
    """

    address: tuple[int, ...]  # goes along with every piece
    brief: bytes  # what a pen must know of the room, likewise

    def receive(self, payload: Any) -> None: ...
    def place(self, row: int, sample: Any) -> None: ...
    def fail(self, row: int) -> None: ...
    def contents(self) -> Contents: ...
    def discard(self) -> None: ...
    def quarantine(self) -> None: ...  # a worker that cannot be ended may write into it: never to be used again


@dataclass(frozen=True, slots=True)
class Site:
    """What a transport learns of the place it works in."""

    batch_size: int
    most_bytes: int  # memory that batches on their way, and those the user keeps, may take
    reserve: int  # rooms that the engine needs for itself
    as_samples: bool  # batches are read sample by sample, not as columns
    dumps: Callable[[Any], bytes]  # pickles something for a worker
    arena: Any  # () -> the memory shared with the workers
    sealer: Sealer  # how objects leave a worker
    bell: Bell  # to be rung, anywhere, when there may be a room after ``room()`` had none
    warn: Callable[[str], None]  # tells the user something in the next next()


class Transport(Protocol):
    """Both ends of a transport, and the plan that they follow."""

    @property
    def planned(self) -> bool: ...
    @property
    def room_bytes(self) -> int: ...
    def bind(self, site: Site) -> None: ...
    def writer(self) -> Writer: ...
    def plan(self, sample: Any) -> None: ...
    def room(self, rows: int) -> Room | None: ...
    def close(self) -> None: ...


class LoosePen:
    """Sends every row as an object of its own: the way before there is a plan."""

    stride = 1

    def __init__(self, sealer: Sealer = seal) -> None:
        self._seal = sealer
        self._sent: Large = []

    def write(self, row: int, samples: Sequence[Any]) -> None:
        self._sent += [(at, self._seal([sample]).part(0, 1).bytes()) for at, sample in enumerate(samples, row)]

    def fail(self, row: int) -> None:
        pass  # the ticket says so

    def payload(self) -> Large:
        return self._sent
