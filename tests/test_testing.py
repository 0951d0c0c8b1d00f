"""The checks that users' tests may call.

They pass where all is well, and name the cause where it isn't.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Random, Squares

import mpiter
from mpiter.testing import check_dataset, check_resume
from mpiter.testing.interrupting import Interruption, Point, Run, Spot, places, run

LOADERS: dict[str, Callable[[], Any]] = {
    "batches without workers": lambda: mpiter.batches(
        Random(10), 3, n_processes=0, seed=1
    ),
    "an endless iterator": lambda: mpiter.MultiprocessIterator(
        Random(10), 3, n_processes=1, seed=1
    ),
    "an iterator of one epoch": lambda: mpiter.SerialIterator(
        Random(10), 3, repeat=False, seed=1
    ),
    "a loader": lambda: mpiter.DataLoader(Random(10), 3, shuffle=True, seed=1),
}


class Own(Squares):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(8)
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        return self.rng.random(3)


class Locked(Squares):
    def __init__(self) -> None:
        super().__init__(8)
        self.lock = threading.Lock()


class Uneven(Squares):
    def __getitem__(self, index: int) -> Any:
        return np.zeros(index)


class Leaves(Squares):
    """Leaves a file open for each sample."""

    files: list[Any]

    def __getitem__(self, index: int) -> Any:
        # The check must find that it stays open.
        self.files.append(Path(__file__).open())  # noqa: SIM115
        return index


class ElsewhereDifferent(Squares):
    """Depends on what fetches it."""

    def __getitem__(self, index: int) -> Any:
        info = mpiter.get_worker_info()
        if info is None or info.backend == "serial":
            return index
        return -index


def test_a_good_dataset_is_measured() -> None:
    report = check_dataset(Random(40), samples=12)
    assert (report.samples, report.is_even) == (12, True)
    assert 0 < report.sample_s <= report.slowest_s
    assert check_dataset([(np.zeros(100), 1)] * 3).sample_bytes == 808
    assert check_dataset((np.zeros((40, 3)), np.zeros(40))).samples == 32
    assert not check_dataset(Uneven(8), n_processes=1, uneven=True).is_even


class Kinds(Squares):
    """Samples that can be compared in no simple way."""

    def __getitem__(self, index: int) -> Any:
        arrays = (
            np.array([None, float("nan")], object),
            np.ma.array([1, 2], mask=[0, 1]),
        )
        return Record(np.full(3, index)), *arrays, {"b"}


class Tensors(Squares):
    def __getitem__(self, index: int) -> Any:
        import torch

        return [torch.ones(3, dtype=torch.bfloat16), torch.ones(3, requires_grad=True)]


@dataclass
class Record:
    array: Any


def test_samples_of_all_kinds_are_compared() -> None:
    assert check_dataset(Kinds(8), n_processes=1, uneven=True).samples == 8


@pytest.mark.torch
def test_tensors_of_all_kinds_are_compared() -> None:
    pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    assert check_dataset(Tensors(8), n_processes=1, uneven=True).samples == 8


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (
            Own(),
            r"dataset\[0\] is another sample when it is fetched once more "
            "with the same seed",
        ),
        (
            ElsewhereDifferent(8),
            r"dataset\[1\] is another sample when a worker fetches it",
        ),
        (
            Locked(),
            r"can't be sent to workers as it is: "
            r"dataset\.lock \(lock\) cannot be pickled",
        ),
        (
            Uneven(8),
            r"batches\(\) can't stack the samples: .*ragged='list'.*uneven=True",
        ),
    ],
)
def test_what_is_wrong_with_a_dataset_is_named(dataset: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_dataset(dataset, n_processes=1)


def test_files_that_stay_open_are_found() -> None:
    dataset = Leaves(8)
    dataset.files = []
    try:
        with pytest.raises(
            AssertionError, match="fetching 8 samples has left 8 files open"
        ):
            check_dataset(dataset)
    finally:
        for file in dataset.files:
            file.close()


class OpensInWorkers(Squares):
    """Opens a file in ``worker_init``, without leaving it out of its state."""

    def worker_init(self, info: Any) -> None:
        self.file = Path(__file__).open("rb")  # noqa: SIM115

    def __getitem__(self, index: int) -> Any:
        self.file.seek(index)
        return self.file.read(1)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_what_worker_init_opens_is_not_sent_to_workers() -> None:
    dataset = OpensInWorkers(8)
    assert check_dataset(dataset).samples == 8
    assert not hasattr(dataset, "file")


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_every_place_can_be_resumed_from(make: Callable[[], Any]) -> None:
    tried = check_resume(make, batches=7)
    # An iterator of one epoch has four batches.
    assert tried in (5, 8)


def test_a_generator_of_the_datasets_own_is_told() -> None:
    with pytest.raises(
        AssertionError, match=r"resumed after batch \d+, batch \d+ is another one"
    ):
        check_resume(lambda: mpiter.batches(Own(), 2, n_processes=0, seed=1), batches=6)


def test_batches_that_do_not_come_are_told() -> None:
    class Forgetful:
        """Forgets its place when it loads a state: it is at its end."""

        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> Any:
            while self.left:
                self.left -= 1
                yield self.left

        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            self.left = 0

    with pytest.raises(
        AssertionError, match="resumed after batch 0, 3 of 3 batches did not come"
    ):
        check_resume(Forgetful)


# -- trainings -------------------------------------------------------------------------


class Trainer:
    """A training without mistakes; subclasses have one method with a mistake each."""

    def __init__(self) -> None:
        self.model: dict[str, Any] = {"weight": np.zeros(2), "losses": []}
        self.momentum = {"velocity": np.zeros(2)}
        self.mean = {"loss": 0.0}

    def __call__(self, path: Path, workers: int) -> Any:
        type(self).__init__(self)
        self.loader = mpiter.DataLoader(
            self.dataset(), 2, shuffle=True, num_workers=workers
        )
        with self.loader, mpiter.Checkpoint(path, self.loader, **self.parts()) as c:
            self.loop(c)
        return self.model, self.mean

    def dataset(self) -> Any:
        return Random(6)

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "momentum": self.momentum, "mean": self.mean}

    def loop(self, c: mpiter.Checkpoint) -> None:
        for _ in c.epochs(2):
            for x in c.steps(self.loader):
                self.learn(x)
            self.validate()

    def learn(self, x: Any) -> None:
        noise = np.random.random(2)
        velocity = 0.5 * self.momentum["velocity"]
        self.momentum["velocity"] = velocity + noise + np.ravel(x)[:2]
        self.model["weight"] -= 0.1 * self.momentum["velocity"]
        self.model["losses"].append(float(self.model["weight"].sum()))

    def validate(self) -> None:
        self.mean["loss"] = 0.9 * self.mean["loss"] + 0.1 * self.model["losses"][-1]


class ForgetsMomentum(Trainer):
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "mean": self.mean}


class ForgetsMean(Trainer):
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "momentum": self.momentum}


class CountsByRange(Trainer):
    def loop(self, c: mpiter.Checkpoint) -> None:
        for _ in range(2):
            for x in c.steps(self.loader):
                self.learn(x)
            self.validate()


class HasPlainLoop(Trainer):
    def loop(self, c: mpiter.Checkpoint) -> None:
        for _ in c.epochs(2):
            for x in self.loader:
                self.learn(x)


class DrawsItself(Trainer):
    def dataset(self) -> Any:
        return Own()


class ValidatesWithEffects(Trainer):
    """Halves the rate of learning after each epoch; the rate is no part."""

    rate = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.rate = 1.0

    def learn(self, x: Any) -> None:
        self.model["weight"] += self.rate
        super().learn(x)

    def validate(self) -> None:
        self.rate *= 0.5


class Swallows(Trainer):
    """Takes an interrupt for the end of the training."""

    def dataset(self) -> Any:
        # All lines of this program are in this file, and so is the one that is named.
        return range(6)

    def loop(self, c: mpiter.Checkpoint) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            super().loop(c)


class DrawsBefore(Trainer):
    """Multiplies by random numbers that are neither seeded nor a part."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = np.random.random(2)

    def learn(self, x: Any) -> None:
        super().learn(x)
        self.model["weight"] *= self.projection


