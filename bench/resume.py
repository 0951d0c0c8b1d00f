"""Resuming in mid-epoch: what do ours and other loaders lose or give twice?

    python bench/resume.py --python-torch PATH --out bench/results/resume.json
    python bench/resume.py --rows ours --cases trainer      # one of them

Each loader shuffles, has two workers and is resumed by its own documented way; what
each rank is handed is written down and counted here, alike for all. 288 samples,
batches of 12 over all ranks, a state every 3 steps; samples, workers and ranks divide
evenly, so nothing that a documentation says of remainders is at issue. A trainer is
ended by SIGKILL; what it was handed after its last state is void, as the model is. A
scene is a series of sittings: ranks that start together and are killed after some
steps, or go to the epoch's end. Must: ours loses nothing, gives nothing twice and
raises nothing, in each scene.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from driver import (
    Absent,
    Answer,
    Claim,
    Experiment,
    Summary,
    Turn,
    at_most,
    command_line,
    conduct,
)
from resume_loaders import LOADERS, Loader, Seat, keys_of

LENGTH = 288
SAVE_EVERY = 3
STEPS_TO_WORKER = 6
SITTING_S = 60.0
LOST = "lost"
TWICE = "twice"
FAULTS = "faults"
BAD = "bad"
# With this option the program is one of the ranks.
RANK = "--rank"


@dataclass(frozen=True)
class Sitting:
    """Ranks that start together, and after how many steps they are killed.

    With 0 they go to the epoch's end.
    """

    ranks: int = 1
    batch: int = 12  # of each rank
    workers: int = 2
    steps: int = 0
    strike: bool = False  # a worker is killed on the way


FIRST = Sitting(steps=7)
SCENES: dict[str, tuple[str, tuple[Sitting, ...]]] = {
    "worker": (
        "a worker is killed in mid-epoch; where that is an error, on from the last "
        "state",
        (Sitting(strike=True),),
    ),
    "trainer": (
        "the trainer is killed, and resumed in a new process",
        (FIRST, Sitting()),
    ),
    "again": ("killed, resumed, killed, resumed", (FIRST, FIRST, Sitting())),
    "workers": ("2 workers, resumed with 3", (FIRST, Sitting(workers=3))),
    "ranks": (
        "1 rank, then 3, then 2, 12 samples a step",
        (FIRST, Sitting(3, 4, steps=7), Sitting(2, 6)),
    ),
    "batches": (
        "1 rank, then 3, then 2, 12, 9 and 18 samples a step",
        (FIRST, Sitting(3, 3, steps=13), Sitting(2, 9)),
    ),
}


# -- a scene, in the turn's process ----------------------------------------------------


def take(turn: Turn) -> Answer:
    """Play the scene, sitting by sitting, each rank in a process of its own."""
    kind = LOADERS[turn.row]
    if why := kind.left_out.get(turn.case):
        raise Absent(why)
    if importlib.util.find_spec(kind.module) is None:
        raise Absent(f"no {kind.module} here")
    with tempfile.TemporaryDirectory(prefix="mpiter-bench-") as folder:
        faults, is_over = played(turn, Path(folder))
        lost, twice = counted(Path(folder))
    is_refused = bool(faults) and not is_over
    found = {
        LOST: lost,
        TWICE: twice,
        FAULTS: len(faults),
        BAD: lost + twice + len(faults) + (not is_over),
    }
    return found | {"says": said(faults, is_refused, lost, twice)}


def played(turn: Turn, folder: Path) -> tuple[list[str], bool]:
    """Return what was raised or hung, and whether the epoch came to its end."""
    todo = list(SCENES[turn.case][1])
    faults = list[str]()
    for number, sitting in enumerate(todo):
        raised = sat(turn, sitting, number, folder)
        faults += raised
        if raised and sitting.strike:
            # Another sitting goes on from the last state.
            todo.append(Sitting())
        elif raised:
            return faults, False
    return faults, True


def sat(turn: Turn, sitting: Sitting, number: int, folder: Path) -> list[str]:
    """Run all ranks at once; return what went wrong, each once."""
    about = asdict(sitting) | {
        "row": turn.row,
        "number": number,
        "folder": str(folder),
        "seed": turn.round,
    }
    port = free_port()
    processes = []
    for rank in range(sitting.ranks):
        told = json.dumps(about | {"rank": rank})
        command = [sys.executable, "-W", "ignore", __file__, RANK, told]
        environment = os.environ | as_launched(rank, sitting.ranks, port)
        processes.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        )
    end = time.monotonic() + SITTING_S
    found = list[str]()
    for rank, process in enumerate(processes):
        try:
            out, _ = process.communicate(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            out = process.communicate()[0] or b'{"raised": "hung"}'
        # A rank that met its end was killed there, as it should be.
        has_met = (folder / f"met-{number}-{rank}").exists()
        answer = {}
        if out.strip():
            answer = json.loads(out.splitlines()[-1])
        if "raised" in answer:
            found.append(answer["raised"])
        elif process.returncode and not has_met:
            found.append(f"ended with status {process.returncode}")
    return list(dict.fromkeys(found))


def counted(folder: Path) -> tuple[int, int]:
    """Return how many samples were never handed out, and how many came again.

    It goes by what all ranks noted.

    What a rank was handed after the state that the next sitting began with is void: its
    place is beyond that state's.
    """
    notes = [
        json.loads(line)
        for file in folder.glob("handed-*")
        for line in file.read_text().splitlines()
    ]
    begins = {
        number: min(one["began"] for one in notes if one["number"] == number)
        for number in {n["number"] for n in notes}
    }
    counts: Counter[int] = Counter()
    for one in notes:
        later = [place for number, place in begins.items() if number > one["number"]]
        if one["place"] < min(later, default=LENGTH + 1):
            counts.update(one["keys"])
    return LENGTH - len(counts), counts.total() - len(counts)


def said(faults: list[str], is_refused: bool, lost: int, twice: int) -> str:
    """Return the result in words."""
    if is_refused:
        return "; ".join([*faults[:-1], f"does not resume: {faults[-1]}"])
    counted = ((lost, LOST), (twice, TWICE))
    counts = ", ".join(f"{count} {what}" for count, what in counted if count) or "exact"
    if faults:
        counts = f"then {counts}"
    return "; ".join([*faults, counts])


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def as_launched(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables that torch's launcher sets."""
    ranks = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
    }
    return {name: str(value) for name, value in ranks.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


# -- a rank, in its process ------------------------------------------------------------


def sit(told: dict[str, Any]) -> Answer:
    """Train as programs do: go on from the newest state, and save every few steps."""
    folder = Path(told["folder"])
    number = told["number"]
    kind = LOADERS[told["row"]]
    seat = Seat(
        folder,
        LENGTH,
        told["rank"],
        told["ranks"],
        told["workers"],
        told["batch"],
        told["seed"],
    )
    saved = newest(seat, number)
    place = began = saved["place"] if saved else 0
    steps = 0
    with open(folder / f"handed-{number}-{seat.rank}", "w") as notes:
        try:
            loader: Loader = kind(seat)
            if saved:
                loader.load(saved["state"])
            for batch in loader.batches():
                note = {
                    "number": number,
                    "began": began,
                    "place": place,
                    "keys": keys_of(batch),
                }
                print(json.dumps(note), file=notes, flush=True)
                place = place + seat.batch_size * seat.size
                steps = steps + 1
                if steps % SAVE_EVERY == 0:
                    save(seat, number, {"state": loader.state(), "place": place})
                if steps == STEPS_TO_WORKER and told["strike"]:
                    os.kill(loader.workers()[0], signal.SIGKILL)
                if steps == told["steps"]:
                    meet(seat, number)
                    os.kill(os.getpid(), signal.SIGKILL)
        except Exception as error:
            return {"raised": words_of(error)}
    return {"steps": steps}


def words_of(error: Exception) -> str:
    """Return an error's type and what it says first, or last where a worker raised it.

    What differs from run to run is left out.
    """
    lines = str(error).strip().splitlines() or [""]
    name = type(error).__name__
    words = lines[0]
    if words.startswith("Caught "):
        # torch quotes the worker's traceback, whose last line has the error.
        words = lines[-1]
    if words:
        name = f"{name}: {words.removeprefix(f'{name}: ')}"
    return re.sub(r" \(pid\(s\) [\d, ]+\)", "", name)


def save(seat: Seat, number: int, what: dict[str, Any]) -> None:
    """Write the state to a file by a rename.

    So a kill leaves the old file or the new one.
    """
    file = seat.folder / f"state-{number}-{seat.rank}"
    file.with_suffix(".new").write_bytes(pickle.dumps(what | {"size": seat.size}))
    file.with_suffix(".new").replace(file)


def newest(seat: Seat, number: int) -> dict[str, Any] | None:
    """Return the newest state.

    It is this rank's own, if there were as many ranks before, or else rank 0's.
    """
    for before in reversed(range(number)):
        own, first = (seat.folder / f"state-{before}-{rank}" for rank in (seat.rank, 0))
        for file in (own, first):
            if file.exists():
                found: dict[str, Any] = pickle.loads(file.read_bytes())
                if file == first or found["size"] == seat.size:
                    return found
    return None


def meet(seat: Seat, number: int) -> None:
    """Wait until all ranks are here.

    A training that averages gradients after each step does so too.
    """
    (seat.folder / f"met-{number}-{seat.rank}").touch()
    while len(list(seat.folder.glob(f"met-{number}-*"))) < seat.size:
        time.sleep(0.01)


# -- the answer ------------------------------------------------------------------------


def claims(summary: Summary) -> Iterator[Claim]:
    for case in SCENES:
        for row in (row for row in LOADERS if row.startswith("ours")):
            found = summary.get((case, row), {}).get(BAD)
            # The worst of all rounds counts: once is too often.
            worst = None
            if found:
                worst = max(found.values)
            yield at_most(case, f"{row}: lost, given twice, raised", worst, 0)


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={name: says for name, (says, _) in SCENES.items()},
    rows={name: kind.way for name, kind in LOADERS.items()},
    figures={BAD: "not as it must be", LOST: "lost", TWICE: "twice", FAULTS: "raised"},
    take=take,
    claims=claims,
    environment=lambda row, case: LOADERS[row].environment,
    small={"cases": ["workers"], "rows": ["ours"]},
)


if __name__ == "__main__":
    if sys.argv[1:2] == [RANK]:
        answers = os.dup(1)
        os.dup2(2, 1)
        answer = sit(json.loads(sys.argv[2]))
        os.write(answers, json.dumps(answer).encode() + b"\n")
        os._exit(0)
    sys.exit(
        conduct(
            EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=300.0, rounds=3)
        )
    )
