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
    ("28x28", "chainer"): 10.0,
    ("28x28", "torch"): 6.0,
    ("3x64x64", "chainer"): 6.0,
    ("3x64x64", "torch"): 8.0,
    ("3x224x224", "chainer"): 4.5,
    ("3x224x224", "torch"): 6.0,
    ("straggler", "chainer"): 1.5,
    ("straggler", "torch"): 1.5,
}
MUST_BE_CHEAPER = ("28x28", "3x64x64", "3x224x224")  # CPU seconds per batch, both sides
AIM_OF_LIMIT = {"28x28": 0.6, "3x64x64": 0.8, "3x224x224": 0.8}


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
        found = "" if self.found is None else f"{self.found:.2f}"
        return f"{'must' if self.must else 'aim ':4}  {self.claim:58} {found:>8}  {self.says.value}"


def verdicts(summary: Summary, rounds: int, cases: list[str]) -> list[Verdict]:
    claims = [*_faster(summary), *_cheaper(summary), *_near_limit(summary)]
    return [judge(claim, rounds) for claim in claims if claim.case in cases]


@dataclass(frozen=True)
class Claim:
    """What is claimed of one case, the ratio found (None: a row is missing) and whether it holds."""

    case: str
    text: str
    found: float | None
    holds: bool
    must: bool = True


def judge(claim: Claim, rounds: int) -> Verdict:
    if claim.found is None:
        says = Says.NOT_MEASURED
    elif rounds < MIN_ROUNDS:
        says = Says.NO_CONCLUSION
    else:
        says = Says.PASS if claim.holds else Says.FAIL
    return Verdict(claim.text, claim.found, says, claim.must)


def _faster(summary: Summary) -> Iterator[Claim]:
    for (case, peer), least in MUST_BE_FASTER.items():
        for ours in OURS:
            found = ratio(summary, case, ours, peer, "batches_per_s")
            yield Claim(case, f"{case}: {ours} >= {least} x {peer}", found, found is not None and found >= least)


def _cheaper(summary: Summary) -> Iterator[Claim]:
    for case, ours, peer in product(MUST_BE_CHEAPER, OURS, PEERS):
        found = ratio(summary, case, ours, peer, "cpu_s_per_batch")
        claim = f"{case}: {ours} CPU (parent + workers) < {peer}'s"
        yield Claim(case, claim, found, found is not None and found < 1.0)


def _near_limit(summary: Summary) -> Iterator[Claim]:
    for case, share in AIM_OF_LIMIT.items():
        for ours in OURS:
            found = ratio(summary, case, ours, "limit", "batches_per_s")
            holds = found is not None and found >= share
            yield Claim(case, f"{case}: {ours} >= {share} of the limit", found, holds, must=False)


def ratio(summary: Summary, case: str, row: str, other: str, figure: str) -> float | None:
    ours, theirs = summary.get((case, row)), summary.get((case, other))
    if not ours or not theirs or not theirs[figure].median:
        return None
    return ours[figure].median / theirs[figure].median
