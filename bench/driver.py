"""The driver of all experiments: it measures turns in processes of their own.

Rounds are interleaved, medians are compared, and all results have one form.

An `Experiment` says what is measured.  Each *turn* measures one row (a loader) on one
case (a load) once, in a fresh process; a *round* is one turn of every row, and each
round begins with another row, so that a machine that grows slower takes all of them
along.  Guarantees that a turn which fails, hangs or lacks its package is a line in the
result and not the end of the run; that its process group is gone afterwards; that
Ctrl-C and SIGTERM keep what was measured; and that no result is written over another
one unless `--force` says so.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NoReturn

# This comes before mpiter, so that it is found in this checkout.
from checkout import ROOT

import mpiter
from mpiter import machine

# What multiprocessing's process that removes shared memory runs.
TRACKER = b"multiprocessing.resource_tracker"
SHARED = Path("/dev/shm")
# Processes have so long to end, and their tracker to remove what was shared.
PATIENCE_S = 10.0

ENVIRONMENTS = {
    "ours": "the Python of mpiter, the loop and the limit",
    "chainer": "the Python that has Chainer (needs NumPy < 1.24)",
    "torch": "the Python that has torch, and what is compared with it",
    "mosaic": "the Python that has mosaicml-streaming (datasets needs another hub)",
}
PACKAGES = (
    "numpy",
    "msgpack",
    "cloudpickle",
    "chainer",
    "torch",
    "jax",
    "grain",
    "spdl",
    "spdl_core",
    "Pillow",
    "simplejpeg",
    "albumentations",
    "ray",
    "pyarrow",
    "mpi4py",
    "mpich",
    "torchdata",
    "datasets",
    "mosaicml-streaming",
    "litdata",
    "webdataset",
)
# A figure whose interquartile range is a larger share of its median than this is noisy.
NOISY = 0.15
# Fewer rounds allow no conclusion.
MIN_ROUNDS = 3
SMALL = {"rounds": 1, "seconds": 0.3, "warmup": 0.1}
# Characters of what a failed turn said.
LAST_WORDS = 2000
# Seconds between two lines that say how far the run has come.
SAYS_S = 10.0
NOTHING = "\u2013"


# -- what is measured ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """One row on one case, measured once.

    The timed part takes so many seconds, after so many that don't count.
    """

    row: str
    case: str
    workers: int
    seconds: float
    warmup_s: float
    options: dict[str, Any]
    round: int = 0


# Figures by name, {"error": text} or {"absent": text}; "problems" beside figures.
Answer = dict[str, Any]


class Absent(Exception):
    """What a row needs isn't installed; the text says what, and how to get it."""