class DrawsWeights(Trainer):
    """Begins with weights that aren't seeded, but are a part."""

    def __init__(self) -> None:
        super().__init__()
        self.model["weight"] += np.random.random(2)


class Differs(Trainer):
    def learn(self, x: Any) -> None:
        super().learn(x)
        self.model["weight"] += np.random.default_rng().random(2)


class WritesElsewhere(Trainer):
    def __call__(self, path: Path, workers: int) -> Any:
        return super().__call__(path.with_name("mine.npz"), workers)


class FailsWhenResumed(Trainer):
    def loop(self, c: mpiter.Checkpoint) -> None:
        assert not c.finished, "there is something"
        super().loop(c)


MISTAKES: dict[type[Trainer], str] = {
    ForgetsMomentum: (
        r"result\[0\]\['\w+'\].* in place of .*these parts: 0, model, mean\)"
    ),
    ForgetsMean: (
        r"result\[1\]\['loss'\] is \S+ in place of .*"
        r"these parts: 0, model, momentum\)"
    ),
    CountsByRange: (
        r"ends after \d+ steps in place of 6: "
        r"loop by  for epoch in c\.epochs\(n\),  not by range"
    ),
    HasPlainLoop: (
        r"no step of the training was finished: .*for x in c\.steps\(loader\)"
    ),
    DrawsItself: r"ends with another result: .*a generator of your own must be a part",
    ValidatesWithEffects: (
        r"ends with another result: .*All that changes while training"
    ),
    Swallows: r"Ctrl-C at test_testing\.py, line \d+.* was caught within the training",
    DrawsBefore: r"ends with another result: .*seed what is drawn before the block",
    Differs: (
        r"two trainings that weren't interrupted .* "
        r"end with different results: result\[0\]\['weight'\]"
    ),
    WritesElsewhere: (r"the training has written no checkpoint: it must pass the path"),
    FailsWhenResumed: (
        r"resumed with workers=0, the training fails: "
        r"AssertionError: there is something"
    ),
}


