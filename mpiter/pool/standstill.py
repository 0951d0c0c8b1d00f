"""Do all workers wait, perhaps for each other?  A pure decision from the notice board and the processor time they use.

Runs in the consumer's thread while it waits for a batch.  Guarantees that a worker which computes, starts or gets on
with its samples is never taken for one that waits, and that what waits is told of once.  That it waits for the others
nobody can see from here, nor for how long it would have waited for a disk: what is said must be true of either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from .. import machine
from ..worker.board import Line

LIMIT_S = 10.0


def processor_time(pid: int) -> int:
    """Of a process, or of a thread of this one, in whatever the system counts in; 0 where it isn't told."""
    return sum(map(int, (machine.stat_of(f"self/task/{pid}") or machine.stat_of(pid))[11:13]))


class Standstill:
    """Of all workers of an iterator."""

    def __init__(self, used: Callable[[int], int] = processor_time, is_here: bool = True) -> None:
        """``is_here``: they are processes or threads of this machine, which says what they use."""
        self._used = used
        self._seen: Sequence[tuple[Line, int]] = ()
        self._since = self._waited = 0.0
        self._is_told = not (is_here and os.path.exists("/proc/self/stat"))  # nobody says what they use

    def is_seen(self, lines: Sequence[Line], waited: float) -> bool:
        """Have they all stood still long enough?  ``waited``: seconds that the consumer has waited for this batch."""
        if self._is_told or not all(line.ready for line in lines) or not any(line.active for line in lines):
            self._seen = ()
            return False
        now = [(line, self._used(line.pid)) for line in lines]
        if now != self._seen or waited < self._waited:
            self._seen, self._since = now, waited
        self._waited = waited
        self._is_told = waited - self._since >= LIMIT_S
        return self._is_told


def advice(doings: str) -> str:
    """What is to be said."""
    return (
        f"for {LIMIT_S:.0f} s no worker has got on with its sample, nor used the processor; {doings or 'all wait'}. "
        f"They wait for a disk or a network, or samples wait for each other (a Barrier in dataset[i]): then note that "
        f"workers share the samples of a batch, and that the first one is fetched alone. With mpiter.DataLoader(..., "
        f"collate_fn=..., prefetch_factor=2) each worker has batches of its own."
    )
