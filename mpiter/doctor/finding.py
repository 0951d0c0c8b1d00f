"""What the doctor says of one thing, and what came of trying something: plain records.

Guarantees that a warning never comes without a remedy.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.Enum):
    """How bad it is."""

    GOOD = "good"
    """As it should be."""
    NOTE = "note"
    """Nothing goes wrong, but it is good to know."""
    WARN = "warn"
    """Something will fail or be slow unless it is attended to."""
    BAD = "bad"
    """mpiter does not work here as it should by default."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined: what was found, and what to do about it."""

    subject: str
    status: Status
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status in (Status.WARN, Status.BAD) and not self.remedy:
            raise ValueError(f"{self.subject}: a warning needs a remedy.")


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of trying something: an answer, or what went wrong."""

    answer: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Decoder:
    """An installed package that decodes images, and whether it loads."""

    name: str
    version: str
    trial: Trial