@dataclass(frozen=True)
class Curves:
    """A plot: lines by name, each a list of x, y and the quartiles of y, if any."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, ...]]]
    # Lines that were not measured here: published, or predicted by a model.
    dashed: Sequence[str] = ()


@dataclass(frozen=True)
class Compared:
    """A line for those who read nothing else: what was measured of ours and theirs."""

    what: str
    ours: Spread | None
    theirs: Spread | None

    def cells(self) -> list[str]:
        times = NOTHING
        if self.ours is not None and self.theirs is not None and self.theirs.median:
            times = f"{number(self.ours.median / self.theirs.median)} times"
        return [self.what, told(self.ours), told(self.theirs), times]


@dataclass(frozen=True)
class InShort:
    """The figures at the end, under a heading.

    The heading says which way is better, and what theirs is.
    """

    heading: str
    theirs: str
    lines: Sequence[Compared]

    def table(self) -> tuple[str, list[list[str]]]:
        head = ["", "mpiter", self.theirs, "ratio"]
        return self.heading, [head, *(line.cells() for line in self.lines)]


@dataclass(frozen=True)
class Experiment:
    """An experiment; among the figures of its turns the most important stands first."""

    script: str
    doc: str | None
    # What each case and each row is.
    cases: Mapping[str, str]
    rows: Mapping[str, str]
    # The heads of the figures' columns; figures headed "" are kept and not shown.
    figures: Mapping[str, str]
    # This measures, in the turn's process.
    take: Callable[[Turn], Answer]
    # The rows of a case, if it hasn't all of them.
    rows_of: Callable[[str], Iterable[str]] | None = None
    claims: Callable[[Summary], Iterable[Claim]] = lambda summary: ()
    # What the figures come to, in sentences.
    says: Callable[[Summary], Iterable[str]] = lambda summary: ()
    curves: Callable[[Summary], Iterable[Curves]] = lambda summary: ()
    # Figures that lie one upon the other in the page's bars; else the first figure.
    bars: Sequence[str] = ()
    # The unit of the bars, if it isn't how the first figure is headed.
    unit: str = ""
    in_short: Callable[[Summary], InShort] | None = None
    # The row that the others' first figures are multiples of.
    against: str = ""
    # The environment of a row on a case, if not all run in ours.
    environment: Callable[[str, str], str] | None = None
    # Options beyond the common ones, which are passed on to turns.
    asked: Sequence[str] = ()
    prepare: Callable[[argparse.Namespace], None] = lambda options: None
    # The cases that run if none are named; without any, all run.
    default_cases: Sequence[str] = ()
    # What `--small` sets beside SMALL.
    small: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.script).stem

    def turns(self, options: argparse.Namespace) -> Iterator[Turn]:
        """Yield the turns of one round."""
        told = {name: getattr(options, name) for name in self.asked}
        workers = options.workers
        for case in options.cases:
            rows: Iterable[str] = self.rows
            if self.rows_of:
                rows = self.rows_of(case)
            for row in rows:
                if row in options.rows:
                    yield Turn(
                        row, case, workers, options.seconds, options.warmup, told
                    )

    def table(self, case: str, summary: Summary) -> tuple[str, list[list[str]]]:
        """Return the title and the table of a case, headings first.

        The first figure has spread and ratio too.
        """
        found = {row: summary[case, row] for row in self.rows if (case, row) in summary}
        first, *others = [
            name
            for name, head in self.figures.items()
            if head and any(name in f for f in found.values())
        ]
        base = found.get(self.against, {}).get(first)
        heads = ["", self.figures[first], "IQR"]
        if self.against:
            heads.append(f"/ {self.against}")
        lines = [heads + [self.figures[name] for name in others]]
        for row, figures in found.items():
            main = figures.get(first)
            spread_of = NOTHING
            if main and len(main.values) > 1:
                spread_of = f"{main.relative:.0%}"
            cells = [row, told(main), spread_of]
            if self.against:
                share = NOTHING
                if main and base and base.median:
                    share = f"{main.median / base.median:.2f}"
                cells.append(share)
            lines.append(cells + [told(figures.get(name)) for name in others])
        return f"{case}: {self.cases[case]}", lines


# -- medians and spreads ---------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Median and interquartile range of one figure over the rounds."""

    median: float
    iqr: float
    values: tuple[float, ...]

    @property
    def relative(self) -> float:
        if self.median:
            return self.iqr / abs(self.median)
        return math.inf if self.iqr else 0.0

    @property
    def is_noisy(self) -> bool:
        return self.relative > NOISY

    @property
    def point(self) -> tuple[float, float, float]:
        """Return the median, the least and the most, for a plot."""
        return self.median, min(self.values), max(self.values)


# (case, row) -> figure -> its spread.
Summary = Mapping[tuple[str, str], Mapping[str, Spread]]
# Titles, and lines of cells, headings first.
Tables = Sequence[tuple[str, list[list[str]]]]
# The interquartile range of so few values in terms of their range, if they were normal
# noise: 1.35 / d2.
_OF_THE_RANGE = {1: 0.0, 2: 1.20, 3: 0.80, 4: 0.66}


def spread(values: Sequence[float]) -> Spread:
    """Return the interquartile range; of few values, estimated from the whole range.

    Few values have no quartiles worth the name.
    """
    if len(values) in _OF_THE_RANGE:
        iqr = _OF_THE_RANGE[len(values)] * (max(values) - min(values))
    else:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        iqr = high - low
    return Spread(statistics.median(values), iqr, tuple(values))


