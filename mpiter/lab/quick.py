"""A newcomer's question: worker processes for this dataset on this machine or not, and how many?

`take` runs in the process that is measured, everything else in the driver, on values.
Guarantees: it stays within its minutes, since a first turn finds out how long a batch takes, and the numbers of workers
and the rounds are what there is time for; where there is no time for two rounds it says so at once.  The advice follows
the rule of `workers` (`choice`) and rests on whole rounds only.  "Without workers" is in each round the faster of a
plain loop and our own iterator with none.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import mpiter

from .. import machine
from ..asked import above_zero, at_least
from ..bar import Bar
from ..datasets.columns import as_dataset
from ..samples.batch import collate
from . import pictures
from .capacity import Capacity
from .choice import GAIN, Rule, choose, reason, times_as, whole_rounds
from .results import Result, Row
from .series import START_S
from .spreads import LEAST_ROUNDS, Spread, ratio
from .subjects import BUILT_IN, subject
from .text import NOTHING, Telling, median, number, some, times
from .turns import Absent, Answer, Turn, ask, consume, flowing, numbers
from .views import Table, View

NAME = "quick"
HEADING = "Workers or none, and how many"
ABOUT = (
    "Should this dataset be loaded by worker processes on this machine, and by how many? Three minutes at most, one "
    "table, and a sentence of advice. A number of workers is only taken if it gains more than 5% (--gain) and is "
    "slower in no round. Without --dataset it is random images of CIFAR-10's shape, augmented. Nothing is kept unless "
    "--out names a folder."
)
PROBE, LOOP, OURS = "a batch", "plain loop", "mpiter"
FULL: dict[str, Any] = {
    "dataset": "cifar",
    "batch_size": None,
    "workers": None,
    "gain": GAIN,
    "minutes": 3.0,
    "timeout": 60.0,
    "out": None,
}
SMALL: dict[str, Any] = FULL | {"workers": [2], "minutes": 1.0, "timeout": 20.0}
SECONDS, WARMUP_S, SMALL_SECONDS = 1.5, 0.3, 0.4
_BATCH_SIZE = {"cifar": 128}
_DEAR_S = 1.0  # a batch that would take longer is made smaller, unless the user has said how large it is
_MARGIN = 0.9  # of the time that is left: what to plan with
_REMEDY = "Make batches smaller (--batch-size), or give it more --minutes and a longer --timeout."


def arguments(add: Callable[..., Any]) -> None:
    add("--dataset", metavar="D", help=f"{', '.join(BUILT_IN)}, or module:name of your own")
    add(
        "--batch-size",
        type=at_least(1),
        metavar="B",
        help="default: 128 of cifar, else 32, or what takes a second",
    )
    add("--workers", nargs="+", type=at_least(1), metavar="N", help="default: 1, 2, half the cores and all, at least 4")
    add("--gain", type=above_zero, metavar="G", help=f"a larger number must gain more, a share (default {GAIN:g})")


# -- the plan --------------------------------------------------------------------------------------------------------


@contextmanager
def preparing(options: argparse.Namespace) -> Iterator[None]:
    """Find out how long a batch takes, and settle what there is time for."""
    end = time.monotonic() + 60 * options.minutes
    options.most_s = None if options.batch_size else _DEAR_S
    options.batch_size = options.batch_size or _BATCH_SIZE.get(options.dataset, 32)
    with pictures.provided(options, options.dataset == "files"):
        found = _probed(options)
        options.batch_size = int(found["batch_size"])
        options.model = Capacity(found["batch_ms"], found["cpu_ms"], machine.cores())
        left = _MARGIN * (end - time.monotonic())
        for tried in _fewer(options.workers):
            options.workers = tried
            rounds = int(left / _round_s(options))
            if rounds >= LEAST_ROUNDS:
                break
        else:
            raise Absent(_no_room(options, found["batch_ms"], left))
        options.rounds = min(options.rounds, rounds)
        yield


def _no_room(options: argparse.Namespace, batch_ms: float, left: float) -> str:
    """Which helps: cheaper batches, or more time for what isn't batches?"""
    why = f"{options.minutes:g} min have no room for {LEAST_ROUNDS} rounds"
    bare_s = LEAST_ROUNDS * len(list(turns(options))) * (START_S + options.seconds + options.warmup)
    if bare_s <= left:
        return f"a batch of {options.batch_size} takes {number(batch_ms / 1e3)} s, so that {why}. {_REMEDY}"
    minutes = options.minutes + (LEAST_ROUNDS * _round_s(options) - left) / _MARGIN / 60
    return f"{why}, whatever a batch takes: starting and timing take longer. Give it --minutes {_tenths(minutes):g}."


