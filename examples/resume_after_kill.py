"""A training program that is killed at any moment, and goes on as if it had not been.

    python examples/resume_after_kill.py

Starts itself as a trainer that notes its place after each step, kills it half-way
(SIGKILL), starts it again with other workers, and compares what both have seen with
what one trainer sees that isn't interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import mpiter

EPOCHS = 2
BATCH = 16


class Noisy:
    """Samples with random noise in them: it depends only on a sample's place in the
    order.
    """

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(mpiter.get_rng().random())


def train(folder: Path, workers: int) -> None:
    """Go on from the last place noted, and note each step: what came, then where we
    are.
    """
    loader = mpiter.DataLoader(
        Noisy(), BATCH, shuffle=True, seed=7, num_workers=workers
    )
    place = folder / "place.json"
    steps = folder / "steps.txt"
    done = 0
    if place.exists():
        noted = json.loads(place.read_text())
        loader.load_state_dict(noted["loader"])
        done = noted["steps"]
        lines = steps.read_text().splitlines(keepends=True)
        # A step that was noted, but not finished.
        steps.write_text("".join(lines[:done]))
    while done < EPOCHS * len(loader):
        for indices, noise in loader:
            with steps.open("a") as file:
                file.write(f"{indices.tolist()} {np.round(noise, 6).tolist()}\n")
            done += 1
            half = place.with_suffix(".new")
            half.write_text(json.dumps({"loader": loader.state_dict(), "steps": done}))
            # Whole, or not at all.
            os.replace(half, place)
            print(done, flush=True)
    loader.close()


def start(folder: Path, workers: int) -> subprocess.Popen[str]:
    """A trainer in a process of its own."""
    command = [sys.executable, __file__, str(folder), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        killed = Path(folder, "killed")
        undisturbed = Path(folder, "undisturbed")
        killed.mkdir()
        undisturbed.mkdir()
        first = start(killed, workers=2)
        assert first.stdout is not None
        for line in first.stdout:
            if int(line) == 30:
                first.send_signal(signal.SIGKILL)
                break
        first.wait()
        first.stdout.close()
        print("killed after step 30; going on with 3 workers in place of 2")
        for folder_, workers in ((killed, 3), (undisturbed, 1)):
            start(folder_, workers).communicate()
        same = (killed / "steps.txt").read_text() == (
            undisturbed / "steps.txt"
        ).read_text()
        steps = len((killed / "steps.txt").read_text().splitlines())
        print(
            f"{steps} steps, {'identical to' if same else 'DIFFERENT from'} those of a "
            "trainer that wasn't killed"
        )
        return 0 if same else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        sys.exit(main())
