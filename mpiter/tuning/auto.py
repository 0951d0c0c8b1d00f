"""The pilot behind ``n_processes="auto"`` and ``n_prefetch="auto"``: it looks, has it decided, and says why.

Runs in the prefetch thread, which asks it after each answered task; looks at the counters once in some batches.
Guarantees that it stays within what the user, the cores and the memory allow, and that a load which stays as it is
sees three changes after its first 200 batches at the most.  Workers for whom memory no longer suffices go at any time:
that counts as a change, but is not kept from happening.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from .. import machine
from ..engine.pilot import Auto, Setting
from ..stats import Stats
from .parts import Measured, Part, has_shifted
from .policy import View, decide

_log = logging.getLogger("mpiter.tuning")
_FIRST = 2  # batches until the first look
_PART = 8  # batches between two looks, at least…
_PART_S = 0.1  # …and seconds
_EARLY, _LATER = 200, 3  # batches in which changes are free, and changes after them
_EARLY_CHANGES = 8
_USUAL = 64  # parts that say what is usual
_RECENT = 2  # parts that show that the load has changed
_LEAST_USUAL = 4
_MOST_PREFETCH = 64
_MEMORY = 0.9  # of what there is: workers may be added up to there…
_TIGHT = 0.95  # …and who is there may stay up to here


def free_and_ours(stats: Stats) -> float:
    """Memory that workers and batches may take together."""
    return machine.memory_available() + stats.worker_bytes + stats.in_flight_bytes


@dataclass(frozen=True, slots=True)
class Change:
    """What a pilot has changed."""

    batches: int  # handed out by then
    before: Setting
    after: Setting
    reason: str


class AutoPilot:
    """Follows what it sees."""

    def __init__(
        self,
        workers: Auto | None,
        n_prefetch: Auto | None,
        memory: Callable[[Stats], float] = free_and_ours,
    ) -> None:
        self._workers, self._n_prefetch, self._memory = workers, n_prefetch, memory
        self.changes: list[Change] = []
        self._tried: list[Measured] = []
        self._parts: list[Part] = []
        self._last: Stats | None = None  # what the last look showed; None: the next one begins a part
        self._next, self._part = _FIRST, 0
        self._is_settled = True  # since the last change
        self._has_advised = False
        self._is_final = False  # until the load changes, or much more of it has been seen…
        self._age, self._again = 0, 0  # …parts since then or the last change, and how many will do
        self._since, self._count, self._late = 0, 0, 0  # of this load: its first batch, changes, those after _EARLY

    def look(self, batches: int, now: Setting, stats: Callable[[], Stats]) -> Setting | None:
        """After so many batches: another setting from now on, or None."""
        if batches < self._next:
            return None
        seen, last = stats(), self._last
        if not self._is_settled:  # what is on its way by now was begun under the setting before
            self._is_settled = True
            self._next = batches + min(seen.in_flight_batches, 2 * now.workers + now.n_prefetch)
            return None
        if last is None or seen.batches <= last.batches:
            self._begin(seen, now)
            return None
        if seen.seconds - last.seconds < _PART_S:
            self._part *= 2
            self._next = batches + self._part // 2
            return None
        self._begin(seen, now)
        self._parts.append(_part(last, seen))
        return self._judged(batches, now, seen)

    def _begin(self, seen: Stats, now: Setting) -> None:
        self._last = seen
        self._part = max(self._part, _PART, now.workers // 2) if self._count or self._parts else 1
        self._next = seen.batches + self._part

    def _judged(self, batches: int, now: Setting, seen: Stats) -> Setting | None:
        self._age += 1
        if self._is_final:
            self._compare(batches, now)
        view = self._view(now, seen)
        if self._is_final and self._age < self._again and now.workers <= view.most:
            return None
        decision = decide(view)
        self._is_final, self._again = decision.is_final, 2 * self._age
        if decision.advice and not self._has_advised:
            self._has_advised = True
            _log.info("after %d batches %s", batches, decision.advice)
        if decision.setting is None or decision.setting == now:
            return None
        weight = 2 if now.workers > view.most else 1  # whom memory takes may come back, but not again and again
        self._count += weight
        self._late += weight * (batches - self._since >= _EARLY)
        return self._change(batches, now, decision.setting, decision.reason)

    def _compare(self, batches: int, now: Setting) -> None:
        """Begin anew if the load has changed."""
        usual, recent = self._parts[:-_RECENT], self._parts[-_RECENT:]
        shift = has_shifted(usual, recent, now.workers) if len(usual) >= _LEAST_USUAL else ""
        del self._parts[: -_USUAL - _RECENT]
        if shift:
            _log.info("after %d batches the load has changed: %s", batches, shift)
            self._parts, self._tried, self._is_final, self._age = recent, [], False, _RECENT
            self._since, self._count, self._late = batches, 0, 0

    def _view(self, now: Setting, seen: Stats) -> View:
        least, cap = now.workers, now.workers
        if self._workers is not None:
            least, cap = self._workers.least, self._workers.most or machine.cores()
        most_prefetch = now.n_prefetch
        if self._n_prefetch is not None:
            most_prefetch = self._n_prefetch.most or _MOST_PREFETCH
        memory, room = self._memory(seen), max(seen.room_bytes, 1)
        each = seen.worker_bytes / now.workers + 2 * room  # batches that it is at
        fit, stay = (int((share * memory - now.n_prefetch * room) // each) for share in (_MEMORY, _TIGHT))
        most = max(least, min(cap, max(fit, min(now.workers, stay))))
        most_prefetch = max(now.n_prefetch, min(most_prefetch, int((_MEMORY * memory - now.workers * each) // room)))
        is_early = seen.batches - self._since < _EARLY
        left = max(0, _EARLY_CHANGES - self._count if is_early else _LATER - self._late)
        return View(Measured(now, tuple(self._parts)), tuple(self._tried), least, most, cap, most_prefetch, left)

    def _change(self, batches: int, now: Setting, wanted: Setting, reason: str) -> Setting:
        self._tried = [one for one in self._tried if one.setting not in (now, wanted)]
        self._tried.append(Measured(now, tuple(self._parts)))
        self._parts, self._age, self._last, self._is_settled, self._next = [], 0, None, False, 0
        self.changes.append(Change(batches, now, wanted, reason))
        _log.info("after %d batches %s", batches, reason)
        return wanted


def _part(last: Stats, seen: Stats) -> Part:
    busy_s = seen.fetch_s + seen.pack_s - last.fetch_s - last.pack_s
    core_s = seen.fetch_cpu_s + seen.fetch_delay_s - last.fetch_cpu_s - last.fetch_delay_s
    spent = (seen.wait_s - last.wait_s, busy_s, core_s)
    return Part(seen.batches - last.batches, seen.seconds - last.seconds, *(max(0.0, one) for one in spent))
