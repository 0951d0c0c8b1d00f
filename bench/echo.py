"""What does data echoing gain in steps a second, and cost in fresh samples?

Measures both against the factor; prints verdicts and JSON.

    python bench/echo.py --out bench/results/echo.json
    python bench/echo.py --small  # a smoke test, never a conclusion

Speed: samples that wait, steps that wait; fetching a batch takes 1, 2 or 4 times as
long as a step.  Echoing can make it faster by the factor or by that ratio, whichever is
less.  Must: 0.9 of that. Training: small pictures at random places, classified by a
small network (NumPy, plain SGD, the same learning rate), until nine of ten are right,
in the median of three seeds.  Must: with each picture augmented twice, 0.7 of the fresh
ones at the most.  The honest case is a learner that needs a sample once only (the mean
of each class): no fewer. Exit status: 0, or 1 when a requirement fails or a turn
raises.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from driver import (
    Answer,
    Claim,
    Curves,
    Experiment,
    Summary,
    Turn,
    at_least,
    at_most,
    command_line,
    conduct,
    ratio,
)
from measuring import flowing

import mpiter
from mpiter.echo import Bundles, Echo

WITHOUT = "without"
OF_IDEAL = 0.9
FEWER = 0.7
NO_FEWER = 0.9

# -- speed -----------------------------------------------------------------------------

BATCH_SIZE = 16
STEP_S = 20e-3
BUFFER = 64
# After so many batches repeats come as often as they ever will.
WARM = 24
RATIOS = {"ratio 1": 1.0, "ratio 2": 2.0, "ratio 4": 4.0}


@dataclass(frozen=True)
class Repeats:
    """How samples come several times."""

    factor: int = 1
    buffer: int = 2048
    # Each use of a sample is augmented anew.
    augments: bool = False

    def of(self, dataset: Any) -> Any:
        if self.augments:
            return Bundles(dataset, self.factor)
        return dataset

    def over(self, stream: Any) -> Echo[Any]:
        return Echo(stream, self.factor, shuffle_buffer=self.buffer)


ECHOES = {
    WITHOUT: Repeats(),
    **{str(factor): Repeats(factor, BUFFER) for factor in (2, 3, 4)},
    "4, examples": Repeats(4, BUFFER, augments=True),
    "4, batches": Repeats(4, 0),
}


class Waiting:
    """Reading a sample takes its time, transforming it next to none."""

    def __init__(self, sample_s: float, length: int) -> None:
        self.sample_s = sample_s
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self, index: int) -> Any:
        time.sleep(self.sample_s)
        return np.full(64, index, np.float32)

    def transform(self, sample: Any) -> Any:
        return sample + 1

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))


def speed(turn: Turn) -> Answer:
    echo = ECHOES[turn.row]
    sample_s = RATIOS[turn.case] * STEP_S * turn.workers / BATCH_SIZE
    dataset = echo.of(Waiting(sample_s, 1 << 20))
    with mpiter.batches(
        dataset, BATCH_SIZE, n_processes=turn.workers, epochs=None, seed=0
    ) as stream:
        echoed = echo.over(stream)

        def step() -> None:
            next(echoed)
            time.sleep(STEP_S)

        batches, seconds, _ = flowing(step, turn.warmup_s, turn.seconds, warm=WARM)
        stats = stream.stats()
    return {"steps_per_s": batches / seconds, "fresh": stats.samples}


def gain(case: str, row: str) -> float:
    """Return how many times as fast echoing can be at most."""
    return min(float(row.partition(",")[0]), RATIOS[case])


# -- training --------------------------------------------------------------------------

SIDE = 12
CLASSES = 10
SHIFT = 3
NOISE = 0.6
SEEDS = (0, 1, 2)
TRAIN_BATCH = 32
MOST_STEPS = 6000
# Samples in a buffer, for learners that need only some hundreds.
FEW = 128
TRAINED = {
    WITHOUT: Repeats(),
    "example": Repeats(2, augments=True),
    "augmented": Repeats(2),
    "batch": Repeats(2, 0),
    "example, 4": Repeats(4, augments=True),
}


class Pictures:
    """A pattern for each class, with noise of its own in each picture.

    Augmenting moves it to another place and adds more noise.
    """

    def __init__(self, seed: int, length: int = 1 << 16) -> None:
        self.seed = seed
        self.length = length
        rough = np.random.default_rng(0).standard_normal(
            (CLASSES, SIDE // 3, SIDE // 3)
        )
        self.patterns = rough.repeat(3, axis=1).repeat(3, axis=2)

    def __len__(self) -> int:
        return self.length

    def read(self, index: int) -> Any:
        rng = np.random.default_rng((self.seed, index))
        label = int(rng.integers(CLASSES))
        return self.patterns[label] + NOISE * rng.standard_normal((SIDE, SIDE)), label

    def transform(self, sample: Any) -> Any:
        rng, (picture, label) = mpiter.get_rng(), sample
        shifted = np.roll(picture, rng.integers(-SHIFT, SHIFT + 1, 2), (0, 1))
        return (shifted + NOISE * rng.standard_normal(picture.shape)).astype(
            np.float32
        ).ravel(), label

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))


class Learner(Protocol):
    """Takes batches, and says what it makes of others."""

    def learn(self, pictures: np.ndarray, labels: np.ndarray) -> None: ...
    def scores(self, pictures: np.ndarray) -> np.ndarray: ...


class Network:
    """One hidden layer, plain SGD."""

    def __init__(self, seed: int, hidden: int = 64, rate: float = 0.03) -> None:
        rng = np.random.default_rng(seed)
        self.rate = rate
        self.one = rng.standard_normal((SIDE * SIDE, hidden)).astype(np.float32) / SIDE
        self.two = (
            rng.standard_normal((hidden, CLASSES)).astype(np.float32) / hidden**0.5
        )

    def learn(self, pictures: np.ndarray, labels: np.ndarray) -> None:
        inside = np.maximum(pictures @ self.one, 0)
        scores = inside @ self.two
        wrong = np.exp(scores - scores.max(1, keepdims=True))
        wrong /= wrong.sum(1, keepdims=True)
        wrong[np.arange(len(labels)), labels] -= 1
        wrong /= len(labels)
        back = (wrong @ self.two.T) * (inside > 0)
        self.two -= self.rate * (inside.T @ wrong)
        self.one -= self.rate * (pictures.T @ back)

    def scores(self, pictures: np.ndarray) -> np.ndarray:
        return np.maximum(pictures @ self.one, 0) @ self.two


class Means:
    """Learns the mean picture of each class.

    All that a picture can tell this learner, it tells the first time.
    """

    def __init__(self, seed: int) -> None:
        self.sums, self.counts = (
            np.zeros((CLASSES, SIDE * SIDE)),
            np.full(CLASSES, 1e-9),
        )

    def learn(self, pictures: np.ndarray, labels: np.ndarray) -> None:
        np.add.at(self.sums, labels, pictures)
        np.add.at(self.counts, labels, 1)

    def scores(self, pictures: np.ndarray) -> np.ndarray:
        means = self.sums / self.counts[:, None]
        return pictures @ means.T - (means**2).sum(1) / 2


@dataclass(frozen=True)
class Lesson:
    """A learner, and the accuracy that it has to reach."""

    learner: type[Network] | type[Means]
    target: float
    # The accuracy is looked at every so many steps.
    look: int
    echoes: Mapping[str, Repeats]


LESSONS = {
    "network": Lesson(Network, 0.9, 10, TRAINED),
    "means": Lesson(
        Means,
        0.6,
        1,
        {WITHOUT: Repeats(), "augmented": Repeats(2, FEW), "batch": Repeats(2, 0)},
    ),
}


def train(turn: Turn) -> Answer:
    lesson = LESSONS[turn.case]
    found = [_trained(lesson, lesson.echoes[turn.row], seed) for seed in SEEDS]
    fresh, steps, accuracy = (
        statistics.median(values) for values in zip(*found, strict=True)
    )
    problems = []
    if accuracy < lesson.target:
        problems.append(f"no more than {accuracy:.2f} are right")
    return {"fresh": fresh, "steps": steps, "accuracy": accuracy, "problems": problems}


def _trained(lesson: Lesson, echo: Repeats, seed: int) -> tuple[int, int, float]:
    """Return fresh samples and steps until it is good enough, and how good it is."""
    learner: Learner = lesson.learner(seed)
    dataset = echo.of(Pictures(seed))
    others, theirs = next(
        mpiter.batches(Pictures(1000 + seed), 2000, n_processes=0, seed=seed)
    )
    with mpiter.batches(
        dataset, TRAIN_BATCH, n_processes=0, epochs=None, seed=seed
    ) as stream:
        accuracy = 0.0
        step = 0
        for step, (pictures, labels) in enumerate(echo.over(stream), 1):
            learner.learn(pictures, labels)
            if step % lesson.look == 0:
                accuracy = float((learner.scores(others).argmax(1) == theirs).mean())
                if accuracy >= lesson.target or step >= MOST_STEPS:
                    break
        stats = stream.stats()
    return stats.samples, step, accuracy


# -- the answer ------------------------------------------------------------------------


def take(turn: Turn) -> Answer:
    if turn.case in RATIOS:
        return speed(turn)
    return train(turn)


def claims(summary: Summary) -> Iterator[Claim]:
    for case in RATIOS:
        for row in ECHOES:
            if row != WITHOUT:
                found = ratio(summary, case, row, WITHOUT, "steps_per_s")
                yield at_least(
                    case,
                    f"steps/s with {row}",
                    found,
                    OF_IDEAL * gain(case, row),
                    " x without",
                )
    found = ratio(summary, "network", "example", WITHOUT, "fresh")
    yield at_most("network", "fresh samples with example", found, FEWER, " x without")
    found = ratio(summary, "means", "augmented", WITHOUT, "fresh")
    yield at_least(
        "means",
        "fresh samples with augmented",
        found,
        NO_FEWER,
        " x without: no use here",
    )


def curves(summary: Summary) -> Iterator[Curves]:
    """Return the steps a second by factor, beside what arithmetic says.

    They are multiples of those without echoing.
    """
    factors = ("2", "3", "4")
    lines: dict[str, list[tuple[float, ...]]] = {}
    for case in RATIOS:
        found = [
            (float(row), ratio(summary, case, row, WITHOUT, "steps_per_s"))
            for row in factors
        ]
        lines[case] = [(factor, times) for factor, times in found if times is not None]
        lines[f"{case}, by arithmetic"] = [
            (float(row), gain(case, row)) for row in factors
        ]
    dashed = [name for name in lines if name not in RATIOS]
    yield Curves(
        "Steps a second, times those without an echo",
        "echo factor",
        "times",
        lines,
        dashed,
    )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={
        **{
            name: f"fetching a batch takes {times:g} x a step of 20 ms"
            for name, times in RATIOS.items()
        },
        "network": "a small network, until 0.9 are right",
        "means": "the mean of each class, until 0.6 are right",
    },
    rows={
        WITHOUT: "no echo",
        **{name: f"factor {name}, augmented" for name in ("2", "3", "4")},
        "4, examples": "factor 4, before augmentation",
        "4, batches": "factor 4, whole batches",
        "example": "factor 2, before augmentation",
        "augmented": "factor 2, after augmentation",
        "batch": "factor 2, whole batches",
        "example, 4": "factor 4, before augmentation",
    },
    figures={
        "steps_per_s": "steps/s",
        "fresh": "fresh",
        "steps": "steps",
        "accuracy": "accuracy",
    },
    take=take,
    claims=claims,
    curves=curves,
    small={"cases": ["ratio 2"], "rows": [WITHOUT, "2"]},
    against=WITHOUT,
    rows_of=lambda case: ECHOES if case in RATIOS else LESSONS[case].echoes,
)


if __name__ == "__main__":
    sys.exit(
        conduct(
            EXPERIMENT, command_line(EXPERIMENT, warmup=1.0, timeout=180.0, seconds=3.0)
        )
    )
