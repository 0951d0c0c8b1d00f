"""The snapshot that ``stats()`` returns: what was done, and where the time went."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from . import machine

_WORTH_TELLING = 0.05  # of the time
_TOO_SHORT_S = 0.2  # to tell anything
# The consumer's time for each small batch that comes from a worker.
_HAND_OVER_S = 0.0003
# More workers than this are never recommended, nor more samples under way.
_MOST_TOLD = 64
# The number of workers that hide loading is multiplied by this.
_TO_SPARE = 1.02
# Where samples wait, so many workers are worth a try.
_SOME_WORKERS = 8
# Samples that take less than this don't wait for anything worth telling.
_A_WAIT_S = 0.0005
_RARE = ("skipped", "restarts", "odd_rows", "copies")


def _number(says: str, merge: Callable[[list[Any]], Any] = sum) -> Any:
    """Make a field that is described by ``says``.

    ``merge`` combines the numbers of several engines into one.
    """
    return field(default=0, metadata={"says": f"{says}.", "merge": merge})


@dataclass(frozen=True, slots=True)
class Stats:
    """What ``it.stats()`` returns: what was done so far, and what is held right now.

    ``it`` is an iterator or a loader.

    >>> from mpiter import batches
    >>> it = batches(range(10), 4, n_processes=0)
    >>> seen = next(it)
    >>> it.stats().batches, it.stats().samples
    (1, 4)
    >>> print(it.stats())
    1 batch, 4 samples; the first came after ... s
    ...
    """

    batches: int = _number("batches handed out")
    samples: int = _number("samples in them")
    skipped: int = _number(
        "samples that on_error='skip' has left out, by workers now gone too"
    )
    restarts: int = _number("workers replaced because they had died or were stuck")
    odd_rows: int = _number("samples that fitted no column and travelled as objects")
    copies: int = _number("batches handed out as copies, since the slots were all held")
    sample_s: float = _number("seconds that fetching a sample took, lately", max)
    sample_cpu_s: float = _number(
        "seconds of sample_s that were work, not waiting", max
    )
    wait_s: float = _number("seconds that next() has waited, up to now")
    start_s: float = _number(
        "seconds of wait_s until the first batch came: workers had to start", max
    )
    recent_s: float = _number(
        "seconds since the stats were last looked at, a second and a batch ago or more",
        max,
    )
    recent_wait_s: float = _number("seconds of recent_s that next() waited")
    recent_batches: int = _number("batches handed out in recent_s")
    workers: int = _number("workers that fetch; 0 where next() does")
    worker_bytes: int = _number(
        "memory of the worker processes, beside what they share with this one"
    )
    ready_batches: int = _number("finished batches that wait to be taken")
    in_flight_batches: int = _number(
        "batches planned and not yet taken, the ready ones included"
    )
    in_flight_bytes: int = _number("bytes of the batches in flight")
    leased_batches: int = _number("batches handed out and still referenced")
    # The index and the error of the first hundred samples that were left out.
    skips: tuple[tuple[Any, str], ...] = ()
    # When the first batch came: it tells these counters from those of other workers.
    _began_s: float | None = field(default=None, repr=False, compare=False)
    # The samples that a worker may have under way; 0 of a stream, which has no keys,
    # and of a dataset that reads many at once.
    _concurrency: int = field(default=1, repr=False, compare=False)
    _taken_s: float = field(
        default_factory=lambda: time.monotonic(), init=False, repr=False, compare=False
    )

    def __str__(self) -> str:
        """A few lines that say whether the program waits, and what would help."""
        if not self.batches:
            return "no batch yet"
        batches = _counted(self.batches, "batch", "batches")
        samples = _counted(self.samples, "sample", "samples")
        recent_batches = _counted(self.recent_batches, "batch", "batches")
        lines = [
            f"{batches}, {samples}; the first came after {self.start_s:.2f} s",
            f"waited {self.recent_share:.0%} of the last {self.recent_s:.1f} s, for "
            f"{recent_batches}: {self.verdict()}",
            f"{self.ready_batches} ready, {self.in_flight_batches} on their way "
            f"({self.in_flight_bytes / 1e6:,.1f} MB), {self.leased_batches} held; "
            f"fetching a sample takes {1e3 * self.sample_s:.3g} ms",
        ]
        rare = []
        for name in _RARE:
            count = getattr(self, name)
            if count:
                rare.append(f"{count:,} {name.replace('_', ' ')}")
        if rare:
            lines.append(", ".join(rare))
        return "\n".join(lines)

    @property
    def recent_share(self) -> float:
        """The share of ``recent_s`` that ``next()`` waited, from 0 to 1."""
        if self.recent_s > 0:
            return min(1.0, self.recent_wait_s / self.recent_s)
        return 0.0

    def since(self, earlier: Stats) -> Stats:
        """Return these numbers with ``recent_s`` and the like counted from ``earlier``.

        ``stats()`` itself counts them from its last call on.  That may have been a
        progress bar's, so it is no interval to rely on.

        >>> from mpiter import batches
        >>> it = batches(range(100), 4, n_processes=0, epochs=None)
        >>> seen, before = next(it), it.stats()
        >>> for _ in range(10):
        ...     seen = next(it)
        >>> it.stats().since(before).recent_batches
        10
        """
        waited_s = 0.0
        batches = 0
        # A loader counts from zero when it has new workers, whose first batch came
        # later.
        if not earlier.batches or earlier._began_s == self._began_s:
            waited_s = earlier.wait_s
            batches = earlier.batches
        return replace(
            self,
            recent_s=self._taken_s - earlier._taken_s,
            recent_wait_s=self.wait_s - waited_s,
            recent_batches=self.batches - batches,
        )

    def as_dict(self, prefix: str = "mpiter/") -> dict[str, float]:
        """Return the numbers as a flat dict for a logger.

        ``wandb.log()``, Lightning's ``log_dict()``, MLflow and the like take it.  The
        curve to look at is ``recent_share``, the share of the time that the program
        waited; ``since()`` sets the interval that it is about.

        >>> stats = Stats(batches=2, recent_s=4.0, recent_wait_s=1.0)
        >>> stats.as_dict()["mpiter/recent_share"]
        0.25
        """
        return {
            prefix + name: getattr(self, name) for name in (*NUMBERS, "recent_share")
        }

    def verdict(self) -> str:
        """Say whether the program has waited lately, and how many workers suffice.

        >>> lately = {"recent_batches": 10, "recent_s": 1.0, "recent_wait_s": 0.01}
        >>> Stats(workers=2, batches=10, **lately).verdict()
        'workers suffice'
        >>> lately["recent_wait_s"] = 0.9
        >>> slow = {"sample_s": 0.02, "sample_cpu_s": 0.001}
        >>> Stats(workers=1, batches=10, samples=80, **slow, **lately).verdict()
        'workers wait 95% of their time: concurrency=16, or 17 workers'
        """
        if self.recent_s < _TOO_SHORT_S:
            return "too short a time to tell"
        enough = self.enough_workers
        if not self.workers:
            if enough is None:
                return f"fetched without workers{self._worth_trying()}"
            if enough == 0:
                return "fetched without workers; none are needed"
            return f"fetched without workers; {enough} would hide it"
        if self.recent_share < _WORTH_TELLING:
            if enough == 0:
                return "workers suffice; so would none"
            return "workers suffice"
        several = self.useful_concurrency
        if several is not None:
            waiting = 1 - self._working
            more = f", or {enough} workers" if enough else ""
            return (
                f"workers wait {waiting:.0%} of their time: concurrency={several}{more}"
            )
        if enough is not None and enough > self.workers:
            return f"workers can't keep up; {enough} would"
        if enough is None and self._has_waited:
            waiting = 1 - self._working
            return f"workers wait {waiting:.0%} of their time: have more of them"
        return "workers can't keep up"

    def _worth_trying(self) -> str:
        """Say what would be faster where the step takes less than all that is fetched.

        ``next()`` fetches.
        """
        if self.recent_share < _WORTH_TELLING:
            return ""
        several = self.useful_concurrency
        if several is not None:
            return f"; one with concurrency={several} would wait less"
        if self._has_waited:
            return f"; {_SOME_WORKERS} would wait less"
        cores = machine.cores()
        batch_s = self.sample_s * self.samples / max(self.batches, 1)
        if cores > 1 and batch_s / cores > _HAND_OVER_S:
            return f"; {cores}, one on each core, would be faster"
        return ""

    @property
    def _has_waited(self) -> bool:
        """True if samples wait for a disk or a network, more than they use a core."""
        working = self._working
        if self.sample_s * max(self._concurrency, 1) < _A_WAIT_S:
            return False
        # Workers that share few cores wait for these, too.
        return working <= 0.5 and working * self.workers <= machine.cores() / 2

    @property
    def _working(self) -> float:
        """The share of their time that workers work, and don't wait."""
        return min(1.0, self.sample_cpu_s / max(self.sample_s, 1e-9))

    @property
    def useful_concurrency(self) -> int | None:
        """How many samples under way would keep workers busy, or suffice for the step.

        None if workers have no time to spare, or their samples come as a stream.
        """
        now = self._concurrency
        if not now or not self._has_waited:
            return None
        most = min(now / max(self._working, 1e-9), _MOST_TOLD)
        wanted = most
        if enough := self.enough_workers:
            wanted = now * enough / max(self.workers, 1)
        found = 2 * now
        while found < wanted and 2 * found <= most:
            found *= 2
        return found

    @property
    def enough_workers(self) -> int | None:
        """The fewest workers that load a batch while the step uses the one before.

        They are computed from what was measured lately.  0 if handing a batch over
        takes longer than fetching it; None if the cores are fully used, or too little
        has been measured.
        """
        step_s = (self.recent_s - self.recent_wait_s) / max(self.recent_batches, 1)
        batch_s = self.sample_s * self.samples / max(self.batches, 1)
        cpu_s = batch_s * self._working
        if not batch_s or cpu_s > step_s * machine.cores():
            return None
        if batch_s > step_s * _MOST_TOLD:
            return None
        if batch_s < _HAND_OVER_S:
            return 0
        return math.ceil(_TO_SPARE * batch_s / step_s)


NUMBERS = {
    name: one.metadata
    for name, one in Stats.__dataclass_fields__.items()
    if one.metadata
}
# Under -OO there is no docstring to add the fields to.
if Stats.__doc__:
    Stats.__doc__ += "\n    Attributes:\n" + "".join(
        f"        {name}: {one['says']}\n" for name, one in NUMBERS.items()
    )


def _counted(count: int, one: str, several: str) -> str:
    name = one if count == 1 else several
    return f"{count:,} {name}"


def total(parts: list[Stats]) -> Stats:
    """Combine the statistics of several engines into those of one."""
    if not parts:
        return Stats()
    numbers = {
        name: about["merge"]([getattr(part, name) for part in parts])
        for name, about in NUMBERS.items()
    }
    # The first engine to hand out a batch stays the first.
    began = [part._began_s for part in parts if part._began_s is not None]
    return Stats(
        **numbers,
        skips=sum((part.skips for part in parts), ()),
        _began_s=min(began, default=None),
        _concurrency=max(part._concurrency for part in parts),
    )
