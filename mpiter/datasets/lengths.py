"""The lengths of a dataset's documents, as a sequence of numbers that isn't in memory.

``Tokens`` and ``Mix`` have such as ``lengths``.  Pure.  Guarantees that an element is
found only where it is asked for, and that a place beyond the end is an IndexError.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Numbers = NDArray[np.int64]
# Lengths that are found in one go, if all are asked for one after the other.
_AT_ONCE = 1 << 16


class DocumentLengths:
    """A sequence of whole numbers, which takes what a NumPy array of them would."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _found(self, wanted: Numbers) -> Numbers:
        """Return the elements at these places, which are within the sequence."""

    def __getitem__(self, indices: Any) -> Any:
        length = len(self)
        if isinstance(indices, slice):
            return self._found(np.arange(*indices.indices(length)))
        wanted = np.asarray(indices)
        if wanted.dtype == bool and wanted.shape == (length,):
            wanted = np.flatnonzero(wanted)
        if wanted.dtype.kind not in "iu" and wanted.size:
            raise IndexError(
                f"lengths take whole numbers, a slice, an array of these or a mask of "
                f"{length}, not {indices!r:.60}"
            )
        places = wanted.astype(np.int64).ravel()
        if places.size:
            least = int(places.min())
            most = int(places.max())
            if least < -length or most >= length:
                wrong = most if most >= length else least
                raise IndexError(f"{wrong} isn't from {-length} to before {length}")
            if least < 0:
                places[places < 0] += length
        found = self._found(places)
        return found[0] if wanted.ndim == 0 else found.reshape(wanted.shape)

    def __iter__(self) -> Iterator[int]:
        for begin in range(0, len(self), _AT_ONCE):
            yield from self[begin : begin + _AT_ONCE].tolist()

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        if copy is False:
            raise ValueError("lengths are put into an array by copying them only")
        return np.asarray(self[:], dtype)
