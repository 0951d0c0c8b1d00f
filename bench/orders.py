"""Mixing, packing and dealing for language models: ours beside other loaders.

Prints tables and JSON.

    python bench/orders.py --python-torch PATH --python-mosaic PATH \\
        --out bench/results/orders.json
    python bench/orders.py --small  # a smoke test, never a conclusion

One Python has torch, grain, torchdata, datasets, pyarrow and litdata, the other has
mosaicml-streaming.  Three corpora of uneven size and lognormal lengths are written to a
temporary folder, as each loader reads them; each mixes them, packs them into rows of
2,048 tokens and is resumed by its own documented way.  Rows have tokens, positions and
segments; where packing is left to the user, all are packed alike.  A document's tokens
say which document it is, so what a training was handed is counted alike for all.  In
the scenes a trainer is ended by SIGKILL, and what it was handed after its last state is
void, as the model is; lost are documents that come before another one of their corpus
that was handed.  Planning is ours alone, without loading anything, in processor time.

Must: ours loses nothing and gives nothing twice; a mixture is off by at most 2 samples
at every 256th place; planning takes at most 2 us a document, a step at place 10^12
1 ms, and 1,024 ranks that need 200,000 documents a second 0.3 of a core each; lengths
take at most 8 bytes a document; ours is at least as fast as every other loader that
packs, and in batches of 32 rows 0.8 times as fast as a loop that copies the same
documents.  Exit status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpora import (
    CAPACITY,
    FEW,
    LARGE,
    cost_of,
    lengths_of,
    padding_in,
    write,
)
from driver import (
    SHARED,
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
from measuring import flowing
from numpy.typing import NDArray
from orders_job import Job, Loader
from orders_loaders import LOADERS
from sittings import SITTING_S, end_with_the_turn, ended, words_of

import mpiter
from mpiter.order.brought import Brought
from mpiter.order.cursor import Cursor, Pace, Share

RATE = "tokens_per_s"
EARLY = "off_early"
LATE = "off_late"
WORST = "off_at_most"
PADDING = "padding"
UNEVEN = "max_over_mean"
STATE = "state_bytes"
PLAN = "plan_us"
FAR = "far_ms"
CORE = "core"
MEMORY = "bytes_per_document"
BAD = "bad"
LOST = "lost"
TWICE = "twice"
FIGURES = {
    RATE: "tokens a second",
    EARLY: "off after 10^3",
    LATE: "off after 10^5",
    WORST: "at most, at every 256th",
    PADDING: "% padding",
    UNEVEN: "cost, max / mean",
    STATE: "bytes of state",
    PLAN: "us a document",
    FAR: "ms at 10^12",
    CORE: "of a core, 1,024 ranks",
    MEMORY: "bytes a document",
    BAD: "not as it must be",
    LOST: "lost",
    TWICE: "twice",
}

WEIGHTS = {"web": 0.7, "code": 0.25, "books": 0.05}
# As weights that somebody has tuned are: no batch has whole numbers of them.
ODD = {"web": 0.6581, "code": 0.2987, "books": 0.0432}
# With these each corpus ends when the others do.
EVEN = {"web": 7.0, "code": 2.0, "books": 1.0}
EDITED = {"web": 5.0, "code": 3.0, "books": 1.0}
BLOCK = 256
# A step of 8 ranks.
RANKS = 8
ROWS_A_RANK = 4
STEPS = 40
# Rows in a batch, in the cases of speed.
BATCHES = {"speed": 8, "large": 32}
# Rows of which padding is counted.
PACKED = 2400
SAVE_EVERY = 5
# A trainer takes so many batches after its last state, which are void.
VOID = 3


@dataclass(frozen=True)
class Sitting:
    """Ranks that go on from a state for some batches; with 0 to the epoch's end."""

    ranks: int = 1
    # Rows of each rank.
    batch: int = 8
    workers: int = 0
    batches: int = 0
    # A worker is killed on the way.
    strike: bool = False
    edited: bool = False
    shuffle: bool = True


