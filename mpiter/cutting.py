"""How much work goes into one task: a pure decision from the measured time of a sample.

Handing a task over costs about a millisecond of processor time in all, whatever is in it; fetching a small sample costs
microseconds.  So cheap batches go several to a task, middling ones one, and dear ones are split over the workers so
that none waits long for the others.  Guarantees work for every worker: never so much in one task that others idle.
"""

from __future__ import annotations

from dataclasses import dataclass

WORTHWHILE_S = 8e-3  # bench/transport.py: below this the hand-over shows, above it nothing is gained
DEAR_S = 30e-3  # a batch that takes longer is split, in parts of…
PART_S = 20e-3  # with pictures of a millisecond each, parts of 10 ms cost a tenth more processor time
MOST_BATCHES = 16  # to a task…
HOT_BYTES = 1 << 27  # …and no more in flight than this, since memory used again while it is cached is cheaper
TASKS_PER_WORKER = 2  # one in hand, one waiting in the pipe
_PATIENCE = 4  # a task may take so many times as long as expected before what is left of it is cut again
_LEAST_BUDGET_S = 10e-3
_SLACK = 4  # of the hot bytes, this part may be filled while everybody waits for a slow sample


@dataclass(frozen=True, slots=True)
class Cut:
    """The sizes of the moment."""

    rows: int  # in a task
    budget_ns: int
    tasks: int  # in flight at the most
    batches: int  # on their way: what these tasks amount to, or more if they are small


PROBE = Cut(rows=1, budget_ns=10**15, tasks=1, batches=1)  # the first sample, before anything is known


def cut(sample_s: float, batch_size: int, workers: int, most_batches: int, experience: int, room: int = 1) -> Cut:
    """The sizes for samples that take ``sample_s`` seconds each, with ``most_batches`` of ``room`` bytes on their way.

    ``experience`` is the number of tasks that this time was measured on: what one sample says is not relied upon.
    """
    tasks = TASKS_PER_WORKER * workers
    batch_s = max(sample_s * batch_size, 1e-9)
    share = -(-batch_size // workers)  # a worker's, of one batch
    if batch_s > DEAR_S:
        rows = min(max(1, round(PART_S / sample_s)), share)
    elif most_batches < workers:  # too few for one each
        rows = share
    else:
        fitting = min(most_batches, HOT_BYTES // max(room, 1)) // tasks
        group = min(MOST_BATCHES, experience, int(WORTHWHILE_S / batch_s), fitting)
        rows = batch_size * max(1, group)
    budget = max(_LEAST_BUDGET_S, _PATIENCE * rows * sample_s)
    needed, affordable = -(-tasks * rows // batch_size) + 1, HOT_BYTES // _SLACK // max(room, 1)
    return Cut(rows, int(budget * 1e9), tasks, min(most_batches, max(needed, affordable)))
