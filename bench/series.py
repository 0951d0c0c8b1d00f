"""A series of turns, each in a process of its own: what the benchmarks' command lines have in common.

The driver asks a script for one turn at a time (`--turn`), whose answer is a line of JSON, and keeps what came of all
of them (`--out`), never over another answer unless it is told to. A benchmark that has nothing special about it says
what it is (`Bench`) and is conducted.
Guarantees that rounds are interleaved, each beginning with another row, and that a turn which fails, hangs or lacks its
package is an answer, not the end of the run. Assumes that a script imports this module, and so checkout.py, before
mpiter.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from checkout import ROOT
from verdict import MIN_ROUNDS, Claim, Summary, Verdict, judge

from mpiter.lab.spreads import Spread, spread
from mpiter.lab.surroundings import command
from mpiter.lab.surroundings import heading as heading_of
from mpiter.lab.turns import answer_of

ENVIRONMENTS = {
    "ours": "the Python of mpiter, the loop and the limit",
    "chainer": "the Python that has Chainer (needs NumPy < 1.24)",
    "torch": "the Python that has torch",
}


@dataclass(frozen=True)
class Turn:
    """What is asked of one process."""

    row: str
    case: str
    workers: int
    warmup_s: float
    seconds: float


@dataclass(frozen=True)
class Bench:
    """What one benchmark is; a turn's answer has some of its figures, the one that matters most standing first."""

    schema: str
    script: str
    cases: Mapping[str, str]  # what each of them is
    rows: Mapping[str, str]
    figures: Sequence[str]
    rows_of: Callable[[str], Sequence[str]]  # a case
    take: Callable[[Turn], dict[str, Any]]  # measures, in the turn's process
    table: Callable[[str, Summary], Iterable[str]]  # of one case
    claims: Callable[[Summary], Iterable[Claim]]
    environment: Callable[[Turn], str] = lambda turn: "ours"

    def plan(self, options: argparse.Namespace) -> Iterator[Turn]:
        """Round by round, case by case, each round starting with another row."""
        for number in range(options.rounds):
            for case in options.cases:
                for row in rotated(self.rows_of(case), number):
                    yield Turn(row, case, options.workers, options.warmup, options.seconds)


def conduct(bench: Bench, options: argparse.Namespace) -> int:
    """Measure, report, keep; the exit status is 1 when a requirement fails or a turn raises."""
    if options.turn:
        answer(bench.take(Turn(**json.loads(options.turn))))
    began, load = time.time(), os.getloadavg()
    pythons = pythons_of(options)
    turns = bench.plan(options)
    found = answers(Path(bench.script), turns, options.timeout, python=lambda turn: pythons[bench.environment(turn)])
    summary = summaries(found, bench.figures)
    judged = [judge(claim, options.rounds) for claim in bench.claims(summary) if claim.case in options.cases]
    remarks = list(warnings(summary))
    report(bench, options, found, remarks, judged)
    keep(options.out, heading(bench.schema, ROOT, began, load) | document(bench, options, found, remarks, judged))
    return int(any("error" in turn for turn in found) or any(verdict.failed for verdict in judged))


def report(
    bench: Bench, options: argparse.Namespace, found: Sequence[Any], remarks: Sequence[str], judged: Sequence[Verdict]
) -> None:
    """The tables, what went wrong, and the verdicts."""
    print(f"{options.rounds} interleaved round(s), each turn in a process of its own; medians.")
    summary = summaries(found, bench.figures)
    for case in options.cases:
        print(f"\n{case}: {bench.cases[case]}", *bench.table(case, summary), sep="\n")
    conclude(found, remarks, options.rounds, judged)


def conclude(found: Sequence[Any], remarks: Iterable[str], rounds: int, judged: Iterable[Verdict]) -> None:
    """What follows the tables: what went wrong or is doubtful, and the verdicts."""
    print()
    for turn in found:
        if "absent" in turn:
            print(f"absent   {turn['row']}: {turn['absent']}")
        if "error" in turn:
            print(f"PROBLEM  {turn['row']} on {turn['case']}: {turn['error']}")
    for remark in remarks:
        print(f"warning  {remark}")
    if rounds < MIN_ROUNDS:
        print(f"fewer than {MIN_ROUNDS} rounds: not a conclusion")
    for verdict in judged:
        print(verdict.line())


def document(
    bench: Bench, options: argparse.Namespace, found: Sequence[Any], remarks: Sequence[str], judged: Sequence[Verdict]
) -> dict[str, Any]:
    """Everything that is printed, and every turn."""
    return {
        "versions": {turn["row"]: turn["versions"] for turn in found if "versions" in turn},
        "settings": {name: getattr(options, name) for name in ("rounds", "seconds", "warmup", "workers")},
        "cases": {case: bench.cases[case] for case in options.cases},
        "rows": dict(bench.rows),
        "summary": listed(summaries(found, bench.figures)),
        "warnings": list(remarks),
        "verdicts": spelled(judged),
        "turns": list(found),
    }


