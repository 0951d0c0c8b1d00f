"""To the GPU: `DevicePrefetcher` against torch's pinned loader.

Both are measured alone and beside a training step.

    python bench/gpu.py --workers 8 --out bench/results/gpu.json

Needs torch and a CUDA device. Images travel as bytes and are normalised on the device,
in every row. "torch, ahead" is torch's loader with a prefetcher as people write it: the
next batch is copied on a stream of its own. A batch counts as there when the device has
finished with it; a step is a chain of matrix products whose loss is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
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
from measuring import flowing

BATCH_SIZE = 128
ROWS_HELD = 1024
MEAN = 127.5
STD = 64.0
SIZES = {"3x64x64": 64, "3x224x224": 224, "3x224x224, a step": 224}
# A step has so many products of matrices of this size: some 10 ms of an H200.
STEPS = 6
WIDTH = 8192
ROWS = {
    "torch": "DataLoader(pin_memory=True), copied when it is asked for",
    "torch, ahead": (
        "DataLoader(pin_memory=True), copied a batch ahead on a stream of its own"
    ),
    "ours, pinned": (
        "mpiter.torch.DataLoader(pin_memory=True), copied when it is asked for"
    ),
    "ours": "DevicePrefetcher(mpiter.torch.DataLoader(…))",
}


class Images:
    def __init__(self, side: int) -> None:
        self._rows = np.random.default_rng(0).integers(
            0, 256, (ROWS_HELD, 3, side, side), np.uint8
        )

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        return self._rows[index % ROWS_HELD], index


def _nothing() -> None:
    pass


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    import torch

    if not torch.cuda.is_available():
        raise Absent("a CUDA device")
    batches = iter(arriving(turn, loader_of(turn)))
    step = _nothing
    if turn.case.endswith("a step"):
        step = step_on_device()

    def one_batch() -> None:
        images, _ = next(batches)
        images.sum()
        if not turn.case.endswith("a step"):
            torch.cuda.synchronize()
        step()

    one_batch()
    count, seconds, cpu = flowing(
        one_batch, turn.warmup_s, turn.seconds, warm=8, timed=8
    )
    return {
        "batches_per_s": count / seconds,
        "batch_ms": 1e3 * seconds / count,
        **cpu.ms(count),
    }


def loader_of(turn: Turn) -> Any:
    import torch.utils.data

    import mpiter.torch

    loader: Any = torch.utils.data.DataLoader
    if turn.row.startswith("ours"):
        loader = mpiter.torch.DataLoader
    pinned = turn.row != "ours"
    return loader(
        Images(SIZES[turn.case]),
        BATCH_SIZE,
        shuffle=True,
        num_workers=turn.workers,
        pin_memory=pinned,
    )


def arriving(turn: Turn, loader: Any) -> Iterator[Any]:
    """Return an iterator over batches on the device, normalised."""
    import mpiter.torch

    if turn.row == "ours":
        normalize = ([MEAN] * 3, [STD] * 3)
        return iter(mpiter.torch.DevicePrefetcher(loader, "cuda", normalize=normalize))
    if turn.row.endswith("ahead"):
        return ahead(loader)
    return map(moved, loader)


def moved(batch: Any) -> Any:
    images, labels = (part.to("cuda", non_blocking=True) for part in batch)
    return images.float().sub(MEAN).div_(STD), labels


def ahead(loader: Any) -> Iterator[Any]:
    """Copy a batch ahead, as the prefetchers of many training programs do."""
    import torch

    side = torch.cuda.Stream()
    here = torch.cuda.current_stream()
    coming = None
    for batch in loader:
        ready = coming
        if ready is not None:
            here.wait_stream(side)
        with torch.cuda.stream(side):
            coming = moved(batch)
        if ready is not None:
            ready[0].record_stream(here)
            yield ready
    yield coming


def step_on_device() -> Callable[[], None]:
    import torch

    x = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    y = x / WIDTH**0.5

    def step() -> None:
        found = x
        for _ in range(STEPS):
            found = found @ y
        found[0, 0].item()

    return step


def claims(summary: Summary) -> Iterator[Claim]:
    for case in SIZES:
        for row in ("torch", "torch, ahead"):
            found = ratio(summary, case, "ours", row, "batches_per_s")
            yield at_least(case, f"DevicePrefetcher / {row}", found, 1.0, must=False)


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={
        name: f"images of {side} x {side} bytes, batches of {BATCH_SIZE}"
        for name, side in SIZES.items()
    },
    rows=ROWS,
    figures={
        "batches_per_s": "batches/s",
        "batch_ms": "ms a batch",
        "parent_cpu_ms": "parent's CPU ms/batch",
    },
    take=take,
    claims=claims,
    against="torch",
    small={"cases": ["3x64x64"], "rows": ["ours"]},
)


if __name__ == "__main__":
    sys.exit(
        conduct(
            EXPERIMENT,
            command_line(EXPERIMENT, warmup=1.5, timeout=90.0, seconds=3.0, rounds=3),
        )
    )
