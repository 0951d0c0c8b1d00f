"""How many workers, and how many batches that wait: the decision behind "auto".

Pure: ``decide`` is a function of what was measured.  The capacity model says how many workers hide loading behind the
consumer's own seconds; what it doesn't know (a burst, a straggler, a core or a disk that is exhausted) shows as
throughput, so each change is judged by what it brought, and of settings that differ by less than can be told the
smallest is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..engine.pilot import Setting
from .capacity import most_workers
from .parts import FEW, Measured

SAME = 0.03  # rates that differ by less are the same
_WAITS = SAME  # of the time: less is no waiting
_MUCH = 0.1  # who still waits so much is given many more at once
_URGENT = 0.25  # who waits so much is helped before all is known…
_URGENT_PARTS, _CLEARLY = 2, 0.8  # …if the last help shows after so many parts, by so much
_MARGIN = 1.15  # workers beyond those that the model asks for
_CALM = 0.25  # parts that differ by less are much alike
_ENOUGH = 12  # parts to judge by, at the most
_IDLE = 0.85  # workers that are busy for less of the time are too many, or held up
_CROWDED = 1.2  # times what a batch took fewer workers: something is exhausted
_BLOCKED = 0.5  # of a busy worker's time: it mostly waits for something else than a core
_PREFETCH_GROWS = 8  # times, at once: a batch that waits costs little


@dataclass(frozen=True)
class View:
    """All that a decision depends on."""

    here: Measured
    tried: tuple[Measured, ...]  # before, under the same load
    least: int  # workers
    most: int
    cap: int  # the most, whatever memory there is
    most_prefetch: int
    left: int  # changes that may still be made

    def fits(self, one: Measured) -> bool:
        """Is it within the bounds of the moment?"""
        return one.workers <= self.most and one.setting.n_prefetch <= self.most_prefetch


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and why."""

    setting: Setting | None  # None: nothing
    reason: str
    is_final: bool = False  # until the load changes
    advice: str = ""  # for the user


_GO_ON = Decision(None, "there is not enough to judge by")


def decide(view: View) -> Decision:
    """The next setting, or to stay."""
    here, now = view.here, view.here.setting
    if now.workers > view.most:
        return Decision(now._replace(workers=view.most), f"no more than {view.most} workers fit")
    view = replace(view, tried=tuple(filter(view.fits, view.tried)))
    if _is_urgent(view) and (more := _more_waiting(view) or _more_workers(view)) is not None:
        return more
    if not (_is_known(here) or _is_worse(view)):
        return _GO_ON
    chosen = _smallest_of_the_best([here, *filter(_is_known, view.tried)])
    trial = _further(view, chosen) if view.left > 1 else None
    if trial is not None:
        return trial
    if chosen is here or not view.left:
        return Decision(None, f"the consumer waits {here.waits:.0%} of the time", is_final=True, advice=_advice(view))
    gain = here.batch_s / chosen.batch_s - 1
    told = f"{gain:.0%} faster" if gain > SAME else "no slower"
    return Decision(chosen.setting, f"{_told(chosen.setting)} were {told} than {_told(now)}", is_final=True)


def _is_urgent(view: View) -> bool:
    """Does the consumer wait so much that nothing need be known precisely?"""
    here, left = view.here, view.left
    if here.waits < _URGENT or left <= 1:
        return False
    best = min((one.batch_s for one in view.tried), default=None)
    return best is None or (len(here.parts) >= _URGENT_PARTS and here.batch_s < _CLEARLY * best)


def _is_known(here: Measured) -> bool:
    count = len(here.parts)
    return count >= _ENOUGH or (count >= FEW and here.error < SAME / 2 and here.spread < _CALM)


def _is_worse(view: View) -> bool:
    """Is it plain, and soon, that this is slower than what was before?"""
    best = min((one.batch_s for one in view.tried if _is_known(one)), default=math.inf)
    return len(view.here.parts) > _URGENT_PARTS and best < _CLEARLY * view.here.batch_s


def _smallest_of_the_best(seen: Sequence[Measured]) -> Measured:
    best = min(seen, key=lambda one: one.batch_s)
    good = [one for one in seen if one.batch_s <= best.batch_s * (1 + SAME)]
    return min(good, key=lambda one: one.setting)


