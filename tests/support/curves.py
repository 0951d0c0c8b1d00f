"""Loads of which the seconds a batch are known for every number of workers.

``Fake`` measures them with noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from mpiter.tuning.bracket import Trial

Curve = Callable[[int], float]


def curves(most: int) -> Iterator[Curve]:
    """Yield curves that are flat, saturating, convex, or falling to a point.

    In some of them, workers don't take over a part of the time.
    """
    yield lambda workers: 1.0
    yield lambda workers: 1.0 + 0.1 * workers
    for best in (1, 2, 3, 5, 6, 7, 8, 11, 13, 16, 24, 31, 48, 64):
        if best > most:
            break
        for rest in (0.0, 0.005, 0.03, 0.1):

            def saturating(workers: int, best: int = best, rest: float = rest) -> float:
                if not workers:
                    return 1.0
                return rest + 1.05 * max(1 / workers, 1 / best)

            def convex(workers: int, best: int = best, rest: float = rest) -> float:
                if not workers:
                    return 1.0
                return rest + 1 / workers + workers / best**2

            def pointed(workers: int, best: int = best, rest: float = rest) -> float:
                if not workers:
                    return 1.0
                shared = max(1 / workers, 1 / best)
                return rest + shared + max(0, workers - best) / best**2

            yield from (saturating, convex, pointed)


class Fake:
    """Measures a curve.

    A trial costs the time that it lasts, and the start of each worker.
    """

    def __init__(
        self,
        curve: Curve,
        noise: float = 0.0,
        seed: int = 0,
        bytes_of: Callable[[int], int] | None = None,
        start_s: float = 0.0,
        disturbed: int | None = None,
        trial_s: float = 50.0,
    ) -> None:
        self._curve = curve
        self._noise = noise
        self._random = random.Random(seed)
        self._bytes_of = bytes_of
        self._start_s = start_s
        self._disturbed = disturbed
        self._trial_s = trial_s
        self.tried: list[int] = []
        self.costs: list[float] = []

    def __call__(self, workers: int, limit_s: float) -> Trial:
        batch_s = self._curve(workers) * math.exp(self._random.gauss(0, self._noise))
        if len(self.tried) == self._disturbed:
            batch_s *= 3
        start_s = self._start_s * workers
        within = math.inf
        if limit_s < math.inf:
            within = max(1, math.floor((limit_s - start_s) / batch_s))
        batches = min(math.ceil(self._trial_s / batch_s), within)
        self.tried.append(workers)
        self.costs.append(start_s + batch_s * batches)
        used = 0 if self._bytes_of is None else self._bytes_of(workers)
        return Trial(batch_s, used, self.costs[-1])
