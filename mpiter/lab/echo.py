"""Echoing where fetching a batch takes longer than a step: steps a second by the factor, and what arithmetic predicts.

`take` runs in the process that is measured, everything else in the driver, on values.  Samples wait, and steps wait:
fetching a batch, by all workers together, takes `ratio` times a step.  Guarantees that what is timed is in full flow,
after repeats come as often as they will.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

import mpiter

from ..asked import above_zero, at_least
from ..echo import Echo
from ..errors import OptionError
from .results import Result, Row
from .spreads import Spread
from .text import Telling, median, number, point, times
from .turns import Answer, Turn, consume, numbers, warm_up
from .views import Lines, Point, Series, Table, View

NAME = "echo"
HEADING = "What echoing brings where fetching is slower than a step"
ABOUT = (
    "Samples wait, and a step waits; the ratio is the time that fetching a batch takes, in steps. Echoing hands out "
    "each sample factor times, so that more steps are taken than batches are fetched. Arithmetic says how many: factor "
    "times as many as without, until a step is all that one waits for."
)
AT = ("augmented", "example", "batch")
CASE, FIGURE = "waiting", "steps_per_s"
FULL: dict[str, Any] = {
    "ratios": [1.0, 2.0, 4.0],
    "factors": [1.0, 1.5, 2.0, 3.0, 4.0],
    "at": "augmented",
    "workers": 2,
    "batch_size": 16,
    "buffer": 64,
    "step_ms": 20.0,
}
SMALL: dict[str, Any] = FULL | {"ratios": [2.0], "factors": [1.0, 2.0, 4.0], "step_ms": 5.0}
SECONDS, WARMUP_S, SMALL_SECONDS = 3.0, 1.0, 0.3
preparing = nullcontext  # nothing is needed


def arguments(add: Callable[..., Any]) -> None:
    add("--ratios", nargs="+", type=above_zero, metavar="R", help="how many times a step fetching a batch takes")
    add("--factors", nargs="+", type=_factor, metavar="F", help="how often each sample is handed out")
    add("--at", choices=AT, help="what is repeated: samples as they are, transformed anew, or whole batches")
    add("--workers", type=at_least(1), metavar="N")
    add("--batch-size", type=at_least(1), metavar="B")
    add("--buffer", type=at_least(1), metavar="N", help="samples that are kept (whole batches need none)")
    add("--step-ms", type=above_zero, metavar="MS", help="how long a step takes")


def _factor(text: str) -> float:
    value = above_zero(text)
    try:
        Echo(value)
    except OptionError as error:
        raise argparse.ArgumentTypeError(f"{text} must be from 1 to 1000") from error
    return value


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    about = {name: getattr(options, name) for name in ("batch_size", "buffer", "step_ms")}
    for ratio in options.ratios:
        for factor in options.factors:
            at = {"workers": options.workers, "ratio": ratio, "factor": factor}
            yield Turn(NAME, options.at, CASE, at, options.seconds, options.warmup, options.seed, about)


class Waiting:
    """Reading a sample takes its time, transforming it next to none."""

    def __init__(self, sample_s: float, length: int = 1 << 20) -> None:
        self.sample_s, self.length = sample_s, length

    def __len__(self) -> int:
        return self.length

    def read(self, index: int) -> Any:
        time.sleep(self.sample_s)
        return np.full(64, index, np.float32)

    def transform(self, sample: Any) -> Any:
        return sample + 1

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))


def take(turn: Turn) -> Answer:
    batch_size, buffer, step_s = turn.options["batch_size"], turn.options["buffer"], turn.options["step_ms"] / 1e3
    dataset = Waiting(turn.at["ratio"] * step_s * turn.workers / batch_size)
    echo = Echo(turn.at["factor"], turn.row, None if turn.row == "batch" else buffer)  # type: ignore[arg-type]
    options: dict[str, Any] = {"n_processes": turn.workers, "epochs": None, "seed": turn.seed, "echo": echo}
    with mpiter.batches(dataset, batch_size, **options) as stream:

        def step() -> None:
            next(stream)
            time.sleep(step_s)

        warm_up(step, turn.warmup_s, max(4, 3 * -(-buffer // batch_size)))
        before = stream.stats().fresh_samples
        steps, seconds = consume(step, turn.seconds, least=8)
        fresh = stream.stats().fresh_samples - before
    return numbers({FIGURE: steps / seconds, "fresh": fresh / (steps * batch_size)})


# -- what it says ----------------------------------------------------------------------------------------------------


def predicted(ratio: float, factor: float, step_s: float) -> float:
    """Steps a second: those that samples come for, as often as each is handed out, and no more than can be taken."""
    return min(1 / step_s, factor / (ratio * step_s))


def _of(result: Result, ratio: float) -> list[Row]:
    return sorted((row for row in result.rows if row.at["ratio"] == ratio), key=lambda row: row.at["factor"])


def _gain(result: Result, row: Row) -> Spread | None:
    """Against handing each sample out once."""
    return result.ratio(row, result.find(row.row, row.case, ratio=row.at["ratio"], factor=1), FIGURE)


def tell(result: Result) -> Telling:
    telling = Telling()
    for ratio in result.values_of("ratio"):
        rows = [row for row in _of(result, ratio) if row.at["factor"] > 1]
        if not rows:
            continue
        row = next((row for row in rows if row.at["factor"] >= ratio), rows[-1])
        gain, factor = _gain(result, row), row.at["factor"]
        allowed = predicted(ratio, factor, 1) / predicted(ratio, 1, 1)
        telling.conclude(
            f"ratio {ratio:g}: with factor {factor:g} there are {times(gain)} the steps a second of factor 1, where "
            f"arithmetic says {number(allowed)}×.",
            gain,
        )
    return telling


def views(result: Result) -> tuple[View, ...]:
    curves = (_by_factor(result, ratio) for ratio in result.values_of("ratio"))
    return (*curves, _table(result)) if result.rows else ()


def _by_factor(result: Result, ratio: float) -> Lines:
    rows = _of(result, ratio)
    return Lines(
        f"Ratio {ratio:g}: steps a second, by how often each sample is handed out",
        "echo factor",
        "steps/s",
        (
            Series("measured", tuple(point(row.at["factor"], row[FIGURE]) for row in rows)),
            Series("predicted", _line(result, ratio, rows), predicted=True),
        ),
        "Predicted: factor times the rate at which batches are fetched, up to the rate at which steps can be taken.",
    )


def _line(result: Result, ratio: float, rows: list[Row]) -> tuple[Point, ...]:
    """With the corner, where it lies among the factors."""
    factors = [row.at["factor"] for row in rows]
    corner = [ratio] if factors[0] < ratio < factors[-1] else []
    step_s = result.settings["step_ms"] / 1e3
    return tuple(Point(factor, predicted(ratio, factor, step_s)) for factor in sorted({*factors, *corner}))


def _table(result: Result) -> Table:
    settings = result.settings
    step_s = settings["step_ms"] / 1e3
    cells = [
        {
            "ratio": f"{ratio:g}",
            "factor": f"{row.at['factor']:g}",
            "steps/s": median(row[FIGURE]),
            "predicted": number(predicted(ratio, row.at["factor"], step_s)),
            "times factor 1": times(_gain(result, row)),
            "fresh samples, %": f"{100 * row['fresh'].median:.0f}",
        }
        for ratio in result.values_of("ratio")
        for row in _of(result, ratio)
    ]
    return Table.of(
        f"Steps of {number(settings['step_ms'])} ms, batches of {settings['batch_size']}, repeated: {settings['at']}",
        cells,
        "Ratio: the time that fetching a batch takes, in steps. Fresh: handed out for the first time.",
    )