def _tenths(minutes: float) -> float:
    return math.ceil(10 * minutes) / 10


def _probed(options: argparse.Namespace) -> dict[str, float]:
    turn = Turn(NAME, PROBE, options.dataset, {"workers": 0}, 0.3, 0, options.seed, _about(options))
    limit_s = min(options.timeout, 20 * options.minutes)
    with Bar(NAME, 1) as bar:
        bar.at(0, "how long does a batch take?")
        answer = ask(turn, limit_s)
    if "error" in answer or "absent" in answer:
        why = answer.get("absent") or f"{options.dataset}, in one process: {answer['error']}"
        raise Absent(f"{why}: two batches take longer. {_REMEDY}" if "gave no answer" in why else why)
    found: dict[str, float] = answer["figures"]
    return found


def _about(options: argparse.Namespace) -> dict[str, Any]:
    return {"batch_size": options.batch_size, "most_s": options.most_s, "paths": options.paths}


def _fewer(asked_for: list[int] | None) -> Iterator[list[int]]:
    """Numbers of workers to try: those asked for, else a handful, which may become fewer; as many as cores to the end.

    Workers who only wait may be more than the cores, where these are few.
    """
    if asked_for:
        yield asked_for
        return
    cores = machine.cores()
    most = max(4, cores)
    first_to_last = sorted({1, 2, most // 2, most}, key=lambda workers: (workers != cores, -workers))
    for count in range(len(first_to_last), 0, -1):
        yield sorted(first_to_last[:count])


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    for row, workers in [(LOOP, 0), (OURS, 0), *((OURS, count) for count in options.workers)]:
        batch_s, (warm, timed), at = _batch_s(options, workers), _least(workers), {"workers": workers}
        warmup_s = options.warmup if batch_s < options.warmup else max(0.0, warm - 0.5) * batch_s
        seconds = max(options.seconds, (timed - 0.5) * batch_s)  # the half: not a batch more for being a little faster
        yield Turn(NAME, row, options.dataset, at, seconds, warmup_s, options.seed, _about(options))


def _batch_s(options: argparse.Namespace, workers: int) -> float:
    predicted_ms: float = options.model.predicted_ms(max(1, workers))
    return predicted_ms / 1e3


def _least(workers: int) -> tuple[int, int]:
    """Batches of the warm-up, after the very first, and of the timed part, however long they take."""
    return (2, 3) if workers else (0, 2)


def _round_s(options: argparse.Namespace) -> float:
    """How long a round takes, with the first batches and the halves."""
    return sum(START_S + turn.seconds + turn.warmup_s + 2 * _batch_s(options, turn.workers) for turn in turns(options))


# -- in a turn's process -----------------------------------------------------------------------------------------------


def take(turn: Turn) -> Answer:
    dataset = as_dataset(subject(turn.case, turn.seed, turn.options["paths"]))
    if not len(dataset):
        raise Absent(f"{turn.case}: the dataset is empty.")
    batch_size = min(turn.options["batch_size"], len(dataset))
    if turn.row == PROBE and (most_s := turn.options["most_s"]) is not None:
        began = time.perf_counter()
        dataset[0]
        batch_size = max(1, min(batch_size, int(most_s / (time.perf_counter() - began))))
    if turn.row == LOOP:
        batches: Iterator[Any] = _loop(dataset, batch_size, turn.seed)
    else:
        batches = mpiter.batches(
            dataset,
            batch_size,
            epochs=None,
            drop_last=True,
            n_processes=turn.workers,
            ragged="list",
            seed=turn.seed,
        )
    next(batches)
    if turn.row == PROBE:
        cpu_s = time.process_time()
        count, seconds = consume(lambda: next(batches), turn.seconds)
        cpu_ms = 1e3 * (time.process_time() - cpu_s) / count
        return numbers({"batch_ms": 1e3 * seconds / count, "cpu_ms": cpu_ms, "batch_size": batch_size})
    warm, timed = _least(turn.workers)
    count, seconds, _ = flowing(lambda: next(batches), turn.warmup_s, turn.seconds, warm=warm, timed=timed)
    return numbers({"batch_ms": 1e3 * seconds / count, "samples_per_s": batch_size * count / seconds})


def _loop(dataset: Any, batch_size: int, seed: int) -> Iterator[Any]:
    """What one writes without a loader: shuffled, sample by sample, stacked."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(dataset))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield collate([dataset[index] for index in order[start : start + batch_size].tolist()])


# -- what it says ----------------------------------------------------------------------------------------------------


def tell(result: Result) -> Telling:
    if not result.rows:
        return Telling()
    return Telling([_advice(result, _without(result), [row for row in result.rows if row.at["workers"]])])


def _without(result: Result) -> Row | None:
    """In each round the faster of those without workers."""
    rows = [row.by_round["batch_ms"] for row in result.rows if not row.at["workers"]]
    if not rows:
        return None
    both = set.intersection(*map(set, rows))
    return Row(OURS, result.rows[0].case, {"workers": 0}, {"batch_ms": {at: min(r[at] for r in rows) for at in both}})


def _advice(result: Result, without: Row | None, workers: list[Row]) -> str:
    if without is None or not workers:
        return "No advice: it could not be measured both with workers and without."
    rounds, rule = whole_rounds([without, *workers], "batch_ms"), Rule(result.settings["gain"])
    if len(rounds) < LEAST_ROUNDS:
        return f"No advice: it takes {LEAST_ROUNDS} whole rounds, and there was {'one' if rounds else 'none'}."
    taken = choose(rounds, rule)
    most = max(row.at["workers"] for row in workers)
    nobody = "it is the most that was tried (--workers tries others)" if taken == most else "no other number is faster"
    why = reason(rounds, taken, rule, slower=nobody if taken else "workers only cost")
    if not taken:
        head = "Stay without workers until the machine is quieter" if why.is_doubtful else "Don't use workers"
        return f"{head}: a batch takes {number(without['batch_ms'].median)} ms without; {why.text}."
    (chosen,) = (row for row in workers if row.at["workers"] == taken)
    faster = _against(without, chosen)
    assert faster is not None
    many = f"{times_as(faster)} as many batches a second as without workers"
    return f"Use n_processes={taken}: {many}; {why.text}."


def _against(without: Row | None, row: Row) -> Spread | None:
    return ratio(without.by_round["batch_ms"], row.by_round["batch_ms"]) if without else None


def views(result: Result) -> tuple[View, ...]:
    without = _without(result)
    rows = [_cells(row, _against(without, row)) for row in result.rows]
    if not rows:
        return ()
    cores, batch = result.heading["machine"]["cores_usable"], result.settings["batch_size"]
    rounds = max(row.rounds for row in result.rows)
    title = f"{result.rows[0].case}: batches of {batch}, {some(cores, 'core')}, {some(rounds, 'round')}"
    note = "speed-up: against the faster row without workers of the same round."
    if result.rows[0].case in BUILT_IN:
        note += " Of a dataset that comes along; --dataset module:name looks at yours."
    return (Table.of(title, rows, note),)


def _cells(row: Row, against: Spread | None) -> dict[str, str]:
    low, high = (min(against.values), max(against.values)) if against else (None, None)
    return {
        "": row.label,
        "ms/batch": median(row["batch_ms"]),
        "samples/s": median(row["samples_per_s"]),
        "speed-up": times(against),
        "in the rounds": f"{number(low)} to {number(high)}" if low != high else NOTHING,
    }
