"""Interrupts a training at many places, resumes it, and compares the results.

Runs in the main thread of the program.  Guarantees that the error for a mistake names
the place of the interruption, the first difference and the likely causes; and that each
run has a file of its own, in a folder that is removed.
"""

from __future__ import annotations

import copy
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NoReturn, Protocol

from ..checkpoint import file
from ..errors import OptionError, StateError
from ..typevars import T
from .interrupting import (
    Interruption,
    Killed,
    Point,
    Report,
    Run,
    Train,
    generators_kept,
    places,
    run,
)
from .processes import Processes
from .same import difference

_FILE = "run.npz"
_KINDS = {
    signal.SIGTERM: "SIGTERM",
    signal.SIGINT: "Ctrl-C",
    signal.SIGKILL: "SIGKILL",
}
_LOOP = (
    "loop by  for epoch in c.epochs(n),  not by range(n), and within it  for x in "
    "c.steps(loader),  or call c.step() after each batch of a loader; an epoch without "
    "batches is saved at its end and needs no step"
)


class Runner(Protocol):
    """Runs a training, in this process or in others."""

    def run(
        self, runs: Sequence[Run], interruption: Interruption | None
    ) -> list[Report]:
        """Run the training in a rank for each of ``runs``; return their reports."""

    def close(self) -> None:
        """Let go of what runs were started with."""


def check_training(
    train: Train, interruptions: int, workers: Sequence[int], ranks: Sequence[int]
) -> int:
    """Interrupt a training at several places and resume it each time.

    Raise an AssertionError unless it ends as one that isn't interrupted.  Return how
    many of the ``interruptions`` were tried: the training may end before one of the
    places.
    """
    if threading.current_thread() is not threading.main_thread():
        raise OptionError(
            "call check_resume in the main thread: Python handles signals in no other."
        )
    runner: Runner
    if max(ranks) > 1:
        runner = Processes(train)
    else:
        runner = _Here(train)
    with (
        closing(runner),
        tempfile.TemporaryDirectory(prefix="mpiter-") as folder,
        generators_kept(),
    ):
        check = _Check(runner, Path(folder).absolute(), workers, ranks)
        check.run_uninterrupted()
        tried = 0
        for number, place in enumerate(check.places(interruptions)):
            if check.is_tried(number, place):
                tried += 1
    return tried


class _Here:
    """Runs a training in this process."""

    def __init__(self, train: Train) -> None:
        self._train = train

    def run(
        self, runs: Sequence[Run], interruption: Interruption | None
    ) -> list[Report]:
        (one,) = runs

        # SIGKILL would end the check as well, so what it would leave is copied instead.
        def kill() -> NoReturn:
            _copy_now(one.path.parent, _killed(one.path).parent)
            raise Killed

        has_torch = "torch" in sys.modules
        report = run(self._train, one, interruption, kill)
        if "torch" in sys.modules and not has_torch:
            # This run has imported torch, whose generator wasn't seeded then.  A later
            # run would differ from it.
            shutil.rmtree(one.path.parent)
            one.path.parent.mkdir()
            report = run(self._train, one, interruption, kill)
        return [report]

    def close(self) -> None:
        pass


def _is_loaders(state: object) -> bool:
    """Return True for the state of a loader or an iterator."""
    return isinstance(state, dict) and "position" in state and "epoch" in state


