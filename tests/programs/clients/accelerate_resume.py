"""Accelerate, told to make its loaders of our class.

It trains as with torch's, and is resumed in both of its ways.
"""

import accelerate.data_loader
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed

from mpiter.torch import DataLoader

TheirLoader = accelerate.data_loader.DataLoader
BATCH = 4
EPOCHS = 2


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        x = torch.tensor([index / 50, 1 - index / 50])
        return x, x.sum(0, keepdim=True), index


def trained(loader_class, way="skips", save_at=None, resume_at=None):
    """Return (indices seen, weights) of some epochs, or of their rest."""
    # prepare() and skip_first_batches() make loaders of this class.
    accelerate.data_loader.DataLoader = loader_class
    accelerator = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=way == "skips"),
    )
    set_seed(3)
    model = torch.nn.Linear(2, 1)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=0.05),
        loader_class(Points(), BATCH, shuffle=True, num_workers=2),
    )
    assert type(loader.base_dataloader) is loader_class
    if way == "remembers":
        accelerator.register_for_checkpointing(loader)
    seen = []
    done = resume_at or 0
    if resume_at is not None:
        accelerator.load_state("checkpoint")
    for epoch in range(done // len(loader), EPOCHS):
        batches = loader
        if way == "skips":
            loader.set_epoch(epoch)
            if done % len(loader):
                batches = accelerator.skip_first_batches(loader, done % len(loader))
        for x, y, indices in batches:
            seen.append(indices.tolist())
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == save_at:
                accelerator.save_state("checkpoint")
    return seen, [weight.tolist() for weight in model.parameters()]


if __name__ == "__main__":
    for way in ("skips", "remembers"):
        seen, weights = trained(TheirLoader, way if way == "skips" else "")
        # An epoch has 13 steps, so both are in the second one.
        assert trained(DataLoader, way, save_at=17) == (seen, weights), way
        assert trained(DataLoader, way, resume_at=17) == (seen[17:], weights), way