# -- the command line ------------------------------------------------------------------------------------------------


def parser(doc: str | None, cases: Iterable[str], *, warmup: float, timeout: float) -> argparse.ArgumentParser:
    """What every benchmark can be told."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    add = made.add_argument
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=2.0, help="timed part of a turn (default 2)")
    add("--warmup", type=float, default=warmup, help=f"seconds of loading before, excluded (default {warmup:g})")
    add("--workers", type=int, default=2, help="where the case doesn't say (default 2)")
    add("--cases", nargs="+", choices=list(cases), default=list(cases), metavar="CASE")
    add("--timeout", type=float, default=timeout, help="seconds after which a turn is given up")
    add("--out", type=Path, help="write the JSON answer here")
    add("--force", action="store_true", help="over another answer too")
    add("--quick", action="store_true", help="one short round: a smoke test")
    add("--turn", help=argparse.SUPPRESS)
    return made


def add_pythons(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Where the rows come from different environments."""
    for environment, says in ENVIRONMENTS.items():
        name = "--python" if environment == "ours" else f"--python-{environment}"
        made.add_argument(name, dest=f"python_{environment}", metavar="PATH", help=says)
    return made


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    options = made.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.warmup = 1, 0.5, 0.5
    if options.out and options.out.exists() and not options.force:
        made.error(f"{options.out} exists: name another file, or write over it with --force")
    return options


def pythons_of(options: argparse.Namespace) -> dict[str, str]:
    """The Python of each environment: ours, unless we were told."""
    ours = getattr(options, "python_ours", None) or sys.executable
    return {name: getattr(options, f"python_{name}", None) or ours for name in ENVIRONMENTS}


# -- turns -----------------------------------------------------------------------------------------------------------


def rotated(rows: Sequence[str], number: int) -> list[str]:
    """The rows, beginning with another one in each round."""
    shift = number % max(len(rows), 1)
    return [*rows[shift:], *rows[:shift]]


def answer(figures: dict[str, Any]) -> NoReturn:
    """Say what was measured and end at once: how long workers take to end is not measured, and some never do."""
    print(json.dumps(figures, default=str))
    sys.stdout.flush()
    os._exit(0)


def versions(*packages: tuple[str, str]) -> dict[str, str]:
    """Of what was measured, in the turn's process."""
    return {"python": platform.python_version(), "numpy": np.__version__} | dict(packages)


def answers(
    script: Path, turns: Iterable[Any], timeout: float, *paths: Path, python: Callable[[Any], str] | None = None
) -> list[dict[str, Any]]:
    """What came of each turn; a line on the terminal says where we are.  Who ends us ends the turn under way.

    A row whose package is missing is asked for once.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found, absent, planned = [], set(), list(turns)
    for number, turn in enumerate(planned, 1):
        if turn.row in absent:
            continue
        _progress(f"{number}/{len(planned)} {turn.case} {turn.row}")
        executable = python(turn) if python else sys.executable
        command = [executable, "-W", "ignore", str(script), "--turn", json.dumps(asdict(turn))]
        found.append(asdict(turn) | answer_of(command, timeout, *map(str, paths)))
        if "absent" in found[-1]:
            absent.add(turn.row)
    _progress("")
    return found


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)


# -- what came of them -----------------------------------------------------------------------------------------------


def summaries(answers: Iterable[Mapping[str, Any]], figures: Sequence[str]) -> dict[tuple[str, str], dict[str, Spread]]:
    """By case and row: the figures that there are, over the rounds."""
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in answers:
        for figure in figures:
            if one.get(figure) is not None:
                values[one["case"], one["row"]][figure].append(one[figure])
    return {key: {figure: spread(some) for figure, some in named.items()} for key, named in values.items()}


def summary(answers: list[dict[str, Any]], case: str, row: str, figures: Sequence[str]) -> dict[str, Spread]:
    """The figures of one row of one case over the rounds, or nothing."""
    return summaries(answers, figures).get((case, row), {})


def warnings(summary: Summary) -> Iterator[str]:
    for (case, row), figures in summary.items():
        name, found = next(iter(figures.items()))
        if found.median and found.is_noisy:
            yield f"{row} on {case}: the IQR of {name} is {found.relative:.0%} of the median; the machine was not quiet"


def listed(summary: Summary) -> list[dict[str, Any]]:
    """A summary as JSON has it."""
    return [
        {"case": case, "row": row} | {name: asdict(value) for name, value in figures.items()}
        for (case, row), figures in summary.items()
    ]


def spelled(judged: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Verdicts as JSON has them."""
    return [asdict(verdict) | {"says": verdict.says.value} for verdict in judged]


def heading(schema: str, root: Path, began: float, load: tuple[float, float, float]) -> dict[str, Any]:
    """What a benchmark's JSON answer begins with."""
    return heading_of(schema, root, began, load) | {"command": command()}


def keep(file: Path | None, document: dict[str, Any]) -> None:
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document, indent=1) + "\n")
