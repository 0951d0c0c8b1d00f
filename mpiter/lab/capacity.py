"""The capacity model of the ImageNet article: how long a batch takes with so many workers.

Pure.  A batch takes so much time in one process, of which so much is processor time; with `w` workers on `c` cores it
takes the larger of time / w and processor time / c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one process takes for a batch, and how much of it is processor time."""

    batch_ms: float
    cpu_ms: float
    cores: int

    def predicted_ms(self, workers: int) -> float:
        return max(self.batch_ms / workers, self.cpu_ms / min(workers, self.cores))

    def fewest(self, step_ms: float) -> int | None:
        """Workers that load a batch while a step runs; None where no number does."""
        if self.cpu_ms / self.cores > step_ms:
            return None
        least = max(1, math.ceil(self.batch_ms / step_ms))
        return max(least, math.ceil(self.cpu_ms / step_ms))
