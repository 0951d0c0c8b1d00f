"""What it costs to move a sample from a worker: six ways, six kinds of samples, any number of workers.

`take` runs in the process that is measured, everything else in the driver, on values.
Guarantees: what is timed is `next()` and a look at each sample, in full flow; the first batch counts from the
construction of the iterator; the first batches are compared with the dataset, bit for bit, outside the timed part;
memory is watched in a stretch of its own after the timed one, since looking at it takes time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import mpiter

from ..asked import at_least
from ..samples.batch import collate
from .carriers import Pickle, Pickle5, RawArray, measured
from .clocks import MemoryWatch
from .payloads import DISTINCT, PAYLOADS, Endless, Payload, array_bytes, same
from .results import Result, Row
from .text import Telling, median, number, point, some, times
from .turns import Answer, Turn, consume, flowing, numbers
from .views import Bar, Bars, Lines, Series, Table, View

NAME = "overhead"
HEADING = "What moving a sample costs"
ABOUT = (
    "Workers fetch samples that cost little, so that what remains is the way from the worker to the consumer. "
    "Slots are rows of a shared batch, written in place; packed rows travel in the Pool's answers; pickle, pickle5 "
    "and rawarray are the ways of others, written against the same interface and run by the same engine."
)
TRANSPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "slots": ("written in place into shared memory, handed out as views", {"serializer": "slots"}),
    "slots, copy": ("the same, handed out as private copies", {"serializer": "slots", "copy": True}),
    "packed": ("rows packed by the worker, sent along with the answer", {"serializer": "packed"}),
    "pickle": ("plain pickle through map_async", {"serializer": Pickle}),
    "pickle5": ("pickle protocol 5, all samples at once, arrays out of band", {"serializer": Pickle5}),
    "rawarray": ("as Chainer does it: packed into a shared block, copied out", {"serializer": RawArray}),
}
COPIES = {  # passes over an array in our own memory, from the code; what the kernel copies is measured
    "slots": 1,  # into its row
    "slots, copy": 2,  # and out of it
    "packed": 1,  # into a buffer; the kernel does the rest
    "pickle": 2,  # into the pickle | out of it
    "pickle5": 6,  # to bytes, into the Pool's pickle | out of the pipe, together, out of the pickle, to a bytearray
    "rawarray": 2,  # into the block, out of it; where it has none, it is pickle
}
FULL: dict[str, Any] = {"payloads": list(PAYLOADS), "transports": list(TRANSPORTS), "workers": [1, 2, 4]}
SMALL: dict[str, Any] = {"payloads": ["28x28", "3x64x64"], "transports": list(TRANSPORTS), "workers": [2]}
SECONDS, WARMUP_S, SMALL_SECONDS = 0.8, 0.4, 0.15
_WARM = 24  # batches before the clock runs, so that memory has been touched
_LEAST = 40  # …and while it does: many beside those that workers have written ahead
_FETCHED = 20  # batches that are fetched and dropped
preparing = nullcontext  # nothing is needed
CLAIM = "3x224x224"  # where the article's claim is looked at first: a batch of images
PUBLISHED = "The article on Chainer says that pickling costs an order of magnitude more than packing"


def arguments(add: Callable[..., Any]) -> None:
    add("--payloads", nargs="+", choices=PAYLOADS, metavar="PAYLOAD", help=f"of {', '.join(PAYLOADS)}")
    add("--transports", nargs="+", choices=TRANSPORTS, metavar="TRANSPORT", help=f"of {', '.join(TRANSPORTS)}")
    add("--workers", nargs="+", type=at_least(0), metavar="N", help="numbers of workers")
    add("--columns", action="store_true", help="read batches stacked, as batches() gives them, not as lists of samples")


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    for payload in options.payloads:
        for workers in options.workers:
            for row in options.transports:
                at, how = {"workers": workers}, {"columns": True} if options.columns else {}
                yield Turn(NAME, row, payload, at, options.seconds, options.warmup, options.seed, how)


def take(turn: Turn) -> Answer:
    payload = PAYLOADS[turn.case]
    dataset = payload.dataset(turn.seed)
    _, options = TRANSPORTS[turn.row]
    fetch_ms = fetching_ms(dataset, payload.batch_size)
    begin = time.perf_counter()
    read: Any = mpiter.batches if turn.options.get("columns") else mpiter.MultiprocessIterator
    it = read(
        dataset,
        payload.batch_size,
        shuffle=False,
        n_processes=turn.workers,
        n_prefetch=2,
        seed=turn.seed,
        **options,
    )
    batch = next(it)
    first_batch_s = time.perf_counter() - begin
    problems = differences(batch, dataset, payload, it)

    def take_one() -> None:
        for _ in next(it):
            pass

    batches, seconds, cpu = flowing(take_one, turn.warmup_s, turn.seconds, warm=_WARM, timed=_LEAST)
    with MemoryWatch() as memory:
        consume(take_one, turn.seconds / 4)
    problems += cpu.problems
    size = payload.batch_size * sum(array_bytes(dataset[index]) for index in range(DISTINCT)) / DISTINCT
    piped = cpu.piped / batches
    figures = {
        "batches_per_s": batches / seconds,
        "mb_per_s": size * batches / seconds / 1e6,
        **cpu.ms(batches),
        "fetch_ms": fetch_ms,
        "payload_mb": size / 1e6,
        "copied_mb": (copies(turn, dataset) * size + 2 * piped) / 1e6 if payload.is_arrays else None,
        "piped_mb": piped / 1e6,
        "peak_mb": memory.most / 1e6 if memory.most else None,
        "first_batch_s": first_batch_s,
    }
    return numbers(figures) | {"problems": problems}


def copies(turn: Turn, dataset: Endless) -> int:
    """Passes over the arrays; without workers samples are handed on, or placed in a batch of ours."""
    if not turn.workers:
        return COPIES[turn.row] if turn.row.startswith("slots") else int(turn.row == "packed")
    is_pickled = turn.row == "rawarray" and not measured(dataset[0])
    return COPIES["pickle" if is_pickled else turn.row]


def fetching_ms(dataset: Endless, batch_size: int) -> float:
    """Processor time of fetching a batch and doing nothing with it: part of every row."""
    begin = time.process_time()
    for index in range(_FETCHED * batch_size):
        dataset[index]
    return 1e3 * (time.process_time() - begin) / _FETCHED


def differences(batch: Any, dataset: Endless, payload: Payload, it: Any) -> list[str]:
    """What of the first two batches is not what the dataset says."""
    found = []
    for start in (0, payload.batch_size):
        batch = next(it) if start else batch
        sent = [dataset[index] for index in range(start, start + payload.batch_size)]
        if not isinstance(batch, mpiter.Batch):
            found += [] if same(collate(sent), batch) else [f"the batch of samples {start}… arrived changed"]
            continue
        pairs = enumerate(zip(sent, batch, strict=True), start)
        found += [f"sample {index} arrived changed" for index, (one, other) in pairs if not same(one, other)]
    return found[:3]


# -- what it says ----------------------------------------------------------------------------------------------------


def tell(result: Result) -> Telling:
    telling = Telling()
    payloads, workers = result.values_of("case"), result.values_of("workers")
    if not payloads:
        return telling
    at = 2 if 2 in workers else workers[-1]
    first = CLAIM if CLAIM in payloads else payloads[-1]
    slots, pickle, raw = (result.find(row, first, workers=at) for row in ("slots", "pickle", "rawarray"))
    of_raw, of_slots = result.ratio(pickle, raw, "cpu_ms"), result.ratio(pickle, slots, "cpu_ms")
    telling.conclude(
        f"plain pickling costs {times(of_raw)} the CPU of packing as Chainer does it, and {times(of_slots)} that of "
        f"packing into slots ({_where(first, at)}).",
        of_raw,
        of_slots,
    )
    for payload in payloads:
        _against_pickle(result, telling, payload, at)
    return telling


def _against_pickle(result: Result, telling: Telling, payload: str, at: float) -> None:
    slots, pickle = (result.find(row, payload, workers=at) for row in ("slots", "pickle"))
    dearer, cheaper = result.ratio(pickle, slots, "cpu_ms"), result.ratio(slots, pickle, "cpu_ms")
    if dearer and dearer.median >= 1:
        telling.conclude(f"{_where(payload, at)}: pickling costs {times(dearer)} the CPU of slots.", dearer)
    else:
        telling.conclude(f"{_where(payload, at)}: slots cost {times(cheaper)} the CPU of pickling.", cheaper)


def _where(payload: str, workers: float) -> str:
    about = PAYLOADS[payload]
    return f"{about.says}, batches of {about.batch_size}, {some(workers, 'worker')}"


def views(result: Result) -> tuple[View, ...]:
    tables = [_table(result, payload) for payload in result.values_of("case")]
    return (_costs(result), *_speeds(result), *tables)


def _costs(result: Result) -> Bars:
    workers = result.values_of("workers")
    at = 2 if 2 in workers else (workers or [0])[-1]
    groups = []
    for payload in result.values_of("case"):
        rows = [row for row in result.rows if row.case == payload and row.at["workers"] == at]
        groups.append((payload, tuple(map(_bar, rows))))
    return Bars(
        f"Processor time of a batch, {some(at, 'worker')}",
        "ms",
        ("consumer", "workers"),
        tuple(groups),
        "Medians; the kernel's clocks of the consumer's process and of the workers. Each payload has its own scale. "
        f"{PUBLISHED}.",
    )


def _bar(row: Row) -> Bar:
    low, high = row["cpu_ms"].edges or (None, None)
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
    rows = [row for row in result.rows if row.case == payload]
    cells = [
        {
            "transport": row.row,
            "workers": number(row.at["workers"]),
            "batches/s": median(row["batches_per_s"]),
            "MB/s": median(row["mb_per_s"]),
            "consumer's CPU ms/batch": median(row["parent_cpu_ms"]),
            "workers' CPU ms/batch": median(row["workers_cpu_ms"]),
            "CPU against slots": times(result.ratio(row, result.find("slots", payload, **row.at), "cpu_ms")),
            "MB copied/batch": median(row.get("copied_mb")),
            "MB in pipes/batch": median(row.get("piped_mb")),
            "peak MB": median(row.get("peak_mb")),
            "first batch s": median(row.get("first_batch_s")),
        }
        for row in rows
    ]
    batch = PAYLOADS[payload]
    size, fetching = (median(rows[0][name]) for name in ("payload_mb", "fetch_ms"))
    return Table.of(
        f"{payload}: {batch.says}; {batch.batch_size} a batch, {size} MB; fetching it takes {fetching} ms",
        cells,
        "MB copied: passes over the arrays in the program's memory, counted from the code, and two for each byte in a "
        "pipe, which is measured. Peak: of all processes together, each page once.",
    )
