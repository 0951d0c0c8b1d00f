"""When does loading disappear behind the training step?  The capacity model of the ImageNet article, and its test.

`take` runs in the process that is measured, everything else in the driver, on values.
What the model (`capacity`) needs is measured in one process, through `read` and `transform`; what it predicts is then
measured with the workers, once at full speed and once beside a step that takes its time (by sleeping, as a GPU leaves
the processor alone).
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mpiter
from mpiter.samples.batch import collate

from .. import machine
from ..asked import above_zero, at_least
from . import pictures
from .capacity import Capacity
from .results import Result, Row
from .spreads import LEAST_ROUNDS
from .subjects import BUILT_IN, subject
from .text import NOTHING, Telling, median, number, point, some
from .turns import Absent, Answer, Turn, consume, flowing, numbers, warm_up
from .views import Bar, Bars, Lines, Point, Series, Span, Table, Timeline, View
from .watched import SHOWN, Stretch, lanes, watch, watched

NAME = "hide"
HEADING = "How many workers hide loading"
ABOUT = (
    "The ImageNet article's analysis: what reading, transforming and collating a batch takes in one process, what that "
    "predicts for any number of workers, what was then measured, and the fewest workers with which a training step of "
    "a given length waits no more."
)
SPLIT, LOADING, TRAINING = "split", "loading", "training"
PUBLISHED_MS = {1: 1700.0, 3: 580.0, 4: 440.0}  # a batch of 128 of ImageNet; the article's own theory: 566 and 425
WAITS = 0.05  # of the step: less, and loading counts as hidden
FULL: dict[str, Any] = {"dataset": "store", "batch_size": 32, "most": None, "step_ms": 40.0}
SMALL: dict[str, Any] = FULL | {"most": 3}
SECONDS, WARMUP_S, SMALL_SECONDS = 2.5, 0.5, 0.6


def arguments(add: Callable[..., Any]) -> None:
    add("--dataset", metavar="D", help=f"{', '.join(BUILT_IN)}, or module:function of your own with read and transform")
    add("--batch-size", type=at_least(1), metavar="B")
    add("--most", type=at_least(1), metavar="N", help="the largest number of workers (default: the cores, at least 4)")
    add("--step-ms", type=above_zero, metavar="MS", help="how long a training step takes")


@contextmanager
def preparing(options: argparse.Namespace) -> Iterator[None]:
    with (
        pictures.provided(options, options.dataset == "files"),
        tempfile.TemporaryDirectory(prefix="mpiter-lab-") as options.folder,
    ):
        yield


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    most = max(4, machine.cores()) if options.most is None else options.most
    about = {
        "batch_size": options.batch_size,
        "step_ms": options.step_ms,
        "paths": options.paths,
        "folder": options.folder,
    }
    places = [(SPLIT, 0), *((row, count) for row in (LOADING, TRAINING) for count in range(1, most + 1))]
    for row, workers in places:
        at = {"workers": workers}
        yield Turn(NAME, row, options.dataset, at, options.seconds, options.warmup, options.seed, about)


def take(turn: Turn) -> Answer:
    dataset = subject(turn.case, turn.seed, turn.options["paths"])
    for name in ("read", "transform"):
        if not callable(getattr(dataset, name, None)):
            raise Absent(
                f"{turn.case} has no {name}(); the lab sees inside a dataset through read(i) and transform(sample)"
            )
    how = {SPLIT: split, LOADING: loading, TRAINING: training}
    return how[turn.row](turn, dataset)


# -- one process -----------------------------------------------------------------------------------------------------


def split(turn: Turn, dataset: Any) -> Answer:
    """Read, transform and collate a batch, one after the other."""
    batch_size, position = turn.options["batch_size"], 0
    spent = {"read": 0.0, "transform": 0.0, "collate": 0.0}

    def one_batch() -> None:
        nonlocal position
        begin = time.perf_counter()
        raw = [dataset.read(index % len(dataset)) for index in range(position, position + batch_size)]
        read = time.perf_counter()
        samples = [dataset.transform(sample) for sample in raw]
        transformed = time.perf_counter()
        collate(samples)
        end = time.perf_counter()
        for name, seconds in zip(spent, (read - begin, transformed - read, end - transformed), strict=True):
            spent[name] += seconds
        position += batch_size

    warm_up(one_batch, turn.warmup_s)
    spent.update(dict.fromkeys(spent, 0.0))
    cpu = time.process_time()
    batches, _ = consume(one_batch, turn.seconds, 2)
    cpu_ms = 1e3 * (time.process_time() - cpu) / batches
    found = {f"{name}_ms": 1e3 * seconds / batches for name, seconds in spent.items()}
    return numbers(found | {"batch_ms": sum(found.values()), "cpu_ms": cpu_ms})


# -- with workers ----------------------------------------------------------------------------------------------------


def loading(turn: Turn, dataset: Any) -> Answer:
    """As fast as they can."""
    transfer = _batches(turn, dataset).next
    transfer()
    count, seconds, cpu = flowing(transfer, turn.warmup_s, turn.seconds, timed=4)
    figures = {"batch_ms": 1e3 * seconds / count, **cpu.ms(count)}
    return numbers(figures) | {"problems": cpu.problems}


def training(turn: Turn, dataset: Any) -> Answer:
    """Beside a step that takes its time; everybody's doings are written down."""
    step_s = turn.options["step_ms"] / 1e3
    spans: list[Stretch] = []
    waited = 0.0
    folder = tempfile.mkdtemp(dir=turn.options["folder"])  # the driver's, who removes it
    batches = _batches(turn, watch(dataset, folder))

    def step() -> None:
        nonlocal waited
        begin = time.monotonic()
        next(batches)
        arrived = time.monotonic()
        time.sleep(step_s)
        end = time.monotonic()
        waited += arrived - begin
        spans.extend([(begin, arrived, "wait", ""), (arrived, end, "step", "")])

    step()
    warm_up(step, turn.warmup_s)
    waited = 0.0
    count, seconds = consume(step, turn.seconds, 4)
    fetched = watched(folder, turn.options["batch_size"])
    found = {"step_ms": 1e3 * seconds / count, "wait_ms": 1e3 * waited / count}
    return numbers(found) | {"extra": {str(turn.workers): lanes(spans, fetched)}}


