"""Resident first: an order that draws samples with a local copy before the others.

It does so within windows of the order.  It is an order sampler, called in the thread
that plans.  It shuffles, then moves the local samples of each window to its front,
without other changes.  Guarantees that an epoch has each sample once, and that the
shuffle depends only on the seed and the order before, so that epochs after a resume get
new orders.
"""

from __future__ import annotations

import hashlib
from math import lgamma
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from .staging import StagedFetch

Indices = NDArray[np.int64]


class ResidentFirst:
    """An ``order_sampler`` that draws samples with a local copy before the others.

    It can't be an ``mpiter.Order``, since what is local changes with time, and so isn't
    a function of the place.

    Args:
        dataset: a staged dataset, which ``Staging.of()`` returned.
        window: the number of samples by which one may be drawn earlier or later than
            shuffled. None: an epoch.
        seed: seed of the shuffle.

    Attributes:
        entropy: randomness of the last order: 1 for that of a uniform shuffle, None
            before the first order.

    >>> import tempfile
    >>> from mpiter.staging import ResidentFirst, Staging
    >>> class Numbers:
    ...     __len__ = lambda self: 6
    ...     source = lambda self, index: f"https://example.org/{index}"
    ...     fetch = lambda self, index: b"%d" % index
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     staged = Staging(folder, "1MB").of(Numbers())
    ...     kept = [staged.fetch(4), staged.fetch(5)]
    ...     sorted(ResidentFirst(staged)(range(6), 0)[:2].tolist())
    [4, 5]
    """

    def __init__(
        self,
        dataset: Any,
        window: int | None = None,
        seed: int = 0,
    ) -> None:
        fetch = getattr(dataset, "fetch", None)
        if not isinstance(fetch, StagedFetch):
            raise OptionError(
                "ResidentFirst needs a staged dataset; pass what "
                "Staging(…).of(dataset) returns."
            )
        self._fetch = fetch
        self._length = len(dataset)
        self._seed = _whole("seed", seed)
        self._window = max(1, self._length)
        if window is not None:
            self._window = _whole("window", window)
        if self._window < 1:
            raise OptionError(f"window={window} must be at least 1, or None.")
        self.entropy: float | None = None

    def __call__(self, order: Indices, position: int) -> Indices:
        """Return the order that follows the order ``order``."""
        if len(order) != self._length:
            raise OptionError(
                f"ResidentFirst was made for {self._length} samples; this order has "
                f"{len(order)}."
            )
        # A sampler gets the order before, not the number of the epoch.  That order keys
        # the shuffle, so no state is needed for new orders after a resume.
        before = hashlib.blake2b(np.asarray(order, np.int64).tobytes())
        before.update(b"%d" % self._seed)
        key = int.from_bytes(before.digest(), "little")
        drawn = np.random.default_rng(key).permutation(self._length)
        here = self._fetch.held()[drawn]
        self.entropy = entropy(here, self._window)
        # By window, then local samples first; otherwise `lexsort` keeps the order.
        windows = np.arange(self._length) // self._window
        return drawn[np.lexsort((~here, windows))]


def _whole(name: str, value: object) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise OptionError(f"{name}={value!r:.60} must be a whole number.")
    return int(value)


def entropy(here: NDArray[np.bool_], window: int) -> float:
    """Return the randomness of an order with local samples first in each window.

    It is 1 for a uniform shuffle.  ``here`` says which samples are local.  In a window
    of n samples, k of them local, n over k shuffles give the same order.
    """
    # ``lgamma(n + 1)`` is the logarithm of n factorial, the number of shuffles.
    total = lgamma(len(here) + 1)
    lost = 0.0
    for start in range(0, len(here), window):
        part = here[start : start + window]
        n = len(part)
        k = int(part.sum())
        of_all = lgamma(n + 1)
        of_local = lgamma(k + 1)
        of_others = lgamma(n - k + 1)
        lost += of_all - of_local - of_others
    if total:
        return 1 - lost / total
    return 1.0
