"""The Num Worker Tuner (Synn and Kim), as published: every number of workers from 0 on, greedily.

Pure.  A number is taken if ``iterations`` batches take more than ``alpha`` seconds less than with the number taken so
far: of about as fast ones the fewest workers, and the least memory, are kept.  The paper speaks of mean times; on the
mean of a batch 0.5 s would always choose 0, so the rule compares the seconds of all batches together.
"""

from __future__ import annotations

import math

from ..engine.pilot import Setting
from .bracket import Choice
from .trials import Notes

ALPHA, ITERATIONS = 0.5, 100


def nwt(
    notes: Notes,
    most: int,
    alpha: float = ALPHA,
    iterations: int = ITERATIONS,
    memory_bytes: float = math.inf,
    n_prefetch: int = 2,
) -> Choice:
    """The number that the greedy rule takes; numbers that took more memory than allowed are passed over."""
    chosen: Setting | None = None
    passed_over = False
    for workers in range(most + 1):
        setting = Setting(workers, n_prefetch)
        if not notes.take(setting):
            break
        if (notes.bytes(setting) or 0) > memory_bytes:
            passed_over = True
        elif chosen is None or notes.batch_s(chosen) - notes.batch_s(setting) > alpha / iterations:
            chosen = setting
    why = [f"none of the others saves more than {alpha:g} s of {iterations} batches"]
    if chosen is None:
        chosen, why = (
            min(notes.of, key=lambda one: notes.bytes(one) or 0),
            ["every number takes more memory than allowed"],
        )
    elif passed_over:
        why.append("some take more memory than allowed")
    if notes.over:
        why.append("the budget ended the search")
    return Choice(chosen, "; ".join(why))
