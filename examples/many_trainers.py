"""Many trainers share one epoch, in which each sample comes once.

    python examples/many_trainers.py

There are four trainers on one machine, then three, then two. The program starts them
itself, as a launcher would: `torchrun`, `mpiexec` and `srun` tell each its rank by
variables of their own. Each trainer has worker processes of its own: as many as leave
the cores to all, unless `--workers` says how many.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np

import mpiter

# One state serves all ranks: it is small, and the same on each.
STATE = Path("many_trainers.json")
LENGTH = 2_000


class Pictures:
    """Random crops of noise.

    What is random in a sample depends only on its place in the order.
    """

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        picture = np.random.default_rng(index).integers(0, 256, (40, 40), np.uint8)
        x, y = mpiter.get_rng().integers(0, 8, 2)
        return picture[x : x + 32, y : y + 32], index


def train(steps: int, batch_size: int, workers: int | None) -> None:
    """Do one trainer's part; `batches` finds its rank itself."""
    # shard="auto" would repeat samples in the last step, so that all ranks have as many
    # batches. Here each sample is to come once.
    shard = mpiter.Shard(exact=True)
    with mpiter.batches(
        Pictures(), batch_size, shard=shard, n_processes=workers, seed=1
    ) as stream:
        if STATE.exists():
            stream.load_state_dict(json.loads(STATE.read_text()))
        indices: list[int] = []
        for step, (_pictures, labels) in enumerate(stream, start=1):
            indices += labels.tolist()
            if step == steps:
                break
        told = {
            "indices": indices,
            "state": stream.state_dict(),
            "workers": stream.stats().workers,
        }
        print(json.dumps(told))


def start(trainers: int, steps: int, batch_size: int, workers: int | None) -> list[int]:
    """Run so many trainers for so many steps; return the samples they were given."""
    command = [sys.executable, __file__, "--rank"]
    command += [f"--steps={steps}", f"--batch-size={batch_size}"]
    if workers is not None:
        command.append(f"--workers={workers}")
    ranks = []
    for rank in range(trainers):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(trainers),
            "LOCAL_WORLD_SIZE": str(trainers),
        }
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        )
        ranks.append(process)
    told = [json.loads(process.communicate()[0]) for process in ranks]
    state = told[0]["state"]
    assert all(one["state"] == state for one in told), "the ranks' states differ"
    STATE.write_text(json.dumps(state))
    given = [index for one in told for index in one["indices"]]
    print(
        f"{trainers} trainers, {told[0]['workers']} workers each: "
        f"{len(given)} samples in batches of {batch_size}"
    )
    return given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--workers", type=int, help="of each trainer; unset: the cores are divided"
    )
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        train(asked.steps, asked.batch_size, asked.workers)
        return
    STATE.unlink(missing_ok=True)
    given = start(trainers=4, steps=10, batch_size=16, workers=asked.workers)
    # One trainer is gone, and the batches are larger: the epoch goes on all the same.
    given += start(trainers=3, steps=10, batch_size=20, workers=1)
    # No step has the number -1, so these two go on to the end of the epoch.
    given += start(trainers=2, steps=-1, batch_size=32, workers=1)
    counts = Counter(given)
    assert set(counts) == set(range(LENGTH)), "samples were lost"
    assert set(counts.values()) == {1}, "samples came twice"
    print(f"{len(given)} samples of {LENGTH}, each exactly once")


if __name__ == "__main__":
    main()
