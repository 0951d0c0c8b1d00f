"""Chainer, in the manner of its train_imagenet with `--arch nin`.

It reads JPEG files, cropped and turned at random, and is resumed.
"""

# This import comes first, since it prepares the import of Chainer.
import mpiter.chainer_compat  # noqa: F401, I001
import random

import chainer
import numpy as np
from chainer import functions as F
from chainer import initializers, links, training
from chainer.training import extensions
from PIL import Image

from mpiter.chainer import MultiprocessIterator, converter

LENGTH = 24
BATCH = 6
INSIZE = 67
CLASSES = 5


class NIN(chainer.Chain):
    """Network in network, with a tenth of its channels."""

    def __init__(self):
        super().__init__()
        he = initializers.HeNormal()

        def convolutions(channels, *size):
            return links.MLPConvolution2D(None, (channels,) * 3, *size, conv_init=he)

        with self.init_scope():
            self.conv1 = convolutions(9, 11, 4)
            self.conv2 = convolutions(25, 5, 1, 2)
            self.conv3 = convolutions(38, 3, 1, 1)
            self.conv4 = links.MLPConvolution2D(
                None, (102, 102, CLASSES), 3, 1, 1, conv_init=he
            )

    def forward(self, x, t):
        h = F.max_pooling_2d(F.relu(self.conv1(x)), 3, 2)
        h = F.max_pooling_2d(F.relu(self.conv2(h)), 3, 2)
        h = F.max_pooling_2d(F.relu(self.conv3(h)), 3, 2)
        h = self.conv4(h)
        h = F.average_pooling_2d(h, h.shape[2:]).reshape(len(x), CLASSES)
        loss = F.softmax_cross_entropy(h, t)
        chainer.report({"loss": loss, "accuracy": F.accuracy(h, t)}, self)
        return loss


class Preprocessed(chainer.dataset.DatasetMixin):
    def __init__(self, list_file, mean, crop_size):
        self.base = chainer.datasets.LabeledImageDataset(list_file)
        self.mean = mean.astype("f")
        self.crop_size = crop_size

    def __len__(self):
        return len(self.base)

    def get_example(self, i):
        image, label = self.base[i]
        _, height, width = image.shape
        top = random.randint(0, height - self.crop_size)
        left = random.randint(0, width - self.crop_size)
        rows = slice(top, top + self.crop_size)
        columns = slice(left, left + self.crop_size)
        image = (image[:, rows, columns] - self.mean[:, rows, columns]) / 255
        return image[:, :, :: random.choice([1, -1])], label


def make_files():
    rng = np.random.RandomState(0)
    with open("train.txt", "w") as names:
        for number in range(LENGTH):
            pixels = rng.randint(256, size=(80, 80, 3), dtype="u1")
            Image.fromarray(pixels).save(f"{number}.jpg")
            names.write(f"{number}.jpg {number % CLASSES}\n")


def main(out, resume=None, **options):
    np.random.seed(0)
    model = NIN()
    optimizer = chainer.optimizers.MomentumSGD(lr=0.01).setup(model)
    train = MultiprocessIterator(
        Preprocessed("train.txt", np.full((3, 80, 80), 127), INSIZE),
        BATCH,
        seed=1,
        **options,
    )
    trainer = training.Trainer(
        training.StandardUpdater(train, optimizer, converter=converter),
        (2, "epoch"),
        out=out,
    )
    trainer.extend(
        extensions.snapshot(filename="at-{.updater.iteration}"),
        trigger=(6, "iteration"),
    )
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    if resume:
        chainer.serializers.load_npz(resume, trainer)
    trainer.run()
    return {name: parameter.array.tolist() for name, parameter in model.namedparams()}


if __name__ == "__main__":
    make_files()
    wanted = main("first", n_processes=2)
    # An epoch has 4 steps, so the snapshot is from the second one.
    assert main("again", resume="first/at-6", n_processes=1) == wanted
