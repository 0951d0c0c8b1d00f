"""A benchmark of its own: a program that is driven as the lab's experiments are, and judges what it finds.

`bench/` is made of them.  A program says what it is (`Bench`) and is conducted: the same turns in processes of their
own, the same rounds, spreads and files as in the lab; a command line, tables, verdicts and one JSON answer.  Guarantees
that a turn which fails, hangs or lacks its package is a line in the answer, not the end of the run, and that no answer
is written over another unless it is told to.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import measured, series
from .results import keep
from .spreads import Spread, spread
from .surroundings import ROOT, command, heading, versions
from .text import NOTHING, drawn, median, number, wrapped
from .turns import Answer, Turn, ask
from .verdict import MIN_ROUNDS, Claim, Summary, Verdict, judge
from .views import Table

ENVIRONMENTS = {
    "ours": "the Python of mpiter, the loop and the limit",
    "chainer": "the Python that has Chainer (needs NumPy < 1.24)",
    "torch": "the Python that has torch",
}
_COMMON = ("rounds", "seconds", "warmup", "workers")


@dataclass(frozen=True)
class Bench:
    """What one benchmark is; a turn's answer has some of its figures, the one that matters most standing first."""

    schema: str
    script: str
    doc: str | None
    cases: Mapping[str, str]  # what each of them is
    rows: Mapping[str, str]
    figures: Mapping[str, str]  # how a column with it is headed; those headed "" are kept and not shown
    take: Callable[[Turn], Answer]  # measures, in the turn's process: figures, problems
    rows_of: Callable[[str], Iterable[str]] | None = None  # of a case, if not all of them
    claims: Callable[[Summary], Iterable[Claim]] = lambda summary: ()
    against: str = ""  # the row that the others' first figures are multiples of
    environment: Callable[[str, str], str] | None = None  # of a row on a case, if not all are ours
    paths: Sequence[str] = ()  # where else a turn finds its modules
    asked: Sequence[str] = ()  # options beyond the common ones, which turns are told
    prepare: Callable[[argparse.Namespace], None] = lambda options: None
    default_cases: Sequence[str] = ()  # all of them, if none are named

    def turns(self, options: argparse.Namespace) -> Iterator[Turn]:
        """Of one round."""
        wanted, told = getattr(options, "rows", self.rows), {name: getattr(options, name) for name in self.asked}
        for case in options.cases:
            for row in self.rows_of(case) if self.rows_of else self.rows:
                if row in wanted:
                    at = {"workers": options.workers}
                    yield Turn(self.schema, row, case, at, options.seconds, options.warmup, 0, told)

    def table(self, case: str, summary: Summary) -> Table:
        """What was found of a case: of the first figure its spread as well, and how it compares."""
        found = {row: summary[case, row] for row in self.rows if (case, row) in summary}
        first, *others = [
            name for name, head in self.figures.items() if head and any(name in f for f in found.values())
        ]
        base = found.get(self.against, {}).get(first)
        ratio = [f"/ {self.against}"] if self.against else []
        lines = []
        for row, figures in found.items():
            main = figures.get(first)
            share = f"{main.median / base.median:.2f}" if main and base and base.median else NOTHING
            spread_of = f"{main.relative:.0%}" if main else NOTHING
            rest = (median(figures.get(name)) for name in others)
            lines.append((row, median(main), spread_of, *([share] if ratio else []), *rest))
        heads = ("", self.figures[first], "IQR", *ratio, *(self.figures[name] for name in others))
        return Table(f"{case}: {self.cases[case]}", heads, tuple(lines))


def conduct(bench: Bench, parser: argparse.ArgumentParser) -> int:
    """Measure, report, keep; the exit status is 1 when a requirement fails or a turn goes wrong."""
    options = _parsed(parser)
    if options.turn:
        measured.main(lambda turn: _with_versions(bench.take(turn)))
    began, load = time.time(), os.getloadavg()
    bench.prepare(options)
    found = _measured(bench, options)
    answers = [_flat(turn, answer) for _, turn, answer in found.answers]
    summary = summarized(answers, bench.figures)
    told = {
        "absent": {one["row"]: one["absent"] for one in answers if "absent" in one},
        "problems": [*_problems(answers), *([found.ended_by] if found.ended_by else [])],
        "warnings": [*_noise(summary), *_changes(answers)],
    }
    judged = [judge(claim, options.rounds) for claim in bench.claims(summary) if claim.case in options.cases]
    _print(bench, options, summary, told, judged)
    with series.held_back():
        settings = {"settings": {name: getattr(options, name) for name in (*_COMMON, *bench.asked)}}
        about: dict[str, Any] = {"cases": {case: bench.cases[case] for case in options.cases}, "rows": dict(bench.rows)}
        about["versions"] = {one["row"]: one["versions"] for one in answers if "versions" in one}
        verdicts = {"verdicts": [verdict.spelled() for verdict in judged], "turns": answers}
        keep_answer(options.out, bench.schema, began, load, settings | about | told | listed(summary) | verdicts)
    if found.ended_by == series.INTERRUPTED:
        return 130
    return int(bool(told["problems"]) or any(verdict.failed for verdict in judged))


def _with_versions(answer: Answer) -> Answer:
    """Of what is installed where it was measured."""
    return answer if "absent" in answer or "error" in answer else answer | {"versions": versions()}


