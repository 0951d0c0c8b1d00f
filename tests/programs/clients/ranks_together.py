"""``shard="auto"`` under Lightning's DDP and Accelerate's launcher: each sample once an epoch, by nobody's sampler.

Lightning is told to add no ``DistributedSampler``.  Accelerate shares out what it prepares once more, so our loader
isn't handed to it.
"""

import json
import subprocess
import sys
from pathlib import Path

import lightning
import numpy as np
import torch
from accelerate import Accelerator

from mpiter.torch import DataLoader

EPOCHS, LENGTH = 2, 42


class Points:
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return np.float32([index % 7, index % 3, 1]), np.float32(index % 5), index


def loader():
    return DataLoader(Points(), 5, shuffle=True, seed=0, shard="auto", num_workers=1)


def loss_of(model, x, y):
    return (model(x)[:, 0] - y).square().mean()


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.seen = torch.nn.Linear(3, 1), []

    def training_step(self, batch, number):
        x, y, index = batch
        self.seen += index.tolist()
        return loss_of(self.model, x, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self):
        return loader()


def with_lightning():
    line = Line()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=2, strategy="ddp", use_distributed_sampler=False, **quiet
    )
    trainer.fit(line)
    return trainer.global_rank, line.seen


def with_accelerate():
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(3, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))  # and not the loader
    batches, seen = loader(), []
    for _ in range(EPOCHS):
        for x, y, index in batches:
            accelerator.backward(loss_of(model, x, y))
            optimizer.step()
            optimizer.zero_grad()
            seen += index.tolist()
    # DDP first, the process group after it: the other way round its destructor, in torch 2.13 with gloo, waits under
    # the GIL for a thread that may want the GIL.
    model, optimizer = accelerator.free_memory(model, optimizer)
    rank = accelerator.process_index
    accelerator.end_training()
    return rank, seen


def main():
    for way, launcher in (("lightning", []), ("accelerate", ["-m", "torch.distributed.run", "--nproc-per-node=2"])):
        subprocess.run([sys.executable, *launcher, *["--standalone"] * bool(launcher), __file__, way], check=True)
        one, other = (json.loads(Path(f"{way} {rank}.json").read_text()) for rank in range(2))
        half = LENGTH // 2
        for epoch in range(EPOCHS):
            part = slice(half * epoch, half * (epoch + 1))
            assert sorted(one[part] + other[part]) == list(range(LENGTH)), (way, one, other)


if __name__ == "__main__":
    if sys.argv[1:]:
        rank, seen = {"lightning": with_lightning, "accelerate": with_accelerate}[sys.argv[1]]()
        Path(f"{sys.argv[1]} {rank}.json").write_text(json.dumps(seen))
    else:
        main()
