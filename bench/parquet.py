"""Reading Parquet files in order and shuffled: ours beside pyarrow and other readers.

Prints tables and JSON.

    python bench/parquet.py --python-torch PATH --out bench/results/parquet.json
    python bench/parquet.py --small  # a smoke test, never a conclusion

Ours and pyarrow's own `iter_batches` run in one Python with pyarrow; the other needs
datasets, torchdata, torch and pyarrow.  Files of numbers, and of numbers, text and
lists, are written once to `.demo/parquet`.  What a row of the tables is says how it
reads; all hand out 1,000 rows as a dict of NumPy's columns, with text as `str` and an
array for each list.  Two workers read, but for `iter_batches` and ours without workers;
for these pyarrow decodes in as many threads as it likes.  A shuffle of ours is among
the row groups of 64 MB, one of `datasets` streamed among 1,000 rows, one of torchdata's
nodes within a row group, and one of `datasets` mapped among all rows.

Memory is the most that all processes of a program hold together, each page counted
once, while the first pass is read, for 20 seconds at most; the program itself isn't
counted.  What is left on disk are the files that a reader has made beside the data.  A
trainer is ended by SIGKILL, and goes on from its last state in a new process; what it
was handed after that state is void.  Lost and twice are rows of the pass by their
numbers.

Must: ours reads 0.9 times as many rows a second in order as `iter_batches`, shuffled
0.7 times as many, and shuffled at least as many as every other reader that shuffles;
decodes each row group 1.1 times at most; leaves nothing on disk; and loses nothing and
gives nothing twice.  Exit status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from checkout import ROOT
from driver import (
    Absent,
    Answer,
    Claim,
    Experiment,
    Summary,
    Turn,
    at_least,
    at_most,
    command_line,
    conduct,
    median,
)
from measuring import MemoryWatch, flowing, tree_memory
from numpy.typing import NDArray
from parquet_files import FEW_GROUPS, FEW_ROWS, written
from parquet_readers import READERS, Job, Reader
from sittings import SITTING_S, end_with_the_turn, ended, words_of

RATE = "rows_per_s"
MEMORY = "memory_mb"
DISK = "disk_mb"
DECODES = "decodes"
LOST = "lost"
TWICE = "twice"
BAD = "bad"
FIGURES = {
    RATE: "rows a second",
    MEMORY: "MB at most",
    DISK: "MB left on disk",
    DECODES: "decodes of a row group",
    LOST: "lost",
    TWICE: "twice",
    BAD: "not as it must be",
}
FOLDER = ROOT / ".demo" / "parquet"
KINDS = ("numbers", "mixed")
WITH = {
    "numbers": "16 columns of numbers",
    "mixed": "5 columns of numbers, 2 of text, one of lists",
}
TRAINER = "trainer"
CASES: dict[str, str] = {}
for _kind in KINDS:
    CASES[f"{_kind}, in order"] = WITH[_kind]
    CASES[f"{_kind}, shuffled"] = WITH[_kind]
for _kind in KINDS:
    CASES[f"{_kind}, a pass"] = f"memory and disk, shuffled if it can: {WITH[_kind]}"
CASES[TRAINER] = "the trainer is killed, and resumed in a new process"
# Memory is looked at for so many seconds, at most.
PASS_S = 20.0
SAVE_EVERY = 5
# The last state is that of this batch, and so many after it are void.
SAVED = 15
VOID = 3
SIT = "--sit"


def rows_of(case: str) -> list[str]:
    if not case.endswith("shuffled"):
        return list(READERS)
    return [name for name, reader in READERS.items() if reader.can_shuffle]


def prepare(options: argparse.Namespace) -> None:
    """Write the files, once."""
    for kind in KINDS:
        if any(case.startswith(kind) for case in options.cases):
            written(FOLDER, kind, options.groups)
    if TRAINER in options.cases:
        written(FOLDER, "few", FEW_GROUPS)


def take(turn: Turn) -> Answer:
    """Measure the turn in this process, or play its scene in others."""
    reader = READERS[turn.row]
    if turn.case == TRAINER and reader.no_state:
        raise Absent(reader.no_state)
    with tempfile.TemporaryDirectory(prefix="mpiter-bench-") as name:
        # What a reader makes goes here.
        os.environ["TMPDIR"] = name
        os.environ["HF_HOME"] = name
        tempfile.tempdir = name
        folder = Path(name)
        if turn.case == TRAINER:
            return killed(turn, folder)
        kind, _, how = turn.case.partition(", ")
        job = Job(
            written(FOLDER, kind, turn.options["groups"]),
            how != "in order" and reader.can_shuffle,
            turn.workers,
            turn.round,
            once=how == "a pass",
        )
        if how == "a pass":
            return passed(reader, job, folder)
        return {RATE: rate(reader, job, turn)}


def rate(reader: type[Reader], job: Job, turn: Turn) -> float:
    """Return the rows a second in full flow."""
    batches = reader(job).batches()
    rows = list[int]()

    def take_one() -> None:
        rows.append(len(next(batches)["id"]))

    # Row groups come now and then, and batches are read ahead.
    count, seconds, _ = flowing(take_one, turn.warmup_s, turn.seconds, warm=64)
    return sum(rows[-count:]) / seconds


def passed(reader: type[Reader], job: Job, folder: Path) -> Answer:
    """Read all rows, or as many as in some time; return what that has taken."""
    before = tree_memory() or 0
    made = reader(job)
    is_over = True
    with MemoryWatch() as watch:
        until = time.monotonic() + PASS_S
        for _ in made.batches():
            if time.monotonic() > until:
                is_over = False
                break
    found: Answer = {
        MEMORY: (watch.most - before) / 1e6,
        DISK: bytes_below(folder) / 1e6,
    }
    decodes = made.decodes()
    if decodes is not None and is_over:
        found[DECODES] = decodes
    return found


def bytes_below(folder: Path) -> int:
    """Return the bytes that the files in a folder take on the disk."""
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*"))


# -- a trainer that is killed ----------------------------------------------------------


def killed(turn: Turn, folder: Path) -> Answer:
    """Have a trainer read, be killed, and go on in a new process."""
    for is_second in (False, True):
        told = {
            "row": turn.row,
            "folder": str(folder),
            "workers": turn.workers,
            "seed": turn.round,
            "goes_on": is_second,
        }
        command = [sys.executable, "-W", "ignore", __file__, SIT, json.dumps(told)]
        status = ended(command)
        words = folder / "raised"
        if words.exists():
            return {"says": words.read_text(), BAD: 1.0}
        if status is None:
            return {"says": f"gave nothing more within {SITTING_S:g} s", BAD: 1.0}
        if status != (0 if is_second else -signal.SIGKILL):
            return {"says": f"ended with status {status}", BAD: 1.0}
    had = np.load(folder / "saved.npy") + np.load(folder / "rest.npy")
    lost = int((had == 0).sum())
    twice = int((had > 1).sum())
    return {LOST: lost, TWICE: twice, BAD: lost + twice}


def sit(told: dict[str, Any]) -> None:
    """Train, as programs do, until the pass ends or this process is killed."""
    threading.Thread(target=end_with_the_turn, daemon=True).start()
    folder = Path(told["folder"])
    goes_on = told["goes_on"]
    job = Job(
        written(FOLDER, "few", FEW_GROUPS),
        shuffle=True,
        workers=told["workers"],
        seed=told["seed"],
        once=True,
        # Smaller than the files: the trainer is killed in the second of three windows.
        window="1.3MB",
    )
    had: NDArray[np.int64] = np.zeros(FEW_ROWS, np.int64)
    try:
        reader = READERS[told["row"]](job)
        if goes_on:
            reader.load(pickle.loads((folder / "state").read_bytes()))
        for done, batch in enumerate(reader.batches(), 1):
            had += np.bincount(np.asarray(batch["id"]), minlength=FEW_ROWS)
            if goes_on:
                continue
            if done % SAVE_EVERY == 0 and done <= SAVED:
                (folder / "state").write_bytes(pickle.dumps(reader.state()))
                np.save(folder / "saved.npy", had)
            if done == SAVED + VOID:
                os.kill(os.getpid(), signal.SIGKILL)
    except Exception as error:
        (folder / "raised").write_text(words_of(error))
        return
    np.save(folder / "rest.npy", had)


# -- the answer ------------------------------------------------------------------------


def claims(summary: Summary) -> Iterator[Claim]:
    for kind in KINDS:
        in_order = f"{kind}, in order"
        shuffled = f"{kind}, shuffled"
        a_pass = f"{kind}, a pass"
        alone = median(summary, in_order, "iter_batches", RATE)
        for case, least in ((in_order, 0.9), (shuffled, 0.7)):
            ours = median(summary, case, "ours", RATE)
            ratio = ours and alone and ours / alone
            yield at_least(case, FIGURES[RATE], ratio, least, " x iter_batches")
        ours = median(summary, shuffled, "ours", RATE)
        for row in rows_of(shuffled):
            if row.startswith("ours"):
                continue
            theirs = median(summary, shuffled, row, RATE)
            ratio = ours and theirs and ours / theirs
            yield at_least(shuffled, FIGURES[RATE], ratio, 1.0, f" x {row}")
        for figure, most in ((DECODES, 1.1), (DISK, 0.0)):
            here = worst(summary, a_pass, figure)
            yield at_most(a_pass, FIGURES[figure], here, most)
    yield at_most(TRAINER, "lost, given twice, raised", worst(summary, TRAINER, BAD), 0)


def worst(summary: Summary, case: str, figure: str) -> float | None:
    """Return the worst of all rounds of ours: once is too often."""
    found = summary.get((case, "ours"), {}).get(figure)
    return max(found.values) if found else None


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows={name: reader.way for name, reader in READERS.items()},
    figures=FIGURES,
    take=take,
    claims=claims,
    rows_of=rows_of,
    environment=lambda row, case: READERS[row].environment,
    asked=["groups"],
    prepare=prepare,
    small={
        "cases": ["numbers, in order", "mixed, shuffled", "mixed, a pass", TRAINER],
        "rows": ["ours", "iter_batches"],
        "groups": 4,
    },
)


def main() -> int:
    """Measure, and leave nothing behind, however the readers are ended."""
    with tempfile.TemporaryDirectory(
        prefix="mpiter-bench-", ignore_cleanup_errors=True
    ) as name:
        os.environ["TMPDIR"] = name
        tempfile.tempdir = name
        parser = command_line(EXPERIMENT, warmup=0.5, timeout=120.0, rounds=3)
        parser.add_argument(
            "--groups", type=int, default=32, help="row groups of a case (default 32)"
        )
        return conduct(EXPERIMENT, parser)


if __name__ == "__main__":
    if sys.argv[1:2] == [SIT]:
        sit(json.loads(sys.argv[2]))
        # How long workers take to end isn't measured, and some never do.
        os._exit(0)
    sys.exit(main())
