"""Resident first: an order that, within each window, draws the samples that have a local copy before the others.

It is an order sampler, called in the thread that plans, or a loader's sampler.  It shuffles as mpiter does, then moves
the local samples of each window to its front, without other changes.  Guarantees that an epoch has each sample once,
and that the shuffle depends only on the seed and the order before, so that epochs after a resume get new orders.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from math import lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.columns import offered
from ..engine.options import whole
from ..errors import OptionError
from ..order.order import Indices, Shuffled
from ..order.state import number_of, typed
from .staging import StagedFetch


class ResidentFirst:
    """An ``order_sampler``, or a loader's ``sampler``, that draws samples with a local copy before the others.

    Args:
        dataset: a staged dataset, which ``Staging.of()`` returned.
        window: the number of samples by which one may be drawn earlier or later than shuffled. None: an epoch.
        seed: seed of the shuffle.

    Attributes:
        entropy: randomness of the last order: 1 for that of a uniform shuffle, None before the first order.

    >>> import tempfile
    >>> from mpiter.staging import ResidentFirst, Staging
    >>> class Numbers:
    ...     __len__ = lambda self: 6
    ...     source = lambda self, index: f"https://example.org/{index}"
    ...     fetch = lambda self, index: b"%d" % index
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     staged = Staging(folder, "1MB").of(Numbers())
    ...     kept = [staged.fetch(4), staged.fetch(5)]
    ...     sorted(list(ResidentFirst(staged))[:2])
    [4, 5]
    """

    def __init__(self, dataset: Any, window: int | None = None, seed: int = 0) -> None:
        whole("window", window, least=1, optional=True)
        whole("seed", seed)
        fetch = offered(dataset, "fetch")
        if not isinstance(fetch, StagedFetch):
            raise OptionError("resident first needs a dataset that is staged; pass what Staging(…).of(dataset) gives.")
        self._fetch, self._length, self._seed = fetch, len(dataset), int(seed)
        self._window = max(1, self._length) if window is None else int(window)
        self.entropy: float | None = None
        self._place = 0, 0, ""  # of a loader: epoch, samples given in it, which were local when it began
        self._goes_on = False  # True: the next epoch continues at _place, from a state

    def __call__(self, order: Indices, position: int) -> Indices:
        if len(order) != self._length:
            raise OptionError(f"resident first is for {self._length} samples, and the dataset has {len(order)}.")
        return self._drawn(order, self._fetch.held())

    def _drawn(self, before: Indices, held: NDArray[np.bool_]) -> Indices:
        """Return the order that follows the order ``before``; ``held`` says which samples are local."""
        key = hashlib.blake2b(np.asarray(before, np.int64).tobytes(), digest_size=12).digest()
        drawn = Shuffled(self._length, self._seed, int.from_bytes(key, "little")).array()
        here = held[drawn]
        self.entropy = entropy(here, self._window)
        return drawn[np.lexsort((~here, np.arange(self._length) // self._window))]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of a loader's epoch, whose number takes the place of the order before."""
        epoch, given, local = self._place if self._goes_on else (self._place[0] + bool(self._place[1]), 0, "")
        self._goes_on = False
        held = _unpacked(local, self._length) if local else self._fetch.held()
        local = base64.b64encode(np.packbits(held).tobytes()).decode()
        order = self._drawn(np.full(self._length, epoch), held).tolist()
        for at in range(given, self._length):
            self._place = epoch, at + 1, local
            yield order[at]

    def state_dict(self) -> dict[str, Any]:
        """Return the position in a loader's epochs, and which samples were local when the epoch began."""
        return dict(zip(("epoch", "given", "local"), self._place, strict=True))

    def load_state_dict(self, state: Any) -> None:
        """Have the next epoch continue from the position in ``state``."""
        given, local = number_of(state, "given", high=self._length), typed(state, "local", str)
        _unpacked(local, self._length)
        self._place, self._goes_on = (number_of(state, "epoch"), given, local), True


def _unpacked(local: str, length: int) -> NDArray[np.bool_]:
    bits = np.frombuffer(base64.b64decode(local, validate=True), np.uint8)
    return np.unpackbits(bits, count=length).astype(bool)


def entropy(here: NDArray[np.bool_], window: int) -> float:
    """Return the randomness of an order with local samples first in each window: 1 for that of a uniform shuffle.

    ``here`` says which are local.  In a window of n samples, k of them local, n over k shuffles give the same order.
    """
    total = lgamma(len(here) + 1)
    lost = 0.0
    for start in range(0, len(here), window):
        part = here[start : start + window]
        n, k = len(part), int(part.sum())
        lost += lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return 1 - lost / total if total else 1.0
