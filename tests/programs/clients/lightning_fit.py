"""Lightning in one process trains as with torch's loader.

Its checkpoints resume it in mid-epoch.
"""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from mpiter.torch import DataLoader

TheirLoader = torch.utils.data.DataLoader
# 12 steps in each of two epochs.
LENGTH = 48
BATCH = 4
STEPS = 24


class Points(torch.utils.data.Dataset):
    """What a line is fitted to, and the number of the point.

    Noise is drawn anew in each epoch.
    """

    def __init__(self, noise=0.0):
        self.x = torch.linspace(-1, 1, LENGTH * 3).reshape(3, LENGTH).T.contiguous()
        self.y = self.x.sum(1, keepdim=True)
        self.noise = noise

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        noise = self.noise * torch.randn(1) if self.noise else 0
        return self.x[index], self.y[index] + noise, index


class Stream(torch.utils.data.IterableDataset):
    """The same points one after the other, with a length.

    Without a length Lightning reads one batch ahead.
    """

    def __len__(self):
        return LENGTH

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        points = Points()
        for index in range(worker.id, LENGTH, worker.num_workers):
            yield points[index]


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen = []

    def training_step(self, batch, _):
        x, y, indices = batch
        self.seen.append(indices.tolist())
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def validation_step(self, batch, _):
        self.log("error", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def trained(loader_class, dataset, folder=None, resume=None, num_workers=2):
    """Return (indices seen, weights) of two epochs.

    A checkpoint is written every 17 steps if there is a folder for them.
    """
    lightning.seed_everything(3, verbose=False)
    shuffle = not isinstance(dataset, torch.utils.data.IterableDataset)
    train = loader_class(dataset, BATCH, shuffle=shuffle, num_workers=num_workers)
    test = loader_class(Points(), BATCH, num_workers=num_workers)
    callbacks = []
    if folder:
        callbacks.append(
            ModelCheckpoint(folder, "{step}", every_n_train_steps=17, save_top_k=-1)
        )
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Line()
    trainer.fit(model, train, test, ckpt_path=resume, weights_only=False)
    assert trainer.train_dataloader is train
    return model.seen, [weight.tolist() for weight in model.parameters()]


if __name__ == "__main__":
    assert trained(DataLoader, Points()) == trained(TheirLoader, Points())

    seen, weights = trained(DataLoader, Points(noise=0.1), folder="shuffled")
    assert len(seen) == STEPS
    # The checkpoint is from the second epoch.
    rest = trained(
        DataLoader, Points(noise=0.1), resume="shuffled/step=17.ckpt", num_workers=1
    )
    assert rest == (seen[17:], weights)

    seen, weights = trained(DataLoader, Stream(), folder="stream")
    assert trained(DataLoader, Stream(), resume="stream/step=17.ckpt") == (
        seen[17:],
        weights,
    )
