"""The demo's trainings in NumPy and torch, interrupted by Ctrl-C in mid-epoch.

They go on with another number of workers.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pictures import HELD_OUT, NAMES, SMALL, Shapes

import mpiter

LEARNT = 640  # pictures
BATCH = 32
EPOCHS = 2
# So many steps are finished when Ctrl-C comes; an epoch has 20.
BROKEN_AT = 27
Train = Callable[[Path, Path, int, int | None], tuple[int, bytes]]


def ctrl_c(finished: int, at: int | None) -> None:
    """Interrupt the step under way, if it is this one."""
    if finished == at:
        signal.raise_signal(signal.SIGINT)


def in_numpy(
    folder: Path, path: Path, workers: int, at: int | None
) -> tuple[int, bytes]:
    """Do a softmax regression; return how many steps this run took, and the weights."""
    weights = {"w": np.zeros((SMALL * SMALL, len(NAMES)))}
    shapes = Shapes(folder, range(HELD_OUT, HELD_OUT + LEARNT))
    steps = 0
    with (
        mpiter.DataLoader(
            shapes, BATCH, shuffle=True, num_workers=workers, seed=0
        ) as loader,
        mpiter.Checkpoint(path, loader, weights=weights) as c,
    ):
        for _ in c.epochs(EPOCHS):
            for pixels, labels in c.steps(loader):
                ctrl_c(c.finished, at)
                x = pixels.reshape(len(pixels), -1)
                chances = np.exp(x @ weights["w"])
                chances /= chances.sum(1, keepdims=True)
                chances[np.arange(len(labels)), labels] -= 1
                weights["w"] -= 0.01 * x.T @ chances / len(labels)
                steps += 1
    return steps, weights["w"].tobytes()


def in_torch(
    folder: Path, path: Path, workers: int, at: int | None
) -> tuple[int, bytes]:
    """Train a small network; return how many steps this run took, and its weights."""
    import torch

    from mpiter.torch import DataLoader

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(SMALL * SMALL, len(NAMES))
    )
    optimizer = torch.optim.Adam(network.parameters())
    loader = DataLoader(
        Shapes(folder, range(LEARNT)), BATCH, shuffle=True, num_workers=workers
    )
    steps = 0
    with (
        loader,
        mpiter.Checkpoint(path, loader, network=network, optimizer=optimizer) as c,
    ):
        for _ in c.epochs(EPOCHS):
            for pixels, labels in c.steps(loader):
                ctrl_c(c.finished, at)
                loss = torch.nn.functional.cross_entropy(network(pixels), labels.long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
    return steps, network[1].weight.detach().numpy().tobytes()


def compare(train: Train, folder: Path, workers: int) -> None:
    """Train undisturbed, then with a Ctrl-C in mid-epoch, and compare.

    The interrupted training goes on with another number of workers.
    """
    _, expected = train(folder, folder / "result" / "undisturbed.npz", workers, None)
    path = folder / "result" / "interrupted.npz"
    # A program that a shell starts in the background ignores Ctrl-C. Here it must work.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        train(folder, path, workers, BROKEN_AT)
    except KeyboardInterrupt:
        others = workers - 1 or 2
    else:
        sys.exit("  Ctrl-C has not interrupted the training")
    finally:
        signal.signal(signal.SIGINT, before)
    steps, found = train(folder, path, others, None)
    path.unlink()
    (folder / "result" / "undisturbed.npz").unlink()
    print(
        f"  Ctrl-C in step {BROKEN_AT + 1} with {workers} workers, "
        f"{steps} steps more with {others}"
    )
    if not steps:
        sys.exit("  the training was over: no step was left to go on with")
    if found != expected:
        sys.exit("  the model differs from that of a training without an interruption")
    print("  the model is that of a training without an interruption, to the last bit")


def numpy_training(folder: Path, workers: int) -> None:
    """Do all this with the training in NumPy."""
    compare(in_numpy, folder, workers)


def torch_training(folder: Path, workers: int) -> None:
    """Do all this with the training in torch."""
    compare(in_torch, folder, workers)
