"""A dataset's random draws depend on (seed, epoch, position) alone.

The caller's generators stay as they were.
"""

import os
import random
import threading
import warnings
from functools import partial

import numpy as np
import pytest
from ways import iterator

import mpiter
from mpiter.pool.backends import Thread
from mpiter.worker import twister

LENGTH = 24
BATCH = 5


class DrawsFromGlobals:
    """Draws from NumPy's global generator and from Python's."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        return i, np.random.randint(1 << 40), random.getrandbits(40)


class DrawsRound(DrawsFromGlobals):
    """Draws as many numbers as the generator makes at a time.

    So its position is the same before and after.
    """

    def __getitem__(self, i):
        return i, int(np.random.randint(0, 1 << 32, 624 * 2, dtype=np.uint32)[3])


class DrawsLate(DrawsFromGlobals):
    """Draws from Python's generator for each sample, and from NumPy's for some.

    A draw from the first decides for which ones.
    """

    def __getitem__(self, i):
        first = random.getrandbits(40)
        second = 0
        if i == LENGTH - 1 or first % 7 == 0:
            second = int(np.random.randint(1 << 40))
        return i, first, second


def opened(dataset, workers, backend, **options):
    return iterator(
        dataset, BATCH, n_processes=workers, backend=backend, seed=11, **options
    )


def epochs(dataset, workers, backend="process", batches=10):
    with opened(dataset, workers, backend) as it:
        return [
            sample
            for _, batch in zip(range(batches), it, strict=False)
            for sample in batch
        ]


@pytest.mark.parametrize("kind", [DrawsFromGlobals, DrawsRound, DrawsLate])
def test_draws_from_the_globals_are_the_same_for_any_number_of_workers(kind):
    expected = epochs(kind(), 0)
    assert len({sample[1] for sample in expected}) == len(expected), (
        "each position has draws of its own"
    )
    for workers in (1, 3):
        assert epochs(kind(), workers) == expected, workers


class CountsFetches:
    """Writes a line to a file at each fetch, and draws."""

    def __init__(self, path, repeatable):
        self.path = path
        self.repeatable = repeatable

    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        with open(self.path, "a") as marks:
            marks.write(f"{i}\n")
        return i, np.random.randint(1 << 40)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_is_not_repeatable_is_never_fetched_twice(tmp_path, workers):
    dataset = CountsFetches(tmp_path / "marks", repeatable=False)
    with opened(dataset, workers, "process", repeat=False) as it:
        samples = [sample for batch in it for sample in batch]
    marks = (tmp_path / "marks").read_text().splitlines()
    assert sorted(map(int, marks)) == list(range(LENGTH))
    with opened(
        CountsFetches(tmp_path / "others", repeatable=True), 0, "process", repeat=False
    ) as it:
        assert [sample for batch in it for sample in batch] == samples


def test_outside_of_a_fetch_get_rng_is_an_ordinary_generator():
    assert mpiter.get_rng().integers(1 << 60) != mpiter.get_rng().integers(1 << 60)


def test_a_dataset_that_draws_from_the_globals_under_threads_is_warned_about_once():
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        epochs(DrawsFromGlobals(), 2, "thread")
    assert len(heard) == 1
    assert "get_rng" in str(heard[0].message)


class Meanwhile:
    """The program draws while the first sample is fetched."""

    def __init__(self):
        self.has_drawn = False

    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        if not self.has_drawn:
            self.has_drawn = True
            program = threading.Thread(target=np.random.random)
            program.start()
            program.join()
        return i


def test_what_the_program_draws_meanwhile_is_not_taken_for_the_datasets():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(epochs(Meanwhile(), 2, "thread"))


class Noted(DrawsFromGlobals):
    """Writes each draw to a file, with its process and its sample.

    The worker that makes draw ``ends_at`` ends.
    """

    def __init__(self, file, ends_at):
        self.file = file
        self.ends_at = ends_at

    def __getitem__(self, i):
        drawn = np.random.random()
        before = self.draws()
        with self.file.open("a") as file:
            file.write(f"{os.getpid()} {i} {drawn}\n")
        if self.ends_at == len(before):
            os._exit(1)
        return i, drawn

    def draws(self):
        """Return (pid, sample, number) of each draw, in their order."""
        lines = []
        if self.file.exists():
            lines = self.file.read_text().splitlines()
        return [
            (int(pid), int(i), float(drawn)) for pid, i, drawn in map(str.split, lines)
        ]


def test_a_replacement_knows_from_its_first_sample_on_that_the_dataset_draws(tmp_path):
    dataset = Noted(tmp_path / "draws", ends_at=17)
    options = {"shuffle": False, "repeat": False, "run_ahead": 0, "n_prefetch": 1}
    with opened(dataset, 1, "process", **options) as it:
        handed_out = dict(sample for batch in it for sample in batch)
    draws = dataset.draws()
    first = draws[0][0]
    last = draws[-1][0]
    assert first != last
    by_replacement = [(i, drawn) for pid, i, drawn in draws if pid == last]
    assert all(drawn == handed_out[i] for i, drawn in by_replacement)


def test_a_replacement_does_not_draw_what_killed_the_worker_before_it(tmp_path):
    dataset = Noted(tmp_path / "draws", ends_at=0)
    with opened(dataset, 1, "process", shuffle=False, repeat=False) as it:
        next(it)
    (_, i, drawn), (_, again, anew), *_ = dataset.draws()
    assert i == again == 0
    assert drawn != anew


class Threads(Thread):
    """Threads as workers, by another library's backend."""

    name = "threads of mine"


def test_threads_of_any_backend_seed_no_generator_of_the_caller():
    drawn = []
    for seed in (1, 2):
        np.random.seed(seed)
        with pytest.warns(RuntimeWarning, match="which threads share"):
            epochs(DrawsFromGlobals(), 2, Threads())
        drawn.append(np.random.random_sample())
    assert drawn[0] != drawn[1]


@pytest.mark.torch
def test_each_draw_from_torchs_generator_is_noticed():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    generator = torch.default_generator
    assert twister._views_of(generator) is not None, (
        "torch keeps its generator elsewhere now: look for its new place"
    )
    torch.manual_seed(3)
    marks = [twister.mark_of(generator)]
    draws = [
        # The second of two draws comes from what the first has kept in reserve.
        partial(torch.randn, 1, dtype=torch.float64),
        partial(torch.randn, 1),
        partial(torch.rand, 1),
        partial(torch.randn, 64),
        partial(torch.randperm, 7),
        # This uses up all words, so the index is the same before and after.
        partial(torch.rand, 624),
        partial(torch.manual_seed, 4),
    ]
    for draw in draws:
        for _ in range(2 - (draw.func is torch.manual_seed)):
            draw()
            marks.append(twister.mark_of(generator))
    assert len(set(marks)) == len(marks)
    assert twister.mark_of(generator) == marks[-1]
