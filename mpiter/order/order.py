"""The order in which the samples of an epoch are visited: pure functions of (seed,
epoch, position).

``take(a, b)`` of the library's own orders depends only on a few numbers.  The shuffle
visits each index exactly once, and needs no memory that grows with the length: 10**12
samples cost what 10**3 cost.  Lengths are below 2**62.

Positions are written as (left, right) digits of a rectangle just larger than the epoch;
each round adds to one digit a keyed hash of the other, which can be undone, so the
whole is one-to-one.  Positions that are mapped outside of the epoch are mapped again.
A short epoch is instead sorted by a keyed hash of its indices, which is exactly
uniform.
"""

from __future__ import annotations

import threading
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError

Indices = NDArray[np.int64]

# The uniformity tests pass from 6 on; the rest is margin and costs 2 ns a sample each.
_ROUNDS = 8
# Epochs up to here are sorted: rounds mix a small rectangle slowly, and 3 × 3 never
# evenly.
_SHORT = 4096
_INDEX_BITS = np.uint64(_SHORT - 1)
# Positions evaluated at once, so that numpy's per-call cost vanishes.
_BLOCK = 1 << 14
NO_INDICES: Indices = np.empty(0, np.int64)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)


def mix(x: Any) -> Any:
    """Scramble uint64 words (the finalizer of splitmix64)."""
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


