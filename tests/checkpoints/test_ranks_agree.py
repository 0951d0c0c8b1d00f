"""The ranks of one checkpoint begin, save and end after the same step.

If they can't, each is told why.
"""

from __future__ import annotations

import errno
import json
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import (
    LIMIT_S,
    TELL,
    by_mpiexec,
    by_torch,
    launch,
    launch_each,
    port_for_jax,
    told,
    with_mpi4py,
    with_torch,
)

import mpiter
from mpiter.checkpoint import agreement, checkpoint, file
from mpiter.checkpoint.agreement import Agreement, Moment, Wish
from mpiter.errors import RankError

TERM = 15

TrainIn = Callable[..., list[Any]]


class Meeting:
    """Where threads, as the ranks of a training, exchange messages.

    A message is complete once each rank has sent its own.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._sent: dict[int, dict[int, Any]] = {}
        self._changed = threading.Condition()
        self._has_left: set[int] = set()

    def exchange(self, number: int, rank: int, message: Any) -> Callable[[], list[Any]]:
        """Send the ``number``-th message of a rank.

        Return what waits for those of all ranks.
        """
        with self._changed:
            sent = self._sent.setdefault(number, {})
            sent[rank] = message
            self._changed.notify_all()

        def is_complete_or_never() -> bool:
            return len(sent) == self.size or bool(self._has_left - sent.keys())

        def result() -> list[Any]:
            with self._changed:
                came = self._changed.wait_for(is_complete_or_never, LIMIT_S)
                assert came, f"message {number} never came from all ranks"
                if len(sent) < self.size:
                    raise ConnectionError("a rank has left")
            return [sent[other] for other in range(self.size)]

        return result

    def leave(self, rank: int) -> None:
        with self._changed:
            self._has_left.add(rank)
            self._changed.notify_all()


class ThreadRanks:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting = meeting
        self.rank = rank
        self.size = meeting.size
        self._count = 0

    def begin_highest(self, numbers: list[int]) -> Callable[[], list[int]]:
        result = self._exchange(tuple(numbers))
        return lambda: [max(column) for column in zip(*result(), strict=True)]

    def gathered(self, text: str) -> list[str]:
        return self._exchange(text)()

    def close(self) -> None:
        pass

    def _exchange(self, message: Any) -> Callable[[], list[Any]]:
        self._count += 1
        return self.meeting.exchange(self._count, self.rank, message)


def in_ranks(size: int, run: Callable[[ThreadRanks], Any]) -> list[Any]:
    """Call ``run`` in so many threads; return what each has returned or raised."""
    meeting = Meeting(size)

    def of_rank(rank: int) -> Any:
        try:
            return run(ThreadRanks(meeting, rank))
        except Exception as error:
            return error
        finally:
            meeting.leave(rank)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(of_rank, range(size)))


# -- what they agree on ----------------------------------------------------------------

signals = st.sampled_from([0, 0, 0, TERM])
wishes = st.builds(Wish, signals, st.sampled_from([False, False, True]))


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(wishes, wishes, wishes), max_size=12))
def test_all_ranks_learn_the_same_wishes_after_the_same_step_and_no_later_than_the_next(
    steps: list[tuple[Wish, ...]],
) -> None:
    def run(ranks: ThreadRanks) -> list[Wish]:
        agreed = Agreement(ranks)
        answers = []
        for number, wish in enumerate(steps):
            answers.append(agreed.after_step(number, wish[ranks.rank]))
        return [*answers, agreed.at_once(Moment.EXIT, len(steps), Wish())]

    answers = in_ranks(3, run)
    assert answers[0] == answers[1] == answers[2]
    last = Wish()
    for wish, answer in zip(steps, answers[0], strict=False):
        assert answer == last
        # When all act on an answer, they don't tell the wishes of that step.  A rank
        # that still wishes for something tells it after the next one.
        if answer == Wish():
            last = wish[0] | wish[1] | wish[2]
        else:
            last = Wish()
    assert answers[0][-1] == last


def test_steps_that_take_long_are_ended_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = threading.local()
    monkeypatch.setattr(agreement.time, "monotonic", lambda: getattr(now, "time", 0.0))

    def run(ranks: ThreadRanks) -> list[int]:
        agreed = Agreement(ranks)
        answers = []
        for step in range(5):
            # Only rank 0's steps take long, and its time counts for all.
            if ranks.rank == 0:
                now.time = getattr(now, "time", 0.0) + 1.0
            signal = TERM if (ranks.rank, step) == (1, 3) else 0
            answers.append(agreed.after_step(step, Wish(signal)).signal)
        return answers

    assert in_ranks(2, run) == [[0, 0, 0, TERM, 0]] * 2


def at_another_number_of_steps(agreed: Agreement, rank: int) -> None:
    agreed.at_once(Moment.EXIT, 7 - rank, Wish())


def at_another_place(agreed: Agreement, rank: int) -> None:
    agreed.at_once(Moment.EXIT if rank else Moment.SAVE, 7, Wish())


def a_step_further(agreed: Agreement, rank: int) -> None:
    agreed.after_step(7, Wish())
    if rank:
        agreed.after_step(8, Wish())
    else:
        agreed.at_once(Moment.EXIT, 7, Wish())


PLACES = {
    "another number of steps": at_another_number_of_steps,
    "another place": at_another_place,
    "a step more": a_step_further,
}
TOLD = {
    "another number of steps": (
        "one has left the block after 6 steps, "
        "another one has left the block after 7 steps"
    ),
    "another place": (
        r"one has called c\.save\(\) after 7 steps, "
        "another one has left the block after 7 steps"
    ),
    "a step more": (
        "one has left the block after 7 steps, another one has finished step 8"
    ),
}


@pytest.mark.parametrize("how", PLACES)
def test_ranks_that_are_elsewhere_are_told_of_both_places(how: str) -> None:
    def run(ranks: ThreadRanks) -> None:
        agreed = Agreement(ranks)
        PLACES[how](agreed, ranks.rank)
        # A rank may look at the message that is under way only after its next step.
        agreed.after_step(9, Wish())
        agreed.at_once(Moment.EXIT, 9, Wish())

    first, second = in_ranks(2, run)
    for rank, error in enumerate((first, second)):
        assert isinstance(error, RankError)
        with pytest.raises(RankError, match=TOLD[how]):
            raise error
        assert f"this is rank {rank}" in str(error)


def test_a_rank_that_has_ended_is_named_as_the_likely_cause() -> None:
    def run(ranks: ThreadRanks) -> None:
        agreed = Agreement(ranks)
        agreed.after_step(1, Wish())
        if ranks.rank == 1:
            raise ValueError("mine")
        agreed.after_step(2, Wish())
        agreed.after_step(3, Wish())

    others, mine = in_ranks(2, run)
    assert isinstance(mine, ValueError)
    assert isinstance(others, RankError)
    assert "another rank of this training can't be reached" in str(others)


# -- what they save and load -----------------------------------------------------------


@pytest.fixture
def train_in(monkeypatch: pytest.MonkeyPatch) -> TrainIn:
    """Run a training in so many threads as ranks."""
    here = threading.local()
    monkeypatch.setattr(checkpoint, "ranks_of_training", lambda *_: here.ranks)

    def run(size: int, train: Callable[[int, int], Any]) -> list[Any]:
        def of_rank(ranks: ThreadRanks) -> Any:
            here.ranks = ranks
            return train(ranks.rank, ranks.size)

        return in_ranks(size, of_rank)

    return run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.npz"


def raised(outcomes: list[Any], kind: type[Exception], text: str) -> None:
    """Check that each rank has raised an error of this kind, and with this text."""
    for outcome in outcomes:
        with pytest.raises(kind, match=text):
            raise outcome


def test_each_sample_is_learnt_once_by_any_numbers_of_ranks_one_after_the_other(
    train_in: TrainIn, path: Path
) -> None:
    seen: Counter[int] = Counter()

    def train(rank: int, size: int, until: int | None) -> tuple[int, float]:
        shard = (rank, size)
        loader = mpiter.DataLoader(range(60), 2, shuffle=True, seed=1, shard=shard)
        # All ranks must begin with the weight of rank 0.
        model = {"weight": float(rank)}
        with mpiter.Checkpoint(path, loader, model=model) as c:
            begun = (c.finished, model["weight"])
            for _ in c.epochs(2):
                for x in c.steps(loader):
                    seen.update(x.tolist())
                    model["weight"] += 1
                    if c.finished + 1 == until:
                        return begun
        return begun

    begun = []
    for size, until in ((3, 4), (2, 10), (1, 19), (3, None)):
        begun.append(train_in(size, partial(train, until=until)))
    assert begun == [[(0, 0.0)] * 3, [(4, 4.0)] * 2, [(10, 10.0)], [(19, 19.0)] * 3]
    assert seen == Counter(dict.fromkeys(range(60), 2))


def test_ranks_that_shuffle_each_in_its_own_way_are_told_when_their_number_changes(
    train_in: TrainIn, path: Path
) -> None:
    def train(rank: int, size: int, seeds: int) -> None:
        mine = mpiter.DataLoader(range(60), 2, shuffle=True, seed=rank % seeds)
        plain = mpiter.DataLoader(range(6), 2, seed=rank)
        with mpiter.Checkpoint(path, mine, plain) as c:
            next(c.steps(mine))

    train_in(2, partial(train, seeds=2))
    train_in(2, partial(train, seeds=2))
    with pytest.warns(
        RuntimeWarning,
        match=r"saved by 2 ranks, each of which had shuffled 0 in an order of its own",
    ):
        train_in(3, partial(train, seeds=1))
    train_in(2, partial(train, seeds=2))


def test_ranks_whose_order_samplers_disagree_are_told_on_resuming(
    train_in: TrainIn, path: Path
) -> None:
    def train(rank: int, size: int, apart: int) -> list[int]:
        def sampler(order: Any, position: int) -> Any:
            return np.roll(order, 2 + apart * rank)

        shard = (rank, size)
        options: dict[str, Any] = {"order_sampler": sampler, "shard": shard}
        stream = mpiter.batches(range(24), 2, n_processes=0, **options)
        with mpiter.Checkpoint(path, stream) as c:
            return [int(key) for key in next(c.steps(stream))]

    assert train_in(2, partial(train, apart=0)) == [[22, 23], [0, 1]]
    assert train_in(3, partial(train, apart=0)) == [[2, 3], [4, 5], [6, 7]]
    path.unlink()
    train_in(2, partial(train, apart=1))
    others, own = train_in(2, partial(train, apart=1))
    told = "gave rank 1 another order than rank 0"
    raised([own], mpiter.StateError, told)
    raised([others], RankError, told)


REFUSED: dict[str, tuple[Callable[[Path, int], mpiter.Checkpoint], str]] = {
    "paths": (
        lambda path, rank: mpiter.Checkpoint(path.with_name(f"{rank}.npz"), {}),
        r"their paths differ: rank 0 has .*0\.npz, rank 1 has .*1\.npz",
    ),
    "parts": (
        lambda path, rank: mpiter.Checkpoint(
            path, model={}, **({"ema": {}} if rank else {})
        ),
        "their parts differ: rank 0 has model, rank 1 has model, ema",
    ),
    "steps": (
        lambda path, rank: mpiter.Checkpoint(path, model={}, every_steps=rank + 3),
        r"their every_steps or keep_every differ: rank 0 has \[3\], rank 1 has \[4\]",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_ranks_that_differ_are_refused_with_both_named(
    train_in: TrainIn, path: Path, what: str
) -> None:
    make, text = REFUSED[what]
    outcomes = train_in(2, lambda rank, size: make(path, rank).__enter__())
    raised(outcomes, RankError, text)
    assert not path.exists()


def test_what_one_rank_cannot_load_stops_all_before_a_step(
    train_in: TrainIn, path: Path
) -> None:
    def train(rank: int, size: int, longer: int) -> int:
        loader = mpiter.DataLoader(range(20 + longer * rank), 2, shard=(rank, size))
        with mpiter.Checkpoint(path, loader) as c:
            next(c.steps(loader))
        return c.finished

    assert train_in(2, partial(train, longer=0)) == [1, 1]
    before = path.read_bytes()
    others, own = train_in(2, partial(train, longer=1))
    told = r"rank 1 can't go on, so no rank does: StateError: .*dataset_length=20"
    raised([others], RankError, told)
    raised([own], mpiter.StateError, "dataset_length=20")
    assert path.read_bytes() == before


def test_a_damaged_file_and_a_full_disk_are_told_in_all_ranks(
    train_in: TrainIn, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"rubbish")
    outcomes = train_in(
        2, lambda rank, size: mpiter.Checkpoint(path, {"a": 1}).__enter__()
    )
    raised(outcomes, mpiter.StateError, r"run\.npz cannot be read")
    path.unlink()

    def train(rank: int, size: int) -> None:
        with mpiter.Checkpoint(path, {"a": 1}) as c:
            c.step()
            monkeypatch.setattr(os, "fsync", full)

    own, others = train_in(2, train)
    raised([own], OSError, "No space left on device")
    told = "rank 0 can't go on, so no rank does: OSError: .*No space left"
    raised([others], RankError, told)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


SAVED_AT = ["every second step", "within a step", "between steps", "a pass's end"]


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("at", SAVED_AT)
def test_rank_0s_full_disk_ends_all_ranks_after_one_step_though_none_has_left(
    train_in: TrainIn,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    background: bool,
) -> None:
    # A rank that has left is found missing, so none leaves before all have ended.
    all_have_ended = threading.Barrier(2)
    finished = [0, 0]

    def train(rank: int, size: int) -> None:
        loader = mpiter.DataLoader(range(40), 2, shard=(rank, size))
        options: dict[str, Any] = {"every_s": None, "background": background}
        if at == "every second step":
            options["every_steps"] = 2
        try:
            with mpiter.Checkpoint(path, loader, **options) as c:
                monkeypatch.setattr(os, "fsync", full)
                for _ in c.epochs(9):
                    for _ in loader:
                        if at == "within a step" and c.finished == 1:
                            c.save()
                        c.step()
                        if at == "between steps" and c.finished == 1:
                            c.save()
        finally:
            finished[rank] = c.finished
            all_have_ended.wait(LIMIT_S)

    own, others = train_in(2, train)
    raised([own], OSError, "No space left on device")
    told = "rank 0 can't go on, so no rank does: OSError: .*No space left"
    raised([others], RankError, told)
    assert finished[0] == finished[1]


def test_a_part_that_rank_0_can_save_no_more_ends_all_ranks(
    train_in: TrainIn, path: Path
) -> None:
    all_have_ended = threading.Barrier(2)

    def train(rank: int, size: int) -> None:
        model: dict[str, object] = {}
        try:
            with mpiter.Checkpoint(path, model=model, every_steps=2) as c:
                for _ in range(9):
                    model["new"] = object()
                    c.step()
        finally:
            all_have_ended.wait(LIMIT_S)

    own, others = train_in(2, train)
    raised([own], mpiter.StateError, "object")
    raised([others], RankError, "rank 0 can't go on, so no rank does: StateError")


def test_a_save_that_fails_in_a_tail_that_is_left_leaves_ranks_together(
    train_in: TrainIn, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def fails_once(*paths: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        raise OSError("the server is gone")

    def train(rank: int, size: int) -> int:
        loader = mpiter.DataLoader(range(8), 2, shard=(rank, size))
        model = {"at": 0}
        options: dict[str, Any] = {"every_steps": 2, "background": False}
        with mpiter.Checkpoint(path, loader, model=model, **options) as c:
            monkeypatch.setattr(os, "replace", fails_once)
            for _ in c.epochs(2):
                for _ in c.steps(loader):
                    model["at"] += 1
                break
        return c.finished

    with pytest.warns(RuntimeWarning, match="nothing could be saved after 2 steps"):
        assert train_in(2, train) == [2, 2]
    assert mpiter.Checkpoint.read(path)["model"] == {"at": 2}


@pytest.mark.parametrize("ranks_that_ask", [(0,), (1,), (0, 1)])
def test_rank_0_writes_and_any_rank_may_ask_for_it_in_a_step(
    train_in: TrainIn, path: Path, ranks_that_ask: tuple[int, ...]
) -> None:
    def train(rank: int, size: int) -> list[int]:
        loader = mpiter.DataLoader(range(24), 2, shard=(rank, size))
        model = {"at": 0, "rank": rank}
        options: dict[str, Any] = {"keep": 9, "every_s": None, "background": False}
        with mpiter.Checkpoint(path, loader, model=model, **options) as c:
            for _ in c.steps(loader):
                model["at"] += 1
                if rank in ranks_that_ask and model["at"] == 2:
                    c.save()
        return model["at"]

    assert train_in(2, train) == [6, 6]
    kept = sorted(other.name for other in path.parent.iterdir())
    # Ranks don't wait for the answer, so they learn of it after the next step.
    assert kept == ["run-000000003.npz", "run-000000006.npz", "run.npz"]
    assert mpiter.Checkpoint.read(path)["model"] == {"at": 6, "rank": 0}


def test_between_two_steps_all_ranks_save_at_once_or_are_told_who_does(
    train_in: TrainIn, path: Path
) -> None:
    def train(rank: int, size: int, ranks_that_ask: tuple[int, ...]) -> bool:
        with mpiter.Checkpoint(path, {}, every_s=None, background=False) as c:
            for _ in range(3):
                c.step()
            if rank in ranks_that_ask:
                c.save()
            return file.mark_of(path).startswith(f"that of step {c.finished} ")

    assert train_in(2, partial(train, ranks_that_ask=(0, 1)))[0]
    path.unlink()
    told = (
        r"one has called c\.save\(\) after 3 steps, "
        "another one has left the block after 3 steps"
    )
    raised(train_in(2, partial(train, ranks_that_ask=(1,))), RankError, told)


def test_an_error_in_the_tail_of_an_epoch_leaves_its_last_step_saved(
    path: Path,
) -> None:
    def train(fails: bool) -> list[Any]:
        loader = mpiter.DataLoader(range(6), 2, shuffle=True, seed=1)
        done = {"done": list[Any]()}
        with mpiter.Checkpoint(path, loader, model=done) as c:
            for epoch in c.epochs(2):
                for x in c.steps(loader):
                    done["done"].append(x.tolist())
                done["done"].append(epoch)
                if fails and epoch == 1:
                    raise ZeroDivisionError
        return done["done"]

    with pytest.raises(ZeroDivisionError):
        train(fails=True)
    assert len(mpiter.Checkpoint.read(path)["model"]["done"]) == 7
    again = train(fails=False)
    assert [one for one in again if type(one) is int] == [0, 1]
    assert len(again) == 8


def test_ranks_known_by_variables_alone_are_refused_unless_they_train_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        RankError,
        match=r"RANK and WORLD_SIZE say that this is rank 1 of 4.* pass alone=True",
    ):
        mpiter.Checkpoint(path, {}).__enter__()
    with mpiter.Checkpoint(path, {"a": 1}, alone=True) as c:
        c.step()
    assert path.exists()


# -- real ranks ------------------------------------------------------------------------

MESSAGES = (
    TELL
    + """
