"""The shim that lets Chainer be imported on NumPy 2 and on new Pythons.

These tests check what it changes, and that it changes nothing else.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scripts import run

pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests`")

pytestmark = pytest.mark.chainer

UNAIDED = int(np.__version__.partition(".")[0]) < 2 and sys.version_info < (3, 12)

_UNCHANGED = """
    import sys, warnings
    warnings.simplefilter("error")
    import numpy as np
    import mpiter
    import mpiter.chainer_compat
    before = set(vars(np))
    import chainer
    of_submodules = {
        name.partition(".")[2] for name in sys.modules if name.startswith("numpy.")
    }
    print("new in numpy:", sorted(set(vars(np)) - before - of_submodules))
    print("imported:", sorted({"pkg_resources", "numpy.distutils"} & set(sys.modules)))
    print(chainer.__version__)
"""


def test_chainer_is_imported_and_nothing_else_has_changed(tmp_path):
    lines = run(tmp_path, _UNCHANGED).ended_well().lines
    assert lines == ["new in numpy: []", "imported: []", "7.8.1"]


def test_where_chainer_is_missing_it_is_still_missing(tmp_path):
    text = """
        import sys
        import mpiter.chainer_compat
        sys.path = [folder for folder in sys.path if "site-packages" not in folder]
        try:
            import chainer
        except ImportError as error:
            print(error.name)
    """
    assert run(tmp_path, text).ended_well().lines == ["chainer"]


# Without the shim, Chainer still asks for the old names.
@pytest.mark.filterwarnings(
    "ignore:`np.float` is a deprecated alias:DeprecationWarning"
)
def test_the_functions_that_asked_for_names_of_old_work():
    import chainer
    from chainer import functions

    x = chainer.Variable(np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4))
    assert functions.resize_images(x, (8, 8)).shape == (1, 3, 8, 8)
    for align_corners in (True, False):
        for mode in ("bilinear", "nearest"):
            functions.resize_images(x, (2, 2), mode=mode, align_corners=align_corners)
    flat = chainer.Variable(np.arange(16, dtype=np.float32).reshape(4, 4))
    functions.sum(functions.as_strided(flat, (2, 2), (1, 1))).backward()
    assert flat.grad.sum() == 4
    even = chainer.distributions.Categorical(p=np.full((2, 4), 0.25, np.float32))
    assert np.allclose(even.log_prob(np.array([1, 3])).array, np.log(0.25))


_THEIR_TESTING = """
    import sys
    if len(sys.argv) > 1:
        sys.modules["pkg_resources"] = None  # as if it were not installed
    import mpiter.chainer_compat
    import chainer.testing
    import chainer.testing.doctest_helper
    print(chainer.testing.helper.pkg_resources.__name__)
    chainer.testing.with_requires("numpy>=1")(print)("numpy is there")
    try:
        chainer.testing.with_requires("surely-not-there")(print)("run all the same")
    except BaseException as error:
        print(type(error).__name__)
"""


def test_chainers_test_helpers_need_no_pkg_resources(tmp_path):
    lines = run(tmp_path, _THEIR_TESTING, "none").ended_well().lines
    assert lines[:2] == ["_PkgResources", "numpy is there"]
    assert lines[2:] != ["run all the same"]


_TRAINING = """
    import sys, warnings
    warnings.simplefilter("ignore")
    if sys.argv[2] == "aided":
        try:
            import mpiter.chainer
        except ImportError as error:
            print(*str(error).split())
    import mpiter.chainer_compat
    import chainer, numpy as np
    from chainer import functions as F, links as L, training
    from chainer.training import extensions
    from mpiter.chainer import MultiprocessIterator, SerialIterator

    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.conv = L.Convolution2D(1, 4, 3)
                self.norm = L.BatchNormalization(4)
                self.out = L.Linear(None, 3)
        def forward(self, x):
            return self.out(F.dropout(F.relu(self.norm(self.conv(x)))))

    np.random.seed(0)
    x = np.random.rand(60, 1, 8, 8).astype("f")
    pairs = chainer.datasets.TupleDataset(x, np.arange(60) % 3)
    data = chainer.datasets.TransformDataset(pairs, lambda pair: (pair[0] * 2, pair[1]))
    model = L.Classifier(Net())
    optimizer = chainer.optimizers.Adam().setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-4))
    train = MultiprocessIterator(data, 10, n_processes=1)
    test = SerialIterator(data, 10, repeat=False, shuffle=False)
    updater = training.StandardUpdater(train, optimizer)
    trainer = training.Trainer(updater, (2, "epoch"), out=sys.argv[1])
    trainer.extend(extensions.Evaluator(test, model))
    trainer.extend(extensions.LogReport())
    trainer.run()
    loss = trainer.observation["validation/main/loss"]
    print(trainer.updater.epoch, np.isfinite(loss))
"""


def test_without_the_shim_the_door_says_what_to_do_and_works_once_it_is_imported(
    tmp_path,
):
    """Workers that aren't forked import Chainer themselves, to open the dataset."""
    ended = run(
        tmp_path, _TRAINING, tmp_path / "out", "unaided" if UNAIDED else "aided"
    ).ended_well()
    *said, trained = ended.lines
    assert trained == "2 True"
    for line in said:
        assert line.startswith("Chainer cannot be imported here")
        assert "`import mpiter.chainer_compat` before" in line
    assert len(said) == (not UNAIDED)
