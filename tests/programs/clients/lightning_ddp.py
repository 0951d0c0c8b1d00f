"""Lightning in two processes, with one state for both.

It makes the loader anew with a DistributedSampler.

With ``shard="auto"`` the loader shares out by itself, and Lightning is asked to add no
sampler; it resumes likewise.
"""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DistributedSampler

from mpiter.torch import DataLoader

# 6 steps in each of two epochs.
LENGTH = 48
BATCH = 4
STEPS = 12


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


def trained(loader_class, folder=None, resume=None, **options):
    lightning.seed_everything(3, verbose=False)
    callbacks = []
    if folder:
        callbacks.append(
            ModelCheckpoint(folder, "{step}", every_n_train_steps=8, save_top_k=-1)
        )
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=callbacks,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        use_distributed_sampler="shard" not in options,
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Line()
    loader = loader_class(Points(), BATCH, shuffle=True, num_workers=1, **options)
    trainer.fit(model, loader, ckpt_path=resume, weights_only=False)
    used = trainer.train_dataloader
    assert type(used) is loader_class
    assert isinstance(used.sampler, DistributedSampler) == ("shard" not in options)
    return model.seen, [weight.tolist() for weight in model.parameters()]


if __name__ == "__main__":
    seen, weights = trained(DataLoader, folder="checkpoints")
    assert (seen, weights) == trained(torch.utils.data.DataLoader)
    # The checkpoint is from the second epoch.
    assert trained(DataLoader, resume="checkpoints/step=8.ckpt") == (seen[8:], weights)

    shared = {"seed": 0, "shard": "auto"}
    seen_so, weights = trained(DataLoader, folder="shared", **shared)
    assert trained(DataLoader, resume="shared/step=8.ckpt", **shared) == (
        seen_so[8:],
        weights,
    )

    for each in (seen, seen_so):
        mine = [index for batch in each[: STEPS // 2] for index in batch]
        everything = [None, None]
        torch.distributed.all_gather_object(everything, mine)
        assert sorted(everything[0] + everything[1]) == list(range(LENGTH))
    torch.distributed.destroy_process_group()
