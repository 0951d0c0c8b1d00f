"""Decoders side by side: photographs decoded by each, cropped at random, by one process and through `batches()`.

`take` runs in the process that is measured, everything else in the driver, on values.  Guarantees that all decoders
read the same generated files, few enough to stay in the page cache, and crop to the same size; that each turn looks at
a picture outside the timed part; and that a decoder which isn't installed is a line that says so.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mpiter

from ..asked import at_least
from ..errors import OptionError
from ..images import ImageList, RandomResizedCrop
from . import photographs
from .results import Result, Row
from .text import Telling, median, some, times
from .turns import Absent, Answer, Turn, flowing, numbers
from .views import Bar, Bars, Table, View

NAME = "images"
HEADING = "Decoders side by side"
ABOUT = (
    "Generated photographs are decoded from the page cache, cropped at random and resized to 224×224: by one process "
    "alone, which is what a core does, and by workers through batches(). With scaled=True a JPEG is decoded no larger "
    "than the crop needs."
)
ROWS = {  # decoder, and whether scaled
    "pillow": ("pillow", False),
    "simplejpeg": ("simplejpeg", False),
    "opencv": ("opencv", False),
    "accimage": ("accimage", False),  # which decodes in full size only
    "pillow, scaled": ("pillow", True),
    "simplejpeg, scaled": ("simplejpeg", True),
    "opencv, scaled": ("opencv", True),
}
AGAINST, FIGURE = "pillow", "images_per_s"
_REMEDIES = {
    "pillow": "pip install Pillow",
    "simplejpeg": "pip install simplejpeg",
    "opencv": "pip install opencv-python-headless",
    "accimage": "conda install -c conda-forge accimage",
}
_SIDE, _LENGTH = 224, 1 << 14  # a virtual length, so that no epoch ends in the timed part
_WARM = 6  # batches, at least, before the clock starts: what was fetched while workers started is used up


@dataclass(frozen=True, slots=True)
class Case:
    """Photographs of one size."""

    size: photographs.Size
    weight: str
    most: int  # files
    batch_size: int


CASES = {
    str(case.size): case
    for case in (Case(photographs.SMALL, "80 kB", 64, 32), Case(photographs.CAMERA, "3.5 MB", 4, 4))
}
FULL: dict[str, Any] = {"cases": list(CASES), "rows": list(ROWS), "workers": 2, "photographs": 64}
SMALL: dict[str, Any] = FULL | {
    "cases": [str(photographs.SMALL)],
    "rows": ["pillow", "simplejpeg", "pillow, scaled", "simplejpeg, scaled"],
    "photographs": 4,
}
SECONDS, WARMUP_S, SMALL_SECONDS = 2.0, 0.5, 0.2


def arguments(add: Callable[..., Any]) -> None:
    add("--cases", nargs="+", choices=CASES, metavar="CASE", help=f"of {', '.join(CASES)}")
    add("--rows", nargs="+", choices=ROWS, metavar="ROW", help=f"of {', '.join(map(repr, ROWS))}")
    add("--workers", type=at_least(1), metavar="N")
    add("--photographs", type=at_least(1), metavar="N", help="of each size, at the most")


@contextmanager
def preparing(options: argparse.Namespace) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="mpiter-lab-") as folder:
        options.paths = {
            name: photographs.write_files(Path(folder), case.size, min(case.most, options.photographs), options.seed)
            for name, case in CASES.items()
            if name in options.cases
        }
        yield


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    for case in options.cases:
        about = {"paths": options.paths[case]}
        for workers in (0, options.workers):
            for row in options.rows:
                at = {"workers": workers}
                yield Turn(NAME, row, case, at, options.seconds, options.warmup, options.seed, about)


def take(turn: Turn) -> Answer:
    dataset, case = _dataset(turn), CASES[turn.case]
    if turn.workers == 0:
        indices = itertools.cycle(range(len(dataset)))
        return _measured(turn, lambda: dataset[next(indices)], 1)
    options: dict[str, Any] = {"n_processes": turn.workers, "epochs": None, "seed": turn.seed}
    with mpiter.batches(dataset, case.batch_size, **options) as stream:
        return _measured(turn, lambda: next(stream), case.batch_size)


def _dataset(turn: Turn) -> ImageList:
    paths, (decoder, is_scaled) = turn.options["paths"], ROWS[turn.row]
    pairs = ((paths[index % len(paths)], index % len(paths)) for index in range(_LENGTH))
    try:
        return ImageList(pairs, RandomResizedCrop(_SIDE), decoder=decoder, scaled=is_scaled)
    except OptionError as error:
        raise Absent(f"not installed: {_REMEDIES[decoder]}") from error


def _measured(turn: Turn, take_one: Callable[[], Any], images: int) -> Answer:
    """Of what gives so many images each time."""
    pictures, _ = take_one()
    count, seconds, cpu = flowing(take_one, turn.warmup_s, turn.seconds, warm=_WARM)
    figures = {FIGURE: images * count / seconds, **cpu.ms(images * count)}
    return numbers(figures) | {"problems": [*cpu.problems, *_wrong(pictures)]}


def _wrong(pictures: Any) -> Iterator[str]:
    """What they aren't that they should be."""
    wanted = (_SIDE, _SIDE, 3)
    if pictures.shape[-3:] != wanted or pictures.dtype != np.uint8:
        yield f"pictures are {pictures.dtype} {pictures.shape}, not uint8 {wanted}"
    elif pictures.reshape(-1, _SIDE * _SIDE * 3).std(axis=1).min() < 1:
        yield "a picture is empty"


