"""One run of a training, followed line by line, and interrupted at one of its lines.

Runs in the main thread of the program, or of a rank's process.  A *spot* is a line of
the program that is reached within a step, or, in the block of its Checkpoint, a line of
mpiter's, such as those that ``next()`` comes to.  Guarantees that the tracer (of a
debugger or a coverage report) and the handlers of signals are put back.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..checkpoint.checkpoint import Checkpoint, in_silence
from ..datasets.variables import is_installed
from ..worker.seeding import give_back, global_generators, seed_globals, state_of

Train = Callable[[Path, int], Any]

_MPITER = os.path.dirname(os.path.dirname(__file__)) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_ENTERS = Checkpoint.__enter__.__code__
_LEAVES = Checkpoint.__exit__.__code__

# The fractions of their multiples spread evenly over 0 … 1, however many there are.
_GOLDEN = 0.6180339887498949
_PLASTIC = 0.7548776662466927
# For each place; a short training has few.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Spot:
    """A line, and how many steps were finished when it was reached."""

    step: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Place:
    """A spot, and how often it was reached before."""

    spot: Spot
    before: int


@dataclass(frozen=True, slots=True)
class Interruption:
    """Which signal is to come, where, and in which rank."""

    signal: int = 0
    place: Place | None = None
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What a run is given; random generators begin with ``seed``."""

    path: Path
    workers: int
    seed: int
    rank: int
    ranks: int


@dataclass(slots=True)
class Report:
    """How a run has ended: ``error`` is any but the interruption's own."""

    has_returned: bool = False
    result: Any = None
    error: Exception | None = None
    # Where it was interrupted, in words; "" if it wasn't.
    came: str = ""
    seen: Counter[Spot] | None = None  # if lines were only counted


class Killed(KeyboardInterrupt):
    """Ends a run in place of SIGKILL, once what that would leave is copied."""


