"""The scenes of the resuming benchmark, and how a loader goes through one: sitting by sitting, then the auditor.

Runs in the driver.  Each rank of a sitting is a process of its own with a deadline; what it raises, that it hangs or
refuses a state are findings like any other.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resume_peers import LOADERS
from resume_sitting import LENGTH, RECEIPTS

from mpiter.errors import OptionError
from mpiter.lab.turns import Answer, Turn, ask
from mpiter.remote.audit import audit

SCHEMA = "mpiter.bench.resume/1"
SCRIPT = str(Path(__file__).with_name("resume.py"))
KILLED = "ended with status -9"
EXACT = "exact"


@dataclass(frozen=True)
class Sitting:
    """Ranks that start together, and after how many steps they are killed; 0: they go to the epoch's end."""

    ranks: int = 1
    batch: int = 12  # of each rank
    workers: int = 2
    steps: int = 0
    strike: bool = False  # a worker is killed on the way


@dataclass(frozen=True)
class Scene:
    says: str
    sittings: tuple[Sitting, ...]


FIRST = Sitting(steps=7)
SCENES = {
    "worker": Scene(
        "a worker is killed in mid-epoch; where that is an error, on from the last state", (Sitting(strike=True),)
    ),
    "trainer": Scene("the trainer is killed, and resumed in a new process", (FIRST, Sitting())),
    "again": Scene("killed, resumed, killed, resumed", (FIRST, FIRST, Sitting())),
    "workers": Scene("2 workers, resumed with 3", (FIRST, Sitting(workers=3))),
    "ranks": Scene("1 rank, then 3, then 2, 12 samples a step", (FIRST, Sitting(3, 4, steps=7), Sitting(2, 6))),
    "batches": Scene(
        "1 rank, then 3, then 2, 12, 9 and 18 samples a step", (FIRST, Sitting(3, 3, steps=13), Sitting(2, 9))
    ),
}


@dataclass
class Found:
    """What came of one loader in one scene; `why` is there instead where it isn't promised, or isn't here."""

    row: str
    scene: str
    round: int
    faults: list[str] = field(default_factory=list)  # what it raised, where it hung
    is_refused: bool = False  # to go on from the state
    is_over: bool = False  # the epoch came to its end
    lost: int = 0
    twice: int = 0
    is_sound: bool = False  # to the auditor, who looks at the order as well
    audit: list[str] = field(default_factory=list)  # all that it says
    why: str = ""

    @property
    def bad(self) -> int:
        """How much of it is not as it must be."""
        return self.lost + self.twice + len(self.faults) + (not self.is_over) + (not self.is_sound)

    def __str__(self) -> str:
        if self.why:
            return self.why
        if self.is_refused:
            return "; ".join([*self.faults[:-1], f"does not resume: {self.faults[-1]}"])
        lost, twice = (
            f"{count} {what}" if count else "" for count, what in ((self.lost, "lost"), (self.twice, "twice"))
        )
        counts = ", ".join(filter(None, (lost, twice))) or (EXACT if self.is_sound else "not sound")
        return "; ".join([*self.faults, f"then {counts}" if self.faults else counts])


@dataclass(frozen=True)
class Stage:
    """Where a loader performs: its Python, and its data, written once."""

    python: str
    data: Path
    timeout_s: float
    plant: str | None

    def ask(self, row: str, case: str, sitting: Sitting, **told: Any) -> Answer:
        options = {"rank": 0, "size": 1, "port": 0, "folder": str(self.data)} | told
        turn = Turn(SCHEMA, row, case, {"workers": sitting.workers}, 0, 0, options.pop("seed", 0), options)
        return ask(turn, self.timeout_s, [self.python, "-W", "ignore", SCRIPT, "--turn"])

    def sit(self, row: str, name: str, sitting: Sitting, **told: Any) -> list[Answer]:
        """All ranks at once."""
        told |= {"size": sitting.ranks, "port": free_port(), "batch": sitting.batch, "steps": sitting.steps}
        told |= {"strike": sitting.strike, "plant": self.plant}
        with ThreadPoolExecutor(sitting.ranks) as pool:
            return list(pool.map(lambda rank: self.ask(row, name, sitting, rank=rank, **told), range(sitting.ranks)))

    def play(self, row: str, name: str, round_: int) -> Found:
        found = Found(row, name, round_)
        if why := LOADERS[row].left_out.get(name):
            return replace(found, why=why)
        with tempfile.TemporaryDirectory(prefix="mpiter-bench-") as folder:
            shutil.copytree(self.data, folder, dirs_exist_ok=True)
            todo = list(SCENES[name].sittings)
            for number, sitting in enumerate(todo):
                answers = self.sit(row, name, sitting, number=number, folder=folder, seed=round_)
                faults = faults_of(answers, [Path(folder, f"met-{number}-{rank}").exists() for rank in range(3)])
                found.faults += faults
                if faults and sitting.strike:
                    todo.append(Sitting())  # from the last state
                elif faults:
                    found.is_refused = number > 0 and any(one.get("steps") == 0 for one in answers)
                    break
            else:
                found.is_over = True
            return found if found.is_refused else audited(found, Path(folder, RECEIPTS))


def faults_of(answers: list[Answer], met: list[bool]) -> list[str]:
    """What went wrong, but for waiting in vain for a rank that something is wrong with."""
    raised = [answer["raised"] for answer in answers if "raised" in answer]
    ended = [
        answer["error"]
        for answer, has_met in zip(answers, met, strict=False)
        if "error" in answer and not (has_met and answer["error"].startswith(KILLED))
    ]
    return list(dict.fromkeys(raised or ended))


def audited(found: Found, receipts: Path) -> Found:
    """With what the auditor says."""
    try:
        verdict = audit(receipts)
    except OptionError as error:  # nothing was handed out
        return replace(found, lost=LENGTH, audit=[str(error)])
    counts = {"lost": verdict.missing, "twice": verdict.twice, "is_sound": verdict.is_sound}
    return replace(found, **counts, audit=[*verdict.lines()])


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
