"""What follows from a worker's end: who was to blame, what is fetched again.

Runs in the prefetch thread.  Guarantees that every row that was with the worker is sent
again unless its answer came before the end; that a sample which two workers were
fetching when they died is not tried a third time; and that workers which keep dying
without a finished batch lead to an error that tells how each of them ended.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..datasets.columns import in_words, offered, users
from ..errors import RemoteTraceback, WorkerCrashed, WorkerStartError
from ..pool.endings import End
from ..samples.envelope import dumps
from ..worker.block import Fault, Place
from ..worker.board import Line
from .delivery import Delivery
from .ledger import Ledger

_log = logging.getLogger("mpiter")
# A sample is to blame when so many workers have died over it: one may be chance.
_MOST_DEATHS = 2
# The workers keep dying if there were more setbacks than this in so many seconds, and
# no batch was finished.
_MOST_SETBACKS = 3
_WITHIN_S = 60.0
# Letters of what a dataset says of a key.
_LONGEST = 300
_LOOK = (
    "Look at what it printed; without workers (n_processes=0, num_workers=0) the "
    "dataset is loaded here."
)


class _Setback(NamedTuple):
    """A death, or several at once, for which no sample is to blame."""

    at: float
    # What happened, in words.
    text: str
    # The workers that died.
    workers: set[int]


class Recovery:
    """Decides after each end of a worker, by the recent deaths of the iterator's."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        skips: bool = False,
        dataset: object = None,
    ) -> None:
        self._clock = clock
        self._skips = skips
        # It may have words for its keys.
        self._dataset = dataset
        # How many workers have died over each row.
        self.deaths: Counter[Place] = Counter()
        # Those since the last finished batch.
        self.setbacks: deque[_Setback] = deque()
        # For each suspected row the worker that died over it, and that one's stack.
        self._stacks: dict[Place, tuple[str, str]] = {}
        # How often each worker has died in its start, one time after the other.
        self._false_starts: Counter[int] = Counter()
        # The number of single workers that were replaced.
        self.restarts = 0

    def recover(
        self,
        end: End,
        ledger: Ledger,
    ) -> None:
        """Have the ledger send the worker's rows again.

        Raise an error if continuing is pointless.
        """
        line = end.line
        held = ledger.out.get(line.block)
        # The worker had fetched the only row of its block, and died when it sent it.
        was_sent = (
            not line.active
            and line.block in end.blocks
            and held is not None
            and held[0].rows == 1
        )
        # Where several rows were read at once (``active`` is 2), under way (3) or sent
        # together, any of them may be to blame, and none is suspected; but the row that
        # is waited for is, if it takes too long.
        suspect = None
        is_late = line.active == 3 and end.was_stuck
        if line.active == 1 or was_sent or is_late:
            suspect = ledger.in_hand(line)
        rows = ledger.recall(end.blocks, is_lost=not end.is_gone)
        self.restarts += 1
        text = str(end)
        if suspect:
            name = _named(self._dataset, suspect[1])
            text = f"{end} while fetching sample {name}"
            if is_late:
                text = f"{end} while waiting for sample {name}"
        fault = self._judged(end, suspect, text)
        without = ""
        if fault is not None:
            ledger.count_as_failed(fault)
            rows -= 1
            without = f", without sample {fault.index!r:.60}"
        # A fault that is raised has the stack itself.  One that is left out isn't seen,
        # so the log gets the stack.
        stack = ""
        if fault is None or self._skips:
            stack = end.stack
        # The stack of a first death waits: if the sample ends its next worker too, the
        # error has the same one, and if it doesn't, the log gets it then.
        if stack and fault is None and suspect is not None:
            self._stacks[suspect[0]] = f"{end.worker} (pid {line.pid})", stack
            stack = ""
        again = ""
        if rows == 1:
            again = " and fetching 1 sample again"
        elif rows:
            again = f" and fetching {rows} samples again"
        _log.warning(
            "%s; replacing it%s%s", text, again, without, exc_info=_trace(stack)
        )

    def finished(self, deliveries: Sequence[Delivery]) -> None:
        """Note that these batches are finished.

        Workers that died over their samples did so by chance.
        """
        self.setbacks.clear()
        if self._stacks:
            batches = {delivery.plan.number for delivery in deliveries}
            places = [place for place in self._stacks if place.batch in batches]
            self._tell_stacks(places)

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
        self,
        end: End,
        suspect: tuple[Place, Any] | None,
        text: str,
    ) -> Fault | None:
        """Return the fault of a sample that has ended two workers.

        Return None for any other death, which is a setback.
        """
        if not end.was_starting or end.is_proven:
            del self._false_starts[end.worker]
        else:
            # A worker that can't start is tried again only while others work: what ends
            # the first of all in their start ends each of them.
            self._false_starts[end.worker] += 1
            if not end.others_work or self._false_starts.total() > _MOST_SETBACKS:
                stack = _trace(end.stack)
                raise WorkerStartError(f"{text}, while starting. {_LOOK}") from stack
        if suspect is not None:
            place, index = suspect
            self.deaths[place] += 1
            if self.deaths[place] >= _MOST_DEATHS:
                # The cause is known now: the workers don't keep dying without one.
                self._stacks.pop(place, None)
                self.setbacks.clear()
                remedies = list[str]()
                if not self._skips:
                    remedies.append("on_error='skip' would leave it out")
                if end.was_stuck:
                    remedies.append("sample_timeout= says how long a sample may take")
                remedy = "; ".join(remedies)
                if remedy:
                    remedy = f" {remedy}."
                error = _crashed(
                    end,
                    f"sample {index!r:.60} has ended its worker twice: {text}.{remedy}",
                )
                batch, row, epoch, position = place
                where = batch, row, index, epoch, position, f"worker {end.worker}"
                return Fault(*where, f"WorkerCrashed: {error}", end.stack, dumps(error))
        self._set_back(end, text)
        return None

    def _set_back(
        self,
        end: End,
        text: str,
    ) -> None:
        """Count a setback; raise an error if there are too many.

        Deaths of other workers since the last one belong to it, until one of them dies
        again.
        """
        now = self._clock()
        setbacks = self.setbacks
        while setbacks and now - setbacks[0].at > _WITHIN_S:
            setbacks.popleft()
        # Workers that die one after the other are one setback, for instance when the
        # system ends all of them for want of memory.  When one of them dies again, that
        # is the next.
        if not setbacks or end.worker in setbacks[-1].workers:
            setbacks.append(_Setback(now, text, {end.worker}))
        else:
            setbacks[-1].workers.add(end.worker)
        if len(setbacks) > _MOST_SETBACKS:
            seen = "\n".join(f"  {one.text}" for one in setbacks)
            setbacks.clear()
            text = f"the workers keep dying, and no batch is finished:\n{seen}"
            raise _crashed(end, text) from _trace(end.stack)


def doings(
    lines: Sequence[Line],
    ledger: Ledger,
    dataset: object,
) -> str:
    """Say which samples the workers are fetching; any thread may call this."""
    told = []
    for worker, line in enumerate(lines):
        name = f"worker {worker} (pid {line.pid})"
        if line.pid and not line.ready:
            told.append(f"{name} is still loading the dataset")
        elif line.active and (sample := ledger.in_hand(line)):
            told.append(f"{name} is fetching sample {_named(dataset, sample[1])}")
    return ", ".join(told)


def _named(dataset: object, key: object) -> str:
    """Return a sample's key, and the dataset's words for it if it has any."""
    shown = f"{key!r:.60}"
    found = users(dataset)
    if offered(found, "mpiter_words") is None:
        return shown
    # A row that is a whole batch has the keys of all its samples.
    keys = key if isinstance(key, list) else [key]
    # The method may be the user's, and raise anything.
    with contextlib.suppress(Exception):
        words = ", ".join(in_words(found, one) for one in keys)[:_LONGEST]
        return f"{shown} ({words})"
    return shown


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
