"""Two ranks of ChainerMN run under ``mpiexec``, each with iterators of the door.

Every test is a whole program.  Both ranks report what they have seen, rank 0 prints it
as JSON, and the tests compare.  ChainerMN's wrappers never finalize the iterator
within, so most programs end while workers fetch, and no worker may be left.
"""

from __future__ import annotations

import itertools
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from launched import MPIEXEC, clear_away, running_in, segments
from scripts import Script

import mpiter

pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests`")

if not MPIEXEC or find_spec("mpi4py") is None:
    pytest.skip(
        "mpi4py and mpiexec are not installed: `pip install mpi4py mpich`, or run "
        "`python3 tests --all`",
        allow_module_level=True,
    )

# Ranks spin while they wait, so these tests run one by one.
pytestmark = [pytest.mark.chainer, pytest.mark.mpi, pytest.mark.xdist_group("ranks")]

PRELUDE = """
    import json, os, sys, time
    if mpiexec := os.environ.pop("MPIEXEC", ""):
        # The program begins again, as two ranks.
        os.execv(mpiexec, [mpiexec, "-n", "2", *sys.orig_argv])

    from functools import partial
    import numpy as np
    if np.__version__ >= "2" or sys.version_info >= (3, 12):
        import mpiter.chainer_compat
    import chainer
    import chainermn
    from chainer.serializers import DictionarySerializer, NpzDeserializer
    from chainer.training import extensions
    from chainermn.iterators import (
        create_multi_node_iterator, create_synchronized_iterator)
    import mpiter
    from mpiter.chainer import MultiprocessIterator, MultithreadIterator, converter

    # ChainerMN's iterators are still called experimental.
    chainer.disable_experimental_feature_warning = True
    chainermn.global_except_hook.add_hook()  # an error of one rank ends both
    comm = chainermn.create_communicator("naive")
    assert comm.size == 2, "mpiexec is of another MPI than mpi4py uses"
    # The ranks have different generators, so they can't agree by chance.
    np.random.seed(comm.rank)

    # One rank is always farther ahead than the other.
    ahead = {"n_prefetch": 1 + 5 * comm.rank}
    make = {
        "processes": partial(MultiprocessIterator, n_processes=2, **ahead),
        "forked processes": partial(
            MultiprocessIterator, n_processes=2, backend=mpiter.Process("fork"), **ahead
        ),
        "threads": partial(MultithreadIterator, n_threads=2, **ahead),
    }[sys.argv[1]]

    class Pairs:
        '''An image and a label, in types that ChainerMN can broadcast.'''
        def __init__(self, length):
            self.length = length
        def __len__(self):
            return self.length
        def __getitem__(self, index):
            return np.full((2, 3), index, np.float32), np.int32(index)

    def labels(batch):
        for image, label in batch:
            assert np.all(image == label) and np.shape(image) == (2, 3)
        return [int(label) for _, label in batch]

    def steps(it, count):
        '''The next batches, and what a trainer reads after each.'''
        seen = []
        for _ in range(count):
            batch = labels(it.next())
            place = it.epoch, it.epoch_detail, it.is_new_epoch, it.current_position
            seen.append((batch, *place))
        return seen

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
def none_left(tmp_path):
    """Check that no rank is left.

    Ranks have sessions of their own, which ``scripts`` does not look at; but all of
    them run in the test's folder.
    """
    before = segments()
    yield
    _, left = psutil.wait_procs(running_in(tmp_path), timeout=10)
    for process in left:
        process.kill()
    clear_away(before)
    assert not left


def start(folder: Path, text: str, *arguments: object) -> Script:
    script = Script(folder, PRELUDE + text, *arguments, MPIEXEC=MPIEXEC)
    # The two ranks wait for each other a hundred times, and spin meanwhile.
    script.limit_s = 100
    return script


def facts(folder: Path, text: str, *arguments: object) -> list:
    """Return what each rank reports, rank 0 first."""
    told = [
        json.loads(line)
        for line in start(folder, text, *arguments).ends().ended_well().lines
    ]
    assert len(told) == 2
    return told


def alike(folder: Path, text: str, *arguments: object) -> Any:
    """Return what both ranks report, which must be the same."""
    one, other = facts(folder, text, *arguments)
    assert one == other
    return one


def epochs(steps: list, length: int) -> list:
    """Return the whole epochs that the batches of these steps are parts of."""
    stream = list(itertools.chain.from_iterable(batch for batch, *_ in steps))
    return [
        stream[start : start + length]
        for start in range(0, len(stream) - length + 1, length)
    ]


SHARED = """
    def fresh():
        return create_multi_node_iterator(make(Pairs(23), 5), comm)

    images = np.arange(24, dtype=np.float32).reshape(12, 2)
    bare = create_multi_node_iterator(make(images, 4, shuffle=False), comm)
    it = create_multi_node_iterator(make(Pairs(23), 5, seed=3), comm)
    state = (lambda it: it._state.order) if comm.rank == 0 else (lambda it: it._order)
    told = {
        "order": state(it).tolist(),
        "steps": steps(it, 14),
        "no order": state(bare),
        "bare": [bare.next() for _ in range(3)],
    }
    it = fresh()
    steps(it, 7)
    target = save(it)
    told["following"] = steps(it, 9)
    told["resumed"] = steps(load(target, fresh()), 9)
    told["back"] = steps(load(target, it), 9)
    it = create_multi_node_iterator(make(Pairs(13), 5, repeat=False), comm)
    told["bounded"] = [labels(batch) for batch in it]
    told["again"] = [next(it, "over") for _ in range(3)]
    tell(told)
"""


def test_both_ranks_get_the_masters_batches_go_on_from_a_snapshot_and_come_to_the_end(
    tmp_path,
):
    found = alike(tmp_path, SHARED, "processes")
    with mpiter.SerialIterator(range(23), 5, seed=3) as it:
        places = []
        for _ in range(14):
            batch = list(it.next())
            place = it.epoch, it.epoch_detail, it.is_new_epoch, it.current_position
            places.append([batch, *place])
    assert found["steps"] == places
    assert found["order"] == epochs(found["steps"], 23)[0]
    assert found["no order"] is None
    assert [row for batch in found["bare"] for row in batch] == [
        [2 * index, 2 * index + 1] for index in range(12)
    ]
    assert found["resumed"] == found["back"] == found["following"]
    assert [len(batch) for batch in found["bounded"]] == [5, 5, 3]
    bounded = [index for batch in found["bounded"] for index in batch]
    assert sorted(bounded) == list(range(13))
    assert found["again"] == ["over"] * 3


SYNCHRONIZED = """
    def fresh(size=4):
        return create_synchronized_iterator(make(Pairs(12), size), comm)

    told = {}
    inner = make(Pairs(12), 5)
    it = create_synchronized_iterator(inner, comm)
    assert it.communicator is inner.communicator is comm
    told["steps"] = steps(it, 20)

    inner = make(Pairs(12), 4)
    steps(inner, 1 + 3 * comm.rank)
    told["used before"] = steps(create_synchronized_iterator(inner, comm), 12)

    it = fresh(5)
    before = steps(it, 4)
    it.order_sampler = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(8))
    told["resampled"] = before + steps(it, 8)

    it, told["reset"] = fresh(), []
    for count in (5, 7, 12):
        told["reset"].append(steps(it, count))
        it.reset()

    it = fresh()
    steps(it, 4)
    target = save(it)
    told["snapshots"] = [
        steps(it, 8), steps(load(target, fresh()), 8), steps(load(target, it), 8)
    ]
    tell(told)
"""


def test_synchronized_ranks_are_in_step_whatever_one_does_with_them(tmp_path):
    found = alike(tmp_path, SYNCHRONIZED, "threads")
    seen = epochs(found["steps"], 12)
    assert len({tuple(epoch) for epoch in seen}) == len(seen) == 8
    assert all(
        sorted(epoch) == list(range(12))
        for epoch in seen + epochs(found["used before"], 12)
    )
    # Another sampler is used from the next epoch on.
    random = np.random.RandomState(8)
    assert epochs(found["resampled"], 12)[2:4] == [
        random.permutation(12).tolist() for _ in range(2)
    ]
    assert all(steps[0][1:] == [0, 1 / 3, False, 4] for steps in found["reset"])
    # The epoch that was under way goes on in the same order.  The next has another
    # order, since Chainer doesn't save its samplers.
    following, resumed, back = found["snapshots"]
    assert resumed[:2] == back[:2] == following[:2]


EVALUATED = """
    class Mean(chainer.Chain):
        def __call__(self, images, labels):
            chainer.report({"label": labels.mean(), "image": images.mean()}, self)

    dataset = chainermn.scatter_dataset(Pairs(24), comm, shuffle=True, seed=1)
    it = make(dataset, 4, repeat=False, shuffle=False)
    evaluator = chainermn.create_multi_node_evaluator(
        extensions.Evaluator(it, Mean(), converter=converter), comm)
    means = [
        {name: float(value) for name, value in evaluator().items()} for _ in range(3)
    ]

    class Gathering(chainermn.extensions.GenericMultiNodeEvaluator):
        def calc_local(self, images, labels):
            return labels.tolist()

    seen = []
    it = make(Pairs((11, 3)[comm.rank]), 1, repeat=False, shuffle=False)
    evaluator = Gathering(
        comm, it, None, converter=converter,
        progress_hook=lambda batch: seen.append(labels(batch)))
    results = [evaluator(None) for _ in range(2)]
    evaluated = {"means": means, "results": results, "seen": seen}
"""


def evaluators_find_the_mean_of_all_ranks_and_ask_the_shorter_one_again_and_again(
    root, other
):
    """Check both evaluators.

    ChainerMN asks both ranks in rounds of eight, until neither gave a batch in the last
    step of a round.
    """
    assert (
        root["means"]
        == other["means"]
        == [{"main/label": 11.5, "main/image": 11.5}] * 3
    )
    both = [[index] for index in range(3) for _ in range(2)] + [
        [index] for index in range(3, 11)
    ]
    assert root["results"] == [both, both]
    assert root["seen"] == [[index] for index in range(11)] * 2
    assert (other["results"], other["seen"]) == ([None, None], [])


TRAINED = """
    random = np.random.RandomState(0)
    points = random.normal(size=(60, 4)).astype(np.float32)
    is_above = (points.sum(axis=1) > 0).astype(np.int32)
    data = chainer.datasets.TupleDataset(points, is_above)
    model = chainer.links.Classifier(chainer.Sequential(
        chainer.links.Linear(4, 8), chainer.functions.relu, chainer.links.Linear(8, 2)))
    optimizer = chainermn.create_multi_node_optimizer(
        chainer.optimizers.MomentumSGD(0.1), comm)
    optimizer.setup(model)

    share = chainermn.scatter_dataset(data, comm, shuffle=True, seed=1)
    it = make(share, 5, seed=comm.rank)
    updater = chainer.training.StandardUpdater(it, optimizer, converter=converter)
    trainer = chainer.training.Trainer(updater, (4, "epoch"), out="result")
    share = chainermn.scatter_dataset(data, comm)
    held_out = make(share, 5, repeat=False, shuffle=False)
    evaluator = extensions.Evaluator(held_out, model, converter=converter)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
    trainer.extend(extensions.LogReport(filename=f"log of rank {comm.rank}"))
    trainer.run()
    log = trainer.get_extension("LogReport").log
    parameters = sorted(model.namedparams())
    tell({
        "evaluated": evaluated,
        "parameters": {name: one.array.tolist() for name, one in parameters},
        "losses": [entry["validation/main/loss"] for entry in log],
        "place": [updater.iteration, updater.epoch, updater.epoch_detail],
    })
"""


def test_ranks_that_train_and_evaluate_together_end_with_the_same_parameters(tmp_path):
    one, other = facts(tmp_path, EVALUATED + TRAINED, "processes")
    evaluators_find_the_mean_of_all_ranks_and_ask_the_shorter_one_again_and_again(
        one["evaluated"], other["evaluated"]
    )
    assert one["parameters"] == other["parameters"]
    assert one["losses"] == other["losses"]
    assert one["losses"][-1] < one["losses"][0]
    assert one["place"] == other["place"] == [24, 4, 4.0]


SHARED_OUT = """
    class Labelled(chainer.dataset.DatasetMixin):
        def __len__(self):
            return 60
        def get_example(self, index):
            point = np.random.RandomState(index).normal(size=4).astype(np.float32)
            return point, np.int32(point.sum() > 0), np.int32(index)

    class Counting(chainer.links.Classifier):
        def forward(self, x, t, index):
            seen.extend(index.tolist())
            return super().forward(x, t)

    seen = []
    model = Counting(chainer.Sequential(
        chainer.links.Linear(4, 8), chainer.functions.relu, chainer.links.Linear(8, 2)))
    optimizer = chainermn.create_multi_node_optimizer(
        chainer.optimizers.MomentumSGD(0.1), comm)
    optimizer.setup(model)
    it = make(Labelled(), 5, shard="auto")
    updater = chainer.training.StandardUpdater(it, optimizer, converter=converter)
    trainer = chainer.training.Trainer(updater, (3, "epoch"), out="result")
    trainer.extend(extensions.LogReport(filename=f"log of rank {comm.rank}"))
    trainer.run()
    log = trainer.get_extension("LogReport").log
    trained, seen = seen, []
    held_out = make(
        Labelled(), 7, repeat=False, shuffle=False, shard=mpiter.Shard(exact=True))
    evaluator = chainermn.create_multi_node_evaluator(
        extensions.Evaluator(held_out, model, converter=converter), comm)
    evaluator()
    parameters = sorted(model.namedparams())
    tell({
        "parameters": {name: one.array.tolist() for name, one in parameters},
        "losses": [entry["main/loss"] for entry in log],
        "place": [updater.iteration, updater.epoch, updater.epoch_detail],
        "state": it.state_dict(),
        "trained": trained,
        "evaluated": seen,
    })
"""


def test_ranks_train_on_one_dataset_that_is_not_scattered(tmp_path):
    one, other = facts(tmp_path, SHARED_OUT, "forked processes")
    assert one["parameters"] == other["parameters"]
    assert one["state"] == other["state"]
    assert one["losses"][-1] < one["losses"][0]
    assert one["place"] == other["place"] == [18, 3, 3.0]
    for epoch in range(3):
        part = slice(30 * epoch, 30 * epoch + 30)
        assert sorted(one["trained"][part] + other["trained"][part]) == list(range(60))
    assert sorted(one["evaluated"] + other["evaluated"]) == list(range(60))


AT_WORK = """
    class Slow(Pairs):
        def __getitem__(self, index):
            if os.path.exists("stuck"):
                time.sleep(600)
            return super().__getitem__(index)

    it = make(Slow(100), 4)
    it.next()
    tell("at work")
    while comm.rank == 1 and sys.argv[2:] == ["failing"]:
        if os.path.exists("stuck"):
            raise ValueError("mine")
        time.sleep(0.002)
    for _ in it:
        pass
"""


def at_work(folder: Path, *arguments: object) -> Script:
    """Start a program without end, whose workers stop answering."""
    script = start(folder, AT_WORK, *arguments)
    script.reads('"at work"')
    # These are mpiexec, its proxy, two ranks, and two workers each.  If we didn't find
    # them here, their absence in the end would say nothing.
    assert len(running_in(folder)) >= 8
    (folder / "stuck").touch()
    return script


def test_an_error_of_one_rank_ends_both_and_their_workers(tmp_path):
    """The text of the error isn't checked.

    ``mpiexec`` loses the last lines that its ranks print.
    """
    assert at_work(tmp_path, "processes", "failing").ends().code == 1


def test_ctrl_c_ends_both_ranks_and_their_workers(tmp_path):
    script = at_work(tmp_path, "forked processes")
    script.ctrl_c()
    assert script.ends().code != 0
