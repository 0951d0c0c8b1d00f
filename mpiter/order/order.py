"""The order in which an epoch's samples come: functions of (seed, epoch, position).

``Order`` is what users derive their own from.  ``EpochOrder`` adds what cursors need.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import OptionError, StateError

Indices = NDArray[np.int64]
# What a dataset is indexed with: whole numbers, or objects such as tuples.
Keys = Indices | tuple[Any, ...]
Words = NDArray[np.uint64]
Digits = NDArray[np.uint32]
# An order sampler: takes an order and a position in it, and returns the next order.
Sampler = Callable[[Any, int], Any]

# The uniformity tests pass from 6 on; the rest is margin and costs 2 ns a sample each.
_ROUNDS = 8
# Epochs up to here are sorted: rounds mix a small rectangle slowly, and 3 × 3 never
# evenly.
_SHORT = 4096
_INDEX_BITS = np.uint64(_SHORT - 1)
# Positions evaluated at once, so that numpy's per-call cost vanishes.
_BLOCK = 1 << 14
NO_INDICES: Indices = np.empty(0, np.int64)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)


def mix(x: Words) -> Words:
    """Scramble uint64 words (the finalizer of splitmix64)."""
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


def shuffled(
    positions: Indices,
    length: int,
    round_keys: Words,
) -> Indices:
    """Return the index at each of ``positions`` in a shuffle of ``length`` samples."""
    if length <= _SHORT:
        return _sorted_by_lots(length, round_keys)[positions]
    height = isqrt(length - 1) + 1
    width = -(-length // height)
    found = _scramble(positions, height, width, round_keys)
    # The rectangle is larger than the epoch.  A position that is mapped outside of the
    # epoch is mapped again, which stays one-to-one.
    while (outside := found >= length).any():
        found[outside] = _scramble(found[outside], height, width, round_keys)
    return found


def _sorted_by_lots(length: int, round_keys: Words) -> Indices:
    """Return the indices of a short epoch in the order of their keyed hashes."""
    indices = np.arange(length, dtype=np.uint64)
    lots = mix(indices * GOLDEN + round_keys[0])
    lots = mix(lots + round_keys[1])
    # Each lot has its index in the lowest bits.  NumPy sorts such words in a third of
    # the time of an argsort, and the 52 bits above decide as 64 would: two of 4,096 are
    # the same once in a billion epochs.
    lots &= ~_INDEX_BITS
    lots |= indices
    lots.sort()
    lots &= _INDEX_BITS
    return lots.view(np.int64)


def _scramble(
    at: Indices,
    height: int,
    width: int,
    round_keys: Words,
) -> Indices:
    """Apply all rounds to the positions ``at``.

    The digits have 32 bits, which NumPy multiplies twice as fast as 64.
    """
    quotient = at // width
    keys = round_keys.astype(np.uint32)
    left = quotient.astype(np.uint32)
    right = (at - quotient * width).astype(np.uint32)
    rows = np.uint32(height)
    columns = np.uint32(width)
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
        left = _added(left, _words(right, even), rows)
        right = _added(right, _words(left, odd), columns)
    found = left.astype(np.int64)
    found *= width
    found += right
    return found


def _words(digits: Digits, key: np.uint32) -> Digits:
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
    digits: Digits,
    words: Digits,
    limit: np.uint32,
) -> Digits:
    """Return ``(digits + words) % limit``.

    It is computed by ``//``, which takes NumPy a third of the time of ``%``.
    """
    words -= words // limit * limit
    words += digits
    # A negative difference wraps to a large number.
    least: Digits = np.minimum(words, words - limit)
    return least


class Order(ABC):
    """The order of the samples in one epoch: the base class of orders of your own.

    A dataset brings its order by a method ``mpiter_order(seed, shuffle)``, which
    returns the order of epoch 0; every iterator and loader then goes by it.  ``seed``
    is the iterator's or loader's, a whole number.  ``shuffle`` is the argument as it
    was passed; None if it was left out.

    Keys, which ``take`` returns, are what ``dataset[key]`` gets in the workers: whole
    numbers, or tuples of anything that can be pickled, such as ``("web", 17)``.
    NumPy's numbers arrive as Python's, named tuples as plain ones.

    An order is a function of the position: the same seed gives the same keys in every
    process, at whatever time, so that all ranks agree and a state resumes.  Its methods
    are called by one thread at a time, in the process that iterates.

    >>> import mpiter
    >>> class Backwards(mpiter.Order):
    ...     def __init__(self, length):
    ...         self.length = length
    ...     def __len__(self):
    ...         return self.length
    ...     def take(self, start, stop):
    ...         return [self.length - 1 - at for at in range(start, stop)]
    ...     def later(self, epochs):
    ...         return self
    >>> class Tens:
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return index * 10
    ...     def mpiter_order(self, seed, shuffle):
    ...         return Backwards(5)
    >>> with mpiter.batches(Tens(), 2, n_processes=0) as stream:
    ...     print(*stream)
    [40 30] [20 10] [0]
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples in the epoch, whatever ``len(dataset)`` is."""

    @abstractmethod
    def take(self, start: int, stop: int) -> Sequence[Any] | NDArray[Any]:
        """Return the keys at positions ``start`` to before ``stop``.

        They are an array of whole numbers, a range or a list.  Positions are within
        the epoch, and come in any order: each call must be quick.
        """

    @abstractmethod
    def later(self, epochs: int) -> Order:
        """Return the order ``epochs`` epochs later, without going through those."""

    def costs(self, start: int, stop: int) -> Sequence[float] | NDArray[Any] | None:
        """Return what each sample at these positions costs the training, as numbers.

        With ``shard=`` the samples of a step are dealt to the ranks by it, such that
        each rank has as much to compute.  None, the default: all cost the same.
        """
        return None

    def tokens(self, start: int, stop: int) -> Sequence[int] | NDArray[Any] | None:
        """Return how many tokens each sample at these positions has.

        ``step_tokens`` of iterators and loaders is their sum over a step of all ranks.
        None, the default: it isn't known.
        """
        return None

    def state(self, position: int) -> Any:
        """Return what a state must hold for ``restored``, as values for JSON.

        ``position`` is where in this epoch the state is saved.  With None, the
        default, the state holds a checksum of the keys around the position: it is
        loaded only where the order has as many keys, and these.
        """
        return None

    def restored(self, state: Any, position: int) -> Order:
        """Return the order of this epoch that goes on from a state.

        ``state`` is what ``state(position)`` returned where it was saved.  Raise an
        error if this order can't go on from there.
        """
        raise StateError(
            "the state holds what an order's state() returned, and "
            f"{type(self).__name__} has no restored(state, position)."
        )


class EpochOrder(Order):
    """An order as cursors use it."""

    # The order has each of the indices 0, 1, 2, … below its length once.
    covers = False
    # It tells what samples cost, or how many tokens they have.
    is_weighed = False

    @abstractmethod
    def take(self, start: int, stop: int) -> Keys:
        """Return the keys at positions ``start`` to before ``stop``.

        Plans clip both to the epoch, at whose end not every order stops.
        """

    @abstractmethod
    def later(self, epochs: int) -> EpochOrder: ...

    def keys(self, start: int, stop: int) -> range | Keys:
        """Return what ``take`` does, as a range where the indices follow one another.

        A slice reads faster.
        """
        return self.take(start, stop)

    def array(self) -> Indices | None:
        """Return the whole order as an array; None for 0, 1, 2, …

        None stands, too, for an order that isn't kept as a whole.
        """
        return None

    def following(self, position: int) -> EpochOrder:
        """Return the next epoch's order.

        An order sampler gets ``position``, the cursor's when it is called.
        """
        return self.later(1)

    def lengths(self, epochs: int) -> Iterator[tuple[int, int]]:
        """Yield the lengths of so many epochs, and how many have each."""
        yield len(self), epochs

    def onwards(self, at: int, position: int) -> tuple[int, EpochOrder, int]:
        """Return where position ``at`` lies, which may be beyond the epoch's end.

        It is so many epochs later, in that epoch's order, at a position in it.  An
        order sampler that must be asked for it gets ``position``, the cursor's.
        """
        epochs, at = divmod(at, len(self))
        if epochs:
            return epochs, self.following(position).later(epochs - 1), at
        return 0, self, at


class Sequential(EpochOrder):
    """The order 0, 1, 2, … in every epoch."""

    covers = True

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


class Shuffled(EpochOrder):
    """The library's own shuffle, never held in memory as a whole.

    Each epoch has a new permutation.
    """

    covers = True

    def __init__(self, length: int, seed: int, epoch: int = 0) -> None:
        self._length = length
        self.seed = seed
        self._epoch = epoch
        # The last word keeps this use of a seed apart from others.  A seed may be
        # negative, which a SeedSequence refuses.
        words = (seed, epoch, 0x0D3)
        entropy = [word & (1 << 128) - 1 for word in words]
        sequence = np.random.SeedSequence(entropy)
        keys = sequence.generate_state(_ROUNDS, np.uint64)
        self._keys: Words = keys  # type: ignore[assignment]
        # The indices that have been evaluated, and the first one's position.
        self._first = 0
        self._found = NO_INDICES

    def __len__(self) -> int:
        return self._length

    def take(self, start: int, stop: int) -> Indices:
        """Return the indices at these positions.

        Where batches follow one another, later ones are found in advance.
        """
        stop = min(stop, self._length)
        end = self._first + len(self._found)
        if not self._first <= start <= stop <= end:
            if self._length <= _SHORT:
                self._first = 0
                until = self._length
            else:
                self._first = start
                until = stop
                # For a rank that jumps over the parts of many others nothing is
                # evaluated in advance: most of it would be theirs.
                if start - end < _BLOCK // 4:
                    ahead = min(start + _BLOCK, self._length)
                    until = max(stop, ahead)
            positions = np.arange(self._first, until, dtype=np.int64)
            self._found = shuffled(positions, self._length, self._keys)
        begin = start - self._first
        end = stop - self._first
        return self._found[begin:end]

    def later(self, epochs: int) -> Shuffled:
        if epochs:
            return Shuffled(self._length, self.seed, self._epoch + epochs)
        return self

    def array(self) -> Indices:
        return self.take(0, self._length)


class Listed(EpochOrder):
    """An order held in memory as an array.

    The array is a private copy, since samplers may shuffle theirs in place.
    """

    def __init__(self, array: ArrayLike) -> None:
        found = np.array(array)
        kind = found.dtype.kind
        # An empty list becomes an array of floats, and will do.
        if found.ndim != 1 or (found.size and kind not in "iu"):
            raise OptionError(
                f"order_sampler returned {found.dtype} values of shape {found.shape}; "
                "return a 1-D array of integer indices."
            )
        if found.size and kind == "u":
            largest = found.max()
            if int(largest) > np.iinfo(np.int64).max:
                raise OptionError(
                    f"order_sampler returned index {largest}, which is beyond any "
                    "dataset."
                )
        self._array: Indices = found.astype(np.int64)

    def __len__(self) -> int:
        return len(self._array)

    def take(self, start: int, stop: int) -> Indices:
        return self._array[start:stop]

    def later(self, epochs: int) -> EpochOrder:
        return self

    def array(self) -> Indices:
        return self._array


class Given(Listed):
    """One epoch's order, read from a state or snapshot.

    The epochs after it have the library's own shuffle.
    """

    covers = True

    def __init__(self, array: ArrayLike, following: Shuffled) -> None:
        super().__init__(array)
        self._following = following

    def later(self, epochs: int) -> EpochOrder:
        if epochs:
            return self._following.later(epochs - 1)
        return self


class SamplerOfTheMoment:
    """Holds the present order sampler, which the user may replace between epochs."""

    def __init__(self, sampler: Sampler | None) -> None:
        self.sampler: Any = sampler
        # Held while the sampler is called: the loop's thread and the user's may both
        # need the next order, and must get the same one.
        self.asked = threading.RLock()


class _Later:
    """The order after a ``Sampled`` one, once the sampler has been called for it."""

    # The sampler, and the order and position that it was called with.
    question: tuple[Any, Any, int] = (None, None, 0)
    answer: Sampled | None = None


class Sampled(Listed):
    """An order that a Chainer ``order_sampler`` returned, linked to the next one.

    The sampler is called ahead of the user.  Its orders are kept, so that going back or
    starting over gives the same.
    """

    def __init__(
        self,
        array: ArrayLike,
        sampling: SamplerOfTheMoment,
        later: _Later | None = None,
    ) -> None:
        super().__init__(array)
        self._sampling = sampling
        self._later = later or _Later()

    def following(self, position: int) -> Sampled:
        found = self._ask(self._array, position)
        if len(found) != len(self):
            raise OptionError(
                "The size of order does not match the size of the previous order: the "
                f"order_sampler returned {len(found)} indices after {len(self)}; "
                "return as many at each call."
            )
        return found

    def _ask(self, order: Indices, position: int) -> Sampled:
        later = self._later
        sampling = self._sampling
        with sampling.asked:
            sampler = sampling.sampler
            # The user may have replaced the sampler since it was asked.
            if later.answer is None or later.question[0] is not sampler:
                later.question = sampler, order, position
                array = sampler(order.copy(), position)
                later.answer = Sampled(array, sampling)
            return later.answer

    def later(self, epochs: int) -> Sampled:
        order = self
        for _ in range(epochs):
            order = order.following(0)
        return order

    def instead(self, array: ArrayLike) -> Sampled:
        """Return ``array`` as an epoch's order.

        If it is this one, the orders drawn ahead come after it.
        """
        later = None
        if np.array_equal(array, self._array):
            later = self._later
        return Sampled(array, self._sampling, later)

    def over_again(self, length: int) -> Sampled:
        """Return the first order after a reset.

        Chainer calls the sampler with a range for it.
        """
        order = np.arange(length)
        sampling = self._sampling
        with sampling.asked:
            sampler, asked_with, position = self._later.question
            answer = self._later.answer
            if answer is None or sampler is not sampling.sampler:
                return self._ask(order, 0)
            if len(answer) == length:
                again = Sampled(sampler(asked_with.copy(), position), sampling)
                # To the same question the sampler has another answer, so it draws
                # random numbers.  The order drawn ahead comes first, as it would have
                # in Chainer, and the new one is appended: none is skipped.
                if not np.array_equal(again._array, answer._array):
                    last = answer
                    while last._later.answer is not None:
                        last = last._later.answer
                    last._later.question = (sampler, again._array, 0)
                    last._later.answer = again
                    return answer
            # The sampler's answer depends on its arguments alone, which differ now.
            return Sampled(sampler(order, 0), sampling)
