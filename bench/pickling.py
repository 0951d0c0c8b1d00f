"""Three other ways for a sample to travel, written against the engine's transport interface, to be measured with ours.

`pickle`: samples as they are in the worker's answer, which the Pool pickles.  `pickle5`: all samples of a piece of work
pickled at once by protocol 5, their arrays out of band, side by side in one string of bytes.  `rawarray`: as Chainer
does it, a block of shared memory for a batch, sized by the arrays that stand in a sample's tuple or list, into which
workers pack them one after another; the consumer copies them out.  What isn't such an array is pickled; of a dict, or
of an array that is the whole sample, Chainer measures nothing, so that these are pickled altogether.
A pen runs in a worker; everything else in the consumer process, where the engine has several batches on their way (in
Chainer it is one).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from payloads import array_bytes

from mpiter.errors import OptionError
from mpiter.samples.envelope import ALIGN, Apart, Raw, Sealer, aligned, dumps, loads
from mpiter.samples.layout import Contents
from mpiter.samples.leaves import Aside
from mpiter.transport.memory import Arena
from mpiter.transport.transport import Host, LoosePen, WorkerPen, Writer


def whole(samples: Sequence[Any], failed: frozenset[int]) -> Contents:
    """A batch of samples that arrived one by one; its columns, should somebody want them, are collated."""
    asides: list[Sequence[Any]] = [(sample,) for sample in samples]
    odd = dict(enumerate(samples))
    return Contents(Aside(), len(samples), asides=asides, odd=odd, failed=failed)


class Carrier:
    """What the three have in common: a plan is made when the first sample has been seen.

    How many bytes a batch is, it then says as ours do, so that the engine plans as far ahead for all of them.
    """

    room_bytes = 0
    is_laid_out = False
    pen: type[PlainPen]

    def bind(self, host: Host) -> None:
        if hasattr(self, "_host"):
            raise OptionError("a transport serves one iterator at a time; pass its class, or an object for each.")
        self._host = host

    def writer(self) -> Writer:
        return PlainWriter(self.pen, self._host.sealer)

    def lay_out(self, sample: Any) -> None:
        self.is_laid_out = True
        self.room_bytes = max(1, array_bytes(sample)) * self._host.rules.batch_size

    def room(self, rows: int) -> Any:
        return LooseRoom(rows)

    def follow(self, contents: Contents) -> None:
        """Samples are carried as they are, whatever they are."""

    def close(self) -> None:
        self.__dict__.pop("_host", None)


class LooseRoom:
    """Holds samples as they arrive."""

    address: tuple[int, ...] = (0,)
    brief = b""

    def __init__(self, rows: int) -> None:
        self._samples: list[Any] = [None] * rows
        self._failed: set[int] = set()

    def receive(self, payload: Any) -> None:
        for row, sample in pickle.loads(payload.memory) if isinstance(payload, Raw) else payload:
            self.put(row, sample)

    def put(self, row: int, sample: Any) -> None:
        self._samples[row] = sample

    def fail(self, row: int) -> None:
        self._failed.add(row)

    def contents(self) -> Contents:
        return whole(self._samples, frozenset(self._failed))

    def discard(self) -> None: ...
    def quarantine(self) -> None: ...


# -- pickle ----------------------------------------------------------------------------------------------------------


class PlainPen:
    """Pickles what it was given, as a stock Pool would; our own sends arrays by another way."""

    stride = 1

    def __init__(self, sealer: Sealer) -> None:
        self._travels = sealer is not Apart  # else nobody leaves the process
        self._sent: list[tuple[int, Any]] = []

    def write(self, row: int, samples: Sequence[Any], at_once: bool = False) -> None:
        self._sent += enumerate(samples, row)

    def fail(self, row: int) -> None: ...

    def payload(self) -> Any:
        return Raw(pickle.dumps(self._sent)) if self._travels else self._sent


@dataclass(frozen=True, slots=True)
class PlainWriter:
    """The end of `pickle` and `pickle5` in a worker."""

    kind: type[PlainPen]
    sealer: Sealer

    def pen(self, brief: bytes, address: tuple[int, ...], row: int, rows: int) -> WorkerPen:
        return self.kind(self.sealer) if address else LoosePen(self.sealer)


class Pickle(Carrier):
    """Plain pickle through `map_async`."""

    pen = PlainPen


# -- pickle5 ---------------------------------------------------------------------------------------------------------


class OutOfBandPen(PlainPen):
    """Pickles what it was given at once: pickle, lengths, and all buffers as one string of bytes."""

    def payload(self) -> Any:
        found: list[pickle.PickleBuffer] = []
        pickled = dumps(self._sent, found)
        raw = [buffer.raw() for buffer in found]
        return pickled, [buffer.nbytes for buffer in raw], b"".join(raw)


class OutOfBandRoom(LooseRoom):
    """Arrays are views of what arrived, copied once: bytes can't be written to, and batches are the user's."""

    def receive(self, payload: Any) -> None:
        pickled, sizes, raw = payload
        memory, buffers, start = memoryview(bytearray(raw)), [], 0
        for size in sizes:
            buffers.append(memory[start : start + size])
            start += size
        super().receive(loads(pickled, buffers))


class Pickle5(Carrier):
    """Protocol 5, buffers out of band."""

    pen = OutOfBandPen

    def room(self, rows: int) -> Any:
        return OutOfBandRoom(rows)


# -- rawarray --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """Where an array lies in the block of its batch."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def copied_from(self, block: memoryview) -> np.ndarray[Any, Any]:
        return np.ndarray(self.shape, self.dtype, block, self.start).copy()


