"""Small models and datasets for trainers, in a module that every worker can import."""

from __future__ import annotations

import sys

import numpy as np

if int(np.__version__.partition(".")[0]) >= 2 or sys.version_info >= (3, 12):
    import mpiter.chainer_compat  # noqa: F401


class Breaking:
    """A dataset whose sample 10 raises."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 10:
            raise self.error("broken")
        return np.full(6, index, np.float32), np.int32(index % 3)


def double(pair):
    return 2 * pair[0], pair[1]


def pairs(length):
    """Return a TupleDataset of six numbers, and which third of them is the largest."""
    from chainer.datasets import TupleDataset

    images = np.random.RandomState(length).rand(length, 6).astype(np.float32)
    return TupleDataset(
        images, (images.reshape(length, 3, 2).sum(2).argmax(1)).astype(np.int32)
    )


def classifier():
    """Return a classifier that has the same weights each time."""
    from chainer import Chain, functions, links
    from chainer.initializers import LeCunNormal

    class Net(Chain):
        def __init__(self):
            super().__init__()
            weight = LeCunNormal(rng=np.random.RandomState(1))
            with self.init_scope():
                self.hidden = links.Linear(6, 8, initialW=weight)
                self.out = links.Linear(8, 3, initialW=weight)

        def forward(self, x):
            return self.out(functions.relu(self.hidden(x)))

    return links.Classifier(Net())


def weights(model):
    return [
        (name, parameter.array.tobytes())
        for name, parameter in sorted(model.namedparams())
    ]
