"""What does it cost to fetch beyond this process? Each backend, by payload.

All run on one machine; prints tables and JSON.

    python bench/cluster.py --out bench/results/cluster.json
    python bench/cluster.py --small  # a smoke test, never a conclusion

It needs an environment with ray[data], mpi4py and mpich.

Fetching a sample costs a microsecond, so what is measured is the way of a batch: by
shared slots, packed through pipes, through Ray's object store, by MPI; and Ray Data's
own iterator over the same samples. Must, in each case: every batch of ours holds what
the order says, bit by bit; ours on Ray brings at least as many batches as Ray Data.
Exit status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cases import Images
from driver import (
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
    ratio,
)
from measuring import consume, warm_up

import mpiter
from mpiter.order.order import Shuffled

PROCESS = "process"
PACKED = "packed"
RAY = "ray"
MPI = "mpi"
RAY_DATA = "ray data"
MS = "ms"
PER_S = "per_s"
MB_PER_S = "mb_per_s"
WRONG = "wrong"
SHAPES = {
    "28x28": ((28, 28), 128),
    "3x64x64": ((3, 64, 64), 128),
    "3x224x224": ((3, 224, 224), 32),
}
CASES = {}
for _name, (_shape, _batch) in SHAPES.items():
    _mb = _batch * 4 * np.prod(_shape) / 1e6
    CASES[_name] = f"{_batch} float32 of {_name}: {_mb:.1f} MB a batch"
ROWS = {
    PROCESS: "worker processes, shared slots",
    PACKED: "worker processes, serializer='packed'",
    RAY: "Ray's actors, packed through the object store",
    MPI: "MPI's ranks",
    RAY_DATA: "ray.data: range(n).map_batches(…).iter_batches(batch_size)",
}
OURS = (PROCESS, PACKED, RAY, MPI)
FIGURES = {PER_S: "batches/s", MS: "ms", MB_PER_S: "MB/s", WRONG: "wrong"}
LENGTH = 1 << 16
SEED = 0
CHECKED = 50
_MEASURED = "--measured-by-mpi"


def take(turn: Turn) -> Answer:
    """Measure in this process, or in one that MPI starts."""
    if turn.row == MPI:
        return by_mpi(turn)
    if turn.row == RAY_DATA:
        return by_ray_data(turn)
    found = by_ours(turn.case, turn.row, turn.workers, turn.warmup_s, turn.seconds)
    if turn.row == RAY:
        import ray

        ray.shutdown()
    return found


def by_ours(
    case: str, row: str, workers: int, warmup_s: float, seconds: float
) -> Answer:
    shape, batch_size = SHAPES[case]
    backend = row if row in (RAY, MPI) else "process"
    options: dict[str, Any] = {"serializer": "packed"} if row == PACKED else {}
    dataset = Images(shape, LENGTH)
    with mpiter.batches(
        dataset,
        batch_size,
        n_processes=workers,
        seed=SEED,
        epochs=None,
        backend=backend,
        **options,
    ) as stream:
        wrong = sum(
            not is_right(next(stream), dataset, batch_size, number)
            for number in range(CHECKED)
        )
        return figures(lambda: next(stream), warmup_s, seconds, case) | {WRONG: wrong}


def is_right(batch: Any, dataset: Images, batch_size: int, number: int) -> bool:
    """Tell whether the batch holds what the order says."""
    keys = Shuffled(LENGTH, SEED).take(number * batch_size, (number + 1) * batch_size)
    images, labels = batch
    return (
        labels.tolist() == keys.tolist()
        and images.tobytes() == dataset.images[keys % len(dataset.images)].tobytes()
    )


def by_mpi(turn: Turn) -> Answer:
    asked = json.dumps([turn.case, MPI, turn.workers, turn.warmup_s, turn.seconds])
    launcher = str(Path(sys.executable).parent / "mpiexec")
    program = [sys.executable, "-m", "mpi4py.futures", __file__, _MEASURED, asked]
    ran = subprocess.run(
        [launcher, "-n", str(turn.workers + 1), *program],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"mpiexec ended with {ran.returncode}: {ran.stderr[-2000:]}")
    found: Answer = json.loads(ran.stdout.splitlines()[-1])
    return found


def by_ray_data(turn: Turn) -> Answer:
    import ray

    shape, batch_size = SHAPES[turn.case]
    ray.init(log_to_driver=False, logging_level="ERROR")
    images = ray.put(Images(shape, LENGTH).images)

    def fetched(rows: dict[str, Any]) -> dict[str, Any]:
        here = ray.get(images)
        return {"image": here[rows["id"] % len(here)], "label": rows["id"]}

    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.range(LENGTH).map_batches(
        fetched, batch_size=batch_size, concurrency=turn.workers
    )

    def epochs() -> Iterator[Any]:
        while True:
            yield from data.iter_batches(batch_size=batch_size, prefetch_batches=2)

    try:
        # If an epoch is on its way when Ray is shut down, Ray aborts this process.
        with contextlib.closing(epochs()) as stream:
            return figures(lambda: next(stream), turn.warmup_s, turn.seconds, turn.case)
    finally:
        ray.shutdown()


def figures(
    take_one: Callable[[], Any], warmup_s: float, seconds: float, case: str
) -> Answer:
    shape, batch_size = SHAPES[case]
    warm_up(take_one, warmup_s)
    batches, took = consume(take_one, seconds)
    size = batch_size * 4 * int(np.prod(shape))
    return {
        PER_S: batches / took,
        MS: 1e3 * took / batches,
        MB_PER_S: size * batches / took / 1e6,
    }


def claims(summary: Summary) -> Iterator[Claim]:
    for case in CASES:
        for row in OURS:
            yield at_most(
                case, f"wrong batches, {row}", median(summary, case, row, WRONG), 0
            )
        yield at_least(
            case,
            "ours on Ray",
            ratio(summary, case, RAY, RAY_DATA, PER_S),
            1.0,
            " x Ray Data",
        )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures=FIGURES,
    take=take,
    claims=claims,
    small={"cases": ["28x28"], "rows": [RAY, MPI]},
    against=PROCESS,
)


if __name__ == "__main__":
    if sys.argv[1:2] == [_MEASURED]:
        print(json.dumps(by_ours(*json.loads(sys.argv[2]))), flush=True)
        sys.exit()
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=1.0, timeout=180.0)))