import os, sys
import torch.distributed
import mpiter

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
told = {}

def tried(name, path, loader_length=8):
    try:
        loader = mpiter.DataLoader(range(loader_length), 2, shard="auto")
        with mpiter.Checkpoint(path, loader) as c:
            for x in c.steps(loader):
                pass
        told[name] = c.finished
    except Exception as error:
        told[name] = f"{type(error).__name__}: {error}"

tried("one file", "run.npz")
tried("lengths", "lengths.npz", 8 + 4 * rank)
os.mkdir(f"rank {rank}")
os.chdir(f"rank {rank}")
tried("folders", "/proc/self/cwd/run.npz")  # one name, two files
os.chdir("..")
tried("resumed", "run.npz")
tell("messages", rank, **told)
"""
)


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=with_torch)])
def test_ranks_of_torch_share_a_file_or_are_told_why_they_cannot(
    tmp_path: Path, ranks: int
) -> None:
    code, _, err = launch(tmp_path, by_torch(ranks), MESSAGES)
    assert code == 0, err
    for facts in told(tmp_path, "messages", ranks):
        assert facts["one file"] == facts["resumed"] == 2
        apart = "one has left the block after 2 steps, another one has finished step 3"
        assert apart in facts["lengths"]
        assert "their files differ" in facts["folders"]
        assert "rank 0 has that of step 0 (id " in facts["folders"]
        assert "rank 1 has none" in facts["folders"]
    assert err.count("continues from") == 1


TRAINING = (
    TELL
    + """
