"""What follows from a worker's end: which sample was to blame, what is fetched again, and whether to continue.

Runs in the prefetch thread.  Guarantees that every row that was with the worker is sent again unless its answer came
before the end; that a sample which two workers were fetching when they died is not tried a third time; and that workers
which keep dying without a finished batch lead to an error that tells how each of them ended.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import RemoteTraceback, WorkerCrashed, WorkerStartError
from ..pool.endings import End
from ..samples.envelope import dumps
from ..worker.block import Fault
from ..worker.board import Line
from .ledger import Ledger, Suspect

_log = logging.getLogger("mpiter")
_MOST_DEATHS = 2  # of workers with the same sample in hand: one may be chance
_MOST_SETBACKS = 3  # without a finished batch…
_WITHIN_S = 60.0  # …in so many seconds


class Recovery:
    """Decides after each end of a worker, by the recent deaths of the iterator's workers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, skips: bool = False) -> None:
        self._clock, self._skips = clock, skips
        self._deaths: Counter[Suspect] = Counter()
        self._setbacks: deque[_Setback] = deque()
        self._false_starts: Counter[int] = Counter()  # consecutive ones, by worker
        self.restarts = 0  # of single workers

    def progress(self) -> None:
        """Note that a batch was finished: the workers make progress."""
        self._setbacks.clear()

    def forget(self) -> None:
        """Forget the suspected samples, because the batches in flight were dropped."""
        self._deaths.clear()

    def recover(self, end: End, ledger: Ledger) -> None:
        """Have the ledger send the worker's rows again; raise an error if continuing is pointless."""
        suspect = (
            ledger.in_hand(end.line) if end.line.active == 1 else None
        )  # with several in hand it may be any of them
        rows = ledger.recall(end.blocks, is_lost=not end.is_gone)
        self.restarts += 1
        text = f"{end} while fetching sample {suspect.index!r:.60}" if suspect else str(end)
        fault = self._judged(end, suspect, text)
        if fault is not None:
            ledger.count_as_failed(fault)
        stack = end.stack if fault is None or self._skips else ""  # which the error has
        without = f", without sample {fault.index!r:.60}" if fault is not None else ""
        _log.warning(
            "%s; replacing it and fetching %d samples again%s",
            text,
            rows - (fault is not None),
            without,
            exc_info=RemoteTraceback(stack) if stack else None,
        )

    def _judged(self, end: End, suspect: Suspect | None, text: str) -> Fault | None:
        """Return the fault of a sample that has ended two workers, or None for any other death."""
        if not end.was_starting or end.is_proven:
            del self._false_starts[end.worker]
        else:
            self._false_starts[end.worker] += 1
            if not end.others_work or self._false_starts.total() > _MOST_SETBACKS:
                raise _chained(WorkerStartError(f"{text}, while starting. {_LOOK}"), end)
        if suspect is not None:
            self._deaths[suspect] += 1
            if self._deaths[suspect] >= _MOST_DEATHS:
                self._setbacks.clear()  # the cause is known now
                return _fault(end, suspect, text)
        self._set_back(end, text)
        return None

    def _set_back(self, end: End, text: str) -> None:
        now = self._clock()
        while self._setbacks and now - self._setbacks[0].at > _WITHIN_S:
            self._setbacks.popleft()
        if self._setbacks and end.worker not in self._setbacks[-1].workers:  # several workers died at once
            self._setbacks[-1].workers.add(end.worker)
        else:
            self._setbacks.append(_Setback(now, text, {end.worker}))
        if len(self._setbacks) > _MOST_SETBACKS:
            seen = "\n".join(f"  {setback.text}" for setback in self._setbacks)
            self._setbacks.clear()
            raise _chained(WorkerCrashed(f"the workers keep dying, and no batch is finished:\n{seen}"), end)


@dataclass(slots=True)
class _Setback:
    """Deaths at about the same time, which count as one; each worker is in it at most once."""

    at: float
    text: str
    workers: set[int]


_LOOK = "Look at what it printed; without workers (n_processes=0, num_workers=0) the dataset is loaded here."


def doings(lines: Sequence[Line], ledger: Ledger) -> str:
    """Say in words which samples the workers are fetching; may be called from any thread."""
    told = []
    for worker, line in enumerate(lines):
        if line.pid and not line.ready:
            told.append(f"worker {worker} (pid {line.pid}) is still loading the dataset")
        elif line.active and (sample := ledger.in_hand(line)):
            told.append(f"worker {worker} (pid {line.pid}) is fetching sample {sample.index!r:.60}")
    return ", ".join(told)


def _fault(end: End, suspect: Suspect, text: str) -> Fault:
    error = WorkerCrashed(
        f"sample {suspect.index!r:.60} has ended its worker twice: {text}. on_error='skip' would leave it out"
        f"{'; sample_timeout= says how long a sample may take' if end.was_stuck else ''}."
    )
    batch, row, epoch, position = suspect.place
    return Fault(
        batch=batch,
        row=row,
        index=suspect.index,
        epoch=epoch,
        position=position,
        worker=f"worker {end.worker}",
        summary=f"WorkerCrashed: {error}",
        trace=end.stack,
        pickled=dumps(error),
    )


def _chained(error: Exception, end: End) -> Exception:
    if end.stack:
        error.__cause__ = RemoteTraceback(end.stack)
    return error
