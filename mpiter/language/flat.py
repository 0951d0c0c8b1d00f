"""``flat``: a batch of jagged rows as attention kernels of variable length take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["flat"]


def flat(rows: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, Any]:
    """Return the documents of several rows one after the other, without padding.

    It is the ``collate_fn`` for a ``Pack`` with ``layout="jagged"``.  Each field of the
    rows becomes one array; ``cu_seqlens`` says where each document begins and the last
    one ends, and ``max_seqlen`` how long the longest is, as FlashAttention's functions
    for sequences of several lengths take them.  Under ``mpiter.torch.DataLoader`` the
    arrays are tensors.

    >>> import numpy as np
    >>> import mpiter
    >>> from mpiter.language import flat
    >>> documents = [np.arange(1, 4), np.arange(1, 7), np.arange(1, 3)]
    >>> rows = mpiter.Pack(documents, capacity=6, layout="jagged")
    >>> for name, column in flat([rows[0], rows[1]]).items():
    ...     print(name, column)
    tokens [1 2 3 4 5 6 1 2 3 1 2]
    positions [0 1 2 3 4 5 0 1 2 0 1]
    cu_seqlens [ 0  6  9 11]
    max_seqlen 6
    """
    found = dict[str, Any]()
    for name in rows[0]:
        if name != "cu_seqlens":
            found[name] = np.concatenate([row[name] for row in rows])
    ends: list[NDArray[np.int32]] = [np.zeros(1, np.int32)]
    for row in rows:
        ends.append(row["cu_seqlens"][1:] + ends[-1][-1])
    borders = np.concatenate(ends)
    found["cu_seqlens"] = borders
    found["max_seqlen"] = int(np.diff(borders).max())
    return found
