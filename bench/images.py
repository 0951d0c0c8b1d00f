"""Photographs decoded, cropped at random and batched: ours, Chainer, torch and SPDL, beside what the machine allows.

    python bench/images.py --python-torch PATH --out bench/results/images.json
    python bench/images.py --quick --photographs 4          # a smoke test, never a conclusion

Three cases: 500x375 to 224, to 128, and a camera's 4000x3000 to 224. The 100 % line is one process with Pillow, times
the cores as they are: as many processes as workers, each decoding, cropping and filling batches of its own. Must: ours
with Pillow at least 0.95 of it; with the best decoder at least 1.8 times Chainer with Pillow, and ahead of SPDL, be it
with Pillow or its own decoding; of the camera's photographs, scaled decoding at least 3 times full decoding. "ours,
best" decodes no more than is needed and resizes by OpenCV, to nearly Pillow's pixels; the rows above it resize by
Pillow. SPDL's own decoding needs `spdl_io`, and FFmpeg's libraries on LD_LIBRARY_PATH. Needs Pillow.
Exit status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import checkout  # before mpiter
import numpy as np
from image_cases import (
    CASES,
    Busy,
    Case,
    Chainer,
    Loader,
    Ours,
    OursBest,
    OursFull,
    OursScaled,
    Spdl,
    SpdlPillow,
    Torch,
    write_files,
)

from mpiter.asked import at_least as from_on
from mpiter.lab.bench import Bench, command_line, conduct
from mpiter.lab.clocks import CpuWindow
from mpiter.lab.turns import Answer, Turn, flowing
from mpiter.lab.verdict import Claim, Summary, at_least, ratio

SCHEMA = "mpiter.bench.images/1"
FILES = checkout.ROOT / ".demo" / "images"
ONE, LINE, FIGURE = "one process", "line", "images_per_s"
ROWS = {
    ONE: "a process with Pillow, nobody beside it",
    LINE: "as many processes as workers, with Pillow, each for itself",
    "chainer": "Chainer's MultiprocessIterator, Pillow, concat_examples",
    "torch": "torch's DataLoader, Pillow",
    "spdl, pillow": "SPDL's threads, Pillow",
    "spdl": "SPDL's threads and its own decoding (FFmpeg)",
    "ours": "mpiter.images, decoder='pillow'",
    "ours, auto": "mpiter.images, decoder='auto'",
    "ours, scaled": "mpiter.images, decoder='auto', scaled=True",
    "ours, best": "mpiter.images, decoder='auto', scaled=True, filter='smooth'",
}
LOADERS: dict[str, type[Loader]] = {
    "chainer": Chainer,
    "torch": Torch,
    "spdl, pillow": SpdlPillow,
    "spdl": Spdl,
    "ours": Ours,
    "ours, auto": OursFull,
    "ours, scaled": OursScaled,
    "ours, best": OursBest,
}
FULL, SCALED, BEST = "ours, auto", "ours, scaled", "ours, best"
OF_LINE, OF_CHAINER, OF_FULL = 0.95, 1.8, 3.0
WARM = 6  # batches, at least, before the clock starts: what was fetched while workers started is used up


def take(turn: Turn) -> Answer:
    """Measures, in this process."""
    case = CASES[turn.case]
    files = case.files(FILES, turn.options["photographs"])
    if turn.row in (ONE, LINE):
        return busy(turn, case, files)
    kind = LOADERS[turn.row]
    try:
        kind.find(files[0])
    except ImportError as error:
        return {"absent": f"not installed here ({error})"}
    begin = time.perf_counter()
    loader = kind(case, files, turn.workers)
    try:
        batch = loader.next()
        first_batch_s = time.perf_counter() - begin
        batches, seconds, cpu = flowing(loader.next, turn.warmup_s, turn.seconds, warm=WARM)
        problems = list(wrong(case, files, *batch)) + list(wrong(case, files, *loader.next()))
    finally:
        loader.close()
    images = batches * case.batch_size
    figures = {FIGURE: images / seconds, **cpu.ms(images), "first_batch_s": first_batch_s}
    return figures | {"workers_changed": cpu.changed, "problems": problems, "about": loader.about()}


def busy(turn: Turn, case: Case, files: list[str]) -> Answer:
    """Pictures a second of processes by themselves."""
    processes = Busy(case, files, 1 if turn.row == ONE else turn.workers)
    try:
        while processes.done() < turn.workers:
            time.sleep(0.001)
        time.sleep(turn.warmup_s)
        window = CpuWindow()
        window.start()
        done, begin = processes.done(), time.perf_counter()
        time.sleep(turn.seconds)
        images, seconds, cpu = processes.done() - done, time.perf_counter() - begin, window.stop()
        return {FIGURE: images / seconds, **cpu.ms(images)}
    finally:
        processes.close()


def wrong(case: Case, files: list[str], pictures: Any, labels: Any) -> Iterator[str]:
    """What a batch isn't that it should be."""
    wanted = (case.batch_size, case.side, case.side, 3)
    if pictures.shape != wanted or pictures.dtype != np.uint8:
        yield f"a batch is {pictures.dtype} {pictures.shape}, not uint8 {wanted}"
    elif pictures.reshape(case.batch_size, -1).std(axis=1).min() < 4:
        yield "a picture is empty"
    if len(labels) != case.batch_size or not 0 <= labels.min() <= labels.max() < len(files):
        yield "a label is of no photograph"


# -- the answer ------------------------------------------------------------------------------------------------------


def claims(summary: Summary) -> Iterator[Claim]:
    for case in CASES:
        yield at_least(case, "ours, Pillow", ratio(summary, case, "ours", LINE, FIGURE), OF_LINE, " of the line")
        found = ratio(summary, case, BEST, "chainer", FIGURE)
        yield at_least(case, "ours, best decoder", found, OF_CHAINER, " x Chainer, Pillow")
        for row in ("spdl, pillow", "spdl"):
            found = ratio(summary, case, BEST, row, FIGURE)
            yield Claim(case, f"{case}: ours, best decoder > 1 x {row}", found, found is not None and found > 1)
    found = ratio(summary, "camera", SCALED, FULL, FIGURE)
    yield at_least("camera", "scaled decoding", found, OF_FULL, " x full decoding")


BENCH = Bench(
    schema=SCHEMA,
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
    environment=lambda row, case: row if row in ("chainer", "torch") else "ours",
    asked=("photographs",),
    prepare=lambda options: write_files(FILES, options.cases, options.photographs),
)


def main() -> int:
    parser = command_line(BENCH, warmup=1.5, timeout=120.0, seconds=5.0)
    parser.add_argument("--photographs", type=from_on(1), default=1 << 10, help="at most; the cases say how many")
    return conduct(BENCH, parser)


if __name__ == "__main__":
    sys.exit(main())
