"""Staging from a slow store: the first epoch, later ones, tiers that have room for a part, and being killed.

    python bench/staging.py --out bench/results/staging.json
    python bench/staging.py --quick --samples 64            # a smoke test, never a conclusion

The store is an HTTP server on the loopback, which takes 20 ms for each file and has 20 MB/s for all; samples are files
of 80 kB. Must: a warm epoch at least 5 times as fast as without staging, the first no slower; with room for a quarter,
half and three quarters of the samples, later epochs hit that share within 2 points; of programs that are killed in the
middle and started again none gets a sample that isn't the store's; the bound is never exceeded.
Exit status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkout  # noqa: F401  # before mpiter
from slow_store import SIZE, Checked, Remote, bytes_below, serving

import mpiter
from mpiter.asked import at_least as from_on
from mpiter.lab.bench import Bench, command_line, conduct
from mpiter.lab.turns import Answer, Turn
from mpiter.lab.verdict import Claim, Summary, at_least, at_most, median, ratio
from mpiter.staging import Staging

NONE, FOLDER, MEMORY = "none", "folder", "memory"
FIRST, WARM, OFF, OVER, WRONG = "first_per_s", "warm_per_s", "hits_off", "over_bytes", "wrong"
TAIL = 16  # bytes that stand behind a copy
BATCH_SIZE, KILLS = 16, 8
SHARES = {"quarter": 0.25, "half": 0.5, "three quarters": 0.75}
ALL, KILLED = "all", "killed"
TIMES, POINTS = 5.0, 0.02


def take(turn: Turn) -> Answer:
    """Measures, in this process."""
    samples = turn.options["samples"]
    place = "/dev/shm" if turn.row == MEMORY else None
    with serving() as port, tempfile.TemporaryDirectory(prefix="mpiter-bench-", dir=place) as folder:
        if turn.case == KILLED:
            return killed(port, samples, Path(folder))
        room = SHARES.get(turn.case, 1.0) * samples * (SIZE + TAIL)
        staging = None if turn.row == NONE else Staging(folder, room)
        remote = Remote(port, samples)
        return gone_through(turn, remote if staging is None else staging.of(remote), staging, Path(folder))


def gone_through(turn: Turn, dataset: Any, staging: Staging | None, tier: Path) -> Answer:
    """Epoch after epoch."""
    with mpiter.batches(dataset, BATCH_SIZE, n_processes=turn.workers, seed=turn.seed) as stream:
        first_s, over = epoch(stream, tier, staging)
        before, began, epochs = staging and staging.stats(), time.perf_counter(), 0
        while time.perf_counter() < began + turn.seconds or not epochs:
            over = max(over, epoch(stream, tier, staging)[1])
            epochs += 1
        seconds = time.perf_counter() - began
    found = {FIRST: len(dataset) / first_s, WARM: epochs * len(dataset) / seconds}
    if staging is not None and before is not None:
        after = staging.stats()
        hit_rate = after.since(before).hit_rate
        found |= {"hit_rate": hit_rate, OFF: abs(hit_rate - SHARES.get(turn.case, 1.0)), OVER: over}
        found |= {"staged_s": after.staged_s or 0.0}
    return found


def epoch(stream: Any, tier: Path, staging: Staging | None) -> tuple[float, int]:
    """How long it takes, and by how much the bound was exceeded."""
    over, began = 0, time.perf_counter()
    for number, _ in enumerate(stream):
        if staging is not None and number % 8 == 0:
            over = max(over, bytes_below(tier) - staging.stats().capacity)
    return time.perf_counter() - began, max(0, over)


def killed(port: int, samples: int, tier: Path) -> Answer:
    """Programs that are killed in the middle, one after the other, and one that is not."""
    room, rng, over, wrong = samples * (SIZE + TAIL) // 2, random.Random(0), 0, 0
    for last in [*[False] * KILLS, True]:
        command = [sys.executable, __file__, "victim", str(port), str(samples), str(tier), str(room)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            program.stdout.readline()
            until = time.monotonic() + rng.uniform(0.05, 0.8)
            while program.poll() is None and (last or time.monotonic() < until):
                over = max(over, bytes_below(tier) - room)
                time.sleep(0.002)
            program.kill()
            wrong += sum(line.startswith("wrong") for line in program.stdout)
            if last and program.wait():
                raise RuntimeError(f"the last program ended with {program.returncode}")
    return {WRONG: wrong, OVER: max(0, over), "kills": KILLS, "held": bytes_below(tier) / (SIZE + TAIL) / samples}


def victim(port: str, samples: str, tier: str, room: str) -> None:
    """Goes through two epochs, and says what is wrong."""
    staged = Staging(tier, int(room)).of(Checked(int(port), int(samples)))
    with mpiter.batches(staged, 4, n_processes=2, epochs=2, seed=os.getpid()) as stream:
        print("begun", flush=True)
        for numbers, are_right in stream:
            for number in numbers[~are_right]:
                print("wrong", number, flush=True)


def claims(summary: Summary) -> Iterator[Claim]:
    for row in (FOLDER, MEMORY):
        yield at_least(ALL, f"warm, {row}", quotient(summary, row, WARM), TIMES, " x none")
        yield at_least(ALL, f"first epoch, {row}", quotient(summary, row, FIRST), 1.0, " x none")
    for case in SHARES:
        for row in (FOLDER, MEMORY):
            yield at_most(case, f"hits of {row} off by", median(summary, case, row, OFF), POINTS)
    for case in (ALL, *SHARES, KILLED):
        yield at_most(case, "bytes beyond the bound", worst(summary, case, OVER), 0)
    yield at_most(KILLED, "samples that are not the store's", worst(summary, KILLED, WRONG), 0)


def quotient(summary: Summary, row: str, figure: str) -> float | None:
    return ratio(summary, ALL, row, NONE, figure)


def worst(summary: Summary, case: str, figure: str) -> float | None:
    """Of all rounds: once is too often."""
    found = summary.get((case, FOLDER), {}).get(figure)
    return None if found is None else max(found.values)


BENCH = Bench(
    schema="mpiter.bench.staging/1",
    script=__file__,
    doc=__doc__,
    cases={
        ALL: "room for all samples",
        **{name: f"room for {share:.0%} of the samples" for name, share in SHARES.items()},
        KILLED: f"room for half; {KILLS} programs are killed in the middle, the last is not",
    },
    rows={NONE: "no staging", FOLDER: "a folder of the local disk", MEMORY: "memory"},
    figures={
        WARM: "samples/s, warm",
        FIRST: "first epoch",
        "hit_rate": "hits",
        OFF: "off",
        "staged_s": "staged s",
        OVER: "over",
        WRONG: "wrong",
        "kills": "kills",
        "held": "held",
    },
    take=take,
    claims=claims,
    rows_of=lambda case: (NONE, FOLDER, MEMORY) if case == ALL else (FOLDER,) if case == KILLED else (FOLDER, MEMORY),
    against=NONE,
    asked=("samples",),
)


def main() -> int:
    if sys.argv[1:2] == ["victim"]:
        victim(*sys.argv[2:])
        return 0
    parser = command_line(BENCH, warmup=0.0, timeout=120.0, seconds=4.0)
    parser.add_argument("--samples", type=from_on(BATCH_SIZE), default=512, help="of 80 kB each (default 512)")
    return conduct(BENCH, parser)


if __name__ == "__main__":
    sys.exit(main())
