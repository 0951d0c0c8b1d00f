"""ChainerMN on one machine: two ranks under ``mpiexec``, each with iterators of the door.

Every test is a whole program, run twice at once.  Both ranks tell what they have seen, rank 0 prints it as JSON, and
the tests compare.  ChainerMN's wrappers never finalize the iterator within, so most programs end with workers at work;
nothing may be left of them.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from scripts import Outcome, Script, run

import mpiter

pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests`")

_PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
MPIEXEC = shutil.which("mpiexec", path=_PLACES)
if MPIEXEC is None or find_spec("mpi4py") is None:
    pytest.skip(
        "mpi4py and mpiexec are not installed: `pip install mpi4py mpich`, or run `python3 tests --all`",
        allow_module_level=True,
    )

pytestmark = [pytest.mark.chainer, pytest.mark.mpi]

every_way = pytest.mark.parametrize("way", ["processes", "forked processes", "threads", "serial"])

PRELUDE = """
    import json, os, sys
    if mpiexec := os.environ.pop("MPIEXEC", ""):  # begin anew, as two ranks
        os.execv(mpiexec, [mpiexec, "-n", "2", *sys.orig_argv])

    from functools import partial
    import numpy as np
    if np.__version__ >= "2" or sys.version_info >= (3, 12):
        import mpiter.chainer_compat
    import chainer
    import chainermn
    from chainer.serializers import DictionarySerializer, NpzDeserializer
    from chainer.training import extensions
    from chainermn.iterators import create_multi_node_iterator, create_synchronized_iterator
    import mpiter
    from mpiter.chainer import LoaderReport, MultiprocessIterator, MultithreadIterator, SerialIterator, converter

    chainer.disable_experimental_feature_warning = True  # ChainerMN's iterators are experimental, still
    chainermn.global_except_hook.add_hook()  # an error of one rank ends both
    comm = chainermn.create_communicator("naive")
    np.random.seed(comm.rank)  # whatever the ranks share, it is not this

    ahead = {"n_prefetch": 1 + 5 * comm.rank}  # one rank is always farther ahead than the other
    make = {
        "processes": partial(MultiprocessIterator, n_processes=2, **ahead),
        "forked processes": partial(MultiprocessIterator, n_processes=2, backend=mpiter.Process("fork"), **ahead),
        "threads": partial(MultithreadIterator, n_threads=2, **ahead),
        "serial": SerialIterator,
    }[sys.argv[1]]

    def pairs(length):
        '''An image and a label, in the types that ChainerMN can broadcast.'''
        labels = np.arange(length, dtype=np.int32)
        images = np.broadcast_to(labels[:, None, None], (length, 2, 3)).astype(np.float32)
        return chainer.datasets.TupleDataset(images, labels)

    def labels(batch):
        assert all(np.all(image == label) and np.shape(image) == (2, 3) for image, label in batch)
        return [int(label) for _, label in batch]

    def steps(it, count):
        '''The next batches, and what a trainer reads after each.'''
        return [
            (labels(it.next()), it.epoch, it.epoch_detail, it.is_new_epoch, it.current_position) for _ in range(count)
        ]

    def save(it):
        target = {}
        DictionarySerializer(target).save(it)
        return target

    def load(target, it):
        NpzDeserializer(target).load(it)
        return it

    def tell(fact):
        for fact in comm.gather_obj(fact) or []:
            print(json.dumps(fact), flush=True)
"""


@pytest.fixture(autouse=True)
def nobody_left(tmp_path):
    """Ranks have sessions of their own, in which ``scripts`` does not look; they all run in the test's folder."""
    yield
    _, left = psutil.wait_procs(running_in(tmp_path), timeout=10)
    what = [(process.pid, process.name()) for process in left]
    for process in left:
        process.kill()
    assert not what


def running_in(folder: Path) -> list:
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:  # it has ended, or is somebody else's
            pass
    return found


def two_ranks(folder: Path, text: str, *arguments: object) -> Outcome:
    return run(folder, PRELUDE + text, *arguments, MPIEXEC=MPIEXEC)


def facts(folder: Path, text: str, *arguments: object) -> list:
    """What each rank tells, rank 0 first."""
    told = [json.loads(line) for line in two_ranks(folder, text, *arguments).ended_well().lines]
    assert len(told) == 2
    return told


def epochs(batches: list, length: int) -> list:
    """The whole epochs that these batches are cut from."""
    stream = list(itertools.chain.from_iterable(batches))
    return [stream[start : start + length] for start in range(0, len(stream) - length + 1, length)]


SHARED = """
    it = create_multi_node_iterator(make(pairs(23), 5, seed=3), comm)
    plain = create_multi_node_iterator(make(pairs(23), 5, shuffle=False), comm)
    master = comm.rank == 0
    tell({
        "order": (it._state.order if master else it._order).tolist(),
        "no order": plain._state.order if master else plain._order,
        "steps": steps(it, 14),
        "in sequence": steps(plain, 7),
    })
"""


