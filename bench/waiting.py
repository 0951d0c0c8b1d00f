"""Samples that wait: several under way in one worker, beside many workers.

    python bench/waiting.py --python-torch PATH --out bench/results/waiting.json
    python bench/waiting.py --small  # a smoke test, never a conclusion

`sleeping`: each sample takes 20 ms, of which the processor has nothing to do.  `store`:
samples of 1,000 bytes come over HTTP from a store on this machine that takes 20 ms for
each (`bench/slow_store.py`, whose own processor time isn't counted), by threads or by
`async def __getitem__`.  `tail`: one sample in five takes 100 ms and the others 5, in
order.  Batches of 16.  Processor time is that of all the loader's processes; memory
counts each page once.  Must: with 16 samples under way one worker reads at least 0.9 of
the 800 samples a second that there can be, and as many as eight workers without.  Exit
status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from driver import (
    Answer,
    Claim,
    Experiment,
    Summary,
    Turn,
    at_least,
    command_line,
    conduct,
    median,
)
from measuring import CpuWindow, MemoryWatch, consume, cpu_s, descendants, warm_up
from slow_store import LATENCY_S, Remote, serving

from mpiter import machine

BATCH = 16
SAMPLES = 1_000_000
# Bytes of a file: the store's bandwidth is none of what is measured.
BYTES = 1000
TAIL_S = (0.005, 0.1)
UNDER_WAY = 16
# What 16 samples under way can come to.
MOST_PER_S = UNDER_WAY / LATENCY_S

RATE = "samples_per_s"
CPU = "cpu_ms"
MEMORY = "mb"
FIGURES = {RATE: "samples/s", CPU: "processor ms/batch", MEMORY: "MB"}
CASES = {
    "sleeping": "each sample waits for 20 ms",
    "store": "samples from an HTTP store that takes 20 ms each",
    "tail": "one sample in five waits for 100 ms, the others for 5, in order",
}


class Sleeping:
    """Each sample takes so long as its number says."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        # Those that take long come evenly, whatever the order is.
        time.sleep(self.seconds[index % 5 == 0 and len(self.seconds) > 1])
        return np.full(64, index, np.int32)


class AsyncRemote:
    """The files of a store, by connections that coroutines share."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: list[Any] = []

    def __len__(self) -> int:
        return SAMPLES

    async def __getitem__(self, index: int) -> Any:
        if not self.free:
            self.free.append(await asyncio.open_connection("127.0.0.1", self.port))
        reader, writer = self.free.pop()
        writer.write(f"GET /{index}.bin HTTP/1.1\r\nHost: store\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split()[0])
        data = await reader.readexactly(size)
        self.free.append((reader, writer))
        return index, np.frombuffer(data, np.uint8)


def ours(dataset: Any, workers: int, **options: Any) -> Callable[[], object]:
    """Return a function that takes a batch of ours."""
    import mpiter

    stream = mpiter.batches(
        dataset, BATCH, n_processes=workers, epochs=None, seed=0, **options
    )
    return stream.next


def torchs(dataset: Any, workers: int) -> Callable[[], object]:
    """Return a function that takes a batch of torch's."""
    import torch

    loader = torch.utils.data.DataLoader(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        # They take longer than torch waits before it warns.
        timeout=60,
    )
    batches = iter(loader)
    return lambda: next(batches)


# How many workers a row has, and how many samples each has under way.
OURS = {
    "1 worker, 16 under way": (1, UNDER_WAY),
    "8 workers": (8, None),
    "1 worker": (1, None),
    "2 workers": (2, None),
    "2 workers, 16 under way": (2, UNDER_WAY),
    "threads, 1": (1, 1),
    "threads, 16": (1, 16),
    "threads, 256": (1, 256),
    "async, 1": (1, 1),
    "async, 16": (1, 16),
    "async, 256": (1, 256),
}
TORCHS = {"torch, 2 workers": 2, "torch, 16 workers": 16}
WAYS = {
    "sleeping": (*[*OURS][:3], *TORCHS),
    "store": (*[*OURS][5:], "8 workers", *TORCHS),
    "tail": ("2 workers", "2 workers, 16 under way", *TORCHS),
}


def take(turn: Turn) -> Answer:
    with contextlib.ExitStack() as stack:
        dataset: Any
        stores = set[int]()
        if turn.case == "sleeping":
            dataset = Sleeping(LATENCY_S)
        elif turn.case == "tail":
            dataset = Sleeping(*TAIL_S)
        else:
            port = stack.enter_context(serving(BYTES))
            # Its store is a process below this one, and none of the loader's.
            stores = descendants(os.getpid())
            dataset = Remote(port, SAMPLES)
            if turn.row.startswith("async"):
                dataset = AsyncRemote(port)
        if turn.row in TORCHS:
            transfer = torchs(dataset, TORCHS[turn.row])
        else:
            workers, under_way = OURS[turn.row]
            transfer = ours(dataset, workers, concurrency=under_way)
        transfer()
        window = CpuWindow()
        warm_up(transfer, turn.warmup_s, 4)
        window.start()
        before = sum(map(seconds_of, stores))
        count, seconds = consume(transfer, turn.seconds)
        of_stores = sum(map(seconds_of, stores)) - before
        cpu = window.stop()
        with MemoryWatch() as everyone:
            for _ in range(3):
                transfer()
        of_all = everyone.most - sum(map(machine.own_bytes, stores))
        spent = cpu.parent_s + cpu.workers_s - of_stores
        return {
            RATE: BATCH * count / seconds,
            CPU: 1e3 * spent / count,
            MEMORY: of_all / 1e6 if everyone.most else None,
        }


def seconds_of(pid: int) -> float:
    """Return the seconds of processor that a process has had."""
    return cpu_s(pid) or 0.0


def claims(summary: Summary) -> Iterator[Claim]:
    one = median(summary, "sleeping", "1 worker, 16 under way", RATE)
    eight = median(summary, "sleeping", "8 workers", RATE)
    share = one and one / MOST_PER_S
    yield at_least("sleeping", "one worker, of what there can be", share, 0.9)
    yield at_least("sleeping", "one worker", one and eight and one / eight, 1.0, " x 8")
    for row in ("threads, 16", "async, 16"):
        found = median(summary, "store", row, RATE)
        eight = median(summary, "store", "8 workers", RATE)
        yield at_least("store", row, found and eight and found / eight, 1.0, " x 8")
    ours_two = median(summary, "tail", "2 workers, 16 under way", RATE)
    theirs = median(summary, "tail", "torch, 2 workers", RATE)
    both = ours_two and theirs and ours_two / theirs
    yield at_least("tail", "two workers", both, 1.0, " x torch")


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows={row: row for row in (*OURS, *TORCHS)},
    figures=FIGURES,
    take=take,
    claims=claims,
    rows_of=lambda case: [*WAYS[case]],
    environment=lambda row, case: "torch" if row in TORCHS else "ours",
    small={"cases": ["sleeping"], "rows": ["1 worker, 16 under way"]},
)


if __name__ == "__main__":
    # Threads of a library would be counted as the loader's.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(
        conduct(
            EXPERIMENT, command_line(EXPERIMENT, warmup=1.0, timeout=120.0, rounds=3)
        )
    )