import os, random, signal, sys
import mpiter
import numpy as np

def main():
    how, hit = sys.argv[1], int(sys.argv[2])
    if how == "jax":
        import jax
        number, address = int(sys.argv[3]), sys.argv[4]
        jax.distributed.initialize(address, num_processes=2, process_id=number)
        rank = jax.process_index()
        devices = jax.sharding.Mesh(jax.devices(), "data")
        everywhere = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec())
        parts = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("data"))
        weights = {"w": jax.device_put(np.zeros(2), everywhere)}

        @jax.jit
        def learn(w, x):
            return w + jax.numpy.array([x.sum(), 1])
    else:
        import mpi4py.MPI
        rank = mpi4py.MPI.COMM_WORLD.Get_rank()
        weights = {}
    random.seed(rank)
    model = {"seen": [], "sum": 0.0}
    loader = mpiter.DataLoader(range(60), 2, shuffle=True, seed=1, shard="auto")
    saved = {"model": model, "weights": weights}
    with mpiter.Checkpoint("run.npz", loader, **saved, every_s=None) as c:
        begun = c.finished
        draws = []
        for epoch in c.epochs(2):
            for x in c.steps(loader):
                draws.append(random.random())
                if rank == hit and c.finished == 7:
                    os.kill(os.getpid(), signal.SIGTERM)
                seen = x.tolist()
                if how == "jax":
                    x = jax.make_array_from_process_local_data(parts, x)
                    weights["w"] = learn(weights["w"], x)
                Path(f"seen {rank}").open("a").write(f"{epoch} {seen}\\n")
    learnt = [float(part) for part in weights["w"]] if weights else []
    tell("training", rank, begun=begun, finished=c.finished, draws=draws, learnt=learnt)

