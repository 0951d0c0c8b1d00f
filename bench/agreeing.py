"""What does it cost a step that all ranks of a training share one checkpoint?

Each step sends a message, and looks at the answer a step later.

    python bench/agreeing.py --python-torch PATH --out bench/results/agreeing.json
    python bench/agreeing.py --small  # a smoke test, never a conclusion

Two real ranks of torch (gloo) on this machine train a small model by
DistributedDataParallel: with one `Checkpoint` for both, with one for each
(`alone=True`), and without any.  Steps of `sleeping` wait for 20 ms as for a GPU; those
of `long` for 300 ms, where ranks look at the answer at once.  No bound is set: with as
many ranks as cores, gloo's threads and the ranks take turns, as on no machine with a
GPU.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from driver import (
    Answer,
    Experiment,
    Turn,
    command_line,
    conduct,
)

import mpiter

STEP = "step_ms"
PAUSES_S = {"computing": 0.0, "sleeping": 0.02, "long": 0.3}
CASES = {
    "computing": "DDP on a small model, as fast as it goes",
    "sleeping": "the same, and 20 ms of sleep",
    "long": "the same, and 300 ms of sleep",
}
ROWS = {
    "one": "one Checkpoint for both ranks",
    "alone": "a Checkpoint for each rank",
    "none": "without",
}
RANKS = 2
WARMUP_STEPS = 3
LEAST_STEPS = 8


def take(turn: Turn) -> Answer:
    """Measure the turn in two processes, of which this one is rank 0."""
    if find_spec("torch") is None:
        return {"absent": "torch is not installed"}
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        forked = multiprocessing.get_context("fork")
        other = forked.Process(target=measured, args=(turn, Path(folder), 1))
        other.start()
        step_ms = measured(turn, Path(folder), 0)
        other.join()
    return {STEP: step_ms}


def measured(turn: Turn, folder: Path, rank: int) -> float:
    """Return the milliseconds that a step takes in one of the ranks."""
    import torch.distributed

    met = f"file://{folder}/met"
    torch.distributed.init_process_group(
        "gloo", init_method=met, rank=rank, world_size=RANKS
    )
    torch.set_num_threads(1)
    loader = mpiter.DataLoader(range(1 << 30), 1, shard=(rank, RANKS))
    if turn.row == "none":
        step_ms = train(turn, loader)
    else:
        is_alone = turn.row == "alone"
        # Ranks that save alone would write over each other in one file.
        name = f"run{rank}.npz" if is_alone else "run.npz"
        path = folder / name
        with mpiter.Checkpoint(path, loader, alone=is_alone) as c:
            step_ms = train(turn, c.steps(loader))
    torch.distributed.destroy_process_group()
    return step_ms


def train(turn: Turn, batches: Iterable[Any]) -> float:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.ones(32, 64)
    steps = max(LEAST_STEPS, int(turn.seconds / (PAUSES_S[turn.case] + 0.001)))
    began = 0.0
    for number, _ in enumerate(batches):
        if number == WARMUP_STEPS:
            began = time.perf_counter()
        if number == WARMUP_STEPS + steps:
            break
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(PAUSES_S[turn.case])
    return (time.perf_counter() - began) / steps * 1000


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures={STEP: "ms a step"},
    take=take,
    against="none",
    environment=lambda row, case: "torch",
    small={"cases": ["computing"], "rows": ["one", "alone"]},
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=120.0)))
