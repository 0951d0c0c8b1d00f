"""What follows from a worker's end: which sample was to blame, what is fetched again,
and whether to continue.

Runs in the prefetch thread.  Guarantees that every row that was with the worker is sent
again unless its answer came before the end; that a sample which two workers were
fetching when they died is not tried a third time; and that workers which keep dying
without a finished batch lead to an error that tells how each of them ended.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import RemoteTraceback, WorkerCrashed, WorkerStartError
from ..pool.endings import End
from ..samples.envelope import dumps
from ..worker.block import Fault, Place
from ..worker.board import Line
from .delivery import Delivery
from .ledger import Ledger

_log = logging.getLogger("mpiter")
# Of workers with the same sample in hand: one may be chance.
_MOST_DEATHS = 2
_MOST_SETBACKS = 3  # without a finished batch…
_WITHIN_S = 60.0  # …in so many seconds
_LOOK = (
    "Look at what it printed; without workers (n_processes=0, num_workers=0) the "
    "dataset is loaded here."
)


class Recovery:
    """Decides after each end of a worker, by the recent deaths of the iterator's
    workers.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, skips: bool = False
    ) -> None:
        self._clock = clock
        self._skips = skips
        # By the row that was being fetched.
        self.deaths: Counter[Place] = Counter()
        # When, what, and the workers that died at once.
        self.setbacks: deque[tuple[float, str, set[int]]] = deque()
        # By the row in hand: the worker that died, and its stack.
        self._stacks: dict[Place, tuple[str, str]] = {}
        # Consecutive ones, by worker.
        self._false_starts: Counter[int] = Counter()
        self.restarts = 0  # of single workers

    def recover(self, end: End, ledger: Ledger) -> None:
        """Have the ledger send the worker's rows again; raise an error if continuing is
        pointless.
        """
        line = end.line
        held = ledger.out.get(end.line.block)
        was_sent = (
            not line.active
            and line.block in end.blocks
            and held is not None
            and held[0].rows == 1
        )
        # of several rows it may be any
        if line.active == 1 or was_sent:
            suspect = ledger.in_hand(line)
        else:
            suspect = None
        rows = ledger.recall(end.blocks, is_lost=not end.is_gone)
        self.restarts += 1
        if suspect:
            text = f"{end} while fetching sample {suspect[1]!r:.60}"
        else:
            text = str(end)
        fault = self._judged(end, suspect, text)
        without = ""
        if fault is not None:
            ledger.count_as_failed(fault)
            rows = rows - 1
            without = f", without sample {fault.index!r:.60}"
        stack = end.stack if fault is None or self._skips else ""  # which the error has
        if stack and fault is None and suspect is not None:
            # If the sample ends its next worker too, the error has the same stack.
            self._stacks[suspect[0]] = f"{end.worker} (pid {line.pid})", stack
            stack = ""
        if rows:
            again = (
                f" and fetching {'1 sample' if rows == 1 else f'{rows} samples'} again"
            )
        else:
            again = ""
        _log.warning(
            "%s; replacing it%s%s", text, again, without, exc_info=_trace(stack)
        )

    def finished(self, deliveries: Sequence[Delivery]) -> None:
        """Note that these batches are finished, so that workers which died over their
        samples did so by chance.
        """
        self.setbacks.clear()
        if self._stacks:
            batches = {delivery.plan.number for delivery in deliveries}
            self._tell_stacks([place for place in self._stacks if place[0] in batches])

    def begin_anew(self) -> None:
        """Suspect no sample any more, since all batches in flight are dropped."""
        self.deaths.clear()
        self._tell_stacks([*self._stacks])

    def _tell_stacks(self, places: Sequence[Place]) -> None:
        for place in places:
            worker, stack = self._stacks.pop(place)
            _log.warning(
                "the stack of worker %s when it ended:", worker, exc_info=_trace(stack)
            )

    def _judged(
        self, end: End, suspect: tuple[Place, Any] | None, text: str
    ) -> Fault | None:
        """Return the fault of a sample that has ended two workers, or None for any
        other death.
        """
        if not end.was_starting or end.is_proven:
            del self._false_starts[end.worker]
        else:
            self._false_starts[end.worker] += 1
            if not end.others_work or self._false_starts.total() > _MOST_SETBACKS:
                raise WorkerStartError(f"{text}, while starting. {_LOOK}") from _trace(
                    end.stack
                )
        if suspect is not None:
            (batch, row, epoch, position), index = suspect
            self.deaths[suspect[0]] += 1
            if self.deaths[suspect[0]] >= _MOST_DEATHS:
                self._stacks.pop(suspect[0], None)
                self.setbacks.clear()  # the cause is known now
                error = _crashed(
                    end,
                    f"sample {index!r:.60} has ended its worker twice: {text}. "
                    "on_error='skip' would leave it out"
                    f"{'; sample_timeout= says how long a sample may take' if end.was_stuck else ''}.",
                )
                where = batch, row, index, epoch, position, f"worker {end.worker}"
                return Fault(*where, f"WorkerCrashed: {error}", end.stack, dumps(error))
        self._set_back(end, text)
        return None

    def _set_back(self, end: End, text: str) -> None:
        """Count a setback, unless another worker died with this one; raise an error if
        there are too many.
        """
        now = self._clock()
        setbacks = self.setbacks
        while setbacks and now - setbacks[0][0] > _WITHIN_S:
            setbacks.popleft()
        if setbacks and end.worker not in (at_once := setbacks[-1][2]):
            at_once.add(end.worker)
        else:
            setbacks.append((now, text, {end.worker}))
        if len(setbacks) > _MOST_SETBACKS:
            seen = "\n".join(f"  {text}" for _, text, _ in setbacks)
            setbacks.clear()
            text = f"the workers keep dying, and no batch is finished:\n{seen}"
            raise _crashed(end, text) from _trace(end.stack)


def doings(lines: Sequence[Line], ledger: Ledger) -> str:
    """Say in words which samples the workers are fetching; may be called from any
    thread.
    """
    told = []
    for worker, line in enumerate(lines):
        if line.pid and not line.ready:
            told.append(
                f"worker {worker} (pid {line.pid}) is still loading the dataset"
            )
        elif line.active and (sample := ledger.in_hand(line)):
            told.append(
                f"worker {worker} (pid {line.pid}) is fetching sample {sample[1]!r:.60}"
            )
    return ", ".join(told)


def _crashed(end: End, text: str) -> WorkerCrashed:
    error = WorkerCrashed(text)
    if end.code is not None:
        error.pid = end.line.pid
        error.exitcode = end.code
    return error


def _trace(stack: str) -> RemoteTraceback | None:
    if stack:
        return RemoteTraceback(stack)
    return None
