"""Best fit: documents of a window are put into rows of one capacity.

Pure.  The longest documents come first, and each goes into the row with the least room
that takes it.  Guarantees that the rows depend on the lengths and their order alone.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices

# A room and the number of its row in one word: the room above, the row below.
_BITS = 32
_ROW = (1 << _BITS) - 1
# Documents whose rows are kept, with two bytes for each in windows of usual size.
_KEPT = 1 << 20


def best_fit(lengths: NDArray[np.integer], capacity: int) -> tuple[Indices, int]:
    """Return the row that each document is put into, and the number of rows.

    No length may be 0 or above ``capacity``.
    """
    longest_first = np.argsort(-lengths.astype(np.int64), kind="stable")
    sizes, counts = np.unique(lengths, return_counts=True)
    found = list[int]()
    # Rows that have room, sorted by it.
    rooms = list[int]()
    rows = 0
    for size, count in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True):
        while count:
            at = bisect_left(rooms, size << _BITS)
            if at == len(rooms):
                row = rows
                room = capacity
                rows += 1
            else:
                word = rooms.pop(at)
                row = word & _ROW
                room = word >> _BITS
            if count == 1 or room < 2 * size:
                found.append(row)
                count -= 1
                room -= size
            else:
                # This row had the least room, and has the least again as long as it
                # takes another document of this size.  So these come at once.
                taken = min(count, room // size)
                found += [row] * taken
                count -= taken
                room -= taken * size
            if room:
                insort(rooms, room << _BITS | row)
    row_of = np.empty(len(found), np.int64)
    row_of[longest_first] = found
    return row_of, rows


class Fits:
    """Best fits, some of which are kept from when they are counted until they are used.

    The windows of an epoch are counted one after the other, and then used in that
    order.  So the first ones are kept, and each is dropped when it is used.
    """

    def __init__(self) -> None:
        # By a checksum of the lengths, and the capacity.
        self._kept = dict[tuple[bytes, int], tuple[NDArray[np.unsignedinteger], int]]()
        self._documents = 0

    def count(self, lengths: NDArray[np.integer], capacity: int) -> int:
        """Return the number of rows."""
        row_of, rows = best_fit(lengths, capacity)
        key = (_checksum(lengths), capacity)
        fits = self._documents + len(lengths) <= _KEPT
        if fits and key not in self._kept:
            small = row_of.astype(np.min_scalar_type(rows))
            self._kept[key] = (small, rows)
            self._documents += len(lengths)
        return rows

    def take(
        self, lengths: NDArray[np.integer], capacity: int
    ) -> tuple[NDArray[np.integer], int]:
        """Return what ``best_fit`` does."""
        if self._kept:
            found = self._kept.pop((_checksum(lengths), capacity), None)
            if found is not None:
                self._documents -= len(lengths)
                return found
        return best_fit(lengths, capacity)


def _checksum(lengths: NDArray[np.integer]) -> bytes:
    return hashlib.blake2b(lengths.tobytes(), digest_size=16).digest()