@every_way
def test_the_masters_batches_and_epochs_arrive_at_both_ranks(tmp_path, way):
    master, other = facts(tmp_path, SHARED, way)
    assert other == master
    with mpiter.SerialIterator(range(23), 5, seed=3) as it:
        expected = [[list(it.next()), it.epoch, it.epoch_detail, it.is_new_epoch, it.current_position] for _ in range(14)]
    assert master["steps"] == expected
    assert master["order"] == epochs([step[0] for step in expected], 23)[0]
    assert master["no order"] is None
    assert epochs([step[0] for step in master["in sequence"]], 23)[0] == list(range(23))


BARE = """
    images = np.arange(24, dtype=np.float32).reshape(12, 2)
    it = create_multi_node_iterator(make(images, 4, seed=1), comm)
    tell([it.next() for _ in range(6)])
"""


@every_way
def test_samples_without_labels_arrive_too(tmp_path, way):
    master, other = facts(tmp_path, BARE, way)
    assert other == master
    for epoch in epochs(master, 12):
        assert sorted(epoch) == [[2 * index, 2 * index + 1] for index in range(12)]


RESUMED = """
    def fresh():
        return create_multi_node_iterator(make(pairs(23), 5), comm)

    it = fresh()
    steps(it, 7)
    target = save(it)
    following = steps(it, 9)
    tell({"following": following, "resumed": steps(load(target, fresh()), 9), "back": steps(load(target, it), 9)})
"""


@every_way
def test_a_shared_iterator_goes_on_from_a_snapshot(tmp_path, way):
    master, other = facts(tmp_path, RESUMED, way)
    assert other == master
    assert master["resumed"] == master["following"]
    assert master["back"] == master["following"]


BOUNDED = """
    it = create_multi_node_iterator(make(pairs(13), 5, repeat=False), comm)
    batches = [labels(batch) for batch in it]
    again = [next(it, "over") for _ in range(3)]
    tell({"batches": batches, "again": again})
"""


@every_way
def test_both_ranks_come_to_the_end_of_the_only_epoch(tmp_path, way):
    master, other = facts(tmp_path, BOUNDED, way)
    assert other == master
    assert [len(batch) for batch in master["batches"]] == [5, 5, 3]
    assert sorted(sum(master["batches"], [])) == list(range(13))
    assert master["again"] == ["over"] * 3


SYNCHRONIZED = """
    inner = make(pairs(12), 5)
    it = create_synchronized_iterator(inner, comm)
    assert it.communicator is inner.communicator is comm
    tell(steps(it, 20))
"""


def in_step(folder: Path, text: str, way: str) -> list:
    """The batches of both ranks, which are the same."""
    one, other = facts(folder, text, way)
    assert other == one
    return one


@every_way
def test_synchronized_ranks_visit_the_same_order_in_every_epoch(tmp_path, way):
    found = epochs([step[0] for step in in_step(tmp_path, SYNCHRONIZED, way)], 12)
    assert len(found) == 8
    assert all(sorted(epoch) == list(range(12)) for epoch in found)
    assert len({tuple(epoch) for epoch in found}) == len(found)


USED_BEFORE = """
    inner = make(pairs(12), 5)
    steps(inner, 1 + 3 * comm.rank)
    tell(steps(create_synchronized_iterator(inner, comm), 12))
"""


@every_way
def test_an_iterator_that_has_been_used_can_be_synchronized(tmp_path, way):
    batches = in_step(tmp_path, USED_BEFORE, way)
    assert batches[0][1:] == [0, 5 / 12, False, 5]


RESAMPLED = """
    it = create_synchronized_iterator(make(pairs(12), 5), comm)
    batches = steps(it, 4)
    it.order_sampler = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(8))
    tell(batches + steps(it, 8))
"""


@every_way
def test_synchronized_ranks_stay_in_step_with_another_sampler(tmp_path, way):
    found = epochs([step[0] for step in in_step(tmp_path, RESAMPLED, way)], 12)
    sampler = __import__("numpy").random.RandomState(8)
    assert found[2:4] == [sampler.permutation(12).tolist() for _ in range(2)]


RESET = """
    it = create_synchronized_iterator(make(pairs(12), 5), comm)
    batches = []
    for count in (4, 1, 7, 12):
        batches.append(steps(it, count))
        it.reset()
    tell(batches)
"""


@every_way
def test_synchronized_ranks_stay_in_step_when_they_start_over(tmp_path, way):
    for batches in in_step(tmp_path, RESET, way):
        assert batches[0][1:] == [0, 5 / 12, False, 5]


SNAPSHOTS = """
    def fresh():
        return create_synchronized_iterator(make(pairs(12), 5), comm)

    it = fresh()
    steps(it, 4)
    target = save(it)
    following = steps(it, 7)
    tell({"following": following, "resumed": steps(load(target, fresh()), 7), "back": steps(load(target, it), 7)})
"""


