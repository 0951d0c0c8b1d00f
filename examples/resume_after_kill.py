"""A training program that is killed at any moment, and goes on as if it had not been.

    python examples/resume_after_kill.py

The program starts itself as a trainer that notes its place after each step, kills it
half-way (SIGKILL), starts it again with another number of workers, and compares what
both have seen with what a trainer sees that isn't interrupted.
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
    """Samples with random noise that depends only on their places in the order."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(mpiter.get_rng().random())


def train(folder: Path, workers: int) -> None:
    """Go on from the last place noted, and note each step.

    A step's line has the batch that came; after it the place is noted.
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
        # The kill may have come after a step's line, and before its place was noted.
        # That step is done again, so its line goes.
        steps.write_text("".join(lines[:done]))
    while done < EPOCHS * len(loader):
        for indices, noise in loader:
            with steps.open("a") as file:
                file.write(f"{indices.tolist()} {np.round(noise, 6).tolist()}\n")
            done += 1
            # A kill in the middle of writing would leave half a file. So write beside
            # the place, and put the new file there when it is whole.
            state = {"loader": loader.state_dict(), "steps": done}
            new = place.with_suffix(".new")
            new.write_text(json.dumps(state))
            os.replace(new, place)
            print(done, flush=True)
    loader.close()


def start(folder: Path, workers: int) -> subprocess.Popen[str]:
    """Start a trainer in a process of its own."""
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
        start(killed, workers=3).communicate()
        start(undisturbed, workers=1).communicate()
        found = (killed / "steps.txt").read_text()
        expected = (undisturbed / "steps.txt").read_text()
        steps = len(found.splitlines())
        verdict = "identical to" if found == expected else "DIFFERENT from"
        print(f"{steps} steps, {verdict} those of a trainer that wasn't killed")
        return 0 if found == expected else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        sys.exit(main())
