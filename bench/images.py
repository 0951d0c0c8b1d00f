"""Decoders side by side, beside what the machine allows.

Photographs are decoded by each, cropped at random and batched.

    python bench/images.py --rows line pillow simplejpeg

Generated photographs lie in the page cache: 500x375 to 224, to 128, and a camera's
4000x3000 to 224. The line is one process with Pillow, times the cores as they are: as
many processes as workers, each decoding and cropping for itself. The article on input
speed has other decoders 1-2 times as fast as Pillow. Must: ours with Pillow at least
0.95 of the line. Beside Chainer and torch it is the case `jpeg` of `transport.py`.
Needs Pillow, which makes the files; another decoder that isn't installed is a line that
says so.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from mmap import mmap
from multiprocessing import get_context
from typing import Any

import numpy as np
import photographs
from checkout import ROOT
from driver import (
    Absent,
    Answer,
    Claim,
    Experiment,
    Summary,
    Turn,
    at_least,
    command_line,
    conduct,
    ratio,
)
from measuring import CpuWindow, flowing

import mpiter
from mpiter.errors import OptionError
from mpiter.images import ImageList, RandomResizedCrop

FILES = ROOT / ".demo" / "images"
# The length is a virtual one, so that no epoch ends in the timed part.
LENGTH = 1 << 14
# So many batches, at least, come before the clock starts: what was fetched while
# workers started is used up by then.
WARM = 6
ONE = "one process"
LINE = "line"
FIGURE = "images_per_s"
OF_LINE = 0.95


@dataclass(frozen=True)
class Case:
    """Photographs of one size, and the crops that are wanted."""

    says: str
    size: photographs.Size
    photographs: int
    # Pixels a side of the crop.
    side: int
    batch_size: int


CASES = {
    "224": Case(
        "500x375 JPEG of 80 kB, crops to 224, batches of 32",
        photographs.SMALL,
        256,
        224,
        32,
    ),
    "128": Case(
        "500x375 JPEG of 80 kB, crops to 128, batches of 32",
        photographs.SMALL,
        256,
        128,
        32,
    ),
    "camera": Case(
        "4000x3000 JPEG of 3.5 MB, crops to 224, batches of 4",
        photographs.CAMERA,
        8,
        224,
        4,
    ),
}
DECODERS = ("pillow", "simplejpeg")
OURS: dict[str, dict[str, Any]] = {
    decoder: {"decoder": decoder} for decoder in DECODERS
}
ROWS = {
    ONE: "one process with Pillow, alone",
    LINE: "as many processes as workers, with Pillow, each for itself",
    **{row: f"batches() over an ImageList, {options}" for row, options in OURS.items()},
}


def prepare(options: argparse.Namespace) -> None:
    for case in map(CASES.__getitem__, options.cases):
        photographs.write_files(
            FILES, case.size, min(case.photographs, options.photographs)
        )


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    case = CASES[turn.case]
    paths = photographs.files_of(
        FILES, case.size, min(case.photographs, turn.options["photographs"])
    )
    if turn.row in (ONE, LINE):
        return busy(turn, case, paths)
    crop = RandomResizedCrop(case.side)
    pairs = ((paths[index % len(paths)], index % len(paths)) for index in range(LENGTH))
    try:
        dataset = ImageList(pairs, crop, **OURS[turn.row])
    except OptionError as error:
        raise Absent(str(error)) from error
    options: dict[str, Any] = {
        "n_processes": turn.workers,
        "n_prefetch": 2,
        "epochs": None,
        "seed": 0,
    }
    begin = time.perf_counter()
    with mpiter.batches(dataset, case.batch_size, **options) as stream:
        pictures, labels = next(stream)
        first_batch_s = time.perf_counter() - begin
        batches, seconds, cpu = flowing(
            lambda: next(stream), turn.warmup_s, turn.seconds, warm=WARM
        )
    images = batches * case.batch_size
    figures = {
        FIGURE: images / seconds,
        **cpu.ms(images),
        "first_batch_s": first_batch_s,
    }
    return figures | {"problems": list(wrong(case, len(paths), pictures, labels))}


def wrong(case: Case, files: int, pictures: Any, labels: Any) -> Iterator[str]:
    """Yield what is wrong with a batch."""
    wanted = (case.batch_size, case.side, case.side, 3)
    if pictures.shape != wanted or pictures.dtype != np.uint8:
        yield f"a batch is {pictures.dtype} {pictures.shape}, not uint8 {wanted}"
    elif pictures.reshape(case.batch_size, -1).std(axis=1).min() < 4:
        yield "a picture is empty"
    if not 0 <= labels.min() <= labels.max() < files:
        yield "a label is of no photograph"


def busy(turn: Turn, case: Case, paths: list[str]) -> Answer:
    """Measure processes that decode and crop for themselves, and hand nothing over."""
    processes = 1 if turn.row == ONE else turn.workers
    # Each process counts in a cache line of its own.
    counts: Any = np.frombuffer(mmap(-1, 64 * processes), np.int64)[::8]
    target: Callable[..., None] = decode_for_ever
    arguments = [(case, paths, counts, number) for number in range(processes)]
    running = [
        get_context("fork").Process(target=target, args=each, daemon=True)
        for each in arguments
    ]
    for process in running:
        process.start()
    try:
        while counts.min() < WARM:
            time.sleep(0.001)
        time.sleep(turn.warmup_s)
        window = CpuWindow()
        window.start()
        done = int(counts.sum())
        begin = time.perf_counter()
        time.sleep(turn.seconds)
        images = int(counts.sum()) - done
        seconds = time.perf_counter() - begin
        cpu = window.stop()
    finally:
        for process in running:
            process.kill()
            process.join()
    return {FIGURE: images / seconds, **cpu.ms(images)}


def decode_for_ever(case: Case, paths: list[str], counts: Any, number: int) -> None:
    """Decode and crop pictures with Pillow, without end.

    RandomResizedCrop draws the parts.
    """
    from PIL import Image

    random.seed(number)
    crop = RandomResizedCrop(case.side)
    batch = np.empty((case.batch_size, case.side, case.side, 3), np.uint8)
    while True:
        path = random.choice(paths)
        with Image.open(path) as opened:
            batch[counts[number] % case.batch_size] = np.asarray(
                crop(opened.convert("RGB"))
            )
        counts[number] += 1


def claims(summary: Summary) -> Iterator[Claim]:
    for case in CASES:
        yield at_least(
            case,
            "ours, Pillow",
            ratio(summary, case, "pillow", LINE, FIGURE),
            OF_LINE,
            " of the line",
        )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={name: case.says for name, case in CASES.items()},
    rows=ROWS,
    figures={
        FIGURE: "images/s",
        "cpu_ms": "CPU ms/image",
        "parent_cpu_ms": "parent's",
        "workers_cpu_ms": "workers'",
        "first_batch_s": "first batch s",
    },
    take=take,
    claims=claims,
    against=LINE,
    asked=("photographs",),
    prepare=prepare,
    small={"cases": ["224"], "photographs": 4, "rows": [LINE, "pillow"]},
)


def main() -> int:
    parser = command_line(EXPERIMENT, warmup=1.5, timeout=120.0, seconds=5.0)
    parser.add_argument(
        "--photographs",
        type=int,
        default=1 << 10,
        help="at most; the cases say how many",
    )
    return conduct(EXPERIMENT, parser)


if __name__ == "__main__":
    sys.exit(main())