if __name__ == "__main__":
    main()
"""
)


def draws_of(rank: int, count: int) -> list[float]:
    generator = random.Random(rank)
    return [generator.random() for _ in range(count)]


def learnt(folder: Path, ranks: int) -> Counter[tuple[int, int]]:
    """Return how often each sample was learnt in each epoch."""
    seen: Counter[tuple[int, int]] = Counter()
    for rank in range(ranks):
        for line in (folder / f"seen {rank}").read_text().splitlines():
            epoch, _, samples = line.partition(" ")
            for index in json.loads(samples):
                seen[int(epoch), index] += 1
    return seen


@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize(
    ("first", "then"), [pytest.param(*of, marks=with_mpi4py) for of in ((3, 3), (2, 3))]
)
def test_a_signal_to_one_rank_of_mpi_ends_all_after_one_step_and_all_go_on(
    tmp_path: Path, first: int, then: int
) -> None:
    code, _, err = launch(
        tmp_path, [*by_mpiexec(first), "-m", "mpi4py"], TRAINING, "mpi", 1
    )
    assert code == 143, err
    assert err.count("mpiter: saved: ") == 1
    code, _, err = launch(tmp_path, by_mpiexec(then), TRAINING, "mpi", -1)
    assert code == 0, err
    assert err.count("wasn't started by  python -m mpi4py") == 1
    facts = told(tmp_path, "training", then)
    begun = facts[0]["begun"]
    # The signal comes in the eighth step.  If steps are short, all end after the next.
    assert begun in (8, 9)
    assert {fact["begun"] for fact in facts} == {begun}
    assert set(learnt(tmp_path, max(first, then)).values()) == {1}
    for rank, fact in enumerate(facts):
        goes_on = fact["draws"] == draws_of(rank, fact["finished"])[begun:]
        assert goes_on == (first == then)
    assert len({fact["draws"][0] for fact in facts}) == then


FULL = """
import errno, os
import mpi4py.MPI
import mpiter

