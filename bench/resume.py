"""Resuming in the middle of an epoch: what is lost or given twice, by ours and by others: a table, verdicts, JSON.

    python bench/resume.py --peers PATH PATH --out bench/results/resume.json
    python bench/resume.py --rows ours --scenes trainer     # one of them

Each loader shuffles, has two workers and is resumed by its own documented way; what each rank is handed goes to
receipts, and one auditor judges them all. 288 samples, batches of 12 over all ranks, a state every 3 steps; samples,
workers and ranks divide evenly, so nothing that a documentation says of remainders is at issue. A trainer is ended by
SIGKILL; what it was handed after its last state is void, as the model is. `--peers` are Pythons that have them.
Must: ours loses nothing, gives nothing twice and raises nothing, in each scene.
Exit status: 0, or 1 when a requirement fails or what is ours isn't there.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import checkout  # noqa: F401  # before mpiter
from resume_peers import LOADERS
from resume_scenes import SCENES, SCHEMA, Found, Sitting, Stage
from resume_sitting import LENGTH, LOST, PREPARE, TWICE, take

from mpiter.asked import at_least as from_on
from mpiter.lab import measured
from mpiter.lab.bench import keep_answer
from mpiter.lab.text import wrapped
from mpiter.lab.verdict import Verdict, at_most, judge


def played(options: argparse.Namespace, versions: dict[str, dict[str, str]]) -> Iterator[Found]:
    """Each loader in each scene, round by round."""
    with tempfile.TemporaryDirectory(prefix="mpiter-bench-") as folder:
        stages = {row: prepared(row, options, Path(folder) / str(at), versions) for at, row in enumerate(options.rows)}
        for round_ in range(options.rounds):
            for name in options.scenes:
                for row, stage in stages.items():
                    found = (
                        Found(row, name, round_, why=stage) if isinstance(stage, str) else stage.play(row, name, round_)
                    )
                    tell(options, found)
                    yield found


def prepared(row: str, options: argparse.Namespace, data: Path, versions: dict[str, dict[str, str]]) -> Stage | str:
    """With the first Python that has what it needs; or why none does."""
    data.mkdir()
    why = ""
    for python in [sys.executable, *options.peers]:
        stage = Stage(python, data, options.timeout, options.plant)
        answer = stage.ask(row, PREPARE, Sitting(), batch=12)
        if "versions" in answer:
            versions[row] = answer["versions"]
            return stage
        why = answer.get("error") or why or answer["absent"]
    return f"absent: {why}"


def tell(options: argparse.Namespace, found: Found) -> None:
    """While it goes on: minutes, with all of them."""
    number = f"round {found.round + 1}, " if options.rounds > 1 else ""
    print(wrapped(f"{number}{found.scene}: {found.row}: {found}", indent=4), flush=True)


def table(options: argparse.Namespace, all_found: Sequence[Found]) -> Iterator[str]:
    """By scene, each loader's rounds, told once where they are the same."""
    for name in options.scenes:
        yield f"\n{name}: {SCENES[name].says}"
        for row in options.rows:
            told = dict.fromkeys(str(found) for found in all_found if (found.row, found.scene) == (row, name))
            yield wrapped(f"{row:22}{' | '.join(told)}", indent=24)


def verdicts(options: argparse.Namespace, all_found: Sequence[Found]) -> Iterator[Verdict]:
    """Of what is ours."""
    for name in options.scenes:
        for row in (row for row in options.rows if row.startswith("ours")):
            bad = sum(found.bad for found in all_found if (found.row, found.scene) == (row, name))
            yield judge(at_most(name, f"{row}: lost, given twice, raised", bad, 0), options.rounds, enough=1)


def main() -> int:
    options = parsed()
    if options.turn:
        measured.main(take)
    began, load, versions = time.time(), os.getloadavg(), dict[str, dict[str, str]]()
    all_found = list(played(options, versions))
    print(*table(options, all_found), sep="\n")
    print()
    judged = list(verdicts(options, all_found))
    print(*[verdict.line() for verdict in judged], sep="\n")
    about: dict[str, Any] = {
        "settings": {"rounds": options.rounds, "samples": LENGTH, "timeout_s": options.timeout},
        "scenes": {
            name: {"says": SCENES[name].says, "sittings": [*map(asdict, SCENES[name].sittings)]}
            for name in options.scenes
        },
        "rows": {row: LOADERS[row].way for row in options.rows},
        "versions": versions,
        "verdicts": [verdict.spelled() for verdict in judged],
        "found": [asdict(found) | {"says": str(found)} for found in all_found],
    }
    keep_answer(options.out, SCHEMA, began, load, about)
    return int(any(verdict.failed for verdict in judged))


def parsed() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add("--peers", nargs="+", default=[], metavar="PATH", help="Pythons that have the others")
    add("--scenes", nargs="+", choices=SCENES, default=list(SCENES), metavar="SCENE")
    add("--rows", nargs="+", choices=LOADERS, default=list(LOADERS), metavar="ROW")
    add("--rounds", type=from_on(1), default=3, help="each with a seed of its own (default 3)")
    add("--timeout", type=float, default=60.0, help="seconds after which a process hangs (default 60)")
    add("--plant", choices=[LOST, TWICE], help="a fault in each resumed sitting, to see that it is found")
    add("--out", type=Path, help="write the JSON answer here")
    add("--force", action="store_true", help="over another answer too")
    add("--turn", action="store_true", help=argparse.SUPPRESS)  # be one rank's process
    options = made.parse_args()
    if options.out and options.out.exists() and not options.force:
        made.error(f"{options.out} exists: name another file, or write over it with --force")
    return options


if __name__ == "__main__":
    sys.exit(main())