def _batches(turn: Turn, dataset: Any) -> Any:
    return mpiter.batches(
        dataset,
        turn.options["batch_size"],
        epochs=None,
        shuffle=False,
        n_processes=turn.workers,
        seed=turn.seed,
    )


# -- the model, and what was measured ----------------------------------------------------------------------------------


def capacity(result: Result) -> Capacity | None:
    for row in result.rows:
        if row.row == SPLIT:
            return Capacity(row["batch_ms"].median, row["cpu_ms"].median, result.heading["machine"]["cores_usable"])
    return None


def fewest_predicted(result: Result, one: Row) -> set[int | None]:
    """By each round: the fewest workers that hide loading, by the model; None: no number does."""
    cpu_ms, cores = one.by_round["cpu_ms"], result.heading["machine"]["cores_usable"]
    models = [Capacity(batch_ms, cpu_ms[at], cores) for at, batch_ms in one.by_round["batch_ms"].items()]
    return {model.fewest(result.settings["step_ms"]) for model in models}


def fewest_measured(result: Result) -> set[int | None]:
    """By each round: the fewest workers beside which the step hardly waited; None: none of those tried.

    A round counts if it has tried all numbers of workers from one on.
    """
    rows, step_ms = _of(result, TRAINING), result.settings["step_ms"]
    most = max((int(row.at["workers"]) for row in rows), default=0)
    if not most or len(rows) < most:
        return set()
    waits = [row.by_round["wait_ms"] for row in rows]
    rounds = set.intersection(*(set(each) for each in waits))
    found: set[int | None] = set()
    for number_of_round in rounds:
        hidden = (at for at, each in enumerate(waits, 1) if each[number_of_round] <= WAITS * step_ms)
        found.add(next(hidden, None))
    return found


def _of(result: Result, name: str) -> list[Row]:
    return sorted((row for row in result.rows if row.row == name), key=lambda row: row.at["workers"])


# -- what it says ----------------------------------------------------------------------------------------------------


def tell(result: Result) -> Telling:
    telling, model = Telling(), capacity(result)
    if model is None:
        return telling
    one = _of(result, SPLIT)[0]
    parts = {"read": "read_ms", "transform": "transform_ms", "collate": "collate_ms", "processor time": "cpu_ms"}
    steady = [f"{name} {median(one[figure])} ms" for name, figure in parts.items() if not one[figure].is_noisy]
    of_it = f" (of it {', '.join(steady)})" if steady else ""
    telling.conclude(
        f"{one.case}: a batch of {result.settings['batch_size']} takes {median(one['batch_ms'])} ms in one process"
        f"{of_it}.",
        one["batch_ms"] if one.rounds > 1 else None,
    )
    _conclude_on_hiding(result, telling, model, one)
    return telling


