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

from ..engine.pilot import Setting
from .bracket import Trials

ALPHA, ITERATIONS = 0.5, 100


def nwt(
    trials: Trials,
    most: int,
    alpha: float = ALPHA,
    iterations: int = ITERATIONS,
    memory_bytes: float = math.inf,
    n_prefetch: int = 2,
) -> tuple[Setting, str]:
    """The setting that the greedy rule takes, and why; numbers that took more memory than allowed are passed over.

    A number is taken if ``iterations`` batches take more than ``alpha`` seconds less than with the number taken so
    far: of about as fast ones the fewest workers, and the least memory, are kept.  The paper speaks of mean times; on
    the mean of a batch 0.5 s would always choose 0, so the rule compares the seconds of all batches together.
    """
    settings = [Setting(workers, n_prefetch) for workers in range(most + 1)]
    tried = [one for one in settings if trials.take(one)]
    fitting = [one for one in tried if trials.bytes(one) <= memory_bytes]
    chosen = fitting[0] if fitting else min(tried, key=trials.bytes)
    for one in fitting:
        if trials.batch_s(chosen) - trials.batch_s(one) > alpha / iterations:
            chosen = one
    why = [f"none of the others saves more than {alpha:g} s of {iterations} batches"]
    why += ["some take more memory than allowed"] * (len(fitting) < len(tried))
    why += ["the budget ended the search"] * trials.is_over
    return chosen, "; ".join(why)
