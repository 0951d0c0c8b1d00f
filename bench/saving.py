"""What does saving a training cost?

Measures the pause of the training, and the time until the file is there; prints tables
and JSON.

    python bench/saving.py --python-torch PATH --out bench/results/saving.json
    python bench/saving.py --small  # a smoke test, never a conclusion

A model of torch and its Adam are saved again and again, each time after one step: by
`Checkpoint`, beside the training and in the foreground, by `torch.save` and by
`np.savez`.  The first save of a turn isn't counted: the memory of the copy, and what
torch needs, are new then.  Neither `torch.save` nor `np.savez` waits until the file is
on the disk, or leaves the old one there until it is; `synced` is `torch.save` that does
both. Must: the pause is at most half of what `torch.save` takes, and a save in the
foreground 1.2 times as long as `synced`.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from driver import (
    Answer,
    Claim,
    Experiment,
    Summary,
    Turn,
    at_most,
    command_line,
    conduct,
    ratio,
)

import mpiter

PAUSE = "pause_s"
WHOLE = "until_saved_s"
# Sizes of the model, in units of 4 MB of weights, with two moments each.
SIZES = {"12 MB": 1, "96 MB": 8, "768 MB": 64, "2 GB": 170}
CASES = {name: f"a model and its Adam, {name} in all" for name in SIZES}
ROWS = {
    "background": "Checkpoint, beside the training",
    "foreground": "Checkpoint(background=False)",
    "torch": "torch.save",
    "synced": "torch.save to a new file, os.fsync, os.replace",
    "savez": "np.savez",
}
FIGURES = {PAUSE: "s the training waits", WHOLE: "s until it is saved"}
SAVES = 5
MOST_PAUSE = 0.5
MOST_SYNCED = 1.2


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    try:
        import torch
    except ImportError as error:
        return {"absent": str(error)}
    weights = torch.nn.ParameterList(
        [torch.randn(1 << 20) for _ in range(SIZES[turn.case])]
    )
    adam = torch.optim.Adam(weights.parameters())
    sum(part.sum() for part in weights).backward()  # type: ignore[union-attr]
    adam.step()
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        path = Path(folder, "run")
        if turn.row in ("background", "foreground"):
            pauses, wholes = by_checkpoint(
                path, weights, adam, background=turn.row == "background"
            )
        else:
            wholes = [
                timed(lambda: by_hand(turn.row, path, weights, adam))
                for _ in range(SAVES + 1)
            ]
            pauses = wholes
    return {PAUSE: statistics.median(pauses[1:]), WHOLE: statistics.median(wholes[1:])}


def by_checkpoint(
    path: Path, model: Any, optimizer: Any, background: bool
) -> tuple[list[float], list[float]]:
    """Return the pause of each save, and the seconds until the file was new."""
    pauses = list[float]()
    wholes = list[float]()
    with mpiter.Checkpoint(
        path, model=model, optimizer=optimizer, background=background
    ) as c:
        for _ in range(SAVES + 1):
            before = os.stat(path).st_ino
            c.step()
            began = time.perf_counter()
            c.save()
            pauses.append(time.perf_counter() - began)
            while os.stat(path).st_ino == before:
                time.sleep(0.001)
            wholes.append(time.perf_counter() - began)
    return pauses, wholes


def by_hand(way: str, path: Path, model: Any, optimizer: Any) -> None:
    import torch

    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if way == "savez":
        parts = [*states["model"].values()]
        for moments in states["optimizer"]["state"].values():
            parts += [moments["exp_avg"], moments["exp_avg_sq"]]
        np.savez(path, *[part.numpy() for part in parts])
    elif way == "torch":
        torch.save(states, path)
    else:
        new = path.with_suffix(".new")
        with open(new, "wb") as file:
            torch.save(states, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)


def timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def claims(summary: Summary) -> Iterator[Claim]:
    for case in CASES:
        paused = ratio(summary, case, "background", "torch", PAUSE)
        yield at_most(case, "pause", paused, MOST_PAUSE, " x torch")
        written = ratio(summary, case, "foreground", "synced", WHOLE)
        yield at_most(case, "in the foreground", written, MOST_SYNCED, " x synced")


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures=FIGURES,
    take=take,
    claims=claims,
    against="torch",
    environment=lambda row, case: "torch",
    small={"cases": ["12 MB"], "rows": ["background", "torch"]},
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=120.0)))
