"""Three other ways for samples to travel, to be measured with ours.

They are serializers of one's own.

`pickle`: the samples of a block, pickled.  `pickle5`: all samples of a block pickled at
once by protocol 5, their arrays out of band, side by side in one string of bytes.
`rawarray`: as Chainer does it, a block of shared memory, sized by the arrays that stand
in a sample's tuple or list, into which workers pack them one after another; the
consumer copies them out.  What isn't such an array is pickled; of a dict, or of an
array that is the whole sample, Chainer measures nothing, so that these are pickled
altogether. `pack` runs in a worker, `unpack` in the consumer process as soon as the
answer is there.  The engine has several batches on their way (in Chainer it is one).
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import mpiter
from mpiter.samples.envelope import ALIGN, aligned, loads
from mpiter.transport.memory import Arena


class Pickle:
    """Plain pickle through `map_async`."""

    def pack(self, samples: list[Any]) -> bytes:
        return pickle.dumps(samples)

    def unpack(self, packed: bytes) -> list[Any]:
        return list(pickle.loads(packed))


class Pickle5:
    """Protocol 5 with buffers out of band.

    Arrays are views of what arrived, copied once, since batches are the user's.
    """

    def pack(self, samples: list[Any]) -> tuple[bytes, list[int], bytes]:
        found: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(samples, 5, buffer_callback=found.append)
        raw = [buffer.raw() for buffer in found]
        return pickled, [buffer.nbytes for buffer in raw], b"".join(raw)

    def unpack(self, packed: tuple[bytes, list[int], bytes]) -> list[Any]:
        pickled, sizes, raw = packed
        memory = memoryview(bytearray(raw))
        buffers = []
        start = 0
        for size in sizes:
            buffers.append(memory[start : start + size])
            start += size
        return list(loads(pickled, buffers))


@dataclass(frozen=True, slots=True)
class Packed:
    """The place of an array in the shared memory."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def copied_from(self, memory: memoryview) -> np.ndarray[Any, Any]:
        return np.ndarray(self.shape, self.dtype, memory, self.start).copy()


def swap(sample: Any, how: Any) -> Any:
    """Return the sample, with `how` applied to what stands on its first level."""
    if type(sample) in (tuple, list):
        return type(sample)(map(how, sample))
    if type(sample) is dict:
        return {key: how(value) for key, value in sample.items()}
    return how(sample)


def measured(sample: Any) -> int:
    """Return the bytes of a sample's arrays in a block.

    As in Chainer, arrays count that stand in a tuple or a list, and no others.
    """
    if type(sample) not in (tuple, list):
        return 0
    return sum(
        aligned(value.nbytes, ALIGN)
        for value in sample
        if isinstance(value, np.ndarray)
    )


class RawArray:
    """Chainer's packing: one block for what a worker has fetched.

    It is copied on both sides.
    """

    # There may be so many workers at most. Each has so many blocks: two on their way,
    # and one that is being copied out.
    WORKERS = 16
    BLOCKS = 4

    def __init__(self, size: int = 1 << 32) -> None:
        self._arena = Arena(size)
        self._share = self._arena.size // self.WORKERS
        self._next = 0
        weakref.finalize(self, self._arena.close)

    def __reduce__(self) -> Any:
        return _attached, (self._arena, self._share)

    def pack(self, samples: list[Any]) -> list[Any]:
        info = mpiter.get_worker_info()
        worker = info.id if info is not None else 0
        share = self._share // self.BLOCKS
        self._next = (self._next + 1) % self.BLOCKS
        self._at = worker * self._share + self._next * share
        most = 0
        if samples:
            most = len(samples) * measured(samples[0])
        self._end = self._at + min(most, share)
        return [swap(sample, self._pack) for sample in samples]

    def _pack(self, value: Any) -> Any:
        if (
            type(value) is not np.ndarray
            or value.dtype.hasobject
            or self._at + value.nbytes > self._end
        ):
            return value
        packed = Packed(self._at, value.dtype, value.shape)
        np.ndarray(value.shape, value.dtype, self._arena.map, self._at)[...] = value
        self._at += aligned(value.nbytes, ALIGN)
        return packed

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        memory = memoryview(self._arena.map)

        def unpacked(value: Any) -> Any:
            if type(value) is Packed:
                return value.copied_from(memory)
            return value

        return [swap(sample, unpacked) for sample in packed]


def _attached(arena: Arena, share: int) -> RawArray:
    """Make the same serializer in a worker."""
    one = RawArray.__new__(RawArray)
    one._arena = arena
    one._share = share
    one._next = 0
    return one
