"""A series of turns: round by round, within a budget, and never lost.

Runs in the driver.  Guarantees that rounds are interleaved (every row once before any comes a second time, each round
beginning each case with another row), that nothing begins which the budget has no room for, and that Ctrl-C, SIGTERM
and the end of the terminal end the turn under way and leave what was measured before.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from ..bar import Bar
from .turns import Answer, Turn

INTERRUPTED = "it was interrupted"
START_S = 1.5  # what a turn takes beyond its timed part: a process, its imports, its workers


@dataclass
class Series:
    """What came of the turns."""

    answers: list[tuple[int, Turn, Answer]] = field(default_factory=list)  # with the number of the round
    planned: int = 0
    ended_by: str = ""  # why it ended before its end


def interleaved(turns: Sequence[Turn], rounds: int) -> Iterator[tuple[int, Turn]]:
    """Round by round; in each, the rows that are to be compared stand together, beginning with another one."""
    for number in range(rounds):
        for _, group in itertools.groupby(turns, key=lambda turn: turn.place):
            rows = list(group)
            shift = number % len(rows)
            for turn in rows[shift:] + rows[:shift]:
                yield number, turn


def expected_s(turns: Iterable[Turn], rounds: int) -> float:
    """How long it will take, roughly."""
    return rounds * sum(turn.seconds + turn.warmup_s + START_S for turn in turns)


def run(
    name: str,
    turns: Sequence[Turn],
    rounds: int,
    ask: Callable[[Turn], Answer],
    budget_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    into: Series | None = None,
    began: float | None = None,
) -> Series:
    """Ask for one turn after another, gathering answers as they come; what is absent from a case is asked for once.

    The budget counts from when it `began`: now, if nothing else is said.
    """
    series, longest = into or Series(), 0.0
    began = clock() if began is None else began
    series.planned = len(turns) * rounds
    absent: set[tuple[str, str]] = set()
    with Bar(name, series.planned) as bar:
        try:
            for done, (number, turn) in enumerate(interleaved(turns, rounds)):
                if (turn.row, turn.case) in absent:
                    continue
                started = clock()
                needed = max(longest, turn.seconds + turn.warmup_s)
                if budget_s is not None and started - began + needed > budget_s:
                    series.ended_by = _spent(budget_s)
                    break
                bar.at(done, f"round {number + 1}: {turn}")
                answer = ask(turn)
                if "error" in answer and budget_s is not None and clock() - began >= budget_s:
                    series.ended_by = _spent(budget_s)  # which is why it was given up
                    break
                longest = max(longest, clock() - started)
                series.answers.append((number, turn, answer))
                if "absent" in answer:
                    absent.add((turn.row, turn.case))
        except KeyboardInterrupt:
            series.ended_by = INTERRUPTED
    return series


def _spent(budget_s: float) -> str:
    return f"the budget of {budget_s / 60:.3g} min was spent"


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Within, SIGTERM and a terminal that is closed are Ctrl-C."""
    with _handled(_interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Within, who wants to end us has to wait."""
    heard: list[int] = []
    with _handled(lambda number, frame: heard.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield
    if heard:
        raise KeyboardInterrupt


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
