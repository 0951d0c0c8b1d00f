"""Keras 3 on torch: fit() on our loader trains as on torch's, and goes on in the midst of an epoch."""

import json

import keras
import torch
from torch.utils.data import DistributedSampler

from mpiter.torch import DataLoader

TheirLoader = torch.utils.data.DataLoader
LENGTH, BATCH, PER_EPOCH, EPOCHS = 48, 4, 12, 2


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        x = torch.tensor([index / LENGTH, 1 - index / LENGTH])
        return x, 2 * x[:1]


class Places(keras.callbacks.Callback):
    """Tells the sampler of epochs, saves after one step, and goes on from there.

    Not before the training begins: Keras has a look at a batch first.
    """

    def __init__(self, loader, save_at=None, resume=False):
        super().__init__()
        self.loader, self.save_at, self.resume, self.done = loader, save_at, resume, 0

    def on_train_begin(self, logs=None):
        if self.resume:
            with open("loader") as file:
                self.loader.load_state_dict(json.load(file))

    def on_epoch_begin(self, epoch, logs=None):
        self.loader.sampler.set_epoch(epoch)  # Keras begins an epoch more than once: its number decides on the order

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        if self.done == self.save_at:
            self.model.save("model.keras")
            with open("loader", "w") as file:
                json.dump(self.loader.state_dict(), file)


def loader_of(loader_class):
    sampler = DistributedSampler(Points(), num_replicas=1, rank=0, seed=1)
    return loader_class(Points(), BATCH, sampler=sampler, num_workers=2)


def fitted(loader_class, save_at=None):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
    loader = loader_of(loader_class)
    model.fit(loader, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[Places(loader, save_at)])
    return [weight.tolist() for weight in model.get_weights()]


def went_on(step):
    model, loader = keras.models.load_model("model.keras"), loader_of(DataLoader)
    begun = step // PER_EPOCH
    callbacks = [Places(loader, resume=True)]
    model.fit(loader, epochs=EPOCHS, initial_epoch=begun, shuffle=False, verbose=0, callbacks=callbacks)
    return [weight.tolist() for weight in model.get_weights()]


if __name__ == "__main__":
    wanted = fitted(TheirLoader)
    assert fitted(DataLoader, save_at=17) == wanted
    assert went_on(17) == wanted
