"""How often samples come, epoch by epoch: as the user says, or as measured when the epoch's first sample is asked for.

Used by the consumer and by the prefetch thread, whichever is first at an epoch.  Guarantees that an epoch's factor
stays what it was when it was chosen, and that it is logged then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from statistics import median
from typing import Literal

MOST = 4  # beyond that repeats lose their value (Choi et al. 2019)
_RECENT = 64  # batches

_log = logging.getLogger("mpiter")


class Factors:
    """Of one iterator's epochs."""

    def __init__(self, factor: float | Literal["auto"]) -> None:
        self._fixed = None if factor == "auto" else float(factor)
        self._chosen: dict[int, float] = {}  # guarded by _lock:
        self._lock = threading.Lock()
        self._sample_s = 0.0  # upstream: until there is one more fresh sample
        self._row_s: deque[float] = deque(maxlen=_RECENT)  # downstream: with each row of a batch
        self._handed_out: tuple[float, int] | None = None  # when the consumer got the last batch, and how many rows

    @property
    def is_known(self) -> bool:
        """Is it the same in all epochs?"""
        return self._fixed is not None

    def begin(self, epoch: int, factor: float | None) -> None:
        """Go on from this epoch, whose factor may have been chosen before."""
        self._handed_out = None
        with self._lock:
            self._chosen = {at: chosen for at, chosen in self._chosen.items() if at <= epoch}
            if factor is not None:
                self._chosen[epoch] = max(1.0, factor)

    def of(self, epoch: int) -> float:
        """The factor of an epoch: chosen now, if nobody has asked before."""
        if self._fixed is not None:
            return self._fixed
        with self._lock:
            if epoch not in self._chosen:
                before = max((at for at in self._chosen if at < epoch), default=None)
                self._chosen[epoch] = self._measured() or (1.0 if before is None else self._chosen[before])
                self._chosen.pop(epoch - 3, None)
                _log.info("echo: every sample of epoch %d comes %.2f times", epoch, self._chosen[epoch])
            return self._chosen[epoch]

    def _measured(self) -> float | None:
        row_s = median(recent) if (recent := tuple(self._row_s)) else 0.0
        if not (row_s and self._sample_s):
            return None
        _log.info("echo: fetching a sample takes %.3g ms, training on it %.3g ms", 1e3 * self._sample_s, 1e3 * row_s)
        return round(min(max(self._sample_s / row_s, 1.0), float(MOST)), 2)

    # -- measuring -----------------------------------------------------------------------------------------------

    def asked(self, sample_s: float) -> None:
        """The consumer wants a batch; fetching takes that long for each sample, shared among the workers."""
        self._sample_s = sample_s
        if self._handed_out is not None:
            since, rows = self._handed_out
            self._row_s.append((time.monotonic() - since) / rows)
            self._handed_out = None

    def gave(self, rows: int) -> None:
        """A batch of so many rows is ready."""
        self._handed_out = time.monotonic(), max(rows, 1)
