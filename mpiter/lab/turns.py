"""A turn: one row of one experiment, measured once, in a process of its own that leaves nothing behind.

`ask` runs in the driver; the process that is measured (`measured`) answers with a line of JSON.  Guarantees that a
turn which fails, hangs or lacks a package is an answer, not the end of the run, and that its process group is gone
when `ask` returns, however it returns; should the driver be gone, the turn's process sees the end of its input.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from ..errors import MpiterError
from .clocks import Cpu, CpuWindow
from .surroundings import ROOT
from .text import some

LAST_WORDS = 2000  # characters of what a failed turn said
_MEASURED = (sys.executable, "-m", "mpiter.lab.measured")


@dataclass(frozen=True, slots=True)
class Turn:
    """What is to be measured: `row` is who does it, `case` on what, `at` with which numbers (workers, batch size)."""

    experiment: str
    row: str
    case: str
    at: Mapping[str, float]
    seconds: float  # of the timed part…
    warmup_s: float  # …after so many that don't count
    seed: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.row, self.case, *sorted(self.at.items())

    @property
    def place(self) -> tuple[Any, ...]:
        """Those that share it are compared: they stand together, whatever their numbers of workers."""
        return self.case, *sorted((name, value) for name, value in self.at.items() if name != "workers")

    @property
    def workers(self) -> int:
        return int(self.at["workers"])

    def __str__(self) -> str:
        return placed(self.row, self.case, at=self.at)


def placed(*names: str, at: Mapping[str, float]) -> str:
    """Names and numbers as one reads them: slots, 28x28, 2 workers."""
    numbers = (
        some(value, "worker") if axis == "workers" else f"{value:g} {axis.replace('_', ' ')}"
        for axis, value in at.items()
    )
    return ", ".join([*names, *numbers])


class Absent(MpiterError):
    """What a row needs isn't there; the text says what, and how to get it."""


Answer = dict[str, Any]  # {"figures": {name: number}, …}, {"error": text} or {"absent": text}


def ask(turn: Turn, timeout_s: float, command: Sequence[str] = _MEASURED, *paths: str) -> Answer:
    """Measure in a process of its own; what went wrong is an answer too.

    The command reads the turn from its input, which stays open, and answers by its last line.  It imports mpiter from
    where we do, and whatever else from `paths`.
    """
    ours = [str(ROOT)] if (ROOT / "pyproject.toml").exists() else []  # an installed one is found anyway
    search = [*ours, *paths, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search)}
    # Files, not pipes: these would stay open for as long as a worker that was left behind.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as complaints:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=complaints, start_new_session=True
        ) as process:
            try:
                _tell(process, json.dumps(asdict(turn)))
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return {"error": f"gave no answer within {timeout_s:g} s"}
            finally:
                with suppress(ProcessLookupError):  # all of its workers are gone, as they should be
                    os.killpg(process.pid, signal.SIGKILL)
        try:
            answer: Answer = json.loads(_text(out).splitlines()[-1])
        except (ValueError, IndexError):
            said = _text(complaints).strip()
            last = (said.splitlines() or ["no message"])[-1]
            return {"error": f"ended with status {process.returncode}: {last}", "said": said[-LAST_WORDS:]}
    return answer


def _tell(process: subprocess.Popen[bytes], told: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, and will be asked why
        process.stdin.write(told.encode() + b"\n")
        process.stdin.flush()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def consume(take_one: Callable[[], Any], seconds: float, least: int = 1) -> tuple[int, float]:
    """Batches and seconds, from the arrival of one to that of another, for so long and at least so many."""
    clock = time.perf_counter
    begin = now = clock()
    count = 0
    while now - begin < seconds or count < least:
        take_one()
        count += 1
        now = clock()
    return count, now - begin


def warm_up(take_one: Callable[[], Any], seconds: float, least: int = 4) -> None:
    """What no figure includes: what was fetched ahead while workers started is used up, memory touched.

    The clock is to be started right afterwards: in any pause the workers would get ahead for nothing.
    """
    gc.collect()
    consume(take_one, seconds, least)


def flowing(take_one: Callable[[], Any], warmup_s: float, seconds: float, **least: int) -> tuple[int, float, Cpu]:
    """Batches, seconds and processor time in full flow, right after a warm-up; `least` of both, in batches."""
    window = CpuWindow()
    warm_up(take_one, warmup_s, least.get("warm", 4))
    window.start()
    count, took = consume(take_one, seconds, least.get("timed", 1))
    return count, took, window.stop()


def numbers(figures: Mapping[str, float | None]) -> Answer:
    """An answer of these figures, without those that there are none of."""
    return {"figures": {name: float(value) for name, value in figures.items() if value is not None}}