def summarized(
    answers: Iterable[Mapping[str, Any]], figures: Iterable[str]
) -> dict[tuple[str, str], dict[str, Spread]]:
    """Return the spread of each figure over the rounds, by case and row."""
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    names = list(figures)
    for one in answers:
        for figure in names:
            if one.get(figure) is not None:
                values[one["case"], one["row"]][figure].append(one[figure])
    return {
        key: {figure: spread(some) for figure, some in named.items()}
        for key, named in values.items()
    }


def median(summary: Summary, case: str, row: str, figure: str) -> float | None:
    found = summary.get((case, row), {}).get(figure)
    if found is None:
        return None
    return found.median


def ratio(
    summary: Summary, case: str, row: str, other: str, figure: str
) -> float | None:
    """Return one row's median as a multiple of another's; None where one is missing."""
    ours = median(summary, case, row, figure)
    theirs = median(summary, case, other, figure)
    if ours is None or not theirs:
        return None
    return ours / theirs


def told(found: Spread | None) -> str:
    """Return a figure in three digits, with `~` where its rounds disagree."""
    if found is None:
        return NOTHING
    mark = "~" if found.is_noisy else ""
    return mark + number(found.median)


def number(value: float) -> str:
    """Return three significant digits; whole numbers as they are.

    >>> [number(figure) for figure in (0.0123, 1.234, -12.34, 1234.5, 128.0, 0)]
    ['0.0123', '1.23', '-12.3', '1,234', '128', '0']
    """
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, 2 - magnitude)}f}"


