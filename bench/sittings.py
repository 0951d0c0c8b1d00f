"""Trainers in processes of their own, which are killed, and go on from their state.

A trainer notes what was raised in words; whoever starts it waits for its end.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from driver import end_group, end_own_group

SITTING_S = 30.0


def ended(command: Sequence[str], seconds: float = SITTING_S) -> int | None:
    """Return the status with which a process ends; None if it has to be ended."""
    # Only its input is a pipe, which ends with this process: workers of a trainer that
    # was killed would hold others open.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_group(process.pid)


def end_with_the_turn() -> None:
    """End this process, and all of its workers, when its input ends."""
    os.read(0, 1)
    end_own_group()


def words_of(error: Exception) -> str:
    """Return an error's type, and the first line of what it says."""
    lines = str(error).strip().splitlines() or [""]
    words = f"{type(error).__name__}: {lines[0]:.300}"
    # It differs from run to run.
    return re.sub(r" \(pid\(s\) [\d, ]+\)", "", words)
