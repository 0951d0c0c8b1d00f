"""A series of turns, each in a process of its own: what the benchmarks' command lines have in common.

The driver asks its own script for one turn at a time (`--turn`), whose answer is a line of JSON, and keeps what came of
all of them (`--out`), never over another answer unless it is told to.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from mpiter.lab.spreads import Spread, spread
from mpiter.lab.surroundings import command
from mpiter.lab.surroundings import heading as heading_of
from mpiter.lab.turns import answer_of


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


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    options = made.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.warmup = 1, 0.5, 0.5
    if options.out and options.out.exists() and not options.force:
        made.error(f"{options.out} exists: name another file, or write over it with --force")
    return options


def answer(figures: dict[str, Any]) -> NoReturn:
    """Say what was measured and end at once: how long workers take to end is not measured, and some never do."""
    print(json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)


def answers(script: Path, turns: Iterable[Any], timeout: float, *paths: Path) -> list[dict[str, Any]]:
    """What came of each turn; a line on the terminal says where we are.  Who ends us ends the turn under way."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found, planned = [], list(turns)
    for number, turn in enumerate(planned, 1):
        if sys.stderr.isatty():
            says = f"\r{number}/{len(planned)} {turn.case} {turn.row}\033[K"
            print(says, end="", file=sys.stderr, flush=True)
        command = [sys.executable, "-W", "ignore", str(script), "--turn", json.dumps(asdict(turn))]
        found.append(asdict(turn) | answer_of(command, timeout, *map(str, paths)))
    return found


def heading(schema: str, root: Path, began: float, load: tuple[float, float, float]) -> dict[str, Any]:
    """What a benchmark's JSON answer begins with."""
    return heading_of(schema, root, began, load) | {"command": command()}


def keep(file: Path | None, document: dict[str, Any]) -> None:
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document, indent=1) + "\n")


def summary(answers: list[dict[str, Any]], case: str, row: str, figures: Sequence[str]) -> dict[str, Spread]:
    """The figures of one row of one case over the rounds, or nothing."""
    found = [answer for answer in answers if (answer["case"], answer["row"]) == (case, row) and "error" not in answer]
    return {figure: spread([answer[figure] for answer in found]) for figure in figures} if found else {}
