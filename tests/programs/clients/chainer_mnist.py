"""Chainer, in the manner of its train_mnist.

It trains as with its own iterator, and is resumed from a snapshot.
"""

# This import comes first, since it prepares the import of Chainer.
import mpiter.chainer_compat  # noqa: F401, I001
import chainer
import numpy as np
from chainer import functions as F
from chainer import iterators, links, training
from chainer.training import extensions

from mpiter.chainer import MultiprocessIterator

UNITS = 16
BATCH = 20
EPOCHS = 2


class MLP(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = links.Linear(None, UNITS)
            self.l2 = links.Linear(None, UNITS)
            self.l3 = links.Linear(None, 10)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


def digits(count, seed):
    """Pictures of 28×28, whose label is the row that is bright."""
    rng = np.random.RandomState(seed)
    images = rng.rand(count, 28, 28).astype("f") / 10
    labels = rng.randint(10, size=count).astype("i")
    images[np.arange(count), 2 * labels] += 1
    return chainer.datasets.TupleDataset(images.reshape(count, 784), labels)


def main(make, out, resume=None):
    np.random.seed(0)
    model = links.Classifier(MLP())
    optimizer = chainer.optimizers.Adam(alpha=0.01).setup(model)
    train = make(
        digits(300, 1),
        BATCH,
        order_sampler=iterators.ShuffleOrderSampler(np.random.RandomState(0)),
    )
    test = make(digits(50, 2), BATCH, repeat=False, shuffle=False)
    trainer = training.Trainer(
        training.StandardUpdater(train, optimizer), (EPOCHS, "epoch"), out=out
    )
    trainer.extend(extensions.Evaluator(test, model))
    trainer.extend(
        extensions.snapshot(filename="at-{.updater.iteration}"),
        trigger=(22, "iteration"),
    )
    trainer.extend(extensions.LogReport())
    trainer.extend(
        extensions.PrintReport(["epoch", "main/loss", "validation/main/accuracy"])
    )
    trainer.extend(extensions.ProgressBar(update_interval=10))
    if resume:
        chainer.serializers.load_npz(resume, trainer)
    trainer.run()
    assert trainer.observation["validation/main/accuracy"] > 0.9
    return {name: parameter.array.tolist() for name, parameter in model.namedparams()}


def ours(dataset, batch_size, **options):
    return MultiprocessIterator(dataset, batch_size, n_processes=2, **options)


def with_a_seed(dataset, batch_size, order_sampler=None, **options):
    return ours(dataset, batch_size, seed=1, **options)


if __name__ == "__main__":
    assert main(ours, "ours") == main(iterators.SerialIterator, "theirs")
    # Our own order goes on in later epochs too.
    wanted = main(with_a_seed, "seeded")
    # An epoch has 15 steps, so the snapshot is from the second one.
    assert main(with_a_seed, "again", resume="seeded/at-22") == wanted
