"""How fast would the trainer be if data cost nothing?  Found out by giving it batches that it has had before."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError

_KEPT = 8


@dataclass(frozen=True, slots=True)
class Headroom:
    """Steps a second, with data as they come and with those that are there.

    Attributes:
        steps_per_s: with batches from the source.
        most_steps_per_s: with batches that have been kept.
    """

    steps_per_s: float
    most_steps_per_s: float

    @property
    def times(self) -> float:
        """How many times as fast the trainer could be at the most."""
        return self.most_steps_per_s / self.steps_per_s

    def __str__(self) -> str:
        return (
            f"{self.steps_per_s:.3g} steps/s, and {self.most_steps_per_s:.3g} with data for nothing: "
            f"{self.times:.2f} times as many"
        )


def headroom(
    source: Iterable[Any],
    step: Callable[[Any], object],
    seconds: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Headroom:
    """Call ``step`` with batches of ``source`` for a while, then as long with some of those again.

    The first batches are not timed.  ``source`` may end early; what ``step`` learns, it learns from few batches again
    and again, so give it a model that may be thrown away.

    >>> found = headroom([1, 2, 3] * 1000, lambda batch: sum(range(1000)), seconds=0.05)
    >>> found.most_steps_per_s > 0
    True
    """
    batches, kept = iter(source), []
    for batch in itertools.islice(batches, _KEPT):
        kept.append(batch)
        step(batch)
    if len(kept) < 2:
        raise OptionError(f"the source gave {len(kept)} batches; some more are needed.")
    return Headroom(_rate(batches, step, seconds, clock), _rate(itertools.cycle(kept), step, seconds, clock))


def _rate(batches: Iterable[Any], step: Callable[[Any], object], seconds: float, clock: Callable[[], float]) -> float:
    """Steps a second."""
    count, began = 0, clock()
    for batch in batches:
        step(batch)
        count += 1
        if clock() - began >= seconds:
            break
    if not count:
        raise OptionError(f"the source ended after its first {_KEPT} batches; some more are needed.")
    return count / (clock() - began)
