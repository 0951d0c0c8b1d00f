"""What a breakage means for the batches on their way: whose fault it was, what is fetched again, and whether to go on.

Runs in the prefetch thread.  Guarantees that every row that was out is asked for again unless its answer came before
the end; that a sample in hand at two deaths is not tried a third time; and that workers which keep dying without a
finished batch come to an end, in an error that says what was seen.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable

from .board import Line
from .breakage import Breakage, Casualty, Report
from .crew import Crew
from .envelope import dumps
from .errors import RemoteTraceback, WorkerCrashed, WorkerStartError
from .ledger import Ledger, Suspect
from .outcome import not_received
from .task import Fault

_log = logging.getLogger("mpiter")
_MOST_DEATHS = 2  # that a sample may be in hand at: one may be chance
_MOST_SETBACKS = 3  # without a finished batch…
_WITHIN_S = 60.0  # …in so many seconds
_Suspicions = list[tuple[Casualty, Suspect | None]]


class Recovery:
    """Remembers what has happened lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deaths: Counter[Suspect] = Counter()
        self._setbacks: deque[tuple[float, str]] = deque()
        self._false_starts = 0
        self.restarts = 0

    def progress(self) -> None:
        """A batch has been finished."""
        self._setbacks.clear()

    def forget(self) -> None:
        """What was on its way is dropped: nobody is suspected any more."""
        self._deaths.clear()

    def recover(self, broken: Breakage, crew: Crew, ledger: Ledger, take_in_answers: Callable[[], None]) -> None:
        """Make the book right again after a death; whoever needs workers next starts new ones."""
        report = crew.autopsy(broken)
        if report is None:
            return  # news of a shift that has been buried already
        try:
            take_in_answers()  # that were sent before the end
            suspicions = [(one, _in_hand(one.line, ledger)) for one in report.casualties]
        finally:
            out = ledger.recall_all(quarantined=not report.is_clean)
        if broken.error is not None:
            raise not_received(broken.error)
        self.restarts += 1
        text = _told(report, suspicions)
        given_up = self._judged(report, suspicions, text)
        for fault in given_up:
            ledger.convict(fault)
        without = f", without sample {given_up[0].index!r:.60}" if given_up else ""
        _log.warning(
            "%s; replacing the workers and fetching %d samples again%s",
            text,
            out - len(given_up),
            without,
            exc_info=RemoteTraceback(report.stacks) if report.stacks else None,
        )

    def _judged(self, report: Report, suspicions: _Suspicions, text: str) -> list[Fault]:
        if not report.is_proven and any(one.was_starting for one in report.casualties):
            self._false_starts += 1
            if not report.has_answered or self._false_starts > _MOST_SETBACKS:
                raise _chained(WorkerStartError(f"{text}, while starting. {_ON_STARTING}"), report)
        self._deaths.update(suspect for _, suspect in suspicions if suspect is not None)
        guilty = [_fault(*one, text) for one in suspicions if one[1] and self._deaths[one[1]] >= _MOST_DEATHS]
        if guilty:
            self._setbacks.clear()  # something has been learnt
            return guilty
        now = self._clock()
        self._setbacks.append((now, text))
        while now - self._setbacks[0][0] > _WITHIN_S:
            self._setbacks.popleft()
        if len(self._setbacks) > _MOST_SETBACKS:
            seen = "\n".join(f"  {what}" for _, what in self._setbacks)
            self._setbacks.clear()
            raise _chained(WorkerCrashed(f"the workers keep dying, and no batch is finished:\n{seen}"), report)
        return []


_ON_STARTING = (
    "Look at what it printed; without workers (n_processes=0, num_workers=0) the dataset is loaded here. "
    "A script whose dataset cannot travel by value needs `if __name__ == '__main__':`."
)


def _in_hand(line: Line, ledger: Ledger) -> Suspect | None:
    """The row to blame; none while several are written at once, for it may be any of them."""
    return ledger.in_hand(line) if line.active == 1 else None


def doings(crew: Crew, ledger: Ledger) -> str:
    """Which samples the workers have in hand right now; may be asked by any thread."""
    told = []
    for worker, line in enumerate(crew.board()):
        if not line.ready:
            told.append(f"worker {worker} (pid {line.pid}) is still loading the dataset")
        elif line.active and (sample := ledger.in_hand(line)):
            told.append(f"worker {worker} (pid {line.pid}) is fetching sample {sample.index!r:.60}")
    return ", ".join(told)


def _told(report: Report, suspicions: _Suspicions) -> str:
    told = [
        f"{one} while fetching sample {suspect.index!r:.60}" if suspect else str(one) for one, suspect in suspicions
    ]
    return "; ".join(told) or "all workers stood still"


def _fault(casualty: Casualty, suspect: Suspect | None, text: str) -> Fault:
    assert suspect is not None
    error = WorkerCrashed(
        f"sample {suspect.index!r:.60} has ended its worker twice: {text}. An iterator's on_error='skip' would leave "
        f"it out, its sample_timeout= says how long a sample may take."
    )
    return Fault(
        batch=suspect.batch,
        row=suspect.row,
        index=suspect.index,
        epoch=suspect.epoch,
        position=suspect.position,
        worker=f"worker {casualty.worker}",
        summary=f"WorkerCrashed: {error}",
        trace=casualty.stack,
        pickled=dumps(error),
    )


def _chained(error: Exception, report: Report) -> Exception:
    if report.stacks:
        error.__cause__ = RemoteTraceback(report.stacks)
    return error
