"""Staging on a slow store: the first epoch, the later ones, and what room for a part of the samples brings.

`take` runs in the process that is measured, everything else in the driver, on values.  The store sleeps: so many
milliseconds for each file, and the time that its bytes take, for each reader by himself.  Guarantees that an epoch is
timed from the first batch asked for to the last one handed out, the workers' start included in the first.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import mpiter
from mpiter.staging import Staging

from ..asked import above_zero, at_least
from .results import Result, Row
from .text import NOTHING, Telling, median, number, point, some, times
from .turns import Answer, Turn, numbers
from .views import Lines, Point, Series, Table, View

NAME = "staging"
HEADING = "What copies of a slow store bring"
ABOUT = (
    "Samples lie on a store that takes its time for each file. Staging copies them to a local folder or into memory, "
    "in the order in which the iterator will want them, while batches are handed out; what fits stays."
)
NONE, FOLDER, MEMORY = "the store itself", "folder", "memory"
FULL: dict[str, Any] = {
    "workers": 2,
    "rooms": [0.25, 0.5, 0.75, 1.0],
    "samples": 512,
    "batch_size": 16,
    "file_ms": 20.0,
    "mb_per_s": 20.0,
    "kb": 80.0,
}
SMALL: dict[str, Any] = FULL | {"rooms": [0.5, 1.0], "samples": 48, "batch_size": 8, "file_ms": 5.0}
SECONDS, WARMUP_S, SMALL_SECONDS = 2.0, 0.0, 0.3
CASE = "slow store"
_TAIL = 16  # bytes that stand behind a copy in a file


def arguments(add: Callable[..., Any]) -> None:
    add("--workers", type=at_least(1), metavar="N")
    add("--rooms", nargs="+", type=above_zero, metavar="SHARE", help="what part of the samples there is room for")
    add("--samples", type=at_least(1), metavar="N")
    add("--batch-size", type=at_least(1), metavar="B")
    add("--file-ms", type=above_zero, metavar="MS", help="how long the store takes for each file")
    add("--mb-per-s", type=above_zero, metavar="MB", help="and how fast the bytes come, for each reader")
    add("--kb", type=above_zero, metavar="KB", help="a sample's size")


@contextmanager
def preparing(options: argparse.Namespace) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="mpiter-lab-") as options.folder:
        yield


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    about = {name: getattr(options, name) for name in ("samples", "batch_size", "file_ms", "mb_per_s", "kb", "folder")}
    for row, room in [(NONE, 0.0), *((row, room) for room in options.rooms for row in (FOLDER, MEMORY))]:
        at = {"workers": options.workers, "room": room}
        yield Turn(NAME, row, CASE, at, options.seconds, options.warmup, options.seed, about)


class SlowStore:
    """A dataset whose samples take their time, and are the bytes that came."""

    def __init__(self, samples: int, size: int, file_s: float, bytes_per_s: float) -> None:
        self._samples, self._size, self._takes_s = samples, size, file_s + size / bytes_per_s

    def __len__(self) -> int:
        return self._samples

    def source(self, index: int) -> str:
        return f"slow://store/{index}"

    def fetch(self, index: int) -> bytes:
        time.sleep(self._takes_s)
        return np.full(self._size, index % 251, np.uint8).tobytes()

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(self.fetch(index), np.uint8)


def take(turn: Turn) -> Answer:
    about = turn.options
    size = int(1e3 * about["kb"])
    dataset = SlowStore(about["samples"], size, about["file_ms"] / 1e3, 1e6 * about["mb_per_s"])
    if turn.row == NONE:
        return _measured(turn, dataset, None)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if turn.row == MEMORY else about["folder"]) as tier:
        staging = Staging(tier, max(1.0, turn.at["room"] * len(dataset) * (size + _TAIL)))
        return _measured(turn, staging.of(dataset), staging)


def _measured(turn: Turn, dataset: SlowStore, staging: Staging | None) -> Answer:
    with mpiter.batches(dataset, turn.options["batch_size"], n_processes=turn.workers, seed=turn.seed) as stream:
        first_s = _epoch(stream)
        before = None if staging is None else staging.stats()
        seconds = [_epoch(stream)]
        while sum(seconds) < turn.seconds:
            seconds.append(_epoch(stream))
    figures: dict[str, float | None] = {
        "first_per_s": len(dataset) / first_s,
        "later_per_s": len(seconds) * len(dataset) / sum(seconds),
    }
    if staging is not None and before is not None:
        figures |= {"hit_rate": staging.stats().since(before).hit_rate, "staged_s": staging.stats().staged_s}
    return numbers(figures)


def _epoch(stream: Any) -> float:
    began = time.perf_counter()
    for _ in stream:
        pass
    return time.perf_counter() - began


# -- what it says ----------------------------------------------------------------------------------------------------


def _bare(result: Result) -> Row | None:
    return next((row for row in result.rows if row.row == NONE), None)


def _of(result: Result, name: str) -> list[Row]:
    return sorted((row for row in result.rows if row.row == name), key=lambda row: row.at["room"])


def tell(result: Result) -> Telling:
    telling, bare = Telling(), _bare(result)
    if bare is None:
        return telling
    for name in (FOLDER, MEMORY):
        for row in _of(result, name)[-1:]:
            first, later = (result.ratio(row, bare, figure) for figure in ("first_per_s", "later_per_s"))
            telling.conclude(
                f"{name} with room for {row.at['room']:.0%}, {some(row.at['workers'], 'worker')}: the first epoch is "
                f"{times(first)} as fast as from the store, later ones {times(later)}.",
                first,
                later,
            )
    return telling


def views(result: Result) -> tuple[View, ...]:
    bare = _bare(result)
    return () if bare is None else (_by_room(result, bare), _table(result, bare))


def _by_room(result: Result, bare: Row) -> Lines:
    found = {name: _of(result, name) for name in (FOLDER, MEMORY)}
    series = [
        Series(name, tuple(point(row.at["room"], row["later_per_s"]) for row in [bare, *rows]))
        for name, rows in found.items()
    ]
    series += [_predicted(name, bare, rows[-1]) for name, rows in found.items() if rows and rows[-1].at["room"] == 1]
    return Lines(
        "Later epochs, by how much there is room for",
        "room, of the samples",
        "samples/s",
        tuple(series),
        "Predicted: what there is room for is hit, the rest takes what it took without copies.",
    )


def _predicted(name: str, bare: Row, whole: Row) -> Series:
    slow, fast = (1 / row["later_per_s"].median for row in (bare, whole))
    points = (Point(tenth / 10, 10 / (tenth * fast + (10 - tenth) * slow)) for tenth in range(11))
    return Series(f"{name}, predicted", tuple(points), predicted=True)


def _table(result: Result, bare: Row) -> Table:
    cells = [
        {
            "copies": row.row,
            "room, %": NOTHING if row is bare else number(100 * row.at["room"]),
            "first epoch/s": median(row["first_per_s"]),
            "later/s": median(row["later_per_s"]),
            "times": times(result.ratio(row, bare, "later_per_s")),
            "hits, %": f"{100 * row['hit_rate'].median:.1f}" if "hit_rate" in row else NOTHING,
            "staged s": median(row.get("staged_s")),
        }
        for row in [bare, *_of(result, FOLDER), *_of(result, MEMORY)]
    ]
    settings = result.settings
    return Table.of(
        f"Files of {number(settings['kb'])} kB, {number(settings['file_ms'])} ms each",
        cells,
        f"And {number(settings['mb_per_s'])} MB/s for each reader. Staged: until the tier had all that it will have.",
    )
