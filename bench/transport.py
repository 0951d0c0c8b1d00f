"""The transport benchmark: mpiter, its peers and the limit, interleaved in one run; prints tables, verdicts and JSON.

    python bench/transport.py --python-chainer PATH --python-torch PATH --out bench/results/transport.json
    python bench/transport.py --quick                       # one short round: a smoke test, never a conclusion

Every turn (loader x dataset x round) runs in a fresh process of its own (turn.py), in the environment of its loader, so
that no pool outlives its turn; rounds are interleaved and each starts with another loader. The warm-up is excluded.
Guarantees: a loader that fails, hangs or is not installed is a line in the answer, not the end of the run; the first
round also reads every loader's batches to the last byte, outside the timed part, against the in-process loop.
Exit status: 0, or 1 when a requirement or a checksum fails or a turn raises.
The variants of mpiter, which enter no requirement, get half the time in every other round.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import series
from peers import ROWS, STRAGGLER_ROWS
from turn import WARMUP_BATCHES, Turn
from verdict import Verdict, verdicts

from mpiter.lab.cases import CASES
from mpiter.lab.spreads import Spread

SCHEMA = "mpiter.bench.transport/1"
HERE = Path(__file__).resolve().parent
DEFAULT_CASES = ("28x28", "3x64x64", "3x224x224", "straggler")
FIGURES = (
    "batches_per_s",
    "cpu_s_per_batch",
    "parent_cpu_s_per_batch",
    "workers_cpu_s_per_batch",
    "first_batch_s",
    "peak_in_flight_batches",
    "peak_in_flight_bytes",
)
Key = tuple[str, str]  # (case, row)


@dataclass
class Run:
    """What has been measured so far."""

    turns: list[dict[str, Any]] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # row -> why
    problems: list[str] = field(default_factory=list)

    def add(self, answer: dict[str, Any]) -> None:
        self.turns.append(answer)
        where = f"{answer['row']} on {answer['case']}"
        if "absent" in answer:
            self.absent[answer["row"]] = answer["absent"]
        if "error" in answer:
            self.problems.append(f"{where}: {answer['error']}")
        for way, digest in answer.get("digests", {}).items():
            if digest != answer["expected_digest"]:
                self.problems.append(f"{where}: the {way} differ from the in-process loop's")

    def summary(self) -> dict[Key, dict[str, Spread]]:
        return series.summaries(self.turns, FIGURES)

    def versions(self) -> dict[str, dict[str, str]]:
        return {answer["row"]: answer["versions"] for answer in self.turns if "versions" in answer}

    def warnings(self) -> Iterator[str]:
        yield from series.warnings(self.summary())
        for answer in self.turns:
            if answer.get("workers_changed"):
                where = f"{answer['row']} on {answer['case']}"
                yield f"{where}: processes came or went in the timed part; CPU is a lower bound"


def rows_of(case: str, wanted: Sequence[str]) -> list[str]:
    return [row for row in wanted if not case.startswith("straggler") or row in STRAGGLER_ROWS]


def plan(options: argparse.Namespace) -> Iterator[Turn]:
    """Round by round, case by case, each round starting with another row."""
    for number in range(options.rounds):
        for case in options.cases:
            rows = [row for row in rows_of(case, options.rows) if number % 2 == 0 or not ROWS[row].variant]
            for row in series.rotated(rows, number):
                yield Turn(
                    row=row,
                    case=case,
                    workers=options.workers,
                    n_prefetch=options.n_prefetch,
                    shuffle=options.shuffle,
                    warmup_s=options.warmup,
                    seconds=options.seconds / 2 if ROWS[row].variant else options.seconds,
                    verify=number == 0,
                )


def measure(options: argparse.Namespace) -> Run:
    run, pythons = Run(), series.pythons_of(options)

    def python(turn: Turn) -> str:
        return pythons[ROWS[turn.row].environment]

    for answer in series.answers(HERE / "turn.py", plan(options), options.timeout, python=python):
        run.add(answer)
    return run


def table(case: str, summary: Mapping[Key, Mapping[str, Spread]], rows: Sequence[str]) -> str:
    batch = CASES[case]
    shape = "x".join(map(str, batch.shape))
    lines = [
        f"\n{case}: batches of {batch.batch_size} x {shape} float32 and an int64 label"
        + (f"; {batch.work_s * 1e6:g} us of CPU a sample, one in 50 takes 50x" if batch.work_s else ""),
        f"{'':16}{'batches/s':>10}{'IQR':>8}{'of limit':>9}{'CPU ms/batch: parent':>22}{'workers':>9}{'first s':>9}"
        f"{'peak in flight':>16}",
    ]
    limit = summary.get((case, "limit"))
    lines += [_line(row, summary[case, row], limit) for row in rows if (case, row) in summary]
    return "\n".join(lines)


def _line(row: str, figures: Mapping[str, Spread], limit: Mapping[str, Spread] | None) -> str:
    rate = figures["batches_per_s"]
    share = f"{rate.median / limit['batches_per_s'].median:.2f}" if limit else ""
    parent, workers = (1e3 * figures[f"{side}_cpu_s_per_batch"].median for side in ("parent", "workers"))
    first = f"{figures['first_batch_s'].median:.2f}" if "first_batch_s" in figures else "-"
    return (
        f"{row:16}{rate.median:10.1f}{rate.relative:8.0%}{share:>9}{parent:22.3f}{workers:9.3f}{first:>9}"
        f"{_in_flight(figures):>16}"
    )


def _in_flight(figures: Mapping[str, Spread]) -> str:
    if "peak_in_flight_batches" not in figures:
        return "-"
    count = figures["peak_in_flight_batches"].median
    held = figures["peak_in_flight_bytes"].median if "peak_in_flight_bytes" in figures else 0.0
    return f"{count:.0f} / {held / 2**20:.1f} MiB"


def document(
    options: argparse.Namespace, run: Run, judged: list[Verdict], started: float, load: tuple[float, float, float]
) -> dict[str, Any]:
    """The JSON answer: everything that is printed, and every turn."""
    return series.heading(SCHEMA, HERE.parent, started, load) | {
        "versions": run.versions(),
        "settings": {
            "rounds": options.rounds,
            "seconds": options.seconds,
            "warmup_s": options.warmup,
            "warmup_batches": WARMUP_BATCHES,
            "warmup_excluded": True,
            "workers": options.workers,
            "n_prefetch": options.n_prefetch,
            "shuffle": options.shuffle,
        },
        "cases": {name: asdict(CASES[name]) for name in options.cases},
        "rows": {name: ROWS[name].says for name in options.rows},
        "absent": run.absent,
        "problems": run.problems,
        "warnings": list(run.warnings()),
        "summary": series.listed(run.summary()),
        "verdicts": series.spelled(judged),
        "turns": run.turns,
    }


def report(options: argparse.Namespace, run: Run, judged: list[Verdict]) -> None:
    summary = run.summary()
    print(
        f"{options.rounds} interleaved round(s) of {options.seconds:g} s a turn"
        f" (variants: {options.seconds / 2:g} s, every other round)"
        f" after a warm-up of {options.warmup:g} s and {WARMUP_BATCHES} batches, which is excluded; medians."
        f" {options.workers} workers, prefetch {options.n_prefetch}, shuffled: {options.shuffle}."
    )
    for case in options.cases:
        print(table(case, summary, options.rows))
    print()
    for row, why in run.absent.items():
        print(f"absent   {row}: {why}")
    for problem in run.problems:
        print(f"PROBLEM  {problem}")
    for warning in run.warnings():
        print(f"warning  {warning}")
    checked = {answer["row"] for answer in run.turns if "digests" in answer}
    print(f"checksums taken outside the timed part, against the in-process loop: {', '.join(sorted(checked))}\n")
    for verdict in judged:
        print(verdict.line())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="timed part of a turn (default 1.5)")
    parser.add_argument("--warmup", type=float, default=0.4, help="seconds of warm-up, excluded (default 0.4)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--n-prefetch", type=int, default=2, help="torch's prefetch_factor too (default 2)")
    parser.add_argument("--no-shuffle", dest="shuffle", action="store_false", help="sequential order in the timed part")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(DEFAULT_CASES), metavar="CASE")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a turn is given up")
    series.add_pythons(parser)
    parser.add_argument("--out", type=Path, help="write the JSON answer here")
    parser.add_argument("--quick", action="store_true", help="one round of 0.3 s: a smoke test")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds, options.warmup = 1, 0.3, 0.3
    return options


def main() -> int:
    options, started, load = parse(), time.time(), os.getloadavg()
    run = measure(options)
    judged = verdicts(run.summary(), options.rounds, options.cases)
    report(options, run, judged)
    series.keep(options.out, document(options, run, judged, started, load))
    return int(bool(run.problems) or any(verdict.failed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
