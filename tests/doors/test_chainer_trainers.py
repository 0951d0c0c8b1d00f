"""Chainer's trainers, fed by our iterators, report, save, resume and end as usual."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from chainer_models import Breaking, classifier, pairs, weights
from datasets import plain
from PIL import Image

pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests`")

import chainer
from chainer import datasets, serializers, training
from chainer import iterators as theirs
from chainer.dataset import concat_examples
from chainer.training import extensions, triggers

from mpiter.chainer import MultiprocessIterator, SerialIterator, converter

pytestmark = pytest.mark.chainer

OURS = {
    "processes": lambda dataset, size, **options: MultiprocessIterator(
        dataset, size, n_processes=1, **options
    ),
    "serial": SerialIterator,
}


def sampler():
    return theirs.ShuffleOrderSampler(np.random.RandomState(0))


def make_trainer(folder, iterator, length, convert=concat_examples, test=None):
    optimizer = chainer.optimizers.MomentumSGD(0.01).setup(classifier())
    updater = training.StandardUpdater(iterator, optimizer, converter=convert)
    trainer = training.Trainer(updater, length, out=str(folder))
    trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
    if test is not None:
        trainer.extend(
            extensions.Evaluator(
                test, optimizer.target, converter=convert, progress_bar=True
            )
        )
    return trainer


def model_of(trainer):
    return weights(trainer.updater.get_optimizer("main").target)


def log_of(folder):
    """Return what was reported, without the elapsed times."""
    entries = json.loads((folder / "log").read_text())
    return [
        {key: value for key, value in entry.items() if key != "elapsed_time"}
        for entry in entries
    ]


# -- the same as with Chainer's --------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "convert"), [("processes", concat_examples), ("serial", converter)]
)
def test_a_training_is_the_same_to_the_last_bit(tmp_path, way, convert):
    printed = io.StringIO()

    def trained(make, name):
        test = make(pairs(30), 7, repeat=False, shuffle=False)
        train = make(pairs(50), 8, order_sampler=sampler())
        trainer = make_trainer(tmp_path / name, train, (3, "epoch"), convert, test)
        trainer.extend(
            extensions.PrintReport(
                ["epoch", "main/loss", "validation/main/accuracy"], out=printed
            )
        )
        trainer.extend(extensions.ProgressBar(update_interval=3))
        trainer.extend(
            extensions.ExponentialShift("lr", 0.5),
            trigger=triggers.ManualScheduleTrigger([1, 2], "epoch"),
        )
        trainer.extend(extensions.observe_lr())
        trainer.run()
        return model_of(trainer), log_of(tmp_path / name)

    assert trained(OURS[way], "ours") == trained(theirs.SerialIterator, "theirs")
    assert printed.getvalue().count("validation/main/accuracy") == 2


# -- stopping and going on -------------------------------------------------------------


def test_a_training_goes_on_within_an_epoch_as_if_nothing_had_happened(tmp_path):
    unbroken = make_trainer(
        tmp_path, SerialIterator(pairs(50), 8, seed=3), (16, "iteration")
    )
    unbroken.extend(
        extensions.snapshot(filename="saved"),
        trigger=triggers.ManualScheduleTrigger(9, "iteration"),
    )
    unbroken.run()
    resumed = make_trainer(
        tmp_path / "again", OURS["processes"](pairs(50), 8, seed=4), (16, "iteration")
    )
    resumed.extend(
        extensions.snapshot(filename="saved"),
        trigger=triggers.ManualScheduleTrigger(9, "iteration"),
    )
    serializers.load_npz(str(tmp_path / "saved"), resumed)
    assert resumed.updater.epoch_detail == pytest.approx(9 * 8 / 50)
    resumed.run()
    assert model_of(resumed) == model_of(unbroken)


def test_a_training_of_chainers_goes_on_with_ours(tmp_path):
    cls = theirs.SerialIterator
    first = make_trainer(tmp_path, cls(pairs(50), 8), (9, "iteration"))
    first.extend(extensions.snapshot(filename="saved"), trigger=(9, "iteration"))
    first.run()
    trainers = [
        # Twelve iterations reach the end of that epoch.
        make_trainer(tmp_path / str(at), make(pairs(50), 8), (12, "iteration"))
        for at, make in enumerate([cls, OURS["processes"]])
    ]
    for trainer in trainers:
        trainer.extend(extensions.snapshot(filename="saved"), trigger=(9, "iteration"))
        serializers.load_npz(str(tmp_path / "saved"), trainer, strict=False)
        trainer.run()
    assert model_of(trainers[0]) == model_of(trainers[1])


# -- what goes wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "error"), [("processes", ValueError), ("serial", KeyboardInterrupt)]
)
def test_an_error_of_the_dataset_ends_the_training_in_good_order(tmp_path, way, error):
    trainer = make_trainer(
        tmp_path, OURS[way](Breaking(error), 4, shuffle=False), (2, "epoch")
    )
    seen = []
    finalizing = trainer.updater.finalize
    trainer.updater.finalize = lambda: (seen.append("finalized"), finalizing())
    trainer.extend(lambda _: None, name="handler")
    with pytest.raises(error):
        trainer.run()
    assert seen == ["finalized"]


# -- datasets --------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    for i in range(8):
        image = Image.fromarray(np.full((5 + i % 2, 6, 3), 10 * i, np.uint8))
        image.save(tmp_path / f"{i}.png")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for i in range(8):
            archive.write(tmp_path / f"{i}.png", f"{i}.png")
    return tmp_path


def labeled_images(folder):
    return datasets.LabeledImageDataset(
        [(f"{i}.png", i) for i in range(8)], str(folder)
    )


def pickled(folder):
    with datasets.open_pickle_dataset_writer(str(folder / "data.pkl")) as writer:
        for i in range(12):
            writer.write((np.full(3, i), i))
    return datasets.open_pickle_dataset(str(folder / "data.pkl"))


def table(folder):
    columns = np.arange(36.0).reshape(3, 12)
    return chainer.dataset.tabular.from_data(
        (("a", columns[0]), ("b", columns[1]), ("c", list(range(12))))
    ).asdict()


DATASETS = {
    "LabeledImageDataset": labeled_images,
    "MultiZippedImageDataset": lambda folder: datasets.MultiZippedImageDataset(
        [str(folder / "all.zip")] * 2
    ),
    "PickleDataset": pickled,
    "TransformDataset, a lambda": lambda folder: datasets.TransformDataset(
        pairs(12), lambda pair: (pair[0] + 1, pair[1])
    ),
    "TupleDataset": lambda folder: datasets.TupleDataset(
        np.arange(12.0).reshape(6, 2), np.arange(6), list("abcdef")
    ),
    "TabularDataset, dicts": table,
}


def stream(make, dataset, **options):
    with make(dataset, 3, order_sampler=sampler(), **options) as iterator:
        return [[plain(sample) for sample in iterator.next()] for _ in range(9)]


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:chainer")
def test_chainers_datasets_give_what_they_give_to_chainers_iterator(pictures, name):
    # Zipped datasets refuse the np.int64 that Chainer's own iterators pass.
    if "Zipped" in name:
        expected = stream(SerialIterator, DATASETS[name](pictures))
    else:
        expected = stream(theirs.SerialIterator, DATASETS[name](pictures))
    assert stream(OURS["processes"], DATASETS[name](pictures)) == expected


# -- the converter ---------------------------------------------------------------------

SAMPLES = {
    "arrays": lambda i: np.full((2, 3), i, np.float32),
    "tuples": lambda i: (
        np.full((2, 3), i, np.float32),
        i,
        float(i),
        i % 2 == 0,
        np.int8(i),
        np.float16(i),
        1j * i,
    ),
    "rare tuples": lambda i: (
        np.full(3, i, ">f4"),
        np.zeros((0, 3), np.float32),
        np.datetime64(i, "D"),
    ),
    "dicts": lambda i: {"x": np.full((2, 3), i, np.float32), "y": np.int32(i)},
    "nested lists": lambda i: ([[i, 1], [2, 3]], i),
}


def described(converted):
    if isinstance(converted, (tuple, dict)):
        parts = (
            converted.items() if isinstance(converted, dict) else enumerate(converted)
        )
        return type(converted).__name__, [
            (name, described(part)) for name, part in parts
        ]
    return converted.dtype, converted.shape, converted.tobytes()


@pytest.mark.parametrize("build", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize(("way", "device"), [("processes", None), ("serial", "@numpy")])
def test_the_converter_makes_what_concat_examples_makes(way, build, device):
    samples = [build(i) for i in range(5)]
    with OURS[way](samples, 5, shuffle=False) as iterator:
        batch = iterator.next()
        device = device and chainer.get_device(device)
        wanted = described(concat_examples(samples, device))
        assert described(converter(batch, device)) == wanted
        assert described(converter(batch[:3], device)) == described(
            concat_examples(samples[:3], device)
        )
        batch.pop()
        assert described(converter(batch, device)) == described(
            concat_examples(samples[:4], device)
        )


def test_the_converter_copies_nothing_that_lies_in_columns():
    with MultiprocessIterator(pairs(6), 6, n_processes=1) as iterator:
        batch = iterator.next()
        images, labels = converter(batch)
        assert images is batch.columns[0]
        assert labels is batch.columns[1]
        images[0] = 7
        assert (batch[0][0] == 7).all()


CHANGES = {
    "an entry": lambda batch: batch[1].update(y=np.float32(7)),
    "an array in place": lambda batch: batch[1]["x"].fill(7),
    "a part of it": lambda batch: batch[1].update(x=batch[1]["x"][::-1]),
    "the names": lambda batch: [sample.pop("y") for sample in batch],
    "nothing": lambda batch: None,
}


def test_the_converter_shows_what_was_changed():
    samples = [
        {"x": np.array([i, i + 0.5], np.float32), "y": np.float32(i)} for i in range(4)
    ]
    with MultiprocessIterator(samples, 4, n_processes=1, shuffle=False) as iterator:
        for name, change in CHANGES.items():
            batch = iterator.next()
            change(batch)
            wanted = described(concat_examples(list(batch)))
            assert described(converter(batch)) == wanted, name


def test_the_converter_pads():
    samples = [
        (np.arange(1 + i % 3, dtype=np.float32), np.arange(i % 2 + 1)) for i in range(6)
    ]
    with MultiprocessIterator(samples, 6, n_processes=1, shuffle=False) as iterator:
        batch = iterator.next()
        for padding in (0, (0, 9)):
            assert described(converter(batch, padding=padding)) == described(
                concat_examples(samples, padding=padding)
            )
    same = [(np.ones(2), 1)] * 4
    with MultiprocessIterator(same, 4, n_processes=1) as iterator:
        wanted = described(concat_examples(same, None, 5))
        assert described(converter(iterator.next(), None, 5)) == wanted


def test_the_converter_refuses_what_concat_examples_refuses():
    with (
        MultiprocessIterator([(1, "a"), (2, "b")], 2, n_processes=1) as iterator,
        pytest.raises(TypeError),
    ):
        # A string is no array.
        converter(iterator.next())
    with pytest.raises(ValueError, match="empty"):
        converter([])
    with (
        MultiprocessIterator([np.ones(1), np.ones(2)], 2, n_processes=1) as iterator,
        pytest.raises(ValueError),
    ):
        converter(iterator.next())
