"""Automatic tuning, for ``n_processes="auto"``: measures, tries numbers of workers, and logs why.

Runs in the prefetch thread, as a hook.  A model says how many workers hide loading behind the consumer's step; each
change is judged by measured times, and of numbers whose times differ by less than the noise the smallest is kept.
Guarantees to stay within the limits of user, cores and memory, and at most three changes after the first 200 batches of
a constant load, beside those for lack of memory.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import machine
from ..engine.pilot import Auto, Look, Pilot

_log = logging.getLogger("mpiter.tuning")
_PART, _PART_S = 8, 0.1  # batches and seconds between two looks, at least
_EARLY, _EARLY_CHANGES, _LATE_CHANGES = 200, 8, 3  # the first batches of a load; the most changes within, and after
_MEMORY, _TIGHT = 0.9, 0.95  # shares of the memory: workers may be added up to the first, and stay up to the second
_SAME = 0.03  # times that differ by a smaller share are the same; waiting for a smaller share of the time is none
_DOUBT = 1.15  # a number that was measured briefly, and took up to this many times as long, is tried again
_URGENT, _CLEARLY = 0.25, 0.8  # the share of waiting to act on at once, if the last change cut times below this share
_ENOUGH = 6  # parts that make a measurement reliable
_MARGIN, _MOST_GROWTH = 1.15, 4  # factors: on the model's number; the most growth in a change
_OUTLIER = 3.0  # times the usual own seconds of the consumer: a pause, such as a validation
_WAITS_MORE, _NEEDS_MORE = 0.15, 0.3  # the load has changed if the share of waiting, or log(need), differs by more…
_RECENT, _SURE, _MANY = 2, 2.0, 64  # …in both of the last 2 of 64 parts, and by more than 2 deviations of the others


class Part(NamedTuple):
    """The average times for one batch over a *part*: the batches between two looks at the counters."""

    own_s: float  # the consumer's own seconds
    wait_s: float  # seconds that it waited
    service_s: float  # seconds of all workers together


class Measured:
    """The average figures of a number of workers over its parts, without parts in which the consumer paused."""

    def __init__(self, workers: int, parts: Sequence[Part]) -> None:
        usual = statistics.median(part.own_s for part in parts)
        kept = [part for part in parts if part.own_s <= _OUTLIER * usual or len(parts) < _ENOUGH]
        self.workers, self.count = workers, len(parts)
        self.batch_s = max(statistics.fmean(part.own_s + part.wait_s for part in kept), 1e-9)
        self.waits = min(1.0, statistics.fmean(part.wait_s for part in kept) / self.batch_s)
        self.busy = statistics.fmean(part.service_s for part in kept) / self.batch_s / workers
        self.is_known = len(parts) >= _ENOUGH
        needs = [part.service_s / max(self.batch_s * (1 - self.waits), 1e-9) for part in kept]
        self.needs = statistics.fmean(needs) + statistics.pstdev(needs)  # workers that hide loading in most parts


class Change(NamedTuple):
    """A change that automatic tuning made: the number of batches before it, the new number of workers, the reason."""

    batches: int
    after: int
    reason: str


def _free_and_ours(seen: Look) -> float:
    return machine.memory_available() + seen.worker_bytes + seen.in_flight_batches * seen.room_bytes


class AutoPilot(Pilot):
    """The hook that tunes a loop; ``memory`` returns the bytes that workers and batches may take together."""

    def __init__(self, workers: Auto, memory: Callable[[Look], float] = _free_and_ours) -> None:
        self._workers, self._memory = workers, memory
        self.changes: list[Change] = []
        self._last: Look | None = None  # the counters at the last look; None: the next look begins a part
        self._next, self._is_settled = 2, True  # batches at the next look; False: the last change has no effect yet
        self._begin(0)

    def _begin(self, batches: int) -> None:
        """Begin the search anew after ``batches`` batches, because the load has changed."""
        self._since, self._count, self._late = batches, 0, 0  # its first batch, its changes, those after _EARLY
        self._parts: list[Part] = []  # with the present number of workers
        self._tried: list[Measured] = []  # earlier numbers
        self._is_final, self._age, self._again = False, 0, 0  # decided; parts with this number; when to decide again

    def look(self, batches: int, now: int, look: Callable[[], Look]) -> int | None:
        if batches < self._next:
            return None
        seen, last = look(), self._last
        if not self._is_settled:  # batches in flight by now were begun by the workers before
            self._is_settled = True
            self._next = batches + min(seen.in_flight_batches, 2 * now + 2)
            return None
        if last is None or seen.batches <= last.batches:
            self._last, self._next = seen, batches + (max(_PART, now // 2) if self.changes else 1)
            return None
        count, seconds = seen.batches - last.batches, seen.seconds - last.seconds
        in_time = math.ceil(_PART_S * count / max(seconds, 1e-9))
        self._next = batches + in_time
        if seconds < _PART_S:
            return None
        self._last, self._next = seen, batches + max(_PART, now // 2, in_time)
        wait_s, busy_s = seen.wait_s - last.wait_s, seen.fetch_s - last.fetch_s
        self._parts.append(Part(*(max(0.0, one) / count for one in (seconds - wait_s, wait_s, busy_s))))
        self._age += 1
        wanted, reason = self._decide(now, seen)
        if wanted is None:
            return None
        self._count += 1
        self._late += batches - self._since >= _EARLY
        here = [Measured(now, self._parts)] if self._parts else []
        self._tried = [one for one in self._tried if one.workers not in (now, wanted)] + here
        self._parts, self._age, self._last, self._is_settled, self._next = [], 0, None, False, 0
        self.changes.append(Change(batches, wanted, reason))
        _log.info("after %d batches %s", batches, reason)
        return wanted

    def _decide(self, now: int, seen: Look) -> tuple[int | None, str]:
        """Return the number of workers to change to and the reason; or None and "" to keep ``now``."""
        most = self._most(now, seen)
        if now > most:
            self._late += 1  # counted, so that workers aren't removed and added again without end
            return most, f"no more than {most} workers fit"
        if self._is_final and (self._has_changed(seen.batches) or self._age < self._again):
            return None, ""
        here = Measured(now, self._parts)
        tried = [one for one in self._tried if one.workers <= most]
        left = _LATE_CHANGES - self._late if seen.batches - self._since >= _EARLY else _EARLY_CHANGES - self._count
        fastest = min((one.batch_s for one in tried), default=math.inf)
        more = self._more(here, most)
        has_helped = not tried or (here.count > 1 and here.batch_s < _CLEARLY * fastest)
        if more and left > 1 and here.waits >= _URGENT and has_helped:
            return more
        if not here.is_known:
            return None, ""
        known = [here, *(one for one in tried if one.is_known)]
        enough_s = min(one.batch_s for one in known) * (1 + _SAME)
        chosen = min((one for one in known if one.batch_s <= enough_s), key=lambda one: one.workers)
        if chosen is here and left > 1:
            further = self._fewer(here, tried)
            if here.waits > _SAME:
                further = more if all(one.workers < now for one in tried) else None
            if further:
                return further
            doubtful = [one for one in tried if not one.is_known and one.batch_s <= _DOUBT * here.batch_s]
            fewer = min((one.workers for one in doubtful if one.workers < now), default=None)
            if fewer:  # measured only briefly while the number grew
                return fewer, f"{fewer} workers seemed as fast"
        self._is_final, self._again = True, 2 * self._age
        if chosen is here or left < 1:
            return None, ""
        faster = f"it was {here.batch_s / chosen.batch_s:.2f} times as fast"
        return chosen.workers, f"{faster}: {chosen.workers} workers"

    def _more(self, here: Measured, most: int) -> tuple[int, str] | None:
        """Return a larger number of workers and the reason."""
        workers = here.workers
        if workers >= most:
            return None
        wanted = max(workers + 1, _MARGIN * workers / max(1 - here.waits, 1e-3))
        more = min(most, _MOST_GROWTH * workers, math.ceil(wanted - 1e-6))
        return more, f"the consumer waits {here.waits:.0%} of the time: {more} workers where there were {workers}"

    def _fewer(self, here: Measured, tried: Sequence[Measured]) -> tuple[int, str] | None:
        """Return as many workers as are needed, if they are fewer and not known to be too few."""
        workers = here.workers
        wanted = max(self._workers.least, math.ceil(here.needs * _MARGIN))
        too_few = max((one.workers for one in tried if one.batch_s > here.batch_s * (1 + _SAME)), default=0)
        if wanted > 0.8 * workers or wanted <= 1.2 * too_few:
            return None
        why = f"workers are idle {1 - here.busy:.0%} of the time and the consumer hardly waits"
        return wanted, f"{why}: {wanted} workers where there were {workers}"

    def _most(self, now: int, seen: Look) -> int:
        """Return the most workers, by the user's limits and by the memory."""
        least, most = self._workers.least, self._workers.most or machine.cores()
        memory, room = self._memory(seen), max(seen.room_bytes, 1)
        each = seen.worker_bytes / now + 2 * room  # two batches are in work for each worker
        fit, stay = (int(share * memory // each) for share in (_MEMORY, _TIGHT))
        return max(least, min(most, max(fit, min(now, stay))))

    def _has_changed(self, batches: int) -> bool:
        """True if the load has changed; then the search has begun anew."""
        del self._parts[:-_MANY]
        waits = [part.wait_s / max(part.own_s + part.wait_s, 1e-9) for part in self._parts]
        needs = [math.log(max(part.service_s, 1e-9) / max(part.own_s, 1e-9)) for part in self._parts]
        for values, least in ((waits, _WAITS_MORE), (needs, _NEEDS_MORE)):
            usual, recent = values[:-_RECENT], values[-_RECENT:]
            if len(usual) < 2 * _ENOUGH:
                return False
            away = [value - statistics.fmean(usual) for value in recent]
            if max(min(away), -max(away)) > max(least, _SURE * statistics.stdev(usual)):
                _log.info("after %d batches the load has changed", batches)
                self._begin(batches)
                self._last, self._is_settled = None, False
                return True
        return False
