"""How the rows of a batch get from the workers to the consumer: the interface, and what all transports share.

A transport is two-sided.  Its *writer* travels to each worker once and makes a pen for every piece of work; its
*rooms* live in the consumer process, one for each batch on its way.  A pen's payload goes back with the ticket and is
received by the room.  Guarantees of every transport: a row that a worker finished arrives exactly as it was, whatever
it is; the contents handed out are private to the user.  ``slots`` and ``packed`` lay columns out by the first sample;
others (experiments, say) may carry samples as they like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..bell import Bell
from ..rules import Rules
from ..samples.envelope import Sealer, as_raw, seal
from ..samples.layout import Contents
from ..samples.leaves import Aside

Large = list[tuple[int, Any]]  # what rows carry that found no room: an envelope, and the first row of it


OUT_OF_LINE = 1 << 12  # bytes: smaller buffers are part of the pickle


class WorkerPen(Protocol):
    """Writes the rows of one piece, in a worker."""

    stride: int  # rows that are best written at once

    def write(self, row: int, samples: Sequence[Any], at_once: bool = False) -> None: ...
    def fail(self, row: int) -> None: ...
    def payload(self) -> Any: ...


class Writer(Protocol):
    """A transport's end in a worker; travels there once, by pickle."""

    def pen(self, brief: bytes, address: tuple[int, ...], row: int, rows: int) -> WorkerPen: ...


class Room(Protocol):
    """Where one batch grows, seen from the consumer process.

    It may have ``destinations(row, rows, sizes)`` as well: where the large buffers of a payload are to be read to.
    """

    address: tuple[int, ...]  # goes along with every piece
    brief: bytes  # what a pen must know of the room, likewise

    def receive(self, payload: Any) -> None: ...
    def put(self, row: int, sample: Any) -> None: ...
    def fail(self, row: int) -> None: ...
    def contents(self) -> Contents: ...
    def discard(self) -> None: ...
    def quarantine(self) -> None: ...  # a worker that cannot be ended may write into it: never to be used again


@dataclass(frozen=True, slots=True)
class Host:
    """What a transport learns of the place it works in."""

    rules: Rules
    most_bytes: int  # memory that batches on their way, and those the user keeps, may take
    dumps: Callable[[Any], bytes]  # pickles something for a worker
    arena: Any  # () -> the memory shared with the workers
    sealer: Sealer  # how objects leave a worker
    bell: Bell  # to be rung, anywhere, when there may be a room after ``room()`` had none
    warn: Callable[[str], None]  # tells the user something in the next next()


class Transport(Protocol):
    """Both ends of a transport, and the layout that they follow."""

    @property
    def is_laid_out(self) -> bool: ...  # has a sample been seen?
    @property
    def room_bytes(self) -> int: ...
    def bind(self, host: Host) -> None: ...
    def writer(self) -> Writer: ...
    def lay_out(self, sample: Any) -> None: ...  # rooms are for samples like this one
    def room(self, rows: int) -> Room | None: ...
    def follow(self, contents: Contents) -> None: ...  # what came in one of them: the next may look otherwise
    def close(self) -> None: ...


class Loose:
    """A room for a batch of one row, which was fetched before there was a layout."""

    address: tuple[int, ...] = ()
    brief = b""

    _sample: Any = None

    def receive(self, payload: Any) -> None:
        """Nothing more will come."""

    def put(self, row: int, sample: Any) -> None:
        self._sample = sample

    def fail(self, row: int) -> None:
        """Then there is no batch."""

    def contents(self) -> Contents:
        return Contents(Aside(), 1, asides=[(self._sample,)], copied=True)

    def discard(self) -> None: ...
    def quarantine(self) -> None: ...


class LoosePen:
    """Sends every row as an object of its own: the way before there is a layout."""

    stride = 1

    def __init__(self, sealer: Sealer = seal) -> None:
        self._seal = sealer
        self._sent: Large = []

    def write(self, row: int, samples: Sequence[Any], at_once: bool = False) -> None:
        self._sent += [(at, as_raw(self._seal([sample]).part(0, 1).bytes())) for at, sample in enumerate(samples, row)]

    def fail(self, row: int) -> None:
        pass  # the ticket says so

    def payload(self) -> Large:
        return self._sent
