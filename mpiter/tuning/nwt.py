"""The Num Worker Tuner of Synn and Kim, as published: every number of workers from 0 on, greedily.

Their table, of CIFAR-10 in batches of 128 on a Threadripper 3970X with 32 cores:

=============  =======  ===========  ============  =======  =======
workers        0        14 (chosen)  16 (fastest)  32       63
seconds        14.25    1.49         1.41          1.55     2.21
memory (MB)    2757.84  2025.32      2055.37       2275.36  2773.60
=============  =======  ===========  ============  =======  =======
"""

from __future__ import annotations

from ..engine.pilot import Setting
from .bracket import Measure, Row, Trials


def nwt(
    measure: Measure, most: int, alpha: float = 0.5, iterations: int = 100, n_prefetch: int = 2
) -> tuple[int, list[Row]]:
    """The number of workers that the greedy rule takes, up to ``most``, and what was measured.

    A number is taken if ``iterations`` batches take more than ``alpha`` seconds less than with the number taken so
    far: of about as fast ones the fewest workers, and the least memory, are kept.  The paper speaks of mean times; on
    the mean of a batch 0.5 s would always choose 0, so the rule compares the seconds of all batches together.

    >>> from mpiter.tuning.tune import Loading
    >>> workers, table = nwt(Loading(range(10_000), 64, {}, least=10), most=1, iterations=10)
    >>> [row.workers for row in table]
    [0, 1]
    """
    trials, chosen = Trials(measure), Setting(0, n_prefetch)
    for workers in range(most + 1):
        setting = Setting(workers, n_prefetch)
        trials.take(setting)
        if iterations * (trials.batch_s(chosen) - trials.batch_s(setting)) > alpha:
            chosen = setting
    return chosen.workers, [trials.row(setting) for setting in trials.of]
