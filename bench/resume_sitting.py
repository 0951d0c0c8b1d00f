"""A sitting of the resuming benchmark: one rank's process, from the last state that was saved until it is killed.

It trains as programs do: load the newest state if there is one, go through the batches, save a state every few steps.
What it was handed goes to its receipts, for the auditor.  Where ranks stop, each waits for the others first, as in a
training that averages gradients after each step.  Guarantees that a state is there as a whole or not at all.
"""

from __future__ import annotations

import os
import pickle
import platform
import re
import signal
import time
from pathlib import Path
from typing import Any

from resume_loaders import Loader, Seat, keys_of
from resume_peers import LOADERS

from mpiter.lab.turns import Absent, Answer, Turn
from mpiter.remote.receipts import Receipts

LENGTH, SAVE_EVERY, STEPS_TO_WORKER = 288, 3, 6
PREPARE, RECEIPTS = "prepare", "receipts"
LOST, TWICE = "lost", "twice"  # what may be planted


def take(turn: Turn) -> Answer:
    """In its process: the versions of what it needs and what came of it, unless it is killed as it was asked to be."""
    told, kind = turn.options, LOADERS[turn.row]
    rank, size, folder = told["rank"], told["size"], Path(told["folder"])
    _as_launched(rank, size, told["port"])
    try:
        versions = {"python": platform.python_version()} | kind.find()
    except ImportError as error:
        raise Absent(f"not installed here ({error})") from error
    seat = Seat(folder, LENGTH, rank, size, turn.workers, told["batch"], turn.seed)
    if turn.case == PREPARE:
        kind.prepare(seat)
        return {"versions": versions}
    return train(kind, seat, told) | {"versions": versions}


def train(kind: type[Loader], seat: Seat, told: dict[str, Any]) -> Answer:
    """Until the epoch's end, or a fault; says how many steps it was, and which fault."""
    saved, steps = newest(seat, told["number"]), 0
    place = saved["place"] if saved else 0
    with Receipts(seat.folder / RECEIPTS, seat.rank, seat.size, loader=kind.packages[0]) as receipts:
        try:
            loader = kind(seat)
            if saved:
                loader.load(saved["state"])
            receipts.begin(0, place, length=seat.length)
            for batch in loader.batches():
                keys = keys_of(batch)
                receipts.handed(0, place, faulty(keys, told["plant"]) if saved and not steps else keys)
                place, steps = place + seat.batch_size * seat.size, steps + 1
                if steps % SAVE_EVERY == 0:
                    save(seat, told["number"], {"state": loader.state(), "place": place})
                if steps == STEPS_TO_WORKER and told["strike"]:
                    os.kill(loader.workers()[0], signal.SIGKILL)
                if steps == told["steps"]:
                    meet(seat, told["number"])
                    os.kill(os.getpid(), signal.SIGKILL)
            receipts.end(0)
            loader.tidy()
        except Exception as error:
            return {"raised": said_by(error), "steps": steps}
    return {"steps": steps}


def said_by(error: Exception) -> str:
    """Its type and what it says first, or last where it is a worker's; without what differs from run to run."""
    lines = str(error).strip().splitlines() or [""]
    name, said = type(error).__name__, lines[-1 if lines[0].startswith("Caught ") else 0]
    return re.sub(r" \(pid\(s\) [\d, ]+\)", "", f"{name}: {said.removeprefix(f'{name}: ')}" if said else name)


def faulty(keys: list[int], plant: str | None) -> list[int]:
    """As it is handed out, or with what was asked for to see that it is found."""
    return keys[1:] if plant == LOST else [*keys, keys[0]] if plant == TWICE else keys


def save(seat: Seat, sitting: int, what: dict[str, Any]) -> None:
    file = seat.folder / f"state-{sitting}-{seat.rank}"
    file.with_suffix(".new").write_bytes(pickle.dumps(what | {"size": seat.size}))
    file.with_suffix(".new").replace(file)


def newest(seat: Seat, sitting: int) -> dict[str, Any] | None:
    """Of the sittings before: this rank's own, if there were as many ranks, or else rank 0's."""
    for before in reversed(range(sitting)):
        own, first = (seat.folder / f"state-{before}-{rank}" for rank in (seat.rank, 0))
        for file in (own, first):
            if file.exists():
                found: dict[str, Any] = pickle.loads(file.read_bytes())
                if file == first or found["size"] == seat.size:
                    return found
    return None


def meet(seat: Seat, sitting: int) -> None:
    """Wait for all ranks to be here."""
    (seat.folder / f"met-{sitting}-{seat.rank}").touch()
    while len(list(seat.folder.glob(f"met-{sitting}-*"))) < seat.size:
        time.sleep(0.01)


def _as_launched(rank: int, size: int, port: int) -> None:
    """What torch's launcher sets, and litData's own name for the rank."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GLOBAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in ranks.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
