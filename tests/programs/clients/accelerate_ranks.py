"""Accelerate in two processes with one Checkpoint.

A signal to one of them ends both, and both go on from one file.

The program starts itself by ``accelerate launch``.
"""

import os
import signal
import subprocess
import sys

import torch
from accelerate import Accelerator

import mpiter
from mpiter.torch import DataLoader

LAUNCH = [
    "-m",
    "accelerate.commands.launch",
    "--multi_gpu",
    "--num_processes=2",
    "--main_process_port=0",
]
# 13 steps in each of two epochs.
STEPS = 26


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        x = torch.tensor([index / 100, 1 - index / 100])
        return x, x.sum(0, keepdim=True)


def train(path, interrupt_at):
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    torch.manual_seed(3)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = DataLoader(Points(), 4, shuffle=True, seed=0, shard="auto", num_workers=1)

    model, optimizer = accelerator.prepare(model, optimizer)
    with loader, mpiter.Checkpoint(path, loader, model=model, optimizer=optimizer) as c:
        for _ in c.epochs(2):
            for x, y in c.steps(loader):
                if accelerator.process_index == 1 and c.finished == interrupt_at:
                    signal.raise_signal(signal.SIGTERM)
                loss = torch.nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        assert c.finished == STEPS
    accelerator.end_training()


def ends(path, interrupt_at=-1):
    """Return True if the training by two processes came to its end."""
    command = [sys.executable, *LAUNCH, __file__, path, str(interrupt_at)]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(sys.argv[1], int(sys.argv[2]))
    else:
        assert ends("whole.npz")
        assert not ends("interrupted.npz", interrupt_at=17)
        interrupted = mpiter.Checkpoint.read("interrupted.npz")
        assert ends("interrupted.npz")
        models = [
            mpiter.Checkpoint.read(path)["model"]
            for path in ("whole.npz", "interrupted.npz")
        ]
        for name, weights in models[0].items():
            assert torch.equal(weights, models[1][name]), name
            assert not torch.equal(weights, interrupted["model"][name]), name