class _Check:
    """The check of one training."""

    def __init__(
        self, runner: Runner, folder: Path, workers: Sequence[int], ranks: Sequence[int]
    ) -> None:
        self._runner = runner
        self._folder = folder
        self._workers = workers
        self._ranks = ranks
        self._expected: list[Report] = []  # of each rank
        self._steps = 0

    def run_uninterrupted(self) -> None:
        """Run the training twice, to see how it ends, and that it ends alike."""
        first = self._workers[0]
        other = self._workers[-1]
        path = self._new_path("first")
        self._expected = self._succeeded(path, first, Interruption())
        for report in self._expected:
            report.result = _copied(report.result)
        try:
            ended = file.read(path)
        except (OSError, StateError) as error:
            raise AssertionError(
                "the training has written no checkpoint: it must pass the path that it "
                "is given, the file's, to mpiter.Checkpoint(path, loader, …)."
            ) from error
        self._steps = ended["steps"]
        # Without a loader there is nothing to resume within an epoch.
        has_no_batches = not any(map(_is_loaders, ended["parts"].values()))
        assert self._steps or (has_no_batches and ended["epoch"]), (
            f"no step of the training was finished: {_LOOP}."
        )
        again = self._succeeded(self._new_path("again"), other, None)
        for rank, report in enumerate(again):
            found = difference(report.result, self._expected[rank].result, "result")
            assert not found, (
                f"two trainings that weren't interrupted (with workers={first} and "
                f"workers={other}) end with different results: {found}.  The function "
                f"must make all that it uses anew at each call; samples must depend on "
                f"index, seed and epoch only (check_dataset tells); and nothing may "
                f"depend on time, threads or a generator that isn't seeded."
            )

    def places(self, most: int) -> list[Point]:
        """Return the places at which to interrupt."""
        seen = self._expected[0].seen
        assert seen is not None
        return places(seen, most)

    def is_tried(self, number: int, place: Point) -> bool:
        """Interrupt the training at a place, and resume it; False if it isn't there."""
        for one in self._folder.iterdir():
            shutil.rmtree(one)
        kinds = list(_KINDS)
        kind = kinds[number % len(kinds)]
        path = self._new_path("interrupted")
        ranks = self._ranks[0]
        interruption = Interruption(kind, place, number % ranks)
        reports = self._run(path, self._workers[0], ranks, 0, interruption)
        came = reports[interruption.rank].came
        if not came and all(report.has_returned for report in reports):
            return False
        # A process that was killed hasn't reported where.
        if not came:
            came = f"at {Path(place.spot.file).name}, line {place.spot.line}"
        was = f"{_KINDS[kind]} {came}, after {place.spot.step} finished steps"
        if kind == signal.SIGKILL:
            # In this process the run has gone on to its end, and the copy is what the
            # kill would have left.
            if _killed(path).parent.exists():
                path = _killed(path)
        elif any(report.has_returned for report in reports):
            raise AssertionError(
                f"{was}, was caught within the training, which has gone on or "
                f"returned: let KeyboardInterrupt and SystemExit end the function."
            )
        elif error := _error_of(reports):
            raise AssertionError(
                f"{was}, has made the training fail: {_told(error)}"
            ) from error
        # After each number of workers has had its turn comes the next number of ranks.
        turn_of_ranks, turn = divmod(number + 1, len(self._workers))
        workers = self._workers[turn]
        ranks = self._ranks[turn_of_ranks % len(self._ranks)]
        # A program that goes on has other random numbers than the first one, until it
        # loads the file.  Without a file the training begins anew, and must begin with
        # the same ones.
        seed = 0
        parts = "not yet known"
        if path.exists():
            seed = number + 1
            parts = ", ".join(file.read(path)["parts"])
        resumed = self._run(path, workers, ranks, seed, None)
        of_ranks = ""
        if max(self._ranks) > 1:
            of_ranks = f" in {ranks} ranks"
        resumed_with = f"resumed with workers={workers}{of_ranks}"
        again = f"interrupted by {was}, and {resumed_with}, the training"
        if error := _error_of(resumed):
            raise AssertionError(f"{again} fails: {_told(error)}") from error
        self._compare(again, path, resumed, parts)
        return True

    def _compare(
        self, again: str, path: Path, resumed: list[Report], parts: str
    ) -> None:
        if len(resumed) != len(self._expected):
            self._compare_ranks(again, resumed)
            return
        steps = file.read(path)["steps"]
        assert steps == self._steps, (
            f"{again} ends after {steps} steps in place of {self._steps}: {_LOOP}; and "
            f"leave the loop at c.finished, not at a count of your own."
        )
        for rank, report in enumerate(resumed):
            found = difference(report.result, self._expected[rank].result, "result")
            where = ""
            if len(resumed) > 1:
                where = f" in rank {rank}"
            assert not found, (
                f"{again} ends with another result{where}: {found}.  All that changes "
                f"while training, and all that the function returns, must be a part of "
                f"Checkpoint: the optimizer, its schedule, an average, numbers of your "
                f"own in a dict (it has these parts: {parts}).  Draw random numbers "
                f"from global generators or mpiter.get_rng(), and seed what is drawn "
                f"before the block; a generator of your own must be a part.  And "
                f"{_LOOP}."
            )

    def _compare_ranks(self, again: str, resumed: list[Report]) -> None:
        """Compare ranks with each other, if another number of them began."""
        for report in self._expected[1:]:
            if difference(report.result, self._expected[0].result, "result"):
                # Each rank returns something of its own, such as its samples.
                return
        for rank, report in enumerate(resumed):
            found = difference(report.result, resumed[0].result, "result")
            assert not found, (
                f"{again} ends with different results in ranks {rank} and 0: {found}.  "
                f"What is to be equal in all ranks must be a part of Checkpoint, or be "
                f"made equal by the training at its beginning."
            )

    def _succeeded(
        self, path: Path, workers: int, interruption: Interruption | None
    ) -> list[Report]:
        reports = self._run(path, workers, self._ranks[0], 0, interruption)
        if error := _error_of(reports):
            raise error
        return reports

    def _run(
        self,
        path: Path,
        workers: int,
        ranks: int,
        seed: int,
        interruption: Interruption | None,
    ) -> list[Report]:
        runs = [Run(path, workers, seed, rank, ranks) for rank in range(ranks)]
        return self._runner.run(runs, interruption)

    def _new_path(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder / _FILE


def _killed(path: Path) -> Path:
    """Return the path of what a run with ``path`` has left if it was killed."""
    return path.parent.with_name("killed") / path.name


def _copy_now(folder: Path, to: Path) -> None:
    """Copy a folder as a kill would leave it; a thread may be writing there."""
    to.mkdir()
    for source in sorted(folder.rglob("*")):
        target = to / source.relative_to(folder)
        # A file may have been renamed since it was listed.
        with suppress(FileNotFoundError):
            if source.is_dir():
                target.mkdir(exist_ok=True)
            else:
                shutil.copyfile(source, target)


def _error_of(reports: Sequence[Report]) -> Exception | None:
    errors = [report.error for report in reports if report.error is not None]
    # The error of a rank that has lost another one isn't the cause, so it comes last.
    errors.sort(key=lambda error: "RankError" in _told(error))
    if errors:
        return errors[0]
    return None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _copied(value: T) -> T:
    """Return a copy of what a later run might change, if it can be copied."""
    with suppress(Exception):
        return copy.deepcopy(value)
    return value
