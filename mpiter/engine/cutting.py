"""How much work goes into one task: a pure decision from the measured time of a sample.

Handing a task over costs half a millisecond of processor time on both sides together, whatever is in it, for whoever is
woken finds the caches full of others' data; fetching a small sample costs a microsecond or two.  So cheap batches go
several to a task, as long as they are small, others one, and dear ones are split over the workers so that none waits
long for the others.  Guarantees work for every worker: never so much in one task that others idle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..pool.pool import MOST_OUT
from ..rules import DEAR_S

WORTHWHILE_S = 8e-3  # bench/transport.py: below this the hand-over shows, above it little is gained
WORTHWHILE_BYTES = 1 << 25  # more in a task takes memory that large batches need anyway, and no cache holds it
PARTS = 2  # a dear batch is split, in equal parts of at most so much of what makes it dear
MOST_BATCHES = 16  # to a task
_PATIENCE = 4  # a task may take so many times as long as expected before what is left of it is cut again
_BUDGETS = 10  # at least so much of what makes a batch dear is the budget of any task


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of tasks, at the moment."""

    rows: int  # in a task
    budget_ns: int
    batches: int  # on their way when every worker has all the tasks that it may have


PROBE = Sizes(rows=1, budget_ns=10**15, batches=1)  # the first sample, before anything is known


def cut(
    sample_s: float, batch_size: int, workers: int, most_batches: int, together: int, dear_s: float = DEAR_S
) -> Sizes:
    """The sizes for samples of ``sample_s`` seconds each, ``most_batches`` on their way and so many ``together``."""
    tasks = MOST_OUT * workers
    batch_s = max(sample_s * batch_size, 1e-9)
    share = -(-batch_size // workers)  # a worker's, of one batch
    if batch_s > dear_s:
        rows = min(-(-batch_size // math.ceil(PARTS * batch_s / dear_s)), share)
    elif most_batches < workers:  # too few for one each
        rows = share
    else:
        several = min(MOST_BATCHES, together, int(WORTHWHILE_S / batch_s), most_batches // (tasks + 1))
        rows = batch_size * max(1, several)
        tasks += several > 1  # the batches of one are being consumed while the next is cut
    budget = max(dear_s / _BUDGETS, _PATIENCE * rows * sample_s)
    return Sizes(rows, int(budget * 1e9), min(most_batches, -(-tasks * rows // batch_size)))
