"""Shares of a mixture: how many samples of each component come before a place.

Pure.  Places are divided among components by a tree of splits into two parts, built as
Huffman's: each part of a split gets its weight's share, rounded to the nearest whole
number.  So each component is off its exact share by less than 2, however far the place;
rounding along a chain of all components would drift.  Weights are exact: 0.7 and 0.3
are 7 and 3.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order.keyed import lots
from ..order.order import Indices

# Components are shuffled within so many places: a pattern of weights is periodic, and
# its period might meet the stride of ranks or of rows.
BLOCK = 256
# Products with whole weights below this don't overflow 64 bits.
_SMALL = 1 << 31
_FEW = 16


class _Split(NamedTuple):
    """A node of the tree: a component, or two parts."""

    weight: int
    # Decides between equal weights, so that parts are never compared.
    number: int
    component: int = -1
    parts: tuple[_Split, _Split] | None = None


def whole(weights: Sequence[Fraction]) -> list[int]:
    """Return the smallest whole numbers with the same ratios."""
    scale = math.lcm(*(weight.denominator for weight in weights))
    numbers = [int(weight * scale) for weight in weights]
    common = math.gcd(*numbers)
    return [number // max(1, common) for number in numbers]


class Shares:
    """Divides places among components by their ``weights``, of which one is above 0."""

    def __init__(self, weights: Sequence[Fraction]) -> None:
        self._components = len(weights)
        heap = list[_Split]()
        for component, weight in enumerate(whole(weights)):
            if weight:
                heap.append(_Split(weight, component, component))
        heapq.heapify(heap)
        number = self._components
        while len(heap) > 1:
            parts = (heapq.heappop(heap), heapq.heappop(heap))
            weight = parts[0].weight + parts[1].weight
            heapq.heappush(heap, _Split(weight, number, parts=parts))
            number += 1
        [self._tree] = heap

    def before(self, place: int) -> list[int]:
        """Return how many samples of each component come before ``place``."""
        found = [0] * self._components
        waiting = [(self._tree, place)]
        while waiting:
            split, places = waiting.pop()
            if split.parts is None:
                found[split.component] = places
                continue
            first, second = split.parts
            mine = (2 * places * first.weight + split.weight) // (2 * split.weight)
            waiting += [(first, mine), (second, places - mine)]
        return found

    def before_each(self, places: Indices) -> NDArray[np.int64]:
        """Return the same for several places: a row for each."""
        found = np.zeros((len(places), self._components), np.int64)
        # Python's numbers don't overflow, and for few places they are quicker too.
        if self._tree.weight >= _SMALL or len(places) < _FEW:
            for row, place in enumerate(places.tolist()):
                found[row] = self.before(place)
            return found
        waiting = [(self._tree, places)]
        while waiting:
            split, here = waiting.pop()
            if split.parts is None:
                found[:, split.component] = here
                continue
            first, second = split.parts
            # Whole rounds of the weights have exact shares, and the rest is small.
            rounds, rest = np.divmod(here, split.weight)
            mine = (2 * rest * first.weight + split.weight) // (2 * split.weight)
            mine += rounds * first.weight
            waiting += [(first, mine), (second, here - mine)]
        return found

    def reaches(self, component: int, count: int) -> int | None:
        """Return the first place before which ``component`` has ``count`` samples.

        None if it has no weight.
        """
        if not count:
            return 0
        if not self.before(2 * self._tree.weight)[component]:
            return None

        def has(place: int) -> bool:
            return self.before(place)[component] >= count

        high = 1
        while not has(high):
            high *= 2
        return bisect.bisect_left(range(high + 1), True, key=has)


class Segment(NamedTuple):
    """Places with one division, from ``begin`` on."""

    begin: int
    # How many samples of each component came before.
    counts: tuple[int, ...]
    shares: Shares


class Course:
    """The components of all places: segments that follow one another.

    ``end`` is where the last segment ends; None if it has no end.  Components are
    shuffled within blocks of ``BLOCK`` places by ``key``; None leaves them unshuffled.
    """

    def __init__(
        self, segments: Sequence[Segment], end: int | None, key: np.uint64 | None
    ) -> None:
        self._segments = segments
        self._begins = [segment.begin for segment in segments]
        self.end = end
        self._key = key

    def _segment(self, place: int) -> tuple[Segment, int | None]:
        """Return the segment of a place, and where it ends."""
        at = bisect.bisect_right(self._begins, place) - 1
        # At the very end the last segment still tells the counts.
        at = max(0, at)
        end = self.end
        if at + 1 < len(self._segments):
            end = self._begins[at + 1]
        return self._segments[at], end

    def counts(self, place: int) -> list[int]:
        """Return how many samples of each component come before ``place``.

        It counts the places as they are shuffled.
        """
        segment, _ = self._segment(place)
        border = place
        if self._key is not None:
            border -= (place - segment.begin) % BLOCK
        before = segment.shares.before(border - segment.begin)
        found = [then + now for then, now in zip(segment.counts, before, strict=True)]
        if border < place:
            which, _ = self.at(border, place)
            for component in which.tolist():
                found[component] += 1
        return found

    def reaches(self, component: int, count: int) -> int | None:
        """Return the first place before which ``component`` has ``count`` samples.

        As if components weren't shuffled; None if it never has so many.
        """
        for number, segment in enumerate(self._segments):
            end = self.end
            if number + 1 < len(self._segments):
                end = self._begins[number + 1]
            left = max(0, count - segment.counts[component])
            place = segment.shares.reaches(component, left)
            if place is not None and (end is None or segment.begin + place <= end):
                return segment.begin + place
        return None

    def at(self, start: int, stop: int) -> tuple[Indices, Indices]:
        """Return the component at each place, and how many of its samples came before.

        The places are from ``start`` to before ``stop``, within the course.
        """
        found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        while start < stop:
            segment, end = self._segment(start)
            until = stop
            if end is not None:
                until = min(stop, end)
            found.append(self._within(segment, end, start, until))
            start = until
        if len(found) == 2:
            return found[1]
        which, before = zip(*found, strict=True)
        return np.concatenate(which), np.concatenate(before)

    def _within(
        self, segment: Segment, end: int | None, start: int, stop: int
    ) -> tuple[Indices, Indices]:
        """Return what ``at`` does, for places of one segment that ends at ``end``."""
        if self._key is None:
            return self._unshuffled(segment, start, stop)
        first = (start - segment.begin) // BLOCK
        last = -(-(stop - segment.begin) // BLOCK)
        borders = np.arange(first, last + 1, dtype=np.int64) * BLOCK
        # The segment may end before its last block does.
        if end is not None:
            borders[-1] = min(int(borders[-1]), end - segment.begin)
        counts = segment.shares.before_each(borders)
        counts += np.array(segment.counts, np.int64)
        each = np.diff(counts, axis=0)
        components = np.arange(each.shape[1])
        which = np.repeat(np.tile(components, len(each)), each.ravel())
        which = self._shuffled(which, segment.begin + first * BLOCK, self._key)
        before = np.empty(len(which), np.int64)
        for component in components[each.any(axis=0)].tolist():
            mine = np.flatnonzero(which == component)
            begin = int(counts[0, component])
            before[mine] = np.arange(begin, begin + len(mine))
        skipped = start - segment.begin - first * BLOCK
        rows = slice(skipped, skipped + stop - start)
        return which[rows], before[rows]

    def _unshuffled(
        self, segment: Segment, start: int, stop: int
    ) -> tuple[Indices, Indices]:
        places = np.arange(start, stop + 1, dtype=np.int64) - segment.begin
        counts = segment.shares.before_each(places)
        # At each place one component goes on.
        which = np.argmax(np.diff(counts, axis=0), axis=1)
        before = counts[np.arange(len(which)), which]
        return which, before + np.array(segment.counts, np.int64)[which]

    @staticmethod
    def _shuffled(which: Indices, begin: int, key: np.uint64) -> Indices:
        """Shuffle the components within each block; the first begins at ``begin``."""
        places = np.arange(begin, begin + len(which), dtype=np.int64)
        blocks = np.arange(len(which)) // BLOCK
        return which[np.lexsort((lots(places, key), blocks))]


Stages = Sequence[tuple[int, Sequence[Fraction]]]


def endless(stages: Stages, place: int, counts: Sequence[int]) -> list[Segment]:
    """Return the segments from ``place`` on, of components that begin anew.

    ``stages`` has weights by the place from which they hold, and ``counts`` how many
    samples of each component came before ``place``.
    """
    found = list[Segment]()
    for number, (begin, weights) in enumerate(stages):
        is_last = number + 1 == len(stages)
        if not is_last and stages[number + 1][0] <= place:
            continue
        begin = max(begin, place)
        if found:
            before = found[-1].shares.before(begin - found[-1].begin)
            counts = [a + b for a, b in zip(found[-1].counts, before, strict=True)]
        found.append(Segment(begin, tuple(counts), Shares(weights)))
    return found


def until_one_ends(segments: Sequence[Segment], lengths: Sequence[int]) -> int:
    """Return the place before which the first component has had all its samples."""
    course = Course(segments, None, None)
    ends = list[int]()
    for component, length in enumerate(lengths):
        place = course.reaches(component, length)
        if place is not None:
            ends.append(place)
    return min(ends)


def until_all_end(
    stages: Stages, place: int, counts: Sequence[int], lengths: Sequence[int]
) -> tuple[list[Segment], int]:
    """Return the segments from ``place`` on, and where they end.

    A component that has had all its samples gets no more, and the others share its
    weight.
    """
    found = list[Segment]()
    here = [*counts]
    for number, (_, weights) in enumerate(stages):
        next_begin: int | None = None
        if number + 1 < len(stages):
            next_begin = stages[number + 1][0]
            if next_begin <= place:
                continue
        while next_begin is None or place < next_begin:
            left = [a - b for a, b in zip(lengths, here, strict=True)]
            active = [
                weight if rest > 0 else Fraction(0)
                for weight, rest in zip(weights, left, strict=True)
            ]
            if not any(active):
                break
            segment = Segment(place, tuple(here), Shares(active))
            ends = list[int]()
            for component, weight in enumerate(active):
                if weight:
                    end = segment.shares.reaches(component, left[component])
                    assert end is not None
                    ends.append(place + end)
            end = min(ends)
            if next_begin is not None:
                end = min(end, next_begin)
            before = segment.shares.before(end - place)
            here = [a + b for a, b in zip(here, before, strict=True)]
            found.append(segment)
            place = end
    if not found:
        weights = [Fraction(1)] * len(lengths)
        found.append(Segment(place, tuple(here), Shares(weights)))
    return found, place
