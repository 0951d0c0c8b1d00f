"""In which order samples come out, each of them several times: pure functions of seed, epoch, factor and buffer.

The first time, samples come in the epoch's own order.  The k-th repeats of all of them are a stream of their own, which
begins ``delay`` samples later and is shuffled within blocks; a batch is cut across the streams.  So whoever knows how
many rows came out knows which, and the fresh ones are asked for at an even rate.  Guarantees that each repeat comes
exactly once, that no more than ``buffer`` samples (or two for each repeat) are needed at a time, and that, with whole
factors, more than ``block`` rows lie between two repeats of one sample.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices, keys, mix

_BITS = 20  # of a factor's fraction
_ONE = 1 << _BITS
_TURN, _STREAMS = 0xEC1, 0xEC2  # whose randomness
_BLOCKS = 2  # by which a stream of repeats comes after the one before: less than one would let neighbours meet
_AT_ONCE = 1 << 12  # rows that are found at once, so that numpy's per-call cost vanishes
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Rows = tuple[Indices, Indices]  # of each row the sample's position in the epoch, and how often it has come before


class Repeats:
    """How often each of ``length`` samples comes: ``factor`` times on the average, and in all.

    A fraction falls on samples at even distances, beginning with another one in each epoch.
    """

    def __init__(self, length: int, factor: float, seed: int, epoch: int) -> None:
        self.length = length
        self.least, self._part = divmod(max(_ONE, round(factor * _ONE)), _ONE)
        self.most = self.least + bool(self._part)
        self._turn = int(keys(1, seed, epoch, _TURN)[0]) % length if length and self._part else 0

    @property
    def total(self) -> int:
        """Of all samples together."""
        return self.least * self.length + int(self._more(self.length))

    def _more(self, samples: Any) -> Any:
        return samples * self._part + _ONE // 2 >> _BITS

    def more_before(self, position: int) -> int:
        """How many of the samples before ``position`` come once more than the least."""
        at, first = position + self._turn, self._more(self._turn)
        if at <= self.length:
            return int(self._more(at) - first)
        return int(self._more(self.length) - first + self._more(at - self.length))

    def before(self, position: int) -> int:
        """How often those before ``position`` come, together."""
        return self.least * position + self.more_before(position)

    def times(self, position: int) -> int:
        """How often this one comes."""
        return self.least + self.more_before(position + 1) - self.more_before(position)

    def of(self, positions: Indices) -> Indices:
        """How often each of these comes."""
        if not self._part:
            return np.full(len(positions), self.least, np.int64)
        at = (positions + self._turn) % self.length
        counts: Indices = self.least + self._more(at + 1) - self._more(at)
        return counts


class Echoed:
    """The rows of one epoch."""

    def __init__(self, length: int, factor: float, seed: int, epoch: int, buffer: int) -> None:
        self.repeats = Repeats(length, factor, seed, epoch)
        self.length, self.total = length, self.repeats.total
        streams = self.repeats.most
        self.block = max(1, min(buffer, length) // (_BLOCKS * (streams - 1) + 1))
        self._last = _BLOCKS * (streams - 1)  # blocks by which the last stream comes after the first
        self._blocks = -(-length // self.block) + self._last
        self._keys = keys(streams, seed, epoch, _STREAMS)
        self._span = max(1, _AT_ONCE // (self.block * streams))
        self._begin, self._found = 0, (np.empty(0, np.int64), np.empty(0, np.int64))

    # -- rows ----------------------------------------------------------------------------------------------------

    def take(self, start: int, stop: int) -> Rows:
        """The rows from ``start`` to ``stop``."""
        stop = min(stop, self.total)
        if not (self._begin <= start and stop <= self._begin + len(self._found[0])):
            first = self._block_of(start)
            last = max(first + self._span, bisect_left(range(self._blocks), stop, key=self._rows_before))
            self._begin, self._found = self._rows_before(first), self._rows(first, min(last, self._blocks))
        part = slice(start - self._begin, max(stop, start) - self._begin)
        return self._found[0][part], self._found[1][part]

    def _block_of(self, row: int) -> int:
        return bisect_right(range(self._blocks), row, key=self._rows_before) - 1

    def _samples_before(self, block: int) -> int:
        return min(max(block * self.block, 0), self.length)

    def _rows_before(self, block: int) -> int:
        """How many rows there are before a block of time, in which each stream goes through a block of samples."""
        ends = [self._samples_before(block - _BLOCKS * stream) for stream in range(self.repeats.most)]
        part = self.repeats.more_before(ends[-1]) if self.repeats.most > self.repeats.least else None
        return sum(ends) if part is None else sum(ends[:-1]) + part

    def _rows(self, first: int, last: int) -> Rows:
        """Those of the blocks of time from ``first`` to ``last``."""
        found: list[tuple[Indices, Indices, Indices]] = []
        for stream in range(self.repeats.most):
            late = _BLOCKS * stream
            start, stop = self._samples_before(first - late), self._samples_before(last - late)
            positions = np.arange(start, stop, dtype=np.int64)
            times = positions + late * self.block
            if stream:
                positions = positions[np.lexsort((self._lots(positions, stream), positions // self.block))]
            if stream >= self.repeats.least:
                comes = self.repeats.of(positions) > stream
                positions, times = positions[comes], times[comes]
            found.append((times, np.full(len(positions), stream, np.int64), positions))
        times, streams, positions = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.lexsort((streams, times))
        return positions[order], streams[order]

    def _lots(self, positions: Indices, stream: int) -> NDArray[np.uint64]:
        lots: NDArray[np.uint64] = mix(positions.astype(np.uint64) * _GOLDEN + self._keys[stream])
        return lots

    # -- places --------------------------------------------------------------------------------------------------

    def begun(self, row: int) -> int:
        """How many samples have come before ``row``: the first ones of the epoch."""
        if row >= self.total:
            return self.length
        block = self._block_of(row)
        before = self.take(self._rows_before(block), row)[1]
        return self._samples_before(block) + int(np.count_nonzero(before == 0))

    def needed(self, row: int) -> tuple[Indices, int]:
        """What is needed from ``row`` on, in the order of need: those that are needed soon, which includes all that
        have come before and will come again; and from which sample on all others."""
        if row >= self.total:
            return np.empty(0, np.int64), self.length
        end = min(self._block_of(row) + self._last + 1, self._blocks)
        positions = self.take(row, self._rows_before(end))[0]
        _, first = np.unique(positions, return_index=True)
        return positions[np.sort(first)], self._samples_before(end)

    def owed(self, row: int) -> tuple[dict[int, int], int]:
        """Of the samples that have come before ``row``: how often some will come again, and how many never will."""
        begun = self.begun(row)
        if row >= self.total:
            return {}, begun
        end = min(self._block_of(row) + self._last + 1, self._blocks)
        positions = self.take(row, self._rows_before(end))[0]
        again, counts = np.unique(positions[positions < begun], return_counts=True)
        return dict(zip(again.tolist(), counts.tolist(), strict=True)), begun - len(again)
