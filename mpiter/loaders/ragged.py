"""Samples of different lengths: padding rows to an array, and batches of samples of similar length.

Pure.  ``Buckets`` is a batch sampler for any loader.  Guarantees that each sample comes exactly once in an epoch
(without ``drop_last``), in an order that depends only on its generator, whose state is part of a loader's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..engine.options import whole
from ..errors import OptionError
from ..order.cursor import batches_of

_POOL = 50  # batches whose samples are sorted together: a larger pool needs less padding, and shuffles less


def pad(rows: Sequence[Any], value: Any = 0, *, to: int | None = None, multiple_of: int = 1) -> NDArray[Any]:
    """Return rows of different lengths as one array, padded with ``value`` at the end.

    They get the length of the longest, or ``to``, rounded up to a multiple of ``multiple_of``; other dimensions agree.

    >>> import numpy as np
    >>> pad([np.array([1, 2, 3]), np.array([4])])
    array([[1, 2, 3],
           [4, 0, 0]])
    """
    arrays = [np.asarray(row) for row in rows]
    if not arrays:
        raise OptionError("pad() needs at least one row.")
    if any(not array.ndim or array.shape[1:] != arrays[0].shape[1:] for array in arrays):
        shapes = sorted({array.shape for array in arrays})
        raise OptionError(f"rows can differ in their first dimension only, not as {shapes!s:.100} do.")
    whole("multiple_of", multiple_of, least=1)
    longest = max(map(len, arrays))
    if to is not None and longest > to:
        raise OptionError(f"the longest row has {longest} elements, more than to={to}.")
    length = -(-(longest if to is None else to) // multiple_of) * multiple_of
    padded = np.full((len(arrays), length, *arrays[0].shape[1:]), value, np.result_type(*arrays, value))
    for place, array in zip(padded, arrays, strict=True):
        place[: len(array)] = array
    return padded


class Buckets:
    """A batch sampler that puts samples of similar length into a batch, and shuffles the batches.

    Args:
        lengths: the length of each sample.
        batch_size: samples in a batch.
        most: the most elements in a padded batch; batches of long samples are then smaller than ``batch_size``.
        shuffle: new batches in a new order in each epoch; False sorts by length.
        drop_last: leave out batches that are short because no more samples of similar length are left.
        seed: determines the order; None draws one from NumPy's global generator.

    >>> for batch in Buckets([5, 1, 4, 2, 1, 5], 2, shuffle=False):
    ...     print(batch)
    [1, 4]
    [3, 2]
    [0, 5]
    """

    def __init__(
        self,
        lengths: ArrayLike,
        batch_size: int,
        *,
        most: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int | None = None,
    ) -> None:
        self.lengths = np.asarray(lengths)
        if self.lengths.ndim != 1 or (self.lengths.size and self.lengths.dtype.kind not in "iu"):
            raise OptionError("lengths must be whole numbers, one for each sample.")
        whole("batch_size", batch_size, least=1)
        if most is not None and self.lengths.size and most < int(self.lengths.max()):
            raise OptionError(f"most={most} has no room for the longest sample, of {self.lengths.max()} elements.")
        self.batch_size, self.most, self.shuffle, self.drop_last = batch_size, most, shuffle, drop_last
        drawn = np.random.randint(0, 1 << 63, dtype=np.int64) if seed is None and shuffle else seed
        self.generator = np.random.default_rng(drawn)

    def __iter__(self) -> Iterator[list[int]]:
        count = len(self.lengths)
        order = self.generator.permutation(count) if self.shuffle else np.argsort(self.lengths, kind="stable")
        pool = self.batch_size * _POOL if self.shuffle else max(count, 1)
        for start in range(0, count, pool):
            batches = list(self._cut(order[start : start + pool]))
            if self.shuffle:
                batches = [batches[at] for at in self.generator.permutation(len(batches))]
            yield from batches

    def _cut(self, indices: NDArray[Any]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in indices[np.argsort(self.lengths[indices], kind="stable")].tolist():
            longest = int(self.lengths[index])  # sorted: the newest is the longest
            if len(batch) == self.batch_size or (self.most is not None and longest * (len(batch) + 1) > self.most):
                yield batch
                batch = []
            batch.append(index)
        if batch and (len(batch) == self.batch_size or not self.drop_last):
            yield batch

    def __len__(self) -> int:
        """Return the number of batches; raise a TypeError if it differs between epochs (``most`` with shuffling)."""
        if self.most is not None and self.shuffle:
            raise TypeError("with most= the number of batches is another in each epoch.")
        if self.most is not None:
            return sum(1 for _ in self._cut(np.arange(len(self.lengths))))
        return batches_of(len(self.lengths), self.batch_size, self.drop_last)
