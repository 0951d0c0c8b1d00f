"""What was measured of a load: parts between two looks, a setting's parts together, and whether the load has changed.

Pure: values, and functions of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..engine.pilot import Setting

FEW = 4  # parts to judge by, at least
_OUTLIER = 3.0  # times the usual: a pause of the consumer's
_SHIFT = 0.3  # by which service or steps change when the load has…
_MATTERS = 0.1  # …if that is at least such a part of all of it…
_WAITS_MORE = 0.15  # …or the share of waiting…
_SURE = 4.0  # …in standard errors


@dataclass(frozen=True, slots=True)
class Part:
    """What has happened between two looks."""

    batches: int
    seconds: float
    wait_s: float  # of them, by the consumer
    busy_s: float  # by all workers together…
    core_s: float  # …and of that, on a core or waiting for one

    @property
    def own_s(self) -> float:
        """The consumer's own seconds for a batch."""
        return max(self.seconds - self.wait_s, 0.0) / self.batches

    @property
    def service_s(self) -> float:
        """The workers' seconds for a batch."""
        return self.busy_s / self.batches

    @property
    def waits(self) -> float:
        """How much of the time the consumer waited."""
        return min(1.0, self.wait_s / self.seconds) if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Measured:
    """A setting, and the parts that show how it does."""

    setting: Setting
    parts: tuple[Part, ...]

    @cached_property
    def _regular(self) -> tuple[Part, ...]:
        """Without a pause of the consumer's, while it validates, say."""
        usual = statistics.median(part.own_s for part in self.parts)
        if len(self.parts) < FEW:
            return self.parts
        return tuple(part for part in self.parts if part.own_s <= _OUTLIER * usual) or self.parts

    def _sum(self, of: Callable[[Part], float]) -> float:
        return sum(map(of, self._regular))

    @cached_property
    def batch_s(self) -> float:
        """Seconds from one batch to the next."""
        return max(self._sum(lambda part: part.seconds), 1e-9) / self._sum(lambda part: part.batches)

    @cached_property
    def error(self) -> float:
        """By how much of itself that may be wrong: a standard error."""
        parts = self._regular
        if len(parts) < 2:
            return 1.0
        return statistics.stdev([part.seconds / part.batches for part in parts]) / math.sqrt(len(parts)) / self.batch_s

    @cached_property
    def service_s(self) -> float:
        """The workers' seconds for a batch."""
        return self._sum(lambda part: part.busy_s) / self._sum(lambda part: part.batches)

    @cached_property
    def spread(self) -> float:
        """Of what the workers take for a batch, from part to part, as a part of it."""
        taken = [part.service_s for part in self._regular]
        return statistics.stdev(taken) / max(statistics.fmean(taken), 1e-9) if len(taken) > 1 else 1.0

    @cached_property
    def waits(self) -> float:
        """How much of the time the consumer waited."""
        return min(1.0, self._sum(lambda part: part.wait_s) / max(self._sum(lambda part: part.seconds), 1e-9))

    @cached_property
    def busy(self) -> float:
        """How much of the time a worker was busy."""
        return self._sum(lambda part: part.busy_s) / max(self._sum(lambda part: part.seconds), 1e-9) / self.workers

    @cached_property
    def blocked(self) -> float:
        """How much of the time that workers were busy they waited for something else than a core: a disk, a network."""
        return max(0.0, 1 - self._sum(lambda part: part.core_s) / max(self._sum(lambda part: part.busy_s), 1e-9))

    @property
    def workers(self) -> int:
        return self.setting.workers

    @property
    def enough(self) -> float:
        """Workers that the model asks for: a part needs its service over its steps; here, most of them together."""
        own_s = self._sum(lambda part: part.own_s * part.batches) / self._sum(lambda part: part.batches)
        needs = [part.service_s / max(own_s, 1e-9) for part in self._regular]
        return statistics.fmean(needs) + (statistics.stdev(needs) if len(needs) > 1 else 0.0)


def has_shifted(usual: Sequence[Part], recent: Sequence[Part], workers: int) -> str:
    """Is the load another one?  What has changed, if anything has; what takes next to no time may do as it likes."""
    batch_s = sum(part.seconds for part in usual) / sum(part.batches for part in usual)
    for name, of, whole in (
        ("a batch takes the workers", lambda part: part.service_s, workers * batch_s),
        ("a step takes the consumer", lambda part: part.own_s, batch_s),
    ):
        before = statistics.fmean(map(of, usual))
        least = max(_SHIFT * before, _MATTERS * whole)
        if before > 0 and _is_beyond(list(map(of, usual)), list(map(of, recent)), least):
            return f"{name} {statistics.fmean(map(of, recent)) / before:.1f} times what it took"
    if _is_beyond([part.waits for part in usual], [part.waits for part in recent], _WAITS_MORE):
        return "the consumer's share of waiting"
    return ""


def _is_beyond(usual: Sequence[float], recent: Sequence[float], least: float) -> bool:
    """Are all recent values further away, on one side, than is usual?"""
    mean = statistics.fmean(usual)
    away = [value - mean for value in recent]
    if not (all(one > least for one in away) or all(one < -least for one in away)):
        return False
    spread = statistics.stdev(usual) * math.sqrt(1 / len(usual) + 1 / len(recent))
    return abs(statistics.fmean(away)) > _SURE * spread
