"""A torch training that Ctrl-C interrupts, and that goes on to the same bit.

It has a schedule, a gradient scaler and averaged weights.

    python examples/resume_training.py

It needs torch. Every step updates five things one after the other. The model is trained
three times: undisturbed, with an interrupt in the midst of a step, and on from there.
In the end everything is the same to the bit.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import mpiter
from mpiter.torch import DataLoader

EPOCHS = 2
SAMPLES = 400
BATCH = 20


def train(path: Path, interrupted_at: int | None = None) -> tuple[int, list[Any]]:
    """Return how many steps this run did, and what has become of everything."""
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, 8)
    targets = torch.randn(SAMPLES, 1)
    data = torch.utils.data.TensorDataset(inputs, targets)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(), nn.ReLU(), nn.Linear(32, 1))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=EPOCHS * SAMPLES // BATCH
    )
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    loader = DataLoader(data, BATCH, shuffle=True, num_workers=2)
    parts = {
        "model": model,
        "average": average,
        "optimizer": optimizer,
        "schedule": schedule,
        "scaler": scaler,
    }
    steps = 0
    with loader, mpiter.Checkpoint(path, loader, **parts) as c:
        for _ in c.epochs(EPOCHS):
            # A step is all that is done with a batch, to the end of this loop's body.
            for x, y in c.steps(loader):
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                if c.finished == interrupted_at:
                    # This is what Ctrl-C does. KeyboardInterrupt waits until the rest
                    # of the step is done; otherwise the model would be saved in the
                    # midst of its five updates.
                    signal.raise_signal(signal.SIGINT)
                scaler.update()
                schedule.step()
                average.update_parameters(model)
                steps += 1
    weights = []
    for part in (model, average):
        weights += [value.tolist() for value in part.state_dict().values()]
    return steps, [weights, scaler.state_dict(), schedule.get_last_lr()]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _, expected = train(Path(folder, "undisturbed.npz"))
        with contextlib.suppress(KeyboardInterrupt):
            train(Path(folder, "run.npz"), interrupted_at=23)
        steps, found = train(Path(folder, "run.npz"))
        verdict = "identical to" if found == expected else "DIFFERENT from"
        print(
            f"interrupted in step 24, {steps} steps after that: "
            f"{verdict} a training that wasn't interrupted"
        )


if __name__ == "__main__":
    main()