def swap(sample: Any, how: Any) -> Any:
    """The sample, with `how` applied to what stands on its first level."""
    if type(sample) in (tuple, list):
        return type(sample)(map(how, sample))
    if type(sample) is dict:
        return {key: how(value) for key, value in sample.items()}
    return how(sample)


def measured(sample: Any) -> int:
    """Bytes of a sample's arrays in a block: as in Chainer, of what stands in a tuple or a list and of nothing else."""
    if type(sample) not in (tuple, list):
        return 0
    return sum(aligned(value.nbytes, ALIGN) for value in sample if isinstance(value, np.ndarray))


class PackingPen:
    """Packs the arrays of a row into its share of the block; what finds no room there is pickled."""

    stride = 1

    def __init__(self, block: memoryview, share: int) -> None:
        self._block, self._share = block, share
        self._sent: list[tuple[int, Any]] = []

    def write(self, row: int, samples: Sequence[Any], at_once: bool = False) -> None:
        for at, sample in enumerate(samples, row):
            self._next, self._end = at * self._share, (at + 1) * self._share
            self._sent.append((at, swap(sample, self._pack)))

    def _pack(self, value: Any) -> Any:
        if type(value) is not np.ndarray or value.dtype.hasobject or self._next + value.nbytes > self._end:
            return value
        packed = Packed(self._next, value.dtype, value.shape)
        np.ndarray(value.shape, value.dtype, self._block, self._next)[...] = value
        self._next += aligned(value.nbytes, ALIGN)
        return packed

    def fail(self, row: int) -> None: ...

    def payload(self) -> list[tuple[int, Any]]:
        return self._sent


@dataclass(frozen=True, slots=True)
class PackingWriter:
    """The end of `rawarray` in a worker: a map of the shared memory."""

    arena: Arena
    sealer: Sealer

    def pen(self, brief: bytes, address: tuple[int, ...], row: int, rows: int) -> WorkerPen:
        if not address:
            return LoosePen(self.sealer)
        if len(address) == 1:
            return PlainPen(self.sealer)  # there is no block
        start, size, share = address
        return PackingPen(memoryview(self.arena.map)[start : start + size], share)


class BlockRoom(LooseRoom):
    """A block of shared memory, copied out of when the batch is handed over, and then used again."""

    def __init__(self, carrier: RawArray, start: int, rows: int) -> None:
        super().__init__(rows)
        self._carrier, self._start = carrier, start
        self.address = (start, carrier.block_bytes, carrier.share)
        self._is_lost = False

    def contents(self) -> Contents:
        block = self._carrier.block(self._start)
        samples = [swap(sample, lambda v: v.copied_from(block) if type(v) is Packed else v) for sample in self._samples]
        self.discard()
        return whole(samples, frozenset(self._failed))

    def discard(self) -> None:
        if not self._is_lost:
            self._carrier.free.append(self._start)

    def quarantine(self) -> None:
        self._is_lost = True


class RawArray(Carrier):
    """Chainer's packing: one block a batch, copied on both sides."""

    def bind(self, host: Host) -> None:
        super().bind(host)
        self._arena: Arena = host.arena()
        self.free: list[int] = []
        self.share = self.block_bytes = 0

    def writer(self) -> Writer:
        return PackingWriter(self._arena, self._host.sealer)

    def lay_out(self, sample: Any) -> None:
        super().lay_out(sample)
        self.share = measured(sample)
        self.block_bytes = self.share * self._host.rules.batch_size

    def room(self, rows: int) -> Any:
        if not self.block_bytes:
            return LooseRoom(rows)
        start = self.free.pop() if self.free else self._arena.allocate(self.block_bytes)
        return BlockRoom(self, start, rows)

    def block(self, start: int) -> memoryview:
        return memoryview(self._arena.map)[start : start + self.block_bytes]

    def close(self) -> None:
        super().close()
        self.__dict__.pop("_arena", None)
