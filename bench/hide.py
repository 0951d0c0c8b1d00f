"""When does loading disappear behind the training step?

Tests the capacity model of the article on ImageNet.

    python bench/hide.py --out bench/results/hide.json

What reading, transforming and collating a batch takes in one process predicts what it
takes with w workers on c cores: the larger of time / w and processor time / c. That is
then measured, at full speed ("loading") and beside a step of 40 ms that sleeps, as a
GPU leaves the processor alone ("training"). The fewest workers with which the step
waits for less than 5 % of its length hide loading. The article: 1.7 s in one process
(read 1.5, transform 0.25, collate 0.07), 566 and 425 ms predicted for three and four
workers, 580 and 440 measured; a step of 654 ms hides behind four, nearly behind three.
Beside a step workers note what they fetched, in a file each, by the machine's one
monotonic clock: a timeline.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from driver import (
    Answer,
    Curves,
    Experiment,
    Summary,
    Turn,
    command_line,
    conduct,
    median,
    number,
)
from measuring import consume, flowing, warm_up
from subjects import SUBJECTS

import mpiter
from mpiter import machine
from mpiter.samples.batch import collate

BATCH_SIZE = 32
STEP_S = 0.040
WAITS = 0.05
MOST = max(4, machine.cores())
SPLIT = "one process"
LOADING = "loading"
TRAINING = "training"
ROWS = {
    SPLIT: "read, transform and collate, one after the other",
    **{
        f"{LOADING}, {count}": f"{count} workers, as fast as they can"
        for count in range(1, MOST + 1)
    },
    **{
        f"{TRAINING}, {count}": f"{count} workers beside a step"
        for count in range(1, MOST + 1)
    },
}
PUBLISHED_MS = {1: 1700.0, 3: 580.0, 4: 440.0}
# A timeline shows so many steps.
SHOWN = 8
ENTRY = struct.Struct("<qdd")
# A span has begin, end, kind and label.
Span = tuple[float, float, str, str]


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    how, _, count = turn.row.partition(", ")
    dataset = SUBJECTS[turn.case]()
    if how == SPLIT:
        return split(turn, dataset)
    measure = loading if how == LOADING else training
    return measure(turn, dataset, int(count))


def split(turn: Turn, dataset: Any) -> Answer:
    position = 0
    spent = {"read_ms": 0.0, "transform_ms": 0.0, "collate_ms": 0.0}

    def one_batch() -> None:
        nonlocal position
        begin = time.perf_counter()
        raw = [dataset.read(index) for index in range(position, position + BATCH_SIZE)]
        read = time.perf_counter()
        samples = [dataset.transform(sample) for sample in raw]
        transformed = time.perf_counter()
        collate(samples)
        end = time.perf_counter()
        for name, seconds in zip(
            spent, (read - begin, transformed - read, end - transformed), strict=True
        ):
            spent[name] += seconds
        position += BATCH_SIZE

    warm_up(one_batch, turn.warmup_s)
    spent.update(dict.fromkeys(spent, 0.0))
    cpu = time.process_time()
    batches, _ = consume(one_batch, turn.seconds, 2)
    cpu_ms = 1e3 * (time.process_time() - cpu) / batches
    found = {name: 1e3 * seconds / batches for name, seconds in spent.items()}
    return {"batch_ms": sum(found.values()), **found, "cpu_ms": cpu_ms}


def batches_of(dataset: Any, workers: int) -> Any:
    return mpiter.batches(
        dataset, BATCH_SIZE, epochs=None, shuffle=False, n_processes=workers, seed=0
    )


def loading(turn: Turn, dataset: Any, workers: int) -> Answer:
    transfer = batches_of(dataset, workers).next
    transfer()
    count, seconds, cpu = flowing(transfer, turn.warmup_s, turn.seconds, timed=4)
    return {"batch_ms": 1e3 * seconds / count, **cpu.ms(count)}


def training(turn: Turn, dataset: Any, workers: int) -> Answer:
    """Measure loading beside a step.

    `lanes` has what consumer and workers did in the last few steps.
    """
    spans: list[Span] = []
    with tempfile.TemporaryDirectory(prefix="mpiter-bench-") as folder:
        batches = batches_of(Noted(dataset, folder), workers)

        def step() -> None:
            begin = time.monotonic()
            next(batches)
            arrived = time.monotonic()
            time.sleep(STEP_S)
            spans.extend(
                [(begin, arrived, "wait", ""), (arrived, time.monotonic(), "step", "")]
            )

        step()
        warm_up(step, turn.warmup_s)
        spans.clear()
        count, seconds = consume(step, turn.seconds, 4)
        batches.close()
        waited = sum(end - begin for begin, end, kind, _ in spans if kind == "wait")
        return {
            "batch_ms": 1e3 * seconds / count,
            "wait_ms": 1e3 * waited / count,
            "lanes": lanes(spans, Path(folder)),
        }


# -- the timeline ----------------------------------------------------------------------


class Noted:
    """A dataset whose workers write down when they fetched what."""

    def __init__(self, dataset: Any, folder: str) -> None:
        self._dataset = dataset
        self._folder = folder
        self._file = -1

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        begin = time.monotonic()
        sample = self._dataset[index]
        if self._file < 0:
            path = os.path.join(self._folder, f"{os.getpid()}.fetched")
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._file, ENTRY.pack(index, begin, time.monotonic()))
        return sample


def lanes(consumer: list[Span], folder: Path) -> list[Any]:
    """Return the last few steps, in seconds from their beginning."""
    shown = consumer[-2 * SHOWN :]
    left = shown[0][0]
    right = shown[-1][1]
    workers = [fetched(file) for file in sorted(folder.glob("*.fetched"))]
    found = []
    for name, spans in [
        ("consumer", shown),
        *((f"worker {at}", spans) for at, spans in enumerate(workers)),
    ]:
        seen = [span for span in spans if span[1] > left and span[0] < right]
        found.append(
            [
                name,
                [
                    [max(b, left) - left, min(e, right) - left, kind, says]
                    for b, e, kind, says in seen
                ],
            ]
        )
    return found


def fetched(file: Path) -> list[Span]:
    """Return the spans of fetched rows.

    Those of one batch that followed one another are joined.
    """
    data = file.read_bytes()
    spans = list[Span]()
    for index, begin, end in ENTRY.iter_unpack(
        data[: len(data) // ENTRY.size * ENTRY.size]
    ):
        label = f"batch {index // BATCH_SIZE}"
        if spans and spans[-1][3] == label and begin - spans[-1][1] < 1e-3:
            spans[-1] = (spans[-1][0], end, "fetch", label)
        else:
            spans.append((begin, end, "fetch", label))
    return spans


# -- the model, and what it says -------------------------------------------------------


def predicted_ms(summary: Summary, case: str, workers: int) -> float | None:
    batch_ms, cpu_ms = (
        median(summary, case, SPLIT, figure) for figure in ("batch_ms", "cpu_ms")
    )
    if batch_ms is None or cpu_ms is None:
        return None
    return max(batch_ms / workers, cpu_ms / min(workers, machine.cores()))


def says(summary: Summary) -> Iterator[str]:
    for case in SUBJECTS:
        pairs = {
            count: predicted_ms(summary, case, count) for count in range(1, MOST + 1)
        }
        for count, expected in pairs.items():
            found = median(summary, case, f"{LOADING}, {count}", "batch_ms")
            if expected and found:
                yield (
                    f"{case}, {count} workers: {number(expected)} ms a batch "
                    f"predicted, {number(found)} measured "
                    f"({found / expected - 1:+.0%})"
                )
        waits = {
            count: median(summary, case, f"{TRAINING}, {count}", "wait_ms")
            for count in pairs
        }
        hidden = [
            count
            for count, wait in waits.items()
            if wait is not None and wait <= WAITS * 1e3 * STEP_S
        ]
        wanted = [
            count
            for count, expected in pairs.items()
            if expected and expected <= 1e3 * STEP_S
        ]
        if any(wait is not None for wait in waits.values()) and any(pairs.values()):
            yield (
                f"{case}: {min(wanted, default='no number of')} workers should hide "
                f"loading behind a step of {1e3 * STEP_S:g} ms by the model, "
                f"{min(hidden, default='none')} did"
            )


def curves(summary: Summary) -> Iterator[Curves]:
    for case in dict.fromkeys(case for case, _ in summary):
        measured = list[tuple[float, ...]]()
        predicted = list[tuple[float, ...]]()
        for count in range(1, MOST + 1):
            if found := summary.get((case, f"{LOADING}, {count}"), {}).get("batch_ms"):
                measured.append((count, *found.point))
            if (expected := predicted_ms(summary, case, count)) is not None:
                predicted.append((count, expected))
        lines = {
            "measured": measured,
            "predicted": predicted,
            "a step": [(1, 1e3 * STEP_S), (MOST, 1e3 * STEP_S)],
        }
        yield Curves(
            f"{case}: time of a batch by workers",
            "workers",
            "ms a batch",
            lines,
            ["predicted", "a step"],
        )
    theirs = {
        "measured": list(PUBLISHED_MS.items()),
        "predicted": [(count, PUBLISHED_MS[1] / count) for count in range(1, 5)],
        "a step": [(1, 654.0), (4, 654.0)],
    }
    yield Curves(
        "Published: ImageNet, batches of 128",
        "workers",
        "ms a batch",
        theirs,
        list(theirs),
    )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={
        name: f"{subject.says}, batches of {BATCH_SIZE}"
        for name, subject in SUBJECTS.items()
    },
    rows=ROWS,
    figures={
        "batch_ms": "ms a batch",
        "wait_ms": "of it waited",
        "read_ms": "read",
        "transform_ms": "transform",
        "collate_ms": "collate",
        "cpu_ms": "CPU",
    },
    take=take,
    says=says,
    curves=curves,
    default_cases=("store",),
    small={"rows": [SPLIT, f"{TRAINING}, 2"]},
)


if __name__ == "__main__":
    sys.exit(
        conduct(
            EXPERIMENT, command_line(EXPERIMENT, warmup=0.5, timeout=60.0, seconds=2.5)
        )
    )