class _Watch:
    """Follows the lines of a run, and calls ``interrupt`` at ``place``."""

    def __init__(self, train: Train, path: Path, only_inside: bool) -> None:
        self.place: Place | None = None
        self.interrupt: Callable[[], None] = _nothing
        self.seen = Counter[Spot]()
        self.came = ""
        self._path = path
        self._only_inside = only_inside
        self._own_file = _file_of(train)
        self._checkpoint: Checkpoint | None = None
        self._is_inside = False

    def run(self, train: Train, workers: int) -> Any:
        before = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            return train(self._path, workers)
        finally:
            sys.settrace(before)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code is _ENTERS and frame.f_locals["self"].path == self._path:
            self._checkpoint = frame.f_locals["self"]
            return self._on_entering
        if code is _LEAVES and frame.f_locals["self"] is self._checkpoint:
            self._is_inside = False
        # Python prints and forgets what is raised there.
        if code.co_name == "__del__":
            return None
        if self._is_of_program(code.co_filename):
            return self._on_line_inside if self._only_inside else self._on_line
        if code.co_filename.startswith(_HERE):
            return None
        return self._on_line_inside if code.co_filename.startswith(_MPITER) else None

    def _on_entering(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return" and argument is self._checkpoint:
            self._is_inside = True
        return self._on_entering

    def _on_line_inside(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._is_inside:
            self._on_line(frame, event, argument)
        return self._on_line_inside

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            step = 0 if self._checkpoint is None else self._checkpoint.finished
            spot = Spot(step, frame.f_code.co_filename, frame.f_lineno)
            place = Place(spot, self.seen[spot])
            self.seen[spot] += 1
            if not self.came and self._is_due(place):
                self.came = self._told(frame)
                self.interrupt()
        return self._on_line

    def _is_due(self, here: Place) -> bool:
        """Return True at the place; or a step later, if a run hasn't come to it.

        Another rank's program may have other lines, and so may a slower run.
        """
        if self.place is None:
            return False
        return here == self.place or here.spot.step > self.place.spot.step

    def _is_of_program(self, file: str) -> bool:
        return file == self._own_file or is_of_program(file)

    def _told(self, frame: FrameType) -> str:
        user: FrameType | None = frame
        while user is not None and not self._is_of_program(user.f_code.co_filename):
            user = user.f_back
        if user is None:
            return "within mpiter"
        name = os.path.basename(user.f_code.co_filename)
        within = "" if user is frame else ", within mpiter"
        return f"at {name}, line {user.f_lineno}{within}"


def _nothing() -> None:
    """Stand for the interruption of a run that has none."""


@functools.cache
def is_of_program(file: str) -> bool:
    """Return True for a file that isn't Python's, a package's, or mpiter's."""
    return not file.startswith(("<", _MPITER)) and not is_installed(file)


def run(
    train: Train,
    where: Run,
    interruption: Interruption | None,
    kill: Callable[[], None],
) -> Report:
    """Run the training as if the program had just begun.

    Without an ``interruption`` it isn't followed; one without a place counts the lines.
    """
    report = Report()
    # A rank that is interrupted before the block leaves the others waiting there.
    watch = _Watch(train, where.path, only_inside=where.ranks > 1)
    expected = 0
    if interruption is not None:
        if interruption.rank == where.rank:
            watch.place = interruption.place
        else:
            expected = interruption.signal

        def interrupt() -> None:
            nonlocal expected
            expected = interruption.signal
            if expected == signal.SIGKILL:
                kill()
            signal.raise_signal(expected)

        watch.interrupt = interrupt
    seed_globals(where.seed, where.rank, 0)
    if (torch := sys.modules.get("torch")) is not None:
        # Its other generators follow that of the CPU.
        torch.manual_seed(torch.initial_seed())
    try:
        with in_silence(), _ending_by_signals(lambda number: number == expected):
            if interruption is None:
                report.result = train(where.path, where.workers)
            else:
                report.result = watch.run(train, where.workers)
            report.has_returned = True
    except Exception as error:
        report.error = error
    except (KeyboardInterrupt, SystemExit):
        if not expected:
            raise
    report.came = watch.came
    if interruption is not None and interruption.place is None:
        report.seen = watch.seen
    return report


def places(seen: Counter[Spot], most: int) -> list[Place]:
    """Return at most so many places, spread over the steps of a run and their lines."""
    steps = dict[int, tuple[list[Spot], list[Spot]]]()
    for spot in seen:
        of_program, of_ours = steps.setdefault(spot.step, ([], []))
        (of_ours if spot.file.startswith(_MPITER) else of_program).append(spot)
    numbers = sorted(steps)
    chosen = dict[Place, None]()
    for number in range(_TRIES * most):
        of_program, of_ours = steps[numbers[number % most * len(numbers) // most]]
        is_within = of_ours and (number % 4 == 3 or not of_program)
        spots = of_ours if is_within else of_program
        spot = spots[int(number * _GOLDEN % 1 * len(spots))]
        chosen[Place(spot, int(number * _PLASTIC % 1 * seen[spot]))] = None
        if len(chosen) == most:
            break
    return list(chosen)


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Give the global random generators back as they were before the block."""
    before = {
        name: state_of(generator) for name, generator in global_generators().items()
    }
    try:
        yield
    finally:
        here = global_generators()
        for name, state in before.items():
            give_back(here[name], state)


@contextlib.contextmanager
def _ending_by_signals(is_expected: Callable[[int], bool]) -> Iterator[None]:
    """Have expected signals raise what ends a program; leave others as they are."""

    def end(number: int, frame: FrameType | None) -> None:
        if not is_expected(number):
            signal.signal(number, before[number])
            signal.raise_signal(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    before: dict[int, Any] = {}
    for ending in (signal.SIGINT, signal.SIGTERM):
        before[ending] = signal.signal(ending, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _file_of(train: Train) -> str:
    """Return the file of a function, also of one in a partial or a callable object."""
    function: Any = train
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(
        type(function).__call__, "__code__", None
    )
    if code is None:
        return ""
    return str(code.co_filename)