def _conclude_on_hiding(result: Result, telling: Telling, model: Capacity, one: Row) -> None:
    step_ms, rows = result.settings["step_ms"], _of(result, TRAINING)
    predicted, measured = fewest_predicted(result, one), fewest_measured(result)
    if not measured or min(row.rounds for row in [one, *rows]) < LEAST_ROUNDS:
        return
    middle = model.fewest(step_ms)
    said = "no number of workers" if middle is None else some(middle, "worker")
    about = f"{one.case}: {said} should hide loading behind a step of {number(step_ms)} ms by the model"
    if len(measured) > 1 or len(predicted) > 1:
        found = f"predicted {_counts(predicted)}; measured {_counts(measured)}"
        telling.warnings.append(f"no conclusion, since rounds differ ({found}): {about}.")
        return
    (count,) = measured
    tried = f"none of the {some(len(rows), 'number')} tried did" if count is None else f"{count} did"
    telling.says.append(f"{about}; measured: {tried} (hidden: the step waits for less than {WAITS:.0%} of its time).")


def _counts(found: set[int | None]) -> str:
    return ", ".join(str(count or "none") for count in sorted(found, key=lambda count: count or math.inf))


def views(result: Result) -> tuple[View, ...]:
    model = capacity(result)
    if model is None:
        return ()
    return (*_split(result), _times(result, model), _table(result, model), *_timelines(result), _published())


def _split(result: Result) -> Iterator[View]:
    """What one process does with its time."""
    (one,) = _of(result, SPLIT)
    parts = ("read", "transform", "collate")
    figures = [one[f"{part}_ms"] for part in parts]
    bar = Bar(one.case, tuple(figure.median for figure in figures), f"{median(one['batch_ms'])} ms")
    yield Bars("A batch in one process", "ms", parts, (("", (bar,)),))
    yield Table(
        "A batch in one process",
        ("dataset", *(f"{part} ms" for part in parts), "together ms", "of it CPU ms"),
        ((one.case, *map(median, figures), median(one["batch_ms"]), median(one["cpu_ms"])),),
    )


def _times(result: Result, model: Capacity) -> Lines:
    rows = _of(result, LOADING)
    most = max((int(row.at["workers"]) for row in rows), default=1)
    measured = Series("measured", tuple(point(row.at["workers"], row["batch_ms"]) for row in rows))
    points = tuple(Point(workers, model.predicted_ms(workers)) for workers in range(1, most + 1))
    return Lines(
        "Time of a batch by workers",
        "workers",
        "ms a batch",
        (measured, Series("predicted", points, predicted=True)),
        f"Predicted from one process: {number(model.batch_ms)} ms a batch, {number(model.cpu_ms)} of them on a core.",
        ("step", result.settings["step_ms"]),
    )


def _table(result: Result, model: Capacity) -> Table:
    training_rows = {row.at["workers"]: row for row in _of(result, TRAINING)}
    lines = []
    for row in _of(result, LOADING):
        beside = training_rows.get(row.at["workers"])
        predicted = model.predicted_ms(int(row.at["workers"]))
        lines.append(
            (
                number(row.at["workers"]),
                number(predicted),
                median(row["batch_ms"]),
                f"{row['batch_ms'].median / predicted - 1:+.0%}" if row.rounds >= LEAST_ROUNDS else NOTHING,
                median(row["cpu_ms"]),
                median(beside["step_ms"]) if beside else NOTHING,
                median(beside["wait_ms"]) if beside else NOTHING,
            )
        )
    return Table(
        f"Predicted and measured, beside a step of {number(result.settings['step_ms'])} ms",
        ("workers", "predicted ms", "measured ms", "off by", "CPU ms", "step with its wait ms", "waited ms"),
        tuple(lines),
        "Measured at full speed; the last two columns beside the step.",
    )


def _timelines(result: Result) -> Iterator[Timeline]:
    recorded: dict[str, Any] = next(iter(result.extra.get(TRAINING, {}).values()), {})
    wanted = next(iter(fewest_measured(result)), None)
    numbers_of_workers = sorted(map(int, recorded))
    chosen = wanted if wanted in numbers_of_workers else numbers_of_workers[-1] if recorded else None
    shown = dict.fromkeys([numbers_of_workers[0], chosen]) if recorded else {}
    for workers in shown:
        lanes = tuple((name, tuple(Span(*span) for span in spans)) for name, spans in recorded[str(workers)])
        yield Timeline(f"{SHOWN} steps with {some(workers or 0, 'worker')}", lanes)


def _published() -> Table:
    one = PUBLISHED_MS[1]
    rows = [(number(w), number(one / w), number(ms)) for w, ms in PUBLISHED_MS.items()]
    return Table(
        "Published: ImageNet, batches of 128 (read 1,500 ms, transform 250, collate 70)",
        ("workers", "one process / workers ms", "their measurement ms"),
        tuple(rows),
        "Theirs, not measured here. Their ResNet-50 step takes 654 ms: four workers hide loading, three nearly.",
        published=True,
    )
