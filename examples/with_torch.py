"""The demo's part in torch, in a process of its own.

    python with_torch.py FOLDER WORKERS [FOLDER_WITH_PACKAGES ...]

It runs in the demo's environment, which looks for torch in the folders that are named,
after its own. No other part of the demo runs with these folders: Chainer would import
what it finds there.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
WORKERS = int(sys.argv[2])
# Workers get this path too.
sys.path += sys.argv[3:]

import interrupted  # noqa: E402
import meters  # noqa: E402
import torch  # noqa: E402
import torch.utils.data  # noqa: E402
from pictures import HELD_OUT, NAMES, PICTURES, SMALL, Shapes  # noqa: E402

import mpiter.torch  # noqa: E402

BATCH = 64


def epoch(loader: Callable[..., Any], workers: int) -> tuple[float, float, float]:
    """Train for an epoch; return the seconds to the first batch, waited, and in all."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(SMALL * SMALL, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, len(NAMES)),
    )
    optimizer = torch.optim.Adam(network.parameters())
    began = time.perf_counter()
    shapes = Shapes(FOLDER, range(HELD_OUT, PICTURES))
    batches = iter(loader(shapes, BATCH, shuffle=True, num_workers=workers))
    waits = list[float]()
    asked = began
    for pixels, labels in batches:
        waits.append(time.perf_counter() - asked)
        loss = torch.nn.functional.cross_entropy(network(pixels), labels.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        asked = time.perf_counter()
    return waits[0], sum(waits), time.perf_counter() - began


def compare() -> None:
    """Set an epoch from torch's DataLoader and one from ours side by side."""
    theirs = torch.utils.data.DataLoader
    ours = mpiter.torch.DataLoader
    measured = {
        "torch, 0": epoch(theirs, 0),
        f"torch, {WORKERS}": epoch(theirs, WORKERS),
        f"mpiter, {WORKERS}": epoch(ours, WORKERS),
    }
    rates = []
    firsts = []
    waits = []
    for first_s, wait_s, all_s in measured.values():
        rates.append(f"{(PICTURES - HELD_OUT) / all_s:.0f}")
        firsts.append(f"{first_s:.2f}")
        waits.append(f"{wait_s / all_s:.0%}")
    rows = {
        "images/s, the start included": rates,
        "seconds until the first batch": firsts,
        "share of time waited for data": waits,
    }
    meters.side_by_side(list(measured), rows)
    print(
        f"  (torch {torch.__version__}; the number is that of the workers, "
        f"one epoch in batches of {BATCH})"
    )


if __name__ == "__main__":
    # The network is too small for more than one thread.
    torch.set_num_threads(1)
    interrupted.torch_training(FOLDER, WORKERS)
    print(
        "  An epoch from torch's own DataLoader, without and with workers, "
        "and from mpiter's:",
        flush=True,
    )
    compare()
