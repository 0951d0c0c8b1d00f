"""Windows: the documents of an epoch, in groups that are packed one by one.

A window is a set of documents.  Planning looks at one window at a time, so that a place
far into an epoch needs no more than the sizes of the windows before it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..order.keyed import key_of, permutation
from ..order.order import Indices, Order, Shuffled
from .components import unweighed

Lengths = NDArray[np.integer]
# Decides which documents are in a window together.  It is the same for every seed, so
# that the number of rows in each window is counted once.
_MEMBERS = 0x3A11
# Documents of an order that are looked up together, if windows are smaller.
_AT_ONCE = 8192


class Pieces(NamedTuple):
    """Parts of documents, one or several of each: arrays of one length."""

    # What the dataset is indexed with.
    keys: Indices
    # The part of the document: from this token to before that.
    begins: Indices
    stops: Indices
    # Of the whole document.
    lengths: Indices

    @property
    def sizes(self) -> Indices:
        """The number of tokens in each piece."""
        return self.stops - self.begins

    def where(self, chosen: NDArray[np.generic] | slice) -> Pieces:
        """Return the chosen pieces: by a mask, by their numbers or by a slice."""
        return Pieces(*(column[chosen] for column in self))

    def checksum(self, *, with_keys: bool) -> int:
        """Return a checksum of the documents' lengths, and of their keys as well."""
        found = zlib.crc32(np.ascontiguousarray(self.lengths, "<i8").tobytes())
        if with_keys:
            keys = np.ascontiguousarray(self.keys, "<i8").tobytes()
            found = zlib.crc32(keys, found)
        return found

    @property
    def rows(self) -> int:
        """The number of pieces."""
        return len(self.keys)


def whole_documents(keys: Indices, lengths: Lengths) -> Pieces:
    """Return one piece for each document; those without tokens are left out."""
    sizes = lengths.astype(np.int64)
    pieces = Pieces(keys, np.zeros(len(keys), np.int64), sizes, sizes)
    if (sizes <= 0).any():
        pieces = pieces.where(sizes > 0)
    return pieces


def _count(documents: int, window: int) -> int:
    """Return the number of windows; a short last one joins the one before."""
    full, left = divmod(documents, window)
    return max(1, full + (left >= window / 2))


class Fixed:
    """Windows of a plain dataset, with the same documents in every epoch.

    Their order is another in each epoch, and so is that of their documents.
    """

    def __init__(
        self,
        lengths: Lengths,
        window: int,
        seed: int,
        shuffles: bool,
        scatters: bool,
        epoch: int = 0,
    ) -> None:
        self._lengths = lengths
        # Documents in a window.
        self.size = window
        self._seed = seed
        self.shuffles = shuffles
        self._epoch = epoch
        self.count = _count(len(lengths), window)
        # A window's documents lie anywhere, rather than one after the other.
        self.scatters = scatters
        self._members = Shuffled(len(lengths), _MEMBERS)
        self._order = Shuffled(self.count, seed, epoch)

    def documents(self, window: int) -> Pieces:
        number = window
        if self.shuffles:
            number = int(self._order.take(window, window + 1)[0])
        pieces = self.members(number)
        if not self.shuffles:
            return pieces
        key = key_of(self._seed, self._epoch, "documents", number)
        return pieces.where(permutation(pieces.rows, key))

    def members(self, number: int) -> Pieces:
        """Return the documents of a window that has this number in every epoch."""
        total = len(self._lengths)
        begin = number * self.size
        stop = begin + self.size
        if number == self.count - 1:
            stop = total
        if self.scatters:
            keys = self._members.take(begin, stop)
            # In the order of the corpus, which a mapped file is read in fastest.
            keys = np.sort(keys)
        else:
            keys = np.arange(begin, stop, dtype=np.int64)
        return whole_documents(keys, np.asarray(self._lengths[keys]))

    def numbers(self) -> Indices:
        """Return the numbers of the windows, in this epoch's order."""
        if self.shuffles:
            return self._order.take(0, self.count)
        return np.arange(self.count, dtype=np.int64)

    def later(self, epochs: int) -> Fixed:
        return Fixed(
            self._lengths,
            self.size,
            self._seed,
            self.shuffles,
            self.scatters,
            self._epoch + epochs,
        )


class Following:
    """Windows of a dataset that brings its order, such as a mixture.

    A window has the documents of so many places that follow one another.  ``base`` is a
    window and the place where it begins: 0 and 0 unless a changed order goes on there.
    """

    def __init__(
        self,
        order: Order,
        lengths: Lengths,
        window: int,
        name: str,
        base: tuple[int, int] = (0, 0),
    ) -> None:
        # Rows have weights of their own.
        self.order = unweighed(order)
        self._lengths = lengths
        # Documents in a window.
        self.size = window
        self._name = name
        self._base = base
        number, place = base
        self.first = number
        self.count = number
        if len(order) > place or not number:
            self.count += _count(len(order) - place, window)

    def span(self, window: int) -> tuple[int, int]:
        """Return the places of a window's documents."""
        number, place = self._base
        begin = place + (window - number) * self.size
        if window == self.count - 1:
            return begin, len(self.order)
        return begin, begin + self.size

    def documents(self, window: int) -> Pieces:
        return self.named(self.order.take(*self.span(window)))

    def each(self) -> Iterator[Pieces]:
        """Yield the documents of one window after the other."""
        together = max(1, _AT_ONCE // self.size)
        for window in range(self.first, self.count, together):
            spans = [*map(self.span, range(window, min(window + together, self.count)))]
            begin = spans[0][0]
            keys, lengths = self._looked_up(self.order.take(begin, spans[-1][1]))
            for first, stop in spans:
                rows = slice(first - begin, stop - begin)
                yield whole_documents(keys[rows], lengths[rows])

    def named(self, keys: Any) -> Pieces:
        """Return the documents with these keys."""
        return whole_documents(*self._looked_up(keys))

    def _looked_up(self, keys: Any) -> tuple[Indices, Lengths]:
        """Return keys as an array, and the lengths of their documents."""
        try:
            found = np.asarray(keys)
        except ValueError:
            # Tuples of several lengths.
            found = np.empty(0, object)
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise OptionError(
                f"the order of {self._name} has keys that aren't whole numbers, so "
                "Pack can't look up their lengths: pack each component, and mix the "
                "packed ones."
            )
        return found.astype(np.int64), np.asarray(self._lengths[found])

    def instead(self, order: Order, window: int, place: int) -> Following:
        """Return the windows of another order, from ``place`` on."""
        base = (window, place)
        return Following(order, self._lengths, self.size, self._name, base)

    def later(self, epochs: int) -> Following:
        order = self.order.later(epochs)
        return Following(order, self._lengths, self.size, self._name)
