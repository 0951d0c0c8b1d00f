"""Where and when a training is saved, as the options of ``Checkpoint`` say."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from ..engine.options import flag, seconds, whole
from ..errors import OptionError


@dataclass(frozen=True, slots=True)
class Plan:
    """Where and when to save."""

    path: Path
    every_s: float
    # The steps that one of these divides are saved.
    periods: tuple[int, ...]
    keep: int
    keep_every: int | None
    # Write in a thread, from a copy.
    background: bool


def plan_of(
    path: str | os.PathLike[str],
    every_s: float | None,
    every_steps: int | None,
    keep: int,
    keep_every: int | None,
    background: bool,
) -> Plan:
    """Return the plan; raise an OptionError for an option that can't be."""
    if not isinstance(path, (str, os.PathLike)):
        kind = type(path).__name__
        raise OptionError(
            f"the path of the file comes first, not a {kind}: "
            "Checkpoint('run.npz', loader, …)."
        )
    seconds("every_s", every_s)
    whole("every_steps", every_steps, least=1, optional=True)
    whole("keep", keep, least=0)
    whole("keep_every", keep_every, least=1, optional=True)
    flag("background", background)
    periods = []
    for period in (every_steps, keep_every):
        if period is not None:
            periods.append(int(period))
    return Plan(
        Path(path).expanduser().absolute(),
        math.inf if every_s is None else every_s,
        tuple(periods),
        int(keep),
        keep_every,
        bool(background),
    )