# -- claims ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A claim's finding on one case.

    It has the figure found (None where a row is missing), whether it holds, and whether
    it must.
    """

    case: str
    text: str
    found: float | None
    holds: bool
    must: bool = True


@dataclass(frozen=True)
class Verdict:
    """One claim, and what the run says of it.

    That is PASS, FAIL, `not reached` of an aim, not measured, or not a conclusion.
    """

    claim: str
    found: float | None
    says: str
    must: bool

    @property
    def failed(self) -> bool:
        return self.must and self.says == "FAIL"

    def line(self) -> str:
        found = ""
        if self.found is not None:
            digits = 2 if self.found >= 0.1 else 4
            found = f"{self.found:.{digits}f}"
        needs = "must" if self.must else "aim"
        return f"{needs:6}{self.claim:64}{found:>10}  {self.says}"


def at_least(
    case: str,
    what: str,
    found: float | None,
    bound: float,
    of: str = "",
    must: bool = True,
) -> Claim:
    text = f"{case}: {what} >= {bound:g}{of}"
    holds = found is not None and found >= bound
    return Claim(case, text, found, holds, must)


def at_most(
    case: str,
    what: str,
    found: float | None,
    bound: float,
    of: str = "",
    must: bool = True,
) -> Claim:
    text = f"{case}: {what} <= {bound:g}{of}"
    holds = found is not None and found <= bound
    return Claim(case, text, found, holds, must)


def judge(claim: Claim, rounds: int, enough: int = MIN_ROUNDS) -> Verdict:
    """Return the verdict.

    Too few rounds, or a row that is missing, allow no conclusion.
    """
    if claim.found is None:
        says = "not measured"
    elif rounds < enough:
        says = "not a conclusion"
    elif claim.holds:
        says = "PASS"
    else:
        says = "FAIL" if claim.must else "not reached"
    return Verdict(claim.text, claim.found, says, claim.must)


# -- a turn's process ------------------------------------------------------------------


def ask(turn: Turn, timeout_s: float, command: Sequence[str]) -> Answer:
    """Measure in a process of its own; what went wrong is an answer too.

    The command reads the turn from its input, which stays open, and answers by its last
    line.  It imports mpiter from where we do.
    """
    search = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search)}
    # These are files and not pipes: a pipe would stay open for as long as a worker that
    # was left behind, and reading it to its end would wait for that worker.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as complaints:
        with subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=complaints,
            start_new_session=True,
        ) as process:
            try:
                _tell(process, json.dumps(asdict(turn)))
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return {"error": f"gave no answer within {timeout_s:g} s"}
            finally:
                end_group(process.pid)
        try:
            answer: Answer = json.loads(_text(out).splitlines()[-1])
        except (ValueError, IndexError):
            said = _text(complaints).strip()
            last = (said.splitlines() or ["no message"])[-1]
            return {
                "error": f"ended with status {process.returncode}: {last}",
                "said": said[-LAST_WORDS:],
            }
    return answer


def _tell(process: subprocess.Popen[bytes], text: str) -> None:
    assert process.stdin is not None
    # It has ended already, and will be asked why.
    with suppress(BrokenPipeError):
        process.stdin.write(text.encode() + b"\n")
        process.stdin.flush()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def be_measured(take: Callable[[Turn], Answer]) -> NoReturn:
    """Read the turn, measure, answer with a line of JSON and end at once.

    This runs in the turn's process.

    Whatever datasets, libraries and workers print goes beside the answer, and if the
    driver ends the whole group does.
    """
    answers = os.dup(1)
    os.dup2(2, 1)
    turn = Turn(**json.loads(sys.stdin.readline()))
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_end_with_the_driver, args=[lifeline], daemon=True).start()
    try:
        answer = take(turn)
    except Absent as why:
        answer = {"absent": str(why)}
    except Exception as error:
        words = traceback.format_exc()[-LAST_WORDS:]
        answer = {"error": f"{type(error).__name__}: {error}", "said": words}
        # If a module of ours were missing, that would be a fault.
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith(
            "mpiter"
        ):
            answer = {"absent": f"not installed here ({error})"}
    with open(answers, "w") as out:
        out.write(json.dumps(answer | {"versions": versions()}, default=str) + "\n")
    # End at once: how long workers take to end isn't measured, and some never do.
    os._exit(0)


def _end_with_the_driver(lifeline: int) -> None:
    os.read(lifeline, 1)
    end_own_group()


def end_own_group() -> None:
    """End this process and all others of its group."""
    kill_group(os.getpgrp())
    # Where there is no /proc, none has been found.
    os.killpg(0, signal.SIGKILL)


def end_group(group: int) -> None:
    """End the processes of a group, if there are any left, and what they shared.

    Names of shared memory and of semaphores outlive processes that are killed.  The
    trackers remove them, once nobody is left that might need them.
    """
    # A process may be killed before it has told its tracker of a file that it has open.
    # It is stopped first, so that it opens no more.
    held = set[Path]()
    for process, command in members_of(group).items():
        with suppress(OSError):
            if TRACKER not in command:
                os.kill(process, signal.SIGSTOP)
                held |= shared_by(process)
    trackers = kill_group(group)
    until = time.monotonic() + PATIENCE_S
    while trackers & members_of(group).keys() and time.monotonic() < until:
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    for path in held:
        path.unlink(missing_ok=True)


def shared_by(process: int) -> set[Path]:
    """Return the shared memory of multiprocessing's that a process has open."""
    found = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        # Others of its threads may close it meanwhile.
        with suppress(OSError):
            path = link.readlink()
            if path.parent == SHARED and path.name.startswith("psm_"):
                found.add(path)
    return found


def kill_group(group: int) -> set[int]:
    """Kill the processes of a group but multiprocessing's trackers; return those.

    This process is killed last, if it is in the group.
    """
    until = time.monotonic() + PATIENCE_S
    trackers = set[int]()
    while time.monotonic() < until:
        trackers = set()
        others = set[int]()
        for process, command in members_of(group).items():
            found = trackers if TRACKER in command else others
            found.add(process)
        if not others:
            break
        for process in sorted(others, key=os.getpid().__eq__):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    return trackers