SCENES: dict[str, tuple[str, tuple[Sitting, ...]]] = {
    "worker": (
        "a worker is killed; where that is an error, on from the last state",
        (Sitting(workers=2, strike=True),),
    ),
    "trainer": (
        "the trainer is killed, and resumed in a new process",
        (Sitting(workers=2, batches=20), Sitting(workers=2)),
    ),
    "ranks": (
        "1 rank, then 3, then 2, with 12 rows in all",
        (Sitting(1, 12, batches=20), Sitting(3, 4, batches=20), Sitting(2, 6)),
    ),
    "resized": (
        "1 rank, then 3, then 2, with 8, 5 and 12 rows each",
        (Sitting(1, 8, batches=20), Sitting(3, 5, batches=20), Sitting(2, 12)),
    ),
    "edited": (
        "resumed with other weights, documents in the corpora's order",
        (Sitting(batches=20, shuffle=False), Sitting(edited=True, shuffle=False)),
    ),
}
CASES = {
    "speed": "two workers, 8 rows of 2,048 from mapped files",
    "large": "two workers, 32 rows of 2,048 from mapped files",
    "weights": "samples by which a corpus is off: weights 0.7, 0.25, 0.05",
    "odd weights": "samples by which a corpus is off: weights 0.6581, 0.2987, 0.0432",
    "rows": "padding, cost of attention on 8 ranks with 4 rows each, and the state",
    "planning": "planning alone: nothing is loaded",
} | {name: says for name, (says, _) in SCENES.items()}
ALONE = ("ours, not packed", "loop")


def rows_of(case: str) -> list[str]:
    if case in BATCHES:
        return list(LOADERS)
    if case == "planning":
        return ["ours"]
    return [name for name in LOADERS if name not in ALONE]


def take(turn: Turn) -> Answer:
    """Measure the turn in this process, or play its scene in others."""
    kind = LOADERS[turn.row]
    if why := kind.left_out.get(turn.case):
        raise Absent(why)
    if turn.case == "planning":
        return planned(turn.round)
    if turn.case == "weights":
        return weighed(kind, WEIGHTS, turn.round)
    if turn.case == "odd weights":
        return weighed(kind, ODD, turn.round)
    with tempfile.TemporaryDirectory(prefix="mpiter-bench-") as name:
        folder = Path(name)
        counts = FEW if turn.case in SCENES else LARGE
        write(folder, counts)
        kind.prepare(folder)
        if turn.case in SCENES:
            return scene(turn, folder)
        if turn.case == "rows":
            return packed(kind, folder, turn.round)
        return fast(kind, folder, turn)


# -- figures ---------------------------------------------------------------------------


def weighed(kind: type[Loader], weights: dict[str, float], seed: int) -> Answer:
    """Return by how many samples the components of a mixture are off."""
    places = 10**5
    which = np.fromiter(kind.mixed(weights, places, seed), np.int64, places)
    shares = np.array([*weights.values()])
    found: Answer = {}
    for figure, place in ((EARLY, 10**3), (LATE, places)):
        counts = np.bincount(which[:place], minlength=len(shares))
        found[figure] = float(np.abs(counts - shares * place).max())
    had = np.cumsum(which[:, None] == np.arange(len(shares)), axis=0)
    wanted = np.arange(1, places + 1)[:, None] * shares
    off = np.abs(had - wanted).max(axis=1)
    # Ours is shuffled within blocks of so many places.
    found[WORST] = float(off[BLOCK - 1 :: BLOCK].max())
    return found


