"""What it costs to move a sample from a worker: six ways, six kinds of samples, any number of workers.

`take` runs in the process that is measured, everything else in the driver, on values.
Guarantees: what is timed is `next()` and a look at each sample, in full flow; the first batch counts from the
construction of the iterator; the first batches are compared with the dataset, bit for bit, outside the timed part;
memory is taken in a stretch of its own after the timed one, since looking at it takes time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mpiter

from .asked import at_least
from .carriers import Pickle, Pickle5, RawArray
from .clocks import CpuWindow, tree_memory
from .payloads import PAYLOADS, Endless, Payload, array_bytes, same
from .results import Result, Row
from .text import Telling, median, number, point, times
from .turns import Answer, Turn, consume, numbers, quietly
from .views import Bar, Bars, Lines, Series, Table, View

NAME = "overhead"
HEADING = "What moving a sample costs"
ABOUT = (
    "Workers fetch samples that cost next to nothing, so that what remains is the way from the worker to the consumer. "
    "Slots are rows of a shared batch, written in place; packed rows travel in the Pool's answers; pickle, pickle5 "
    "and rawarray are the ways of others, written against the same interface and run by the same engine."
)
TRANSPORTS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "slots": ("written in place into shared memory, handed out as views", lambda: {"serializer": "slots"}),
    "slots, copy": ("the same, handed out as private copies", lambda: {"serializer": "slots", "copy": True}),
    "packed": ("rows packed by the worker, sent along with the answer", lambda: {"serializer": "packed"}),
    "pickle": ("plain pickle through map_async", lambda: {"serializer": Pickle()}),
    "pickle5": ("pickle protocol 5, arrays out of band, one envelope a sample", lambda: {"serializer": Pickle5()}),
    "rawarray": ("as Chainer does it: packed into a shared block, copied out", lambda: {"serializer": RawArray()}),
}
COPIES = {  # passes over an array in our own memory, from the code; what the kernel copies is measured
    "slots": 1,  # into its row
    "slots, copy": 2,  # and out of it
    "packed": 6,  # into a buffer, to bytes, into the Pool's pickle | out of the pipe, out of the pickle, into the batch
    "pickle": 4,  # to bytes, into the pickle | out of the pipe, out of the pickle
    "pickle5": 6,  # into an envelope, to bytes, into the pickle | out of the pipe, out of the pickle, to a bytearray
    "rawarray": 2,  # into the block, out of it
}
FULL: dict[str, Any] = {"payloads": list(PAYLOADS), "transports": list(TRANSPORTS), "workers": [1, 2, 4]}
SMALL: dict[str, Any] = {"payloads": ["28x28", "3x64x64"], "transports": list(TRANSPORTS), "workers": [2]}
SECONDS, WARMUP_S, SMALL_SECONDS = 0.8, 0.4, 0.15
_WARM, _LEAST = 24, 10  # batches before the clock runs, as many as may be on their way, and while it does
_LOOKS = 6  # at the memory
CLAIM = "3x224x224"  # where the article's claim is looked at first: a batch of images


def arguments(add: Callable[..., Any]) -> None:
    add("--payloads", nargs="+", choices=PAYLOADS, metavar="PAYLOAD", help=f"of {', '.join(PAYLOADS)}")
    add("--transports", nargs="+", choices=TRANSPORTS, metavar="TRANSPORT", help=f"of {', '.join(TRANSPORTS)}")
    add("--workers", nargs="+", type=at_least(0), metavar="N", help="numbers of workers")


def preparing(options: argparse.Namespace) -> AbstractContextManager[None]:
    return nullcontext()


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    for payload in options.payloads:
        for workers in options.workers:
            for row in options.transports:
                yield Turn(NAME, row, payload, {"workers": workers}, options.seconds, options.warmup, options.seed)


def take(turn: Turn) -> Answer:
    payload = PAYLOADS[turn.case]
    dataset = payload.dataset(turn.seed)
    _, options = TRANSPORTS[turn.row]
    begin = time.perf_counter()
    it = mpiter.MultiprocessIterator(
        dataset,
        payload.batch_size,
        shuffle=False,
        n_processes=turn.workers,
        n_prefetch=2,
        seed=turn.seed,
        **options(),
    )
    batch = next(it)
    first_batch_s = time.perf_counter() - begin
    problems = differences(batch, dataset, payload, it)

    def take_one() -> None:
        for _ in next(it):
            pass

    quietly(take_one, turn.warmup_s, _WARM)
    window = CpuWindow()
    window.start()
    batches, seconds = consume(take_one, turn.seconds, _LEAST)
    cpu = window.stop()
    peak = peak_memory(take_one, turn.seconds)
    size = payload.batch_size * array_bytes(dataset[0])
    piped = cpu.piped / batches
    figures = numbers(
        {
            "batches_per_s": batches / seconds,
            "mb_per_s": size * batches / seconds / 1e6,
            "cpu_ms": 1e3 * (cpu.parent_s + cpu.workers_s) / batches,
            "parent_cpu_ms": 1e3 * cpu.parent_s / batches,
            "workers_cpu_ms": 1e3 * cpu.workers_s / batches,
            "payload_mb": size / 1e6,
            "copied_mb": (COPIES[turn.row] * size + 2 * piped) / 1e6,
            "piped_mb": piped / 1e6,
            "peak_mb": peak / 1e6,
            "first_batch_s": first_batch_s,
        }
    )
    return figures | {"problems": problems}


def differences(batch: list[Any], dataset: Endless, payload: Payload, it: Any) -> list[str]:
    """What of the first two batches is not what the dataset says."""
    found = []
    for start in (0, payload.batch_size):
        samples = enumerate(batch if not start else next(it), start)
        found += [f"sample {index} arrived changed" for index, sample in samples if not same(dataset[index], sample)]
    return found[:3]


def peak_memory(take_one: Callable[[], None], seconds: float) -> int:
    most = 0
    for _ in range(_LOOKS):
        consume(take_one, seconds / 8 / _LOOKS)
        most = max(most, tree_memory())
    return most


# -- what it says ----------------------------------------------------------------------------------------------------


def tell(result: Result) -> Telling:
    telling = Telling()
    payloads, workers = result.values_of("case"), result.values_of("workers")
    if not payloads:
        return telling
    first = CLAIM if CLAIM in payloads else payloads[-1]
    at = 2 if 2 in workers else workers[0]
    for payload in dict.fromkeys([first, *payloads]):
        slots, pickle, raw = (result.find(row, payload, workers=at) for row in ("slots", "pickle", "rawarray"))
        ratio, against_raw = result.ratio(pickle, slots, "cpu_ms"), result.ratio(raw, slots, "cpu_ms")
        where = f"{PAYLOADS[payload].says}, batches of {PAYLOADS[payload].batch_size}, {at} workers"
        sentence = f"plain pickling costs {times(ratio)} the CPU of packing into slots ({where})"
        telling.conclude(sentence + ".", ratio)
        if payload == first:
            telling.conclude(
                f"packing as Chainer does it costs {times(against_raw)} that of slots ({where}).", against_raw
            )
    return telling


def views(result: Result) -> tuple[View, ...]:
    tables = [_table(result, payload) for payload in result.values_of("case")]
    return (_costs(result), *_speeds(result), *tables)


def _costs(result: Result) -> Bars:
    workers = result.values_of("workers")
    at = 2 if 2 in workers else (workers or [0])[0]
    groups = []
    for payload in result.values_of("case"):
        rows = [row for row in result.rows if row.case == payload and row.at["workers"] == at]
        groups.append((payload, tuple(map(_bar, rows))))
    return Bars(
        f"Processor time of a batch, {at} workers",
        "ms",
        ("consumer", "workers"),
        tuple(groups),
        "Medians; the kernel's clocks of the consumer's process and of the workers. Each payload has its own scale.",
    )


def _bar(row: Row) -> Bar:
    low, high = row["cpu_ms"].quartiles or (None, None)
    parts = row["parent_cpu_ms"].median, row["workers_cpu_ms"].median
    return Bar(row.row, parts, f"{median(row['cpu_ms'])} ms", low, high)


def _speeds(result: Result) -> Iterator[Lines]:
    if len(result.values_of("workers")) < 2:
        return
    for payload in result.values_of("case"):
        series = []
        for name in result.values_of("row"):
            rows = [row for row in result.rows if (row.row, row.case) == (name, payload)]
            series.append(Series(name, tuple(point(row.at["workers"], row["batches_per_s"]) for row in rows)))
        yield Lines(f"Batches a second: {PAYLOADS[payload].says}", "workers", "batches/s", tuple(series))


def _table(result: Result, payload: str) -> Table:
    rows = []
    for row in (row for row in result.rows if row.case == payload):
        slots = result.find("slots", payload, **row.at)
        rows.append(
            (
                row.row,
                number(row.at["workers"]),
                *(median(row[name]) for name in ("batches_per_s", "mb_per_s", "parent_cpu_ms", "workers_cpu_ms")),
                times(result.ratio(row, slots, "cpu_ms")),
                *(median(row[name]) for name in ("copied_mb", "piped_mb", "peak_mb", "first_batch_s")),
            )
        )
    batch = PAYLOADS[payload]
    size = next((row["payload_mb"].median for row in result.rows if row.case == payload), 0.0)
    return Table(
        f"{payload}: {batch.says}; {batch.batch_size} a batch, {number(size)} MB",
        (
            "transport",
            "workers",
            "batches/s",
            "MB/s",
            "consumer's CPU ms/batch",
            "workers' CPU ms/batch",
            "CPU against slots",
            "MB copied/batch",
            "MB in pipes/batch",
            "peak MB",
            "first batch s",
        ),
        tuple(rows),
        "MB copied: passes over the arrays in the program's memory, counted from the code, and two for each byte in a "
        "pipe, which is measured. Peak: of all processes together, each page once.",
    )
