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
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.saying import in_silence
from ..datasets.variables import is_installed
from ..worker.seeding import give_back, global_generators, seed_globals, state_of

Train = Callable[[Path, int], Any]
# What sys.settrace() takes, and what follows the lines of one frame.
Tracer = Callable[[FrameType, str, object], "Tracer | None"]

_MPITER = os.path.dirname(os.path.dirname(__file__)) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_ENTERS = Checkpoint.__enter__.__code__
_LEAVES = Checkpoint.__exit__.__code__
_FINALIZES = weakref.finalize.__call__.__code__

# The fractions of these numbers' multiples spread evenly over 0 … 1, however many there
# are.  Two numbers are needed to choose two things independently.
_GOLDEN = 0.6180339887498949
_PLASTIC = 0.7548776662466927
# To choose a place takes so many tries at most: a short training has few places, and
# the same ones come up again.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Spot:
    """A line, and how many steps were finished when it was reached."""

    step: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Point:
    """A spot, and how often it was reached before."""

    spot: Spot
    before: int


@dataclass(frozen=True, slots=True)
class Interruption:
    """Which signal comes, where, and in which rank."""

    signal: int = 0
    place: Point | None = None
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
    # Where the run was interrupted, in words, or "" if it wasn't.
    came: str = ""
    # How often each line was reached, if lines were only counted.
    seen: Counter[Spot] | None = None


class Killed(KeyboardInterrupt):
    """Ends a run in place of SIGKILL, once what that would leave is copied."""


class _Watch:
    """Follows the lines of a run, and calls ``interrupt`` at ``place``."""

    def __init__(self, train: Train, path: Path, only_inside: bool) -> None:
        self.place: Point | None = None
        self.interrupt: Callable[[], None] = _nothing
        self.seen = Counter[Spot]()
        self.came = ""
        self._path = path
        self._only_inside = only_inside
        self._own_file = _file_of(train)
        self._checkpoint: Checkpoint | None = None
        self._is_inside = False
        # Calls under way in which what is raised is forgotten.
        self._unheard = 0

    def run(self, train: Train, workers: int) -> Any:
        before = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            return train(self._path, workers)
        finally:
            sys.settrace(before)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Tracer | None:
        code = frame.f_code
        if code is _ENTERS and frame.f_locals["self"].path == self._path:
            self._checkpoint = frame.f_locals["self"]
            return self._on_entering
        if code is _LEAVES and frame.f_locals["self"] is self._checkpoint:
            self._is_inside = False
        # Python prints and forgets what is raised in a __del__, or in what that calls,
        # and in a finalizer: the run would go on.
        if code.co_name == "__del__" or code is _FINALIZES:
            self._unheard += 1
            return self._on_end_of_unheard
        if self._unheard:
            return None
        file = code.co_filename
        if self._is_of_program(file):
            if self._only_inside:
                return self._on_line_inside
            return self._on_line
        # The lines of this package are no lines of a training.
        if file.startswith(_MPITER) and not file.startswith(_HERE):
            return self._on_line_inside
        return None

    def _on_end_of_unheard(
        self, frame: FrameType, event: str, argument: object
    ) -> Tracer:
        if event == "return":
            self._unheard -= 1
        return self._on_end_of_unheard

    def _on_entering(self, frame: FrameType, event: str, argument: object) -> Tracer:
        # A block whose beginning has raised returns None here, and was never inside.
        if event == "return" and argument is self._checkpoint:
            self._is_inside = True
        return self._on_entering

    def _on_line_inside(self, frame: FrameType, event: str, argument: object) -> Tracer:
        if self._is_inside:
            self._on_line(frame, event, argument)
        return self._on_line_inside

    def _on_line(self, frame: FrameType, event: str, argument: object) -> Tracer:
        if event == "line":
            step = 0
            if self._checkpoint is not None:
                step = self._checkpoint.finished
            spot = Spot(step, frame.f_code.co_filename, frame.f_lineno)
            place = Point(spot, self.seen[spot])
            self.seen[spot] += 1
            if not self.came and self._is_due(place):
                self.came = self._told(frame)
                self.interrupt()
        return self._on_line

    def _is_due(self, here: Point) -> bool:
        """Return True at the place, or a step later if the run hasn't come to it.

        Another rank of the program may come to other lines, and so may a slower run.
        """
        if self.place is None:
            return False
        return here == self.place or here.spot.step > self.place.spot.step

    def _is_of_program(self, file: str) -> bool:
        return file == self._own_file or is_of_program(file)

    def _told(self, frame: FrameType) -> str:
        # The user knows the lines of the program, not those of mpiter that it calls.
        user: FrameType | None = frame
        while user is not None:
            if self._is_of_program(user.f_code.co_filename):
                break
            user = user.f_back
        if user is None:
            return "within mpiter"
        name = os.path.basename(user.f_code.co_filename)
        within = ""
        if user is not frame:
            within = ", within mpiter"
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
    # Several ranks are only interrupted within the block: if one is interrupted before
    # it, the others wait there for a rank that never comes.
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
    torch = sys.modules.get("torch")
    if torch is not None:
        # seed_globals() seeds torch's generator of the CPU only; this seeds those of
        # its devices alike.
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
        # The user's own Ctrl-C must end the check, not only this run.
        if not expected:
            raise
    report.came = watch.came
    if interruption is not None and interruption.place is None:
        report.seen = watch.seen
    return report


def places(seen: Counter[Spot], most: int) -> list[Point]:
    """Return at most so many places, spread over the steps of a run and their lines."""
    steps = dict[int, tuple[list[Spot], list[Spot]]]()
    for spot in seen:
        of_program, of_ours = steps.setdefault(spot.step, ([], []))
        if spot.file.startswith(_MPITER):
            of_ours.append(spot)
        else:
            of_program.append(spot)
    numbers = sorted(steps)
    chosen = dict[Point, None]()
    for number in range(_TRIES * most):
        step = numbers[number % most * len(numbers) // most]
        of_program, of_ours = steps[step]
        # Mistakes are in the program, so three of four places are there.
        is_within = of_ours and (number % 4 == 3 or not of_program)
        spots = of_ours if is_within else of_program
        spot = spots[int(number * _GOLDEN % 1 * len(spots))]
        before = int(number * _PLASTIC % 1 * seen[spot])
        chosen[Point(spot, before)] = None
        if len(chosen) == most:
            break
    return list(chosen)


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Give the global random generators back as they were before the block."""
    before = dict[str, Any]()
    for name, generator in global_generators().items():
        before[name] = state_of(generator)
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
        # A signal from outside, such as the user's Ctrl-C, does what it would do
        # without this check.
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