def _further(view: View, chosen: Measured) -> Decision | None:
    """Something that is worth trying."""
    here = view.here
    largest = max([*view.tried, here], key=lambda one: one.setting)
    if here.waits <= _WAITS:
        return _fewer_workers(view)
    if here is largest:
        more = (_more_waiting(view) or _more_workers(view)) if here is chosen else None
        return _knee(view, largest) or more
    return None if here is chosen else _knee(view, largest)


def _more_workers(view: View) -> Decision | None:
    """As many as hide loading; where that has been done and was too few, many more."""
    here, now = view.here, view.here.setting
    if now.workers >= view.most:
        return None
    steps = sum(one.workers < now.workers and one.waits > _WAITS for one in view.tried)
    grows = 2**steps if here.waits > _MUCH else 1
    wanted = max(now.workers / max(1.0 - here.waits, 1e-3) * _MARGIN, now.workers * grows, now.workers + 1)
    workers = min(view.most, math.ceil(wanted - 1e-6))
    n_prefetch = max(now.n_prefetch, min(workers, view.most_prefetch))  # the more there are, the less do they keep step
    return Decision(
        Setting(workers, n_prefetch),
        f"the consumer waits {here.waits:.0%} of the time: {workers} workers where there were {now.workers}",
    )


def _more_waiting(view: View) -> Decision | None:
    """Workers idle while the consumer waits: more batches in between."""
    here, now = view.here, view.here.setting
    if here.busy > _IDLE or now.n_prefetch >= view.most_prefetch:
        return None
    n_prefetch = min(view.most_prefetch, _PREFETCH_GROWS * now.n_prefetch)
    return Decision(
        now._replace(n_prefetch=n_prefetch),
        f"the consumer waits {here.waits:.0%} of the time though workers are idle {1 - here.busy:.0%} of it: "
        f"{n_prefetch} batches may wait where {now.n_prefetch} did",
    )


def _fewer_workers(view: View) -> Decision | None:
    """As many as are needed, unless so few have been tried."""
    here, now = view.here, view.here.setting
    wanted = max(view.least, math.ceil(here.enough * _MARGIN))
    if len(here.parts) < 2 * _ENOUGH and any(one.workers > now.workers for one in view.tried):
        return None  # some have gone already: whether they are missed shows in a burst
    if wanted > 0.8 * now.workers or wanted <= 1.2 * _too_few(view):
        return None
    return Decision(
        now._replace(workers=wanted),
        f"the consumer waits {here.waits:.0%} of the time and workers are busy {here.busy:.0%} of it: "
        f"{wanted} workers where there were {now.workers}",
    )


def _too_few(view: View) -> int:
    """The most workers of which it is known that the consumer waits for them."""
    slower = (one.workers for one in view.tried if one.batch_s > view.here.batch_s * (1 + SAME))
    return max(slower, default=0)


def _knee(view: View, largest: Measured) -> Decision | None:
    """Many more workers took longer for each batch, for something is exhausted: as many as can have done as much."""
    fewer = [one for one in [*view.tried, view.here] if one.workers < largest.workers]
    if not fewer:
        return None
    base = max(fewer, key=lambda one: one.workers)
    if largest.service_s < (_CROWDED + 2 * _doubt(base, largest)) * base.service_s:
        return None  # they don't get in each other's way
    knee = math.ceil(base.workers * base.batch_s / largest.batch_s * 1.1)
    if not 1.2 * base.workers <= knee <= 0.8 * largest.workers:
        return None
    return Decision(
        largest.setting._replace(workers=knee),
        f"a batch takes {largest.workers} workers {largest.service_s / base.service_s:.1f} times what it took "
        f"{base.workers}: {knee} may do as much",
    )


def _doubt(few: Measured, many: Measured) -> float:
    """The standard error of what ``few`` say of the workers' seconds for a batch, by the spread that ``many`` show."""
    batches = sum(part.batches for part in many.parts) / len(many.parts)
    return many.spread * math.sqrt(batches / sum(part.batches for part in few.parts))


def _advice(view: View) -> str:
    """Where workers wait for a disk or a network, more of them than cores are of use: the user may allow it."""
    here = view.here
    if here.workers < view.cap or here.waits < _MUCH or here.busy < _IDLE or here.blocked < _BLOCKED:
        return ""
    return (
        f"the consumer waits {here.waits:.0%} of the time, and {here.workers} workers are all that are allowed; they "
        f"wait {here.blocked:.0%} of theirs, and not for a core: mpiter.Auto(most={most_workers(view.cap)}) allows more"
    )


def _told(setting: Setting) -> str:
    return f"{setting.workers} workers and {setting.n_prefetch} batches that wait"
