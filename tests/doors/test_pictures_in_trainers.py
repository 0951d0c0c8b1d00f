"""Pictures in folders, packed and staged, in Chainer's trainer: through every iterator the same, resumed too."""

from __future__ import annotations

from typing import Any

import chainer_models  # noqa: F401  # what lets Chainer run on today's NumPy
import numpy as np
import pytest
from chainer_models import weights
from pairs import pairs, slow_if, with_usual_and_another
from picture_sets import BROKEN, FORMS, KINDS, drawn

pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests`")

import chainer
from chainer import serializers, training
from chainer.initializers import LeCunNormal
from chainer.training import extensions, triggers

import mpiter
from mpiter.chainer import MultiprocessIterator, MultithreadIterator, SerialIterator, converter
from mpiter.images import ImageFolder

pytestmark = pytest.mark.chainer

OURS = {
    "processes": lambda dataset, **options: MultiprocessIterator(dataset, 4, n_processes=2, **options),
    "threads": lambda dataset, **options: MultithreadIterator(dataset, 4, n_threads=2, **options),
    "serial": lambda dataset, **options: SerialIterator(dataset, 4, **options),
}
each_way = pytest.mark.parametrize("way", OURS)
SAVED_AT, STEPS = 3, 12  # iterations, of which an epoch has four and a half


class Linear(chainer.Chain):
    """Of the pixels, whatever they are."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.out = chainer.links.Linear(432, 3, initialW=LeCunNormal(rng=np.random.RandomState(1)))

    def forward(self, pictures: Any) -> Any:
        return self.out(pictures.reshape(len(pictures), -1).astype(np.float32) / 255)


def trained(folder: Any, iterator: Any, steps: int = STEPS, saved: Any = None) -> Any:
    """A real training: what the weights came to, and its iterator's counters."""
    optimizer = chainer.optimizers.SGD(0.01).setup(chainer.links.Classifier(Linear()))
    updater = training.StandardUpdater(iterator, optimizer, converter=converter)
    trainer = training.Trainer(updater, (steps, "iteration"), out=str(folder))
    trainer.extend(extensions.snapshot(filename="saved"), trigger=triggers.ManualScheduleTrigger(SAVED_AT, "iteration"))
    if saved is not None:
        serializers.load_npz(str(saved / "saved"), trainer)
    with iterator:  # the trainer only finalizes it
        trainer.run()
        return weights(optimizer.target), iterator.stats()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return drawn(tmp_path_factory.mktemp("pictures"))


@pytest.mark.parametrize(
    ("kind", "form", "way"),
    slow_if(lambda kind, _, way: way == "processes" and kind != "folder", pairs(KINDS, ("uint8", "float32 CHW"), OURS)),
)
def test_a_training_is_that_on_the_plain_folder_and_resumes(whole, tmp_path, kind, form, way):
    wanted, _ = trained(tmp_path / "plain", OURS["serial"](ImageFolder(whole, **FORMS[form]), seed=3))
    dataset = KINDS[kind](whole, tmp_path, **FORMS[form])
    assert trained(tmp_path / "unbroken", OURS[way](dataset, seed=3))[0] == wanted
    assert trained(tmp_path / "resumed", OURS[way](dataset, seed=4), saved=tmp_path / "unbroken")[0] == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "way"), with_usual_and_another(KINDS, "processes", ("threads", "serial")))
def test_broken_pictures_are_left_out_of_a_training(tmp_path, kind, way):
    root = drawn(tmp_path, broken=True)
    wanted, _ = trained(
        tmp_path / "plain", OURS["serial"](ImageFolder(root, **FORMS["uint8"]), seed=3, on_error="skip")
    )
    dataset = KINDS[kind](root, tmp_path, **FORMS["uint8"])
    found, stats = trained(tmp_path / "ours", OURS[way](dataset, seed=3, on_error=mpiter.Skip(most=6)))
    assert found == wanted
    assert {index for index, _ in stats.skips} == set(BROKEN)
    with pytest.raises(mpiter.SampleError, match=r"Skip\(most=1\)"):
        trained(tmp_path / "capped", OURS[way](dataset, seed=3, on_error=mpiter.Skip(most=1)))
