"""What it costs to move a sample from a worker: six ways, six kinds of samples.

    python3 bench  # some three minutes, and a page
    python bench/overhead.py --cases 3x224x224 --workers 4 --out overhead.json

Workers fetch samples that cost little, so that what remains is the way from the worker
to the consumer. Slots are rows of a shared batch, written in place; packed rows travel
in the workers' answers; pickle, pickle5 and rawarray are the ways of others
(`pickling.py`), run by the same engine. Aims: the article on Chainer says that pickling
costs an order of magnitude more processor time than packing. Guarantees: what is timed
is `next()` and a look at each sample, in full flow; the first batches are compared with
the dataset, bit for bit, outside the timed part; memory is watched after it, since
looking takes time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from driver import (
    Answer,
    Claim,
    Compared,
    Experiment,
    InShort,
    Summary,
    Turn,
    at_least,
    command_line,
    conduct,
    ratio,
)
from measuring import MemoryWatch, consume, flowing
from payloads import DISTINCT, PAYLOADS, Endless, Payload, array_bytes, same
from pickling import Pickle, Pickle5, RawArray, measured

import mpiter
from mpiter.samples.batch import collate

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "slots": (
        "mpiter's way: written in place into shared memory, handed out as views",
        {"serializer": "slots"},
    ),
    "slots, copy": (
        "the same, handed out as private copies",
        {"serializer": "slots", "copy": True},
    ),
    "packed": (
        "rows packed by the worker, sent along with the answer",
        {"serializer": "packed"},
    ),
    "pickle": ("plain pickle through map_async", {"serializer": Pickle}),
    "pickle5": (
        "pickle protocol 5, all samples at once, arrays out of band",
        {"serializer": Pickle5},
    ),
    "rawarray": (
        "as Chainer does it: packed into a shared block, copied out",
        {"serializer": RawArray},
    ),
}
# Passes over an array in our own memory, as the code says; what the kernel copies is
# measured.
COPIES = {
    "slots": 1,  # into its row
    "slots, copy": 2,  # and out of it
    # Into a buffer; the kernel does the rest.
    "packed": 1,
    "pickle": 2,  # into the pickle | out of it
    # To bytes, into the Pool's pickle | out of the pipe, together, out of the pickle,
    # to a bytearray.
    "pickle5": 6,
    # Into the block, out of it; where it has none, it is pickle.
    "rawarray": 2,
}
# Batches before the clock runs, and while it does: more than workers have written
# ahead.
WARM = 12
LEAST = 16
# So many batches are fetched and dropped to time the fetching.
FETCHED = 20
# Tuples of arrays, which is what Chainer packs.
CLAIMED = ("28x28", "3x64x64", "3x224x224")
FIGURES = {
    "batches_per_s": "batches/s",
    "mb_per_s": "MB/s",
    "cpu_ms": "CPU ms/batch",
    "parent_cpu_ms": "consumer's",
    "workers_cpu_ms": "workers'",
    "fetch_ms": "of it fetching",
    "copied_mb": "MB copied",
    "piped_mb": "MB in pipes",
    "peak_mb": "peak MB",
    "first_batch_s": "first batch s",
}


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    payload = PAYLOADS[turn.case]
    dataset = payload.dataset(0)
    fetch_ms = fetching_ms(dataset, payload.batch_size)
    begin = time.perf_counter()
    read: Any = mpiter.MultiprocessIterator
    if turn.options["columns"]:
        read = mpiter.batches
    options = {
        "n_processes": turn.workers,
        "n_prefetch": 2,
        "seed": 0,
        **ROWS[turn.row][1],
    }
    it = read(dataset, payload.batch_size, shuffle=False, **options)
    batch = next(it)
    first_batch_s = time.perf_counter() - begin
    problems = differences(batch, dataset, payload, it)

    def take_one() -> None:
        for _ in next(it):
            pass

    batches, seconds, cpu = flowing(
        take_one, turn.warmup_s, turn.seconds, warm=WARM, timed=LEAST
    )
    with MemoryWatch() as memory:
        consume(take_one, turn.seconds / 4)
    size = (
        payload.batch_size
        * sum(array_bytes(dataset[index]) for index in range(DISTINCT))
        / DISTINCT
    )
    piped = cpu.piped / batches
    copied_mb = None
    if payload.is_arrays:
        copied_mb = (copies(turn, dataset) * size + 2 * piped) / 1e6
    return {
        "batches_per_s": batches / seconds,
        "mb_per_s": size * batches / seconds / 1e6,
        **cpu.ms(batches),
        "fetch_ms": fetch_ms,
        "payload_mb": size / 1e6,
        "copied_mb": copied_mb,
        "piped_mb": piped / 1e6,
        "peak_mb": memory.most / 1e6 or None,
        "first_batch_s": first_batch_s,
        "problems": problems,
    }


def copies(turn: Turn, dataset: Endless) -> int:
    """Return the number of passes over the arrays.

    Without workers samples are handed on, or placed in a batch of ours.
    """
    if not turn.workers:
        if turn.row.startswith("slots"):
            return COPIES[turn.row]
        return int(turn.row == "packed")
    is_pickled = turn.row == "rawarray" and not measured(dataset[0])
    return COPIES["pickle" if is_pickled else turn.row]


def fetching_ms(dataset: Endless, batch_size: int) -> float:
    """Return the processor time of fetching a batch and doing nothing with it.

    It is part of every row.
    """
    begin = time.process_time()
    for index in range(FETCHED * batch_size):
        dataset[index]
    return 1e3 * (time.process_time() - begin) / FETCHED


def differences(batch: Any, dataset: Endless, payload: Payload, it: Any) -> list[str]:
    """Return what in the first two batches differs from the dataset."""
    found = []
    for start in (0, payload.batch_size):
        if start:
            batch = next(it)
        sent = [dataset[index] for index in range(start, start + payload.batch_size)]
        if not isinstance(batch, mpiter.Batch):
            if not same(collate(sent), batch):
                found.append(f"the batch of samples {start}… arrived changed")
            continue
        pairs = enumerate(zip(sent, batch, strict=True), start)
        found += [
            f"sample {index} arrived changed"
            for index, (one, other) in pairs
            if not same(one, other)
        ]
    return found[:3]


def claims(summary: Summary) -> Iterator[Claim]:
    for case in CLAIMED:
        for other in ("rawarray", "slots"):
            found = ratio(summary, case, "pickle", other, "cpu_ms")
            yield at_least(
                case,
                "pickle's CPU, as the article says,",
                found,
                10,
                f" x that of {other}",
                must=False,
            )


def in_short(summary: Summary) -> InShort:
    """Compare batches a second with what everybody's multiprocessing does."""
    lines = list[Compared]()
    for case in dict.fromkeys(case for case, _ in summary):
        rates = {
            row: summary.get((case, row), {}).get("batches_per_s")
            for row in ("slots", "pickle")
        }
        lines.append(Compared(EXPERIMENT.cases[case], rates["slots"], rates["pickle"]))
    return InShort(
        "In short: batches a second, the more the better", "pickled samples", lines
    )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={
        name: f"{payload.says}, batches of {payload.batch_size}"
        for name, payload in PAYLOADS.items()
    },
    rows={name: says for name, (says, _) in ROWS.items()},
    figures=FIGURES,
    take=take,
    claims=claims,
    bars=("parent_cpu_ms", "workers_cpu_ms"),
    unit="processor time, in milliseconds a batch: the less the better",
    in_short=in_short,
    against="slots",
    asked=("columns",),
    small={"cases": ["28x28"], "rows": ["slots", "pickle"]},
)


def main() -> int:
    parser = command_line(EXPERIMENT, warmup=0.2, timeout=60.0, seconds=0.5, rounds=3)
    parser.add_argument(
        "--columns",
        action="store_true",
        help="read batches stacked, not as lists of samples",
    )
    return conduct(EXPERIMENT, parser)


if __name__ == "__main__":
    sys.exit(main())