@every_way
def test_synchronized_ranks_stay_in_step_when_they_go_on_from_a_snapshot(tmp_path, way):
    found = in_step(tmp_path, SNAPSHOTS, way)
    rest = [step[0] for step in found["following"]][0]
    assert found["resumed"][0] == found["back"][0] == found["following"][0], rest


SCATTERED = """
    def scatter(length, **options):
        return chainermn.scatter_dataset(pairs(length) if comm.rank == 0 else None, comm, seed=1, **options)

    def visit(dataset, **options):
        return sum([labels(batch) for batch in make(dataset, 4, repeat=False, **options)], [])

    tell({
        "even": visit(scatter(24)),
        "shuffled": visit(scatter(24, shuffle=True)),
        "uneven": visit(scatter(23, shuffle=True, force_equal_length=False)),
        "equal": visit(scatter(23)),
        "in sequence": visit(scatter(24), shuffle=False),
    })
"""


@every_way
def test_the_parts_of_a_scattered_dataset_are_visited_once_each(tmp_path, way):
    one, other = facts(tmp_path, SCATTERED, way)
    for split, length in ("even", 24), ("shuffled", 24), ("uneven", 23):
        assert sorted(one[split] + other[split]) == list(range(length)), split
    assert len(one["equal"]) == len(other["equal"]) == 12
    assert set(one["equal"] + other["equal"]) == set(range(23))
    assert one["in sequence"] + other["in sequence"] == list(range(24))


EVALUATED = """
    class Mean(chainer.Chain):
        def __call__(self, images, labels):
            chainer.report({"label": labels.mean(), "image": images.mean()}, self)

    dataset = chainermn.scatter_dataset(pairs(24), comm, shuffle=True, seed=1)
    it = make(dataset, 4, repeat=False, shuffle=False)
    evaluator = chainermn.create_multi_node_evaluator(extensions.Evaluator(it, Mean(), converter=converter), comm)
    tell([{name: float(value) for name, value in evaluator().items()} for _ in range(3)])
"""


@every_way
def test_an_evaluator_finds_the_mean_of_all_ranks_each_time(tmp_path, way):
    one, other = facts(tmp_path, EVALUATED, way)
    assert one == other == [{"validation/main/label": 11.5, "validation/main/image": 11.5}] * 3


GATHERED = """
    class Gathering(chainermn.extensions.GenericMultiNodeEvaluator):
        def calc_local(self, images, labels):
            return labels.tolist()

    seen = []
    it = make(pairs((11, 3)[comm.rank]), 1, repeat=False, shuffle=False)
    evaluator = Gathering(comm, it, None, converter=converter, progress_hook=lambda batch: seen.append(labels(batch)))
    tell({"results": [evaluator(None) for _ in range(2)], "seen": seen})
"""


@every_way
def test_an_evaluator_of_unequal_parts_asks_the_shorter_one_again_and_again(tmp_path, way):
    """Up to eight times after its end."""
    root, other = facts(tmp_path, GATHERED, way)
    both = [[index] for index in range(3) for _ in range(2)] + [[index] for index in range(3, 11)]
    assert root["results"] == [both, both]
    assert root["seen"] == [[[index]] for index in range(11)] * 2 or root["seen"] == [[index] for index in range(11)] * 2
    assert other == {"results": [None, None], "seen": []}


TRAINED = """
    random = np.random.RandomState(0)
    points = random.normal(size=(60, 4)).astype(np.float32)
    data = chainer.datasets.TupleDataset(points, (points.sum(axis=1) > 0).astype(np.int32))
    model = chainer.links.Classifier(chainer.Sequential(
        chainer.links.Linear(4, 8), chainer.functions.relu, chainer.links.Linear(8, 2)))
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(0.1), comm).setup(model)

    it = make(chainermn.scatter_dataset(data, comm, shuffle=True, seed=1), 5, seed=comm.rank)
    updater = chainer.training.StandardUpdater(it, optimizer, converter=converter)
    trainer = chainer.training.Trainer(updater, (4, "epoch"), out="result")
    held_out = make(chainermn.scatter_dataset(data, comm), 5, repeat=False, shuffle=False)
    evaluator = extensions.Evaluator(held_out, model, converter=converter)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
    trainer.extend(LoaderReport())
    trainer.extend(extensions.LogReport(filename=f"log of rank {comm.rank}"))
    trainer.run()
    log = trainer.get_extension("LogReport").log
    tell({
        "parameters": {name: parameter.array.tolist() for name, parameter in sorted(model.namedparams())},
        "losses": [entry["validation/main/loss"] for entry in log],
        "images/s": [entry["images/s"] for entry in log],
        "place": [updater.iteration, updater.epoch, updater.epoch_detail],
    })
"""


@every_way
def test_ranks_that_train_together_end_with_the_same_parameters(tmp_path, way):
    one, other = facts(tmp_path, TRAINED, way)
    assert one["parameters"] == other["parameters"]
    assert one["losses"] == other["losses"]
    assert one["losses"][-1] < one["losses"][0]
    assert one["place"] == other["place"] == [24, 4, 4.0]
    assert all(speed > 0 for speed in one["images/s"] + other["images/s"])
