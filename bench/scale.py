"""How far one prefetch loop goes: its processor time a task with 2 to 64 workers, most of them asleep; tables and JSON.

    python bench/scale.py --out bench/results/scale.json
    python bench/scale.py --small                           # one short round: a smoke test, never a conclusion

A batch is a few small samples and a sleep, which stands for the work of cores that this machine hasn't got; it takes
long enough to be a task of its own and short enough not to be split, which the tasks a batch confirm. Once the sleeps
are such that the loop has time to spare, once as short as may be.
Guarantees that the time is that of the loop's thread alone, by its own clock, in full flow: all workers have fetched.
What one loop can serve, its time a task says on paper: here it shares two cores with the workers and the consumer.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import numpy as np
from cases import Array, Images
from driver import Experiment, Turn, command_line, conduct
from measuring import CpuWindow, consume

import mpiter

THREAD = "mpiter-prefetch"
BATCH, SHAPE = 8, (8, 8)
WORKERS = (2, 8, 32, 64)
CALM_PER_S = 1000  # tasks, if sleeps of at most so long let that few come…
SHORTEST_S, LONGEST_S = 0.0015, 0.025  # …between what is worth a task and what would be split (engine/cutting.py)
CASES = {str(workers): f"{workers} workers" for workers in WORKERS}
ROWS = {
    "calm": f"{CALM_PER_S} tasks a second if no sleep exceeds {LONGEST_S * 1e3:g} ms",
    "saturated": f"sleeps of {SHORTEST_S * 1e3:g} ms: more tasks than the machine can bear",
}
FIGURES = {
    "loop_us_per_task": "loop us/task",
    "loop_serves_tasks_per_s": "serves tasks/s",
    "tasks_per_s": "came",
    "loop_busy": "loop busy",
    "parent_us_per_task": "parent us",
    "workers_us_per_task": "workers us",
    "tasks_per_batch": "tasks/batch",
}


def sleep_s(row: str, workers: int) -> float:
    return SHORTEST_S if row == "saturated" else min(max(SHORTEST_S, workers / CALM_PER_S), LONGEST_S)


class Sleepy(Images):
    """Small images, whose batches in order take as long as a sleep; the label is who fetched it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(SHAPE)
        self.seconds = seconds

    def __getitem__(self, index: int) -> tuple[Array, np.int64]:
        if index % BATCH == 0:
            time.sleep(self.seconds)
        return super().__getitem__(index)[0], np.int64(os.getpid())


class Loading:
    """An iterator at work, and the clock of its loop."""

    def __init__(self, row: str, workers: int) -> None:
        self._iterator = mpiter.MultiprocessIterator(
            Sleepy(sleep_s(row, workers)),
            BATCH,
            shuffle=False,
            n_processes=workers,
            n_prefetch=2,
            run_ahead=4 * workers,  # what is done and waits for its turn holds nobody up
        )
        fetchers: set[int] = set()
        while len(fetchers) < workers:
            fetchers.update(self.next().columns[1].tolist())
        (thread,) = [thread for thread in threading.enumerate() if thread.name == THREAD]
        assert thread.ident is not None
        self._clock = time.pthread_getcpuclockid(thread.ident)

    def next(self) -> Any:
        return next(self._iterator)

    def loop_s(self) -> float:
        return time.clock_gettime(self._clock)

    def tasks(self) -> int:
        return self._iterator.stats().tasks


def take(turn: Turn) -> dict[str, Any]:
    """Measures, in this process."""
    loading = Loading(turn.row, int(turn.case))
    window = CpuWindow()
    consume(loading.next, turn.warmup_s)
    window.start()
    loop_s, tasks = loading.loop_s(), loading.tasks()
    batches, seconds = consume(loading.next, turn.seconds)
    loop_s, tasks = loading.loop_s() - loop_s, loading.tasks() - tasks
    cpu = window.stop()
    return {
        "loop_us_per_task": 1e6 * loop_s / tasks,
        "loop_serves_tasks_per_s": tasks / loop_s,
        "tasks_per_s": tasks / seconds,
        "loop_busy": loop_s / seconds,
        "parent_us_per_task": 1e6 * cpu.parent_s / tasks,
        "workers_us_per_task": 1e6 * cpu.workers_s / tasks,
        "tasks_per_batch": tasks / batches,
        "sleep_s": sleep_s(turn.row, int(turn.case)),
    }


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures=FIGURES,
    take=take,
    small={"cases": ["2"]},
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=1.0, timeout=90.0)))