def _measured(bench: Bench, options: argparse.Namespace) -> series.Series:
    ours = getattr(options, "python_ours", None) or sys.executable
    pythons = {name: getattr(options, f"python_{name}", None) or ours for name in ENVIRONMENTS}

    def asked(turn: Turn) -> Answer:
        python = pythons[bench.environment(turn.row, turn.case) if bench.environment else "ours"]
        return ask(turn, options.timeout, [python, "-W", "ignore", bench.script, "--turn"], *bench.paths)

    with series.ended_like_ctrl_c():
        return series.run(Path(bench.script).stem, list(bench.turns(options)), options.rounds, asked)


def _flat(turn: Turn, answer: Answer) -> dict[str, Any]:
    asked = {"row": turn.row, "case": turn.case, "workers": turn.workers, **turn.options}
    return asked | {"warmup_s": turn.warmup_s, "seconds": turn.seconds} | answer


def summarized(
    answers: Iterable[Mapping[str, Any]], figures: Iterable[str]
) -> dict[tuple[str, str], dict[str, Spread]]:
    """By case and row: the figures that there are, over the rounds."""
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    names = list(figures)
    for one in answers:
        for figure in names:
            if one.get(figure) is not None:
                values[one["case"], one["row"]][figure].append(one[figure])
    return {key: {figure: spread(some) for figure, some in named.items()} for key, named in values.items()}


def _problems(answers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for one in answers:
        for problem in [*([one["error"]] if "error" in one else []), *one.get("problems", ())]:
            yield f"{one['row']} on {one['case']}: {problem}"


def _noise(summary: Summary) -> Iterator[str]:
    for (case, row), figures in summary.items():
        name, found = next(iter(figures.items()))
        if found.median and found.is_noisy:
            yield f"{row} on {case}: the IQR of {name} is {found.relative:.0%} of the median; the machine was not quiet"


def _changes(answers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for one in answers:
        if one.get("workers_changed"):
            yield f"{one['row']} on {one['case']}: processes came or went in the timed part; CPU is a lower bound"


def _print(
    bench: Bench, options: argparse.Namespace, summary: Summary, told: Mapping[str, Any], judged: Sequence[Verdict]
) -> None:
    how = (
        f"{options.rounds} interleaved round(s) of {number(options.seconds)} s a turn, each in a process of its own, "
        f"after a warm-up of {number(options.warmup)} s; medians."
    )
    print(wrapped(how))
    for case in options.cases:
        if any(where == case for where, _ in summary):
            print("", *drawn(bench.table(case, summary)), sep="\n")
    print()
    for row, why in told["absent"].items():
        print(wrapped(f"{row}: {why}", "absent"))
    for problem in told["problems"]:
        print(wrapped(problem, "PROBLEM"))
    for remark in told["warnings"]:
        print(wrapped(remark, "warning"))
    if options.rounds < MIN_ROUNDS:
        print(f"fewer than {MIN_ROUNDS} rounds: not a conclusion")
    for verdict in judged:
        print(verdict.line())


def listed(summary: Summary) -> dict[str, Any]:
    """A summary as JSON has it."""
    cells = (
        {"case": case, "row": row} | {n: asdict(s) for n, s in found.items()} for (case, row), found in summary.items()
    )
    return {"summary": list(cells)}


def keep_answer(
    file: Path | None, schema: str, began: float, load: tuple[float, float, float], answer: dict[str, Any]
) -> None:
    """The JSON answer, beneath what every answer begins with."""
    if file:
        head = heading(schema, ROOT, began, load) | {"command": command()}
        keep(file, json.dumps(head | answer, indent=1, default=str) + "\n")


# -- the command line ------------------------------------------------------------------------------------------------


def command_line(bench: Bench, *, warmup: float, timeout: float, seconds: float = 2.0) -> argparse.ArgumentParser:
    """What every benchmark can be told."""
    made = argparse.ArgumentParser(description=(bench.doc or "").partition("\n")[0])
    add = made.add_argument
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=seconds, help=f"timed part of a turn (default {seconds:g})")
    add("--warmup", type=float, default=warmup, help=f"seconds of loading before, excluded (default {warmup:g})")
    add("--workers", type=int, default=2, help="where the case doesn't say (default 2)")
    add("--cases", nargs="+", choices=bench.cases, default=list(bench.default_cases or bench.cases), metavar="CASE")
    add("--rows", nargs="+", choices=bench.rows, default=list(bench.rows), metavar="ROW")
    add("--timeout", type=float, default=timeout, help="seconds after which a turn is given up")
    add("--out", type=Path, help="write the JSON answer here")
    add("--force", action="store_true", help="over another answer too")
    add("--quick", action="store_true", help="one short round: a smoke test")
    add("--turn", action="store_true", help=argparse.SUPPRESS)  # measure what is told on standard input
    for environment, says in ENVIRONMENTS.items() if bench.environment else ():
        name = "--python" if environment == "ours" else f"--python-{environment}"
        add(name, dest=f"python_{environment}", metavar="PATH", help=says)
    return made


def _parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    options = made.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.warmup = 1, 0.5, 0.5
    if options.out and options.out.exists() and not options.force:
        made.error(f"{options.out} exists: name another file, or write over it with --force")
    return options