def members_of(group: int) -> dict[int, bytes]:
    """Return the commands of a group's processes that haven't ended, by their ids."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # It may end meanwhile, and one that has ended has no command.
        with suppress(OSError):
            process = int(folder.name)
            if os.getpgid(process) == group:
                command = (folder / "cmdline").read_bytes()
                # One that is just beginning has none either, for a moment.
                while not command and not has_ended(folder):
                    time.sleep(0.001)
                    command = (folder / "cmdline").read_bytes()
                if command:
                    found[process] = command
    return found


def has_ended(folder: Path) -> bool:
    """True if only the entry of a process in /proc is left."""
    _, _, state = (folder / "stat").read_text().rpartition(") ")
    return state[0] in "ZX"


# -- rounds ----------------------------------------------------------------------------


def interleaved(turns: Sequence[Turn], rounds: int) -> Iterator[Turn]:
    """Yield the turns of each round.

    The rows of a case stand together, and each round begins with another row.
    """
    for round_ in range(rounds):
        for case in dict.fromkeys(turn.case for turn in turns):
            rows = [turn for turn in turns if turn.case == case]
            shift = round_ % len(rows)
            for turn in rows[shift:] + rows[:shift]:
                yield replace(turn, round=round_)


def measured(
    experiment: Experiment, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], bool]:
    """Return the answers of all turns, and whether the run was interrupted.

    A row that is absent from a case is asked for once.
    """
    turns = list(experiment.turns(options))
    answers: list[dict[str, Any]] = []
    absent: set[tuple[str, str]] = set()
    said = 0.0
    try:
        for done, turn in enumerate(interleaved(turns, options.rounds)):
            if (turn.row, turn.case) in absent:
                continue
            if time.monotonic() - said > SAYS_S:
                said = time.monotonic()
                place = f"{experiment.name} {done}/{len(turns) * options.rounds}"
                print(f"{place}  {turn.case}: {turn.row}", file=sys.stderr, flush=True)
            answer = ask(turn, options.timeout, _command(experiment, options, turn))
            asked = {
                "row": turn.row,
                "case": turn.case,
                "workers": turn.workers,
                **turn.options,
            }
            times = {"warmup_s": turn.warmup_s, "seconds": turn.seconds}
            answers.append(asked | times | answer)
            if "absent" in answer:
                absent.add((turn.row, turn.case))
    except KeyboardInterrupt:
        return answers, True
    return answers, False


def _command(
    experiment: Experiment, options: argparse.Namespace, turn: Turn
) -> list[str]:
    needs = "ours"
    if experiment.environment:
        needs = experiment.environment(turn.row, turn.case)
    ours = getattr(options, "python_ours", None) or sys.executable
    python = getattr(options, f"python_{needs}", None) or ours
    return [python, "-W", "ignore", experiment.script, "--turn"]


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


# -- an experiment ---------------------------------------------------------------------


def conduct(experiment: Experiment, parser: argparse.ArgumentParser) -> int:
    """Measure, report and keep the result; return the exit status.

    It is 1 if a turn goes wrong, 130 after Ctrl-C.

    Requirements are a maintainer's: with ``--judge`` they are reported too, and one
    that fails is an exit status of 1.
    """
    options = parsed(experiment, parser)
    if options.turn:
        be_measured(experiment.take)
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.time()
    load = os.getloadavg()
    experiment.prepare(options)
    answers, is_interrupted = measured(experiment, options)
    summary = summarized(answers, experiment.figures)
    judged = [
        judge(claim, options.rounds)
        for claim in experiment.claims(summary)
        if claim.case in options.cases
    ]
    problems = list(_problems(answers))
    if is_interrupted:
        problems.append("it was interrupted")
    settings = {
        name: getattr(options, name)
        for name in ("rounds", "seconds", "warmup", "workers", *experiment.asked)
    }
    result = heading(experiment.name, began, load) | {
        "settings": settings,
        "cases": {case: experiment.cases[case] for case in options.cases},
        "rows": dict(experiment.rows),
        "versions": {
            one["row"]: one.pop("versions") for one in answers if "versions" in one
        },
        "absent": {one["row"]: one["absent"] for one in answers if "absent" in one},
        "problems": problems,
        "warnings": list(_warnings(answers, summary)),
        "says": list(experiment.says(summary)),
        "summary": [
            {"case": case, "row": row}
            | {name: asdict(some) for name, some in found.items()}
            for (case, row), found in summary.items()
        ],
        "verdicts": [asdict(verdict) for verdict in judged],
        "turns": answers,
    }
    tables = [
        experiment.table(case, summary)
        for case in options.cases
        if any(key[0] == case for key in summary)
    ]
    short = []
    if experiment.in_short and summary:
        short.append(experiment.in_short(summary).table())
    reported = judged if options.judge else []
    is_kept = options.out is not None
    print("\n".join(report(result, tables, reported, short, is_kept)))
    keep_result(options.out, result)
    if options.out:
        file = options.out.with_suffix(".html")
        _keep_page(experiment, file, result, summary, tables, short)
    if is_interrupted:
        return 130
    return int(bool(problems) or any(verdict.failed for verdict in reported))


def _keep_page(
    experiment: Experiment,
    file: Path,
    result: Mapping[str, Any],
    summary: Summary,
    tables: Tables,
    short: Tables,
) -> None:
    import page

    title = (experiment.doc or "").partition("\n")[0].rstrip(".")
    bars = experiment.bars or [next(iter(experiment.figures))]
    stacked = {name: experiment.figures[name] for name in bars}
    unit = experiment.unit or stacked[bars[0]]
    pictures = page.plots(
        summary, stacked, unit, experiment.cases, experiment.curves(summary)
    )
    keep(file, page.page(title, result, tables, short, pictures))
    print(f"\n{file.resolve().as_uri()}")


def _problems(answers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the problems of all turns."""
    for one in answers:
        problems = list(one.get("problems", ()))
        if "error" in one:
            problems.insert(0, one["error"])
        for problem in problems:
            yield f"{one['row']} on {one['case']}: {problem}"