def packed(kind: type[Loader], folder: Path, seed: int) -> Answer:
    """Return padding, how uneven the ranks of a step are, and the state's bytes."""
    loader = kind(Job(folder, WEIGHTS, 8, seed=seed))
    padding = list[float]()
    for number, rows in enumerate(loader.batches(), 1):
        padding.append(padding_in(rows["tokens"]))
        if number == PACKED // 8:
            break
    state = loader.state()
    costs = np.zeros((RANKS, STEPS))
    for rank in range(RANKS):
        job = Job(folder, WEIGHTS, ROWS_A_RANK, rank, RANKS, seed=seed)
        steps = kind(job).batches()
        for step in range(STEPS):
            costs[rank, step] = cost_of(next(steps)["tokens"])
    uneven = costs.max(axis=0) / costs.mean(axis=0)
    return {
        PADDING: 100 * float(np.mean(padding)),
        UNEVEN: float(uneven.mean()),
        STATE: len(state),
    }


def fast(kind: type[Loader], folder: Path, turn: Turn) -> Answer:
    """Return the tokens a second that aren't padding."""
    rows = BATCHES[turn.case]
    job = Job(folder, WEIGHTS, rows, workers=turn.workers, seed=turn.round)
    batches = kind(job).batches()
    # One more for each part that is timed: the warm-up's don't count.
    tokens = list[int]()

    def take_one() -> None:
        tokens.append(int(np.count_nonzero(next(batches)["tokens"])))

    # Planning and fetching run ahead by some batches, and windows come now and then.
    count, seconds, _ = flowing(take_one, turn.warmup_s, turn.seconds, warm=16)
    return {RATE: sum(tokens[-count:]) / seconds}


# -- planning, ours alone --------------------------------------------------------------


