"""What must hold, what is aimed at, and whether the medians of a run say so: pure functions of the summary.

Runs in the driver. A requirement fails the run, an aim is only reported.
Guarantees: a ratio is one of medians over interleaved rounds; from fewer than three rounds nothing is concluded, and
from a row that is missing neither. A requirement on throughput holds for lists of samples and for columns, each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product

from mpiter.lab.spreads import Spread

Summary = Mapping[tuple[str, str], Mapping[str, Spread]]  # (case, row) -> figure -> its spread

MIN_ROUNDS = 3
OURS = ("ours", "ours_columns")
PEERS = ("chainer", "torch")
MUST_BE_FASTER = {
    ("28x28", "chainer"): 18.0,
    ("28x28", "torch"): 15.0,
    ("3x64x64", "chainer"): 12.0,
    ("3x64x64", "torch"): 15.0,
    ("3x224x224", "chainer"): 5.0,
    ("3x224x224", "torch"): 9.0,
    ("straggler", "chainer"): 1.5,
    ("straggler", "torch"): 1.5,
}
MUST_BE_CHEAPER = ("28x28", "3x64x64", "3x224x224")  # CPU seconds per batch, both sides
MOST_CPU_OF_LIMIT = {"28x28": 2.0, "3x64x64": 2.0, "3x224x224": 1.2}  # the same, as a multiple of the limit's
MUST_OF_LIMIT = {"28x28": 0.5, "3x64x64": 0.5, "3x224x224": 0.85, "straggler": 0.85}
AIM_OF_LIMIT = {"28x28": 0.65, "3x64x64": 0.65, "3x224x224": 0.95, "straggler": 0.95}
STRICT_MUST_OF_LIMIT = {"28x28": 0.35, "3x64x64": 0.4, "3x224x224": 0.75}  # with run_ahead=0


class Says(Enum):
    """PASS and FAIL conclude; the others do not."""

    PASS = "PASS"
    FAIL = "FAIL"
    NO_CONCLUSION = "not a conclusion"  # too few rounds
    NOT_MEASURED = "not measured"  # a row is missing


@dataclass(frozen=True)
class Verdict:
    """One claim, the figure found and what it says; `must` tells a requirement from an aim."""

    claim: str
    found: float | None
    says: Says
    must: bool

    @property
    def failed(self) -> bool:
        return self.must and self.says is Says.FAIL

    def line(self) -> str:
        found = "" if self.found is None else f"{self.found:.{2 if self.found >= 0.1 else 4}f}"
        return f"{'must' if self.must else 'aim ':4}  {self.claim:66} {found:>8}  {self.says.value}"


def verdicts(summary: Summary, rounds: int, cases: list[str]) -> list[Verdict]:
    claims = [*_faster(summary), *_cheaper(summary), *_near_limit(summary), *_frugal(summary)]
    return [judge(claim, rounds) for claim in claims if claim.case in cases]


@dataclass(frozen=True)
class Claim:
    """What is claimed of one case, the ratio found (None: a row is missing) and whether it holds."""

    case: str
    text: str
    found: float | None
    holds: bool
    must: bool = True


def at_least(case: str, what: str, found: float | None, bound: float, of: str = "", must: bool = True) -> Claim:
    return Claim(case, f"{case}: {what} >= {bound:g}{of}", found, found is not None and found >= bound, must)


def at_most(case: str, what: str, found: float | None, bound: float, of: str = "", must: bool = True) -> Claim:
    return Claim(case, f"{case}: {what} <= {bound:g}{of}", found, found is not None and found <= bound, must)


def judge(claim: Claim, rounds: int, enough: int = MIN_ROUNDS) -> Verdict:
    if claim.found is None:
        says = Says.NOT_MEASURED
    elif rounds < enough:
        says = Says.NO_CONCLUSION
    else:
        says = Says.PASS if claim.holds else Says.FAIL
    return Verdict(claim.text, claim.found, says, claim.must)


def _faster(summary: Summary) -> Iterator[Claim]:
    for (case, peer), least in MUST_BE_FASTER.items():
        for ours in OURS:
            yield at_least(case, ours, ratio(summary, case, ours, peer, "batches_per_s"), least, f" x {peer}")


def _cheaper(summary: Summary) -> Iterator[Claim]:
    for case, ours, peer in product(MUST_BE_CHEAPER, OURS, PEERS):
        found = ratio(summary, case, ours, peer, "cpu_s_per_batch")
        claim = f"{case}: {ours} CPU (parent + workers) < {peer}'s"
        yield Claim(case, claim, found, found is not None and found < 1.0)


def _near_limit(summary: Summary) -> Iterator[Claim]:
    asked = [(MUST_OF_LIMIT, OURS, True), (STRICT_MUST_OF_LIMIT, ("ours_strict",), True), (AIM_OF_LIMIT, OURS, False)]
    for shares, rows, must in asked:
        for (case, share), row in product(shares.items(), rows):
            found = ratio(summary, case, row, "limit", "batches_per_s")
            yield at_least(case, row, found, share, " of the limit", must)


def _frugal(summary: Summary) -> Iterator[Claim]:
    for (case, most), ours in product(MOST_CPU_OF_LIMIT.items(), OURS):
        found = ratio(summary, case, ours, "limit", "cpu_s_per_batch")
        yield at_most(case, f"{ours} CPU (parent + workers)", found, most, " x the limit's")


def ratio(summary: Summary, case: str, row: str, other: str, figure: str) -> float | None:
    ours, theirs = median(summary, case, row, figure), median(summary, case, other, figure)
    return ours / theirs if ours is not None and theirs else None


def median(summary: Summary, case: str, row: str, figure: str) -> float | None:
    found = summary.get((case, row), {}).get(figure)
    return None if found is None else found.median