def _warnings(answers: Sequence[Mapping[str, Any]], summary: Summary) -> Iterator[str]:
    for (case, row), figures in summary.items():
        name, found = next(iter(figures.items()))
        if found.median and found.is_noisy:
            yield (
                f"{row} on {case}: the IQR of {name} is {found.relative:.0%} of the "
                "median; the machine was not quiet"
            )
    changed = [
        (one["case"], one["row"]) for one in answers if one.get("workers_changed")
    ]
    for case, row in dict.fromkeys(changed):
        yield (
            f"{row} on {case}: processes came or went in the timed part; "
            "CPU is a lower bound"
        )


def report(
    result: Mapping[str, Any],
    tables: Tables,
    judged: Iterable[Verdict],
    short: Tables = (),
    is_kept: bool = False,
) -> Iterator[str]:
    """Yield the lines that are printed.

    Warnings that are kept in a file are only counted.
    """
    settings = result["settings"]
    yield (
        f"{settings['rounds']} interleaved round(s) of {settings['seconds']:g} s a "
        "turn, each in a process of its own, after a warm-up of "
        f"{settings['warmup']:g} s; "
        "medians (~: the rounds disagree)"
    )
    for title, lines in tables:
        yield f"\n{title}"
        yield from drawn(lines)
    yield ""
    yield from (f"absent   {row}: {why}" for row, why in result["absent"].items())
    yield from (f"PROBLEM  {problem}" for problem in dict.fromkeys(result["problems"]))
    warnings = result["warnings"]
    if is_kept and warnings:
        yield (
            f"warnings: {len(warnings)}, which stand at the end of the page; most say "
            "that the machine was busy"
        )
    else:
        yield from (f"warning  {warning}" for warning in warnings)
    if settings["rounds"] < MIN_ROUNDS:
        yield f"fewer than {MIN_ROUNDS} rounds: not a conclusion"
    yield from result["says"]
    yield from (verdict.line() for verdict in judged)
    for title, lines in short:
        yield f"\n{title}"
        yield from drawn(lines)


def drawn(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines as aligned columns.

    The first column names the row, the others are aligned right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        figures = (
            f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)
        )
        yield "  ".join([f"{name:<{widths[0]}}", *figures]).rstrip()


# -- where a result comes from, and where it is kept -----------------------------------


def heading(
    name: str, began: float, load: tuple[float, float, float]
) -> dict[str, Any]:
    """Return the head of a result: the machine, the commit, the command."""
    return {
        "schema": f"mpiter.bench.{name}/1",
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began)),
        "took_s": time.time() - began,
        "machine": {
            "node": platform.node(),
            "cpu": _cpu_model(),
            "cores_usable": machine.cores(),
            "cores_present": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": platform.platform(),
            "load_before": load,
            "load_after": os.getloadavg(),
        },
        "commit": commit(ROOT),
        "command": shlex.join(["python", *map(_told_path, sys.orig_argv[1:])]),
    }


