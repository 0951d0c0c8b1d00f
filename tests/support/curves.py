"""Loads whose truth is known: seconds a batch by the number of workers, and a measure
of them with noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from mpiter.tuning.bracket import Trial

Curve = Callable[[int], float]


def curves(most: int) -> Iterator[Curve]:
    """Flat, saturating, convex and falling to a point, with a part that workers don't
    take over.
    """
    yield lambda workers: 1.0
    yield lambda workers: 1.0 + 0.1 * workers
    for best in (
        count
        for count in (1, 2, 3, 5, 6, 7, 8, 11, 13, 16, 24, 31, 48, 64)
        if count <= most
    ):
        for rest in (0.0, 0.005, 0.03, 0.1):

            def saturating(workers: int, best: int = best, rest: float = rest) -> float:
                return rest + 1.05 * max(1 / workers, 1 / best) if workers else 1.0

            def convex(workers: int, best: int = best, rest: float = rest) -> float:
                return rest + 1 / workers + workers / best**2 if workers else 1.0

            def pointed(workers: int, best: int = best, rest: float = rest) -> float:
                return (
                    rest + max(1 / workers, 1 / best) + max(0, workers - best) / best**2
                    if workers
                    else 1.0
                )

            yield from (saturating, convex, pointed)


class Fake:
    """Measures a curve: a trial costs what it lasts, and more for the start of each
    worker.
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
        self._curve, self._noise, self._random = curve, noise, random.Random(seed)
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
        within = (
            max(1, math.floor((limit_s - start_s) / batch_s))
            if limit_s < math.inf
            else math.inf
        )
        self.tried.append(workers)
        self.costs.append(
            start_s + batch_s * min(math.ceil(self._trial_s / batch_s), within)
        )
        used = 0 if self._bytes_of is None else self._bytes_of(workers)
        return Trial(batch_s, used, self.costs[-1])
