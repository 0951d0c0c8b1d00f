"""The Num Worker Tuner of Synn and Kim, as published: every number of workers from 0 on, greedily.

Their table, of CIFAR-10 in batches of 128 on a Threadripper 3970X with 32 cores:

=============  =======  ===========  ============  =======  =======
workers        0        14 (chosen)  16 (fastest)  32       63
seconds        14.25    1.49         1.41          1.55     2.21
memory (MB)    2757.84  2025.32      2055.37       2275.36  2773.60
=============  =======  ===========  ============  =======  =======
"""

from __future__ import annotations

import math

from .bracket import Measure, Trial


def nwt(measure: Measure, most: int, alpha: float = 0.5, iterations: int = 100) -> tuple[int, list[Trial]]:
    """The number of workers that the greedy rule takes, and what was measured of each from 0 to ``most``.

    A number is taken if ``iterations`` batches take more than ``alpha`` seconds less than with the number taken so
    far: of about as fast ones the fewest workers, and the least memory, are kept.  The paper speaks of mean times; on
    the mean of a batch 0.5 s would always choose 0, so the rule compares the seconds of all batches together.

    >>> from mpiter.tuning.tune import Loading
    >>> workers, trials = nwt(Loading(range(10_000), 64, {}, least=10), most=1, iterations=10)
    >>> workers, len(trials)
    (0, 2)
    """
    trials, chosen = [measure(workers, math.inf) for workers in range(most + 1)], 0
    for workers, trial in enumerate(trials):
        if iterations * (trials[chosen].batch_s - trial.batch_s) > alpha:
            chosen = workers
    return chosen, trials