def shuffled(
    positions: Indices, length: int, round_keys: NDArray[np.uint64]
) -> Indices:
    """Return the index at each of ``positions`` in the shuffle of an epoch of
    ``length`` samples.
    """
    if length <= _SHORT:
        return _sorted_by_lots(length, round_keys)[positions]
    height = isqrt(length - 1) + 1
    width = -(-length // height)
    found = _scramble(positions, height, width, round_keys)
    while (outside := found >= length).any():
        found[outside] = _scramble(found[outside], height, width, round_keys)
    return found


def _sorted_by_lots(length: int, round_keys: NDArray[np.uint64]) -> Indices:
    """Return the indices of a short epoch in the order of their keyed hashes."""
    indices = np.arange(length, dtype=np.uint64)
    lots: NDArray[np.uint64] = mix(
        mix(indices * _GOLDEN + round_keys[0]) + round_keys[1]
    )
    # Each lot has its index in the lowest bits.  NumPy sorts such words in a third of
    # the time of an argsort, and the 52 bits above decide as 64 would: two of 4,096 are
    # the same once in a billion epochs.
    lots &= ~_INDEX_BITS
    lots |= indices
    lots.sort()
    lots &= _INDEX_BITS
    return lots.view(np.int64)


def _scramble(
    at: Indices, height: int, width: int, round_keys: NDArray[np.uint64]
) -> Indices:
    """Apply all rounds to the positions ``at``, in digits of 32 bits, which NumPy
    multiplies twice as fast as 64.
    """
    quotient = at // width
    keys = round_keys.astype(np.uint32)
    left = quotient.astype(np.uint32)
    right = (at - quotient * width).astype(np.uint32)
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
        left = _added(left, _words(right, even), np.uint32(height))
        right = _added(right, _words(left, odd), np.uint32(width))
    found = left.astype(np.int64)
    found *= width
    found += right
    return found


def _words(digits: NDArray[np.uint32], key: np.uint32) -> NDArray[np.uint32]:
    """Return a keyed hash of each digit (the finalizer of MurmurHash3)."""
    x = digits * np.uint32(0x9E3779B1)
    x += key
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def _added(
    digits: NDArray[np.uint32], words: NDArray[np.uint32], limit: np.uint32
) -> NDArray[np.uint32]:
    """Return ``(digits + words) % limit``, with ``//``, which NumPy computes in a third
    of the time of ``%``.
    """
    words -= words // limit * limit
    words += digits
    # A negative difference wraps to a large number.
    least: NDArray[np.uint32] = np.minimum(words, words - limit)
    return least


class Order:
    """The order of one epoch, which also gives the orders of later epochs."""

    def __len__(self) -> int:
        raise NotImplementedError

    def take(self, start: int, stop: int) -> Indices:
        """Return the indices at positions ``start`` to ``stop``; fewer at the epoch's
        end.
        """
        raise NotImplementedError

    def keys(self, start: int, stop: int) -> range | Indices:
        """Return what ``take`` does, as a range where the indices follow one another: a
        slice reads faster.
        """
        return self.take(start, stop)

    def later(self, epochs: int) -> Order:
        """Return the order ``epochs`` epochs later."""
        raise NotImplementedError

    def array(self) -> Indices | None:
        """Return the whole order as an array; None for 0, 1, 2, …"""
        raise NotImplementedError

    def following(self, position: int) -> Order:
        """Return the next epoch's order; an order sampler gets ``position``, the
        cursor's when it is called.
        """
        return self.later(1)


class Sequential(Order):
    """The order 0, 1, 2, … in every epoch."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def take(self, start: int, stop: int) -> Indices:
        return np.arange(start, min(stop, self._length), dtype=np.int64)

    def keys(self, start: int, stop: int) -> range:
        return range(start, min(stop, self._length))

    def later(self, epochs: int) -> Sequential:
        return self

    def array(self) -> None:
        # Which stands for 0, 1, 2, … in Chainer.
        return None


class Shuffled(Order):
    """The library's own shuffle: a new permutation in each epoch, never held in memory
    as a whole.
    """

    def __init__(self, length: int, seed: int, epoch: int = 0) -> None:
        self._length = length
        self.seed = seed
        self._epoch = epoch
        words = np.random.SeedSequence(
            [word & (1 << 128) - 1 for word in (seed, epoch, 0x0D3)]
        )
        self._keys: NDArray[np.uint64] = words.generate_state(_ROUNDS, np.uint64)  # type: ignore[assignment]
        # The indices that have been evaluated, and the first one's position.
        self._first = 0
        self._found = NO_INDICES

    def __len__(self) -> int:
        return self._length

    def take(self, start: int, stop: int) -> Indices:
        """Return the indices at these positions; where batches follow one another,
        later ones are found in advance.
        """
        stop = min(stop, self._length)
        end = self._first + len(self._found)
        if not self._first <= start <= stop <= end:
            if self._length <= _SHORT:
                self._first = 0
                until = self._length
            else:
                # Exactly these if a rank has jumped over the parts of many others.
                is_near = start - end < _BLOCK // 4
                self._first, until = (
                    start,
                    max(stop, min(start + _BLOCK, self._length)) if is_near else stop,
                )
            self._found = shuffled(
                np.arange(self._first, until, dtype=np.int64), self._length, self._keys
            )
        return self._found[start - self._first : max(start, stop) - self._first]

    def later(self, epochs: int) -> Shuffled:
        if epochs:
            return Shuffled(self._length, self.seed, self._epoch + epochs)
        return self

    def array(self) -> Indices:
        return self.take(0, self._length)


class Listed(Order):
    """An order held in memory as an array: a private copy, since samplers may shuffle
    theirs in place.
    """

    def __init__(self, array: Any) -> None:
        found = np.array(array)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise OptionError(
                f"order_sampler returned {found.dtype} values of shape {found.shape}; "
                "return a 1-D array of integer indices."
            )
        if (
            found.size
            and found.dtype.kind == "u"
            and int(found.max()) > np.iinfo(np.int64).max
        ):
            raise OptionError(
                f"order_sampler returned index {found.max()}, which is beyond any "
                "dataset."
            )
        self._array: Indices = found.astype(np.int64)

    def __len__(self) -> int:
        return len(self._array)

    def take(self, start: int, stop: int) -> Indices:
        return self._array[start:stop]

    def later(self, epochs: int) -> Order:
        return self

    def array(self) -> Indices:
        return self._array


class Given(Listed):
    """One epoch's order, read from a state or snapshot; the epochs after it have the
    library's own shuffle.
    """

    def __init__(self, array: Any, following: Shuffled) -> None:
        super().__init__(array)
        self._following = following

    def later(self, epochs: int) -> Order:
        if epochs:
            return self._following.later(epochs - 1)
        return self


class SamplerOfTheMoment:
    """Holds the present order sampler, which the user may replace between epochs."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.asked = threading.RLock()  # held while the sampler is called


class _Later:
    """The order of the epoch after a ``Sampled`` one, once the sampler has been called
    for it.
    """

    # The sampler, and the order and position that it was called with.
    question: tuple[Any, Any, int] = (None, None, 0)
    answer: Sampled | None = None


class Sampled(Listed):
    """An order that a Chainer ``order_sampler`` returned, linked to the one that it
    returned after that.

    The sampler is called ahead of the user.  Its orders are kept, so that going back or
    starting over gives the same.
    """

    def __init__(
        self, array: Any, sampling: SamplerOfTheMoment, later: _Later | None = None
    ) -> None:
        super().__init__(array)
        self._sampling, self._later = sampling, later or _Later()

    def following(self, position: int) -> Sampled:
        found = self._ask(self._array, position)
        if len(found) != len(self):
            raise OptionError(
                "The size of order does not match the size of the previous order: the "
                f"order_sampler returned {len(found)} indices after {len(self)}; "
                "return as many at each call."
            )
        return found

    def _ask(self, order: Any, position: int) -> Sampled:
        later = self._later
        sampling = self._sampling
        with sampling.asked:
            if later.answer is None or later.question[0] is not sampling.sampler:
                later.question = sampling.sampler, order, position
                later.answer = Sampled(
                    sampling.sampler(order.copy(), position), sampling
                )
            return later.answer

    def later(self, epochs: int) -> Sampled:
        order = self
        for _ in range(epochs):
            order = order.following(0)
        return order

    def instead(self, array: Any) -> Sampled:
        """Return ``array`` as an epoch's order; if it is this one, the orders drawn
        ahead come after it.
        """
        return Sampled(
            array,
            self._sampling,
            self._later if np.array_equal(array, self._array) else None,
        )

    def over_again(self, length: int) -> Sampled:
        """Return the first order after a reset, for which Chainer calls the sampler
        with a range.
        """
        order = np.arange(length)
        sampling = self._sampling
        with sampling.asked:
            (sampler, asked_with, position), answer = (
                self._later.question,
                self._later.answer,
            )
            if answer is None or sampler is not sampling.sampler:
                return self._ask(order, 0)
            if len(answer) == length:
                again = Sampled(sampler(asked_with.copy(), position), sampling)
                # The sampler draws random numbers…
                if not np.array_equal(again._array, answer._array):
                    last = answer
                    while last._later.answer is not None:
                        last = last._later.answer
                    last._later.question = (sampler, again._array, 0)
                    last._later.answer = again
                    # …so the order drawn ahead comes first, and the new one is
                    # appended.
                    return answer
            # It depends on its arguments alone, which differ now.
            return Sampled(sampler(order, 0), sampling)