def _told_path(word: str) -> str:
    """Return a path below the root as it is there, else only the file's name.

    Results name no folders of a machine.
    """
    path = Path(word)
    if not path.is_absolute():
        return word
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    return path.name


def versions() -> dict[str, str]:
    """Return the versions of Python, of mpiter, and of the installed peers."""
    found = {"python": platform.python_version(), "mpiter": mpiter.__version__}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Processor")):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit(root: Path) -> dict[str, Any]:
    """Return the commit measured, and whether the working tree differs from it.

    Results under bench/results don't count as a difference.
    """
    changes = _git(root, "status", "--porcelain", "--", ".", ":!bench/results")
    return {
        "id": _git(root, "rev-parse", "--verify", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True
        )
    except OSError:
        # There is no git here.
        return None
    if done.returncode != 0:
        return None
    return done.stdout.strip()


def keep_result(file: Path | None, result: Mapping[str, Any]) -> None:
    """Write the result as JSON, if a file is named."""
    if file:
        keep(file, json.dumps(result, indent=1, default=str) + "\n")


def keep(file: Path, text: str) -> None:
    """Write it whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


# -- the command line ------------------------------------------------------------------


def command_line(
    experiment: Experiment,
    *,
    warmup: float,
    timeout: float,
    seconds: float = 2.0,
    rounds: int = 5,
) -> argparse.ArgumentParser:
    """Return a parser with the options of every experiment."""
    made = argparse.ArgumentParser(
        description=(experiment.doc or "").partition("\n")[0], prog=experiment.name
    )
    add = made.add_argument
    add("--rounds", type=int, default=rounds, help=f"(default {rounds})")
    add(
        "--seconds",
        type=float,
        default=seconds,
        help=f"timed part of a turn (default {seconds:g})",
    )
    add(
        "--warmup",
        type=float,
        default=warmup,
        help=f"seconds of loading before, excluded (default {warmup:g})",
    )
    add("--workers", type=int, default=2, help="where the case doesn't say (default 2)")
    cases = list(experiment.default_cases or experiment.cases)
    add("--cases", nargs="+", choices=experiment.cases, default=cases, metavar="CASE")
    add(
        "--rows",
        nargs="+",
        choices=experiment.rows,
        default=list(experiment.rows),
        metavar="ROW",
    )
    add(
        "--timeout",
        type=float,
        default=timeout,
        help="seconds after which a turn is given up",
    )
    add(
        "--judge",
        action="store_true",
        help="say which requirements hold, and exit with 1 if one fails",
    )
    # With this option a process measures the turn that it reads from standard input.
    add("--turn", action="store_true", help=argparse.SUPPRESS)
    if experiment.environment:
        for environment, says in ENVIRONMENTS.items():
            name = f"--python-{environment}"
            if environment == "ours":
                name = "--python"
            add(name, dest=f"python_{environment}", metavar="PATH", help=says)
    add_common(made)
    return made


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options that programs without turns have too."""
    parser.add_argument(
        "--out", type=Path, help="write the result here, as JSON, and a page beside it"
    )
    parser.add_argument("--force", action="store_true", help="over another result too")
    parser.add_argument(
        "--small",
        action="store_true",
        help="one short round: it shows that it works, and no figures",
    )


def parsed(
    experiment: Experiment, parser: argparse.ArgumentParser
) -> argparse.Namespace:
    options = parser.parse_args()
    if options.small:
        asked = {
            action.dest for action in parser._actions if f"--{action.dest}" in sys.argv
        }
        for name, value in {**SMALL, **experiment.small}.items():
            if name not in asked:
                setattr(options, name, value)
    refuse_to_overwrite(parser, options)
    return options


def refuse_to_overwrite(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> None:
    if options.out and options.out.exists() and not options.force:
        parser.error(
            f"{options.out} exists: name another file, or write over it with --force"
        )
