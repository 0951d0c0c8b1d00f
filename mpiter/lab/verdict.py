"""What must hold, what is aimed at, and whether the medians of a run say so.

Pure.  A requirement fails the run, an aim is only reported.  Guarantees that a ratio is one of medians over interleaved
rounds, and that nothing is concluded from fewer than three rounds, nor from a row that is missing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from .spreads import Spread

Summary = Mapping[tuple[str, str], Mapping[str, Spread]]  # (case, row) -> figure -> its spread

MIN_ROUNDS = 3
_CLAIM = 46  # characters of a line that has 80 with what stands around it


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
        claim, *more = textwrap.wrap(self.claim, _CLAIM)
        lines = [f"{'must' if self.must else 'aim ':4}  {claim:{_CLAIM}} {found:>8}  {self.says.value}"]
        return "\n".join([*lines, *(f"{'':6}{line}" for line in more)])

    def spelled(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"says": self.says.value}


@dataclass(frozen=True)
class Claim:
    """What is claimed of one case, the figure found (None: a row is missing) and whether it holds."""

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


def ratio(summary: Summary, case: str, row: str, other: str, figure: str) -> float | None:
    ours, theirs = median(summary, case, row, figure), median(summary, case, other, figure)
    return ours / theirs if ours is not None and theirs else None


def median(summary: Summary, case: str, row: str, figure: str) -> float | None:
    found = summary.get((case, row), {}).get(figure)
    return None if found is None else found.median
