"""How many cores' worth of work 1, 2, … busy processes do together here: hyperthreads and neighbours make it fewer.

Measured by processes of their own that count for a fraction of a second; once for each process that asks.  And work
that takes longer where somebody shares the core, for trainers and datasets that are made up.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time

from .. import machine

_SECONDS = 0.25
_ROUNDS = 3
_ROUND, _TOGETHER = 100, 10
_TRY_S, _TRIES = 0.02, 5
_COUNTS = """
import sys, time
sys.stdin.readline()
count, end = 0, time.perf_counter() + float(sys.argv[1])
while time.perf_counter() < end:
    sum(range(500))
    count += 1
print(count)
"""


def most_workers(cores: int) -> int:
    """That are ever tried or advised: more than there are cores, since they may wait for others than the processor."""
    return max(8, 2 * cores)


@functools.cache
def measured() -> tuple[float, ...]:
    """Of 1, 2, … busy processes, up to the number of cores."""
    cores = machine.cores()
    tried = sorted({1, *(1 << power for power in range(cores.bit_length())), cores} - {0})
    tried = [count for count in tried if count <= cores]
    rounds = [[_counted(count) for count in tried] for _ in range(_ROUNDS)]  # interleaved: neighbours come and go
    best = [max(counts) for counts in zip(*rounds, strict=True)]
    found = [min(float(count), counted / best[0]) for count, counted in zip(tried, best, strict=True)]  # more is noise
    return tuple(_between(count, tried, found) for count in range(1, cores + 1))


def _counted(processes: int) -> int:
    """What so many count together, when they all begin at once."""
    command = [sys.executable, "-S", "-c", _COUNTS, str(_SECONDS)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return sum(int(process.communicate()[0]) for process in running)


def _between(count: int, tried: list[int], found: list[float]) -> float:
    """On the line between the nearest numbers that were tried; never less than fewer do."""
    above = next(at for at, each in enumerate(tried) if each >= count)
    if tried[above] == count:
        return max(found[: above + 1])
    below = above - 1
    share = (count - tried[below]) / (tried[above] - tried[below])
    return found[below] + share * max(0.0, found[above] - found[below])


def work(rounds: float) -> None:
    """Compute so much, however long it takes."""
    for _ in range(round(rounds)):
        sum(range(_ROUND))


def rounds_per_s() -> float:
    """What one thread does in a second of a core: as much as in the best of some short tries."""
    return max(_rounds_per_s() for _ in range(_TRIES))


def _rounds_per_s() -> float:
    count, began = 0, time.thread_time()
    while (seconds := time.thread_time() - began) < _TRY_S:
        work(_TOGETHER)
        count += _TOGETHER
    return count / seconds
