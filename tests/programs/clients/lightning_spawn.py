"""Lightning's ddp_spawn: two processes by multiprocessing, which know the script by another name."""

import json
from pathlib import Path

import lightning
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from mpiter.torch import DataLoader

LENGTH, BATCH = 48, 4


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        x = torch.tensor([index / LENGTH, 1 - index / LENGTH])
        return x, x.sum(0, keepdim=True), index


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen = []

    def training_step(self, batch, _):
        x, y, indices = batch
        self.seen.append(indices.tolist())
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def on_fit_end(self):
        Path(f"{self.global_rank}.json").write_text(json.dumps(self.seen))


def wanted(rank):
    """What Lightning's sampler gives to a process, whoever loads it."""
    sampler = DistributedSampler(Points(), 2, rank, seed=3)
    batches = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        batches += BatchSampler(sampler, BATCH, drop_last=False)
    return batches


if __name__ == "__main__":
    lightning.seed_everything(3, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp_spawn",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), DataLoader(Points(), BATCH, shuffle=True, num_workers=1))
    assert [json.loads(Path(f"{rank}.json").read_text()) for rank in (0, 1)] == [wanted(0), wanted(1)]