class HasNoBatches(Trainer):
    """Learns without a loader, in epochs."""

    takes_steps = False

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "momentum": self.momentum}

    def __call__(self, path: Path, workers: int) -> Any:
        type(self).__init__(self)
        with mpiter.Checkpoint(path, **self.parts()) as c:
            for epoch in c.epochs(4):
                self.learn(epoch)
                if self.takes_steps:
                    c.step()
        return self.model["losses"]


class StepsWithoutBatches(HasNoBatches):
    takes_steps = True


def test_an_epoch_without_batches_is_saved_at_its_end_and_needs_no_step() -> None:
    assert check_resume(HasNoBatches(), interruptions=9, workers=(0,)) == 9
    with pytest.raises(AssertionError, match="an epoch without batches is saved at"):
        check_resume(StepsWithoutBatches(), workers=(0,))


def test_a_training_is_the_same_wherever_it_is_interrupted() -> None:
    assert check_resume(Trainer(), interruptions=12, workers=(0, 1)) == 12
    assert check_resume(DrawsWeights(), interruptions=6, workers=(0,)) == 6


# Some of these mistakes a Checkpoint warns of as well.
@pytest.mark.filterwarnings("ignore:(?s).*c.(steps|epochs)")
@pytest.mark.parametrize(("trainer", "says"), MISTAKES.items())
def test_a_mistake_in_a_training_is_found_and_named(
    trainer: type[Trainer], says: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        check_resume(trainer(), workers=(0,))


def test_places_are_spread_over_all_steps_and_lines_and_over_what_next_does() -> None:
    seen = Counter[Spot]()
    for step in range(7):
        seen.update({Spot(step, __file__, line): 2 for line in range(9)})
        seen.update({Spot(step, mpiter.__file__, line): 1 for line in range(30)})
    chosen = places(seen, 40)
    assert len({*chosen}) == len(chosen) == 40
    assert {place.spot.step for place in chosen} == {*range(7)}
    mine = [place.spot.line for place in chosen if place.spot.file == __file__]
    assert {*mine} == {*range(9)}
    assert 7 <= sum(place.spot.file == mpiter.__file__ for place in chosen) <= 13
    assert {place.before for place in chosen} == {0, 1}
    few = Counter({Spot(step, __file__, 1): 1 for step in range(5)})
    assert len(places(few, 100)) == 5


def test_a_place_that_a_run_does_not_come_to_is_made_up_for_a_step_later(
    tmp_path: Path,
) -> None:
    place = Point(Spot(2, __file__, 0), 0)
    trainer = Trainer()
    report = run(
        trainer,
        Run(tmp_path / "run.npz", 0, 0, 0, 1),
        Interruption(signal.SIGTERM, place),
        lambda: None,
    )
    assert not report.has_returned
    assert report.came.startswith("at test_testing.py, line ")
    assert len(trainer.model["losses"]) == 3


def test_a_training_is_interrupted_in_each_way_in_silence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ends = list[str]()

    class Notes(Trainer):
        def __call__(self, path: Path, workers: int) -> Any:
            try:
                return super().__call__(path, workers)
            except BaseException as error:
                ends.append(type(error).__name__)
                raise

    assert check_resume(Notes(), interruptions=6, workers=(0,)) == 6
    assert {*ends} == {"SystemExit", "KeyboardInterrupt", "Killed"}
    assert capfd.readouterr().err == ""


def test_tracer_handlers_and_generators_are_as_they_were_before() -> None:
    def tracer(frame: Any, event: str, argument: Any) -> None:
        pass

    np.random.seed(3)
    following = np.random.random()
    np.random.seed(3)
    handlers = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        check_resume(Trainer(), interruptions=3, workers=(0,))
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    after = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    assert after == handlers
    assert np.random.random() == following


def test_a_ctrl_c_of_the_users_own_ends_the_check() -> None:
    class Waits(Trainer):
        def validate(self) -> None:
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        check_resume(Waits())
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_error_of_the_training_itself_is_raised_as_it_is() -> None:
    def train(path: Path, workers: int) -> None:
        raise ZeroDivisionError("of mine")

    with pytest.raises(ZeroDivisionError, match="of mine"):
        check_resume(train)


@pytest.mark.parametrize(
    "options",
    [{"interruptions": 0}, {"workers": ()}, {"ranks": (0,)}, {"workers": (-1,)}],
)
def test_wrong_options_of_a_check_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(mpiter.OptionError, match=next(iter(options))):
        check_resume(Trainer(), **options)
    with pytest.raises(
        mpiter.OptionError, match=r"train\(path, workers\); this one has \(path\)"
    ):
        check_resume(lambda path: None)  # type: ignore[call-overload]


def train_in_ranks(path: Path, workers: int) -> Any:
    """A training whose ranks add up what they draw."""
    import torch

    total = {"sum": torch.zeros(1, dtype=torch.float64)}
    loader = mpiter.DataLoader(
        range(12), 2, shuffle=True, shard="auto", num_workers=workers
    )
    with loader, mpiter.Checkpoint(path, loader, total=total) as c:
        for _ in c.epochs(2):
            for x in c.steps(loader):
                part = torch.tensor([x.sum() * np.random.random()])
                torch.distributed.all_reduce(part)
                total["sum"] += part
    return total


@pytest.mark.torch
@pytest.mark.xdist_group("ranks")
def test_a_training_in_ranks_is_the_same_wherever_one_of_them_is_interrupted() -> None:
    pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    tried = check_resume(train_in_ranks, interruptions=3, workers=(0,), ranks=(2, 3))
    assert tried == 3