class Lengths:
    """Documents of which only the lengths are known."""

    def __init__(self, lengths: NDArray[np.uint32]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


def planned(seed: int) -> Answer:
    """Return what planning takes, in time and memory."""
    rng = np.random.default_rng(seed)
    documents = 1_000_000
    lengths = drawn(rng, documents)
    rows = mpiter.Pack(Lengths(lengths), CAPACITY)
    order = brought(rows, seed)
    seconds_a_document = of_1024_ranks(order, documents / len(order))
    return {
        PLAN: mixed_us(seed),
        FAR: far_ms(seed),
        CORE: seconds_a_document * 200_000,
        MEMORY: held(rng, 200_000),
    }


def drawn(rng: np.random.Generator, documents: int) -> NDArray[np.uint32]:
    """Return the lengths of documents with some 500 tokens."""
    found = rng.lognormal(5.7, 1.0, documents)
    return np.clip(found, 16, CAPACITY).astype(np.uint32)


def held(rng: np.random.Generator, documents: int) -> float:
    """Return the bytes a document that are held when an epoch's rows are counted."""
    tracemalloc.start()
    rows = mpiter.Pack(Lengths(drawn(rng, documents)), CAPACITY)
    len(rows.mpiter_order(0, None))
    now, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return now / documents


def brought(rows: mpiter.Pack, seed: int) -> Brought:
    """Return the order of the rows, as loaders have it."""
    return Brought(
        rows.mpiter_order(seed, None), lambda again: rows.mpiter_order(again, None)
    )


def of_1024_ranks(order: Brought, documents_a_row: float) -> float:
    """Return the seconds of processor that one rank of 1,024 plans a document in."""
    share = Share(5, 1024)
    pace = Pace(ROWS_A_RANK, share=share)
    cursor = Cursor(0, 0, False, order)
    steps = 20
    began = time.process_time()
    for _ in range(steps):
        plan = pace.step(cursor)
        assert plan is not None
        list(plan.stretches)
        cursor = plan.after
    took = time.process_time() - began
    return took / (steps * share.step(ROWS_A_RANK) * documents_a_row)


def mixed_us(seed: int) -> float:
    """Return the microseconds that a document of a packed mixture takes to plan."""
    parts = dict[str, Lengths]()
    for name, lengths in lengths_of(LARGE).items():
        parts[name] = Lengths(lengths.astype(np.uint32))
    order = mpiter.Pack(mpiter.Mix(parts, WEIGHTS), CAPACITY).mpiter_order(seed, None)
    total = len(order)
    began = time.process_time()
    for start in range(0, total, 32):
        order.take(start, min(start + 32, total))
    return 1e6 * (time.process_time() - began) / sum(LARGE.values())


def far_ms(seed: int) -> float:
    """Return the milliseconds of a step of 32 samples at place 10^12."""
    parts = {name: range(10**9) for name in WEIGHTS}
    mix = mpiter.Mix(parts, WEIGHTS, length=2 * 10**12)
    order = mix.mpiter_order(seed, None)
    took = list[float]()
    for number in range(21):
        place = 10**12 + 32 * number
        began = time.process_time()
        order.take(place, place + 32)
        took.append(1e3 * (time.process_time() - began))
    return float(np.median(took))


# -- scenes ----------------------------------------------------------------------------


def scene(turn: Turn, folder: Path) -> Answer:
    """Play the sittings one after the other, each in a process of its own."""
    todo = list(SCENES[turn.case][1])
    faults = list[str]()
    is_over = True
    for number, sitting in enumerate(todo):
        raised = sat(turn, sitting, number, folder)
        if raised:
            faults.append(raised)
            is_over = sitting.strike
        if raised and sitting.strike:
            todo.append(Sitting(workers=sitting.workers))
        elif raised:
            break
    lost, twice = counted(folder)
    counts = ((lost, LOST), (twice, TWICE))
    says = ", ".join(f"{count} {what}" for count, what in counts if count) or "exact"
    if not is_over:
        return {"says": f"refuses: {faults[-1]}", BAD: 1.0}
    return {
        LOST: lost,
        TWICE: twice,
        BAD: lost + twice + len(faults),
        "says": "; ".join([*faults, says]),
    }


def sat(turn: Turn, sitting: Sitting, number: int, folder: Path) -> str:
    """Run the ranks of a sitting one after the other; return what was raised."""
    for rank in range(sitting.ranks):
        told = {
            "row": turn.row,
            "folder": str(folder),
            "seed": turn.round,
            "number": number,
            "rank": rank,
            "sitting": asdict(sitting),
        }
        command = [sys.executable, "-W", "ignore", __file__, SIT, json.dumps(told)]
        status = ended(command)
        if status is None:
            return f"gave nothing more within {SITTING_S:g} s"
        words = folder / f"raised-{number}-{rank}"
        if words.exists():
            return words.read_text()
        # A trainer that met its end was killed there, as it should be.
        is_killed = status == -signal.SIGKILL and sitting.batches
        if status and not is_killed:
            return f"ended with status {status}"
    return ""


def counted(folder: Path) -> tuple[int, int]:
    """Return how many documents were lost, and how many came twice, by the notes."""
    had = sum(np.load(file) for file in folder.glob("handed-*.npy"))
    lost = 0
    twice = 0
    first = 1
    for lengths in lengths_of(FEW).values():
        tokens = had[first : first + len(lengths)]
        twice += int((tokens > lengths).sum())
        last = int(np.flatnonzero(tokens).max(initial=0))
        lost += int((tokens < lengths)[:last].sum())
        first += len(lengths)
    return lost, twice


SIT = "--sit"


def sit(told: dict[str, Any]) -> None:
    """Train on one rank, as programs do, and note what was raised."""
    threading.Thread(target=end_with_the_turn, daemon=True).start()
    folder = Path(told["folder"])
    sitting = Sitting(**told["sitting"])
    number = told["number"]
    rank = told["rank"]
    job = Job(
        folder,
        EDITED if sitting.edited else EVEN,
        sitting.batch,
        rank,
        sitting.ranks,
        sitting.workers,
        told["seed"],
        once=True,
        shuffle=sitting.shuffle,
    )
    had = np.zeros(sum(FEW.values()) + 1, np.int64)
    try:
        loader = LOADERS[told["row"]](job)
        if number:
            # Of the first rank, which is the only one or as good as any other.
            loader.load(pickle.loads((folder / f"state-{number - 1}-0").read_bytes()))
        for done, rows in enumerate(loader.batches(), 1):
            had += np.bincount(rows["tokens"].ravel(), minlength=len(had))
            is_void = sitting.batches and done > sitting.batches
            if done % SAVE_EVERY == 0 and not is_void:
                keep(folder, f"{number}-{rank}", loader.state(), had)
            if sitting.strike and done == 2 * SAVE_EVERY + 2:
                os.kill(loader.workers()[0], signal.SIGKILL)
            if done == sitting.batches + VOID and sitting.batches:
                os.kill(os.getpid(), signal.SIGKILL)
    except Exception as error:
        (folder / f"raised-{number}-{rank}").write_text(words_of(error))
        return
    np.save(folder / f"handed-{number}-{rank}.npy", had)


def keep(folder: Path, name: str, state: bytes, had: NDArray[np.int64]) -> None:
    """Keep a state, and what was handed before it."""
    (folder / f"state-{name}").write_bytes(pickle.dumps(state))
    np.save(folder / f"handed-{name}.npy", had)


# -- the answer ------------------------------------------------------------------------


def claims(summary: Summary) -> Iterator[Claim]:
    for case in SCENES:
        found = summary.get((case, "ours"), {}).get(BAD)
        # The worst of all rounds counts: once is too often.
        worst = max(found.values) if found else None
        yield at_most(case, "lost, given twice, raised", worst, 0)
    for case, figure, most in (
        ("weights", WORST, 2.0),
        ("odd weights", WORST, 2.0),
        ("planning", PLAN, 2.0),
        ("planning", FAR, 1.0),
        ("planning", CORE, 0.3),
        ("planning", MEMORY, 8.0),
    ):
        here = median(summary, case, "ours", figure)
        yield at_most(case, FIGURES[figure], here, most)
    for case in BATCHES:
        ours = median(summary, case, "ours", RATE)
        for row in LOADERS:
            if row in ("ours", ALONE[0]):
                continue
            # A loop has no batches, of which each costs a hand-over.
            if row == "loop" and case == "speed":
                continue
            theirs = median(summary, case, row, RATE)
            least = 0.8 if row == "loop" else 1.0
            ratio = ours and theirs and ours / theirs
            yield at_least(case, "tokens a second", ratio, least, f" x {row}")


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows={name: kind.way for name, kind in LOADERS.items()},
    figures=FIGURES,
    take=take,
    claims=claims,
    rows_of=rows_of,
    environment=lambda row, case: LOADERS[row].environment,
    small={"cases": ["speed", "ranks"], "rows": ["ours"]},
)


# Names that mosaicml-streaming gives to shared memory.
STREAMING = re.compile(r"\d{6}_[a-z_]+")


def main() -> int:
    """Measure, and leave nothing behind, however the loaders are ended."""
    before = shared_by_streaming()
    with tempfile.TemporaryDirectory(
        prefix="mpiter-bench-", ignore_cleanup_errors=True
    ) as name:
        # Temporary files of all turns, and of their workers, are below this folder.
        os.environ["TMPDIR"] = name
        tempfile.tempdir = name
        options = command_line(EXPERIMENT, warmup=0.5, timeout=240.0, rounds=3)
        try:
            return conduct(EXPERIMENT, options)
        finally:
            for path in shared_by_streaming() - before:
                path.unlink(missing_ok=True)


def shared_by_streaming() -> set[Path]:
    if not SHARED.is_dir():
        return set()
    return {path for path in SHARED.iterdir() if STREAMING.fullmatch(path.name)}


if __name__ == "__main__":
    if sys.argv[1:2] == [SIT]:
        sit(json.loads(sys.argv[2]))
        # How long workers take to end isn't measured, and some never do.
        os._exit(0)
    sys.exit(main())
