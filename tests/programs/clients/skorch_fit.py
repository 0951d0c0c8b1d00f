"""skorch, told the class of its loaders: trained as with torch's; partial_fit goes on in the midst of an epoch."""

import json

import skorch
import torch

from mpiter.torch import DataLoader

TheirLoader = torch.utils.data.DataLoader
LENGTH, BATCH, STEPS = 48, 4, 24  # 12 in each of two epochs


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        x = torch.tensor([index / LENGTH, 1 - index / LENGTH])
        return x, 2 * x[:1]


class Net(skorch.NeuralNetRegressor):
    """Keeps its loader of training batches, which thereby keeps its workers, and can be asked for its place."""

    def get_iterator(self, dataset, training=False):
        if not training:
            return super().get_iterator(dataset, training)
        if not hasattr(self, "loader_"):
            self.loader_ = super().get_iterator(dataset, training)
        return self.loader_


class Saves(skorch.callbacks.Callback):
    """After one step: what there is to be known."""

    def __init__(self, step):
        self.step = step

    def on_batch_end(self, net, training=False, **_):
        done = sum(len(epoch["batches"]) for epoch in net.history)
        if training and done == self.step:
            net.save_params("module", f_optimizer="optimizer")
            with open("loader", "w") as file:
                json.dump(net.loader_.state_dict(), file)


def net(loader_class, **options):
    torch.manual_seed(0)
    return Net(
        torch.nn.Linear(2, 1),
        optimizer=torch.optim.SGD,
        lr=0.05,
        iterator_train=loader_class,
        iterator_train__shuffle=True,
        iterator_train__num_workers=2,
        iterator_train__generator=torch.Generator().manual_seed(3),
        iterator_valid=loader_class,
        batch_size=BATCH,
        train_split=None,
        verbose=0,
        **options,
    )


def weights(trained):
    return [weight.tolist() for weight in trained.module_.parameters()]


if __name__ == "__main__":
    wanted = weights(net(TheirLoader, max_epochs=2).fit(Points(), None))
    trained = net(DataLoader, max_epochs=2, callbacks=[Saves(17)]).fit(Points(), None)  # 12 steps in an epoch
    assert weights(trained) == wanted
    assert trained.predict(Points()).shape == (LENGTH, 1)

    again = net(DataLoader).initialize()
    again.load_params("module", f_optimizer="optimizer")
    with open("loader") as file:
        again.get_iterator(again.get_dataset(Points()), training=True).load_state_dict(json.load(file))
    again.partial_fit(Points(), None, epochs=1)
    assert weights(again) == wanted