# -- what it says ----------------------------------------------------------------------------------------------------


def _of(result: Result, case: str) -> tuple[list[Row], list[Row]]:
    """By one process, and by workers."""
    rows = [row for row in result.rows if row.case == case]
    return [row for row in rows if not row.at["workers"]], [row for row in rows if row.at["workers"]]


def _against(result: Result, row: Row, rows: list[Row]) -> Any:
    """How many times the images of Pillow in full size, by as many workers."""
    return result.ratio(row, next((other for other in rows if other.row == AGAINST), None), FIGURE)


def tell(result: Result) -> Telling:
    telling = Telling()
    for case in result.values_of("case"):
        for rows in _of(result, case):
            for is_scaled in (False, True):
                found = [row for row in rows if ROWS[row.row][1] == is_scaled]
                best = max(found, key=lambda row: row[FIGURE].median, default=None)
                if best is None or best.row == AGAINST:
                    continue
                ratio, kind = _against(result, best, rows), "no larger than needed" if is_scaled else "in full size"
                telling.conclude(
                    f"{case}, {_by(best)}: {ROWS[best.row][0]} decodes fastest {kind}, {times(ratio)} the images of "
                    f"{AGAINST} in full size.",
                    ratio,
                )
    return telling


def _by(row: Row) -> str:
    return some(row.at["workers"], "worker") if row.at["workers"] else "one process"


def views(result: Result) -> tuple[View, ...]:
    cases = result.values_of("case")
    return (*(_bars(result, case) for case in cases), *(_table(result, case) for case in cases))


def _bars(result: Result, case: str) -> Bars:
    groups = tuple((_by(rows[0]), tuple(map(_bar, rows))) for rows in _of(result, case) if rows)
    return Bars(
        f"{_photographs(case)}, cropped to {_SIDE}×{_SIDE}: images a second",
        "per s",
        ("images a second",),
        groups,
        "Workers hand out whole batches. Each group has a scale of its own.",
    )


def _photographs(case: str) -> str:
    return f"Photographs of {case.replace('x', '×')}, {CASES[case].weight}"


def _bar(row: Row) -> Bar:
    rate = row[FIGURE]
    return Bar(row.row, (rate.median,), median(rate), *(rate.edges or (None, None)))


def _table(result: Result, case: str) -> Table:
    cells = [
        {
            "decoder": row.row,
            "workers": f"{row.at['workers']:g}",
            "images/s": median(row[FIGURE]),
            "times pillow": times(_against(result, row, rows)),
            "CPU ms/image": median(row["cpu_ms"]),
        }
        for rows in _of(result, case)
        for row in rows
    ]
    return Table.of(
        f"{_photographs(case)}, batches of {CASES[case].batch_size}",
        cells,
        "No workers: dataset[i] in one process, which is what a core does.",
    )