def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

loader = mpiter.DataLoader(range(60), 2, shard="auto")
with mpiter.Checkpoint("run.npz", loader, every_steps=3, every_s=None) as c:
    if mpi4py.MPI.COMM_WORLD.Get_rank() == 0:
        os.fsync = full
    for x in c.steps(loader):
        pass
"""


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=with_mpi4py)])
def test_ranks_of_mpi_whose_disk_is_full_end_though_nothing_ends_them(
    tmp_path: Path, ranks: int
) -> None:
    # Without ``-m mpi4py``, a rank that ended alone would wait for the others, and they
    # for it.
    code, _, err = launch(tmp_path, by_mpiexec(ranks), FULL)
    assert code != 0
    assert "OSError: [Errno 28] No space left on device" in err
    assert "RankError: rank 0 can't go on, so no rank does: OSError" in err


@pytest.mark.torch
@pytest.mark.timeout(3 * LIMIT_S)
def test_a_signal_to_one_process_of_jax_ends_all_after_one_step_and_all_go_on(
    tmp_path: Path,
) -> None:
    pytest.importorskip("jax", reason="JAX is not installed: run `python3 tests --all`")
    for hit, code_expected in ((1, 143), (-1, 0)):
        with port_for_jax() as port:
            words: list[list[object]] = []
            for number in range(2):
                words.append(["jax", hit, number, f"127.0.0.1:{port}"])
            ended = launch_each(tmp_path, TRAINING, *words, JAX_PLATFORMS="cpu")
        for code, _, err in ended:
            assert code == code_expected, err
    facts = told(tmp_path, "training", 2)
    assert facts[0]["begun"] == facts[1]["begun"] in (8, 9)
    assert set(learnt(tmp_path, 2).values()) == {1}
    for rank, fact in enumerate(facts):
        assert fact["draws"] == draws_of(rank, fact["finished"])[fact["begun"] :]
        assert fact["learnt"] == [2 * sum(range(60)), 30]
