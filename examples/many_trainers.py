"""Many trainers, one epoch: four trainers on one machine, then three, then two, each
sample of an epoch once.

Run it: `python examples/many_trainers.py` starts the trainers itself, as a launcher
would (`torchrun`, `mpiexec` and `srun` say the same by variables of their own).  Each
has worker processes of its own: as many as leave the cores to all, unless `--workers`
says how many.
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

# One for all ranks: small, and the same on each.
STATE = Path("many_trainers.json")
LENGTH = 2_000


class Pictures:
    """Random crops of noise; a sample's randomness depends only on its place in the
    order.
    """

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        picture = np.random.default_rng(index).integers(0, 256, (40, 40), np.uint8)
        x, y = mpiter.get_rng().integers(0, 8, 2)
        return picture[x : x + 32, y : y + 32], index


def train(steps: int, batch_size: int, workers: int | None) -> None:
    """One trainer's part; it finds its rank itself."""
    stream = mpiter.batches(
        Pictures(),
        batch_size,
        # "auto" would fill up the last step, so that all ranks have as many batches.
        shard=mpiter.Shard(exact=True),
        n_processes=workers,
        seed=1,
    )
    with stream:
        if STATE.exists():
            stream.load_state_dict(json.loads(STATE.read_text()))
        indices: list[int] = []
        for step, (_pictures, labels) in enumerate(stream, start=1):
            indices += labels.tolist()
            if step == steps:
                break
        print(
            json.dumps(
                {
                    "indices": indices,
                    "state": stream.state_dict(),
                    "workers": stream.stats().workers,
                }
            )
        )


def start(trainers: int, steps: int, batch_size: int, workers: int | None) -> list[int]:
    """So many trainers for so many steps each; which samples they were given."""
    command = [
        sys.executable,
        __file__,
        "--rank",
        f"--steps={steps}",
        f"--batch-size={batch_size}",
    ]
    command += [] if workers is None else [f"--workers={workers}"]
    ranks = []
    for rank in range(trainers):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(trainers),
            "LOCAL_WORLD_SIZE": str(trainers),
        }
        ranks.append(
            subprocess.Popen(
                command, env={**os.environ, **place}, stdout=subprocess.PIPE, text=True
            )
        )
    told = [json.loads(rank.communicate()[0]) for rank in ranks]
    assert all(one["state"] == told[0]["state"] for one in told), (
        "the ranks' states differ"
    )
    STATE.write_text(json.dumps(told[0]["state"]))
    given = [index for one in told for index in one["indices"]]
    print(
        f"{trainers} trainers, {told[0]['workers']} workers each: {len(given)} samples "
        f"in batches of {batch_size}"
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
    given = start(4, 10, 16, asked.workers)
    # One of them is gone, and the batches are larger.
    given += start(3, 10, 20, 1)
    given += start(2, -1, 32, 1)  # to the end of the epoch
    counts = Counter(given)
    assert set(counts) == set(range(LENGTH)), "samples were lost"
    assert set(counts.values()) == {1}, "samples came twice"
    print(f"{len(given)} samples of {LENGTH}, each exactly once")


if __name__ == "__main__":
    main()
