"""The frozen snapshot that ``stats()`` returns: what an iterator has done, and where the time went."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from . import machine
from .errors import OptionError

_WORTH_TELLING = 0.05  # of the time
_TOO_SHORT_S = 0.2  # to tell anything
_TO_SPARE, _MOST_TOLD = 1.02, 64  # of loading that is hidden; workers: beyond, the step takes no time to speak of
_RARE = ("skipped", "restarts", "odd_rows", "copies")


def _gauge(says: str, merge: Callable[[list[Any]], Any] = sum, kind: str = "gauge") -> Any:
    """A number of the moment; ``merge`` makes one of those of several engines."""
    return field(default=0, metadata={"says": f"{says}.", "kind": kind, "merge": merge})


_counter = partial(_gauge, kind="counter")  # a number that only grows as long as the workers stay


@dataclass(frozen=True, slots=True)
class Stats:
    """What an iterator or a loader has done so far, and what it holds at the moment: ``it.stats()``.

    >>> from mpiter import batches
    >>> it = batches(range(10), 4, n_processes=0)
    >>> seen = next(it)
    >>> it.stats().batches, it.stats().samples
    (1, 4)
    >>> print(it.stats())
    1 batch, 4 samples; the first came after ... s
    ...
    """

    batches: int = _counter("batches handed out")
    samples: int = _counter("samples in them")
    skipped: int = _counter("samples that on_error='skip' has left out, by workers now gone too")
    restarts: int = _counter("workers replaced because they had died or were stuck")
    odd_rows: int = _counter("samples that fitted no column and travelled as objects")
    copies: int = _counter("batches handed out as copies, since the slots were all held")
    sample_s: float = _gauge("seconds that fetching a sample took, lately", max)
    sample_cpu_s: float = _gauge("seconds of sample_s that were work, not waiting", max)
    wait_s: float = _counter("seconds that next() has waited, up to now")
    start_s: float = _gauge("seconds of wait_s until the first batch came: workers had to start", max)
    recent_s: float = _gauge("seconds since the stats were last looked at, a second and a batch ago or more", max)
    recent_wait_s: float = _gauge("seconds of recent_s that next() waited")
    recent_batches: int = _gauge("batches handed out in recent_s")
    workers: int = _gauge("workers that fetch; 0 where next() does")
    worker_bytes: int = _gauge("memory of the worker processes, beside what they share with this one")
    ready_batches: int = _gauge("finished batches that wait to be taken")
    in_flight_batches: int = _gauge("batches planned and not yet taken, the ready ones included")
    in_flight_bytes: int = _gauge("bytes of the batches in flight")
    leased_batches: int = _gauge("batches handed out and still referenced")
    skips: tuple[tuple[Any, str], ...] = ()  # index and error of the first hundred samples that were left out

    def __str__(self) -> str:
        """A few lines to read: does the program wait for data, and what would help?"""
        if not self.batches:
            return "no batch yet"
        rare = ((name, getattr(self, name)) for name in _RARE)
        lines = [
            f"{_counted(self.batches, 'batch', 'batches')}, {_counted(self.samples, 'sample', 'samples')}; "
            f"the first came after {self.start_s:.2f} s",
            f"waited {self.recent_share:.0%} of the last {self.recent_s:.1f} s, "
            f"for {_counted(self.recent_batches, 'batch', 'batches')}: {self.verdict()}",
            f"{self.ready_batches} ready, {self.in_flight_batches} on their way "
            f"({self.in_flight_bytes / 1e6:,.1f} MB), {self.leased_batches} held; "
            f"fetching a sample takes {1e3 * self.sample_s:.3g} ms",
            ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in rare if count),
        ]
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def recent_share(self) -> float:
        """The part of ``recent_s`` that ``next()`` waited: 0 to 1."""
        return min(1.0, self.recent_wait_s / self.recent_s) if self.recent_s > 0 else 0.0

    @property
    def batches_per_s(self) -> float:
        """Batches handed out in a second, lately."""
        return self.recent_batches / self.recent_s if self.recent_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples handed out in a second, lately, for batches of the average size."""
        return self.batches_per_s * self.samples / self.batches if self.batches else 0.0

    def as_dict(self, prefix: str = "mpiter/") -> dict[str, float]:
        """The numbers, plain, for ``wandb.log()``, Lightning's ``log_dict()``, MLflow and the like.

        >>> Stats(batches=2, recent_s=4.0, recent_wait_s=1.0).as_dict()["mpiter/recent_share"]
        0.25
        """
        names = (*NUMBERS, "recent_share", "batches_per_s", "samples_per_s")
        return {prefix + name: getattr(self, name) for name in names}

    def as_prometheus(self, labels: Mapping[str, object] | None = None) -> str:
        """The numbers as text for Prometheus to scrape, without the recent ones: it computes rates itself.

        >>> print(Stats(batches=2).as_prometheus({"loader": "train"}))
        # HELP mpiter_batches_total batches handed out.
        # TYPE mpiter_batches_total counter
        mpiter_batches_total{loader="train"} 2
        ...
        """
        shown, lines = [], []
        for label, value in (labels or {}).items():
            if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", label) or label.startswith("__"):
                raise OptionError(f"{label!r} is no name that a label may have; use letters, digits and _.")
            text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            shown.append(f'{label}="{text}"')
        braced = f"{{{','.join(shown)}}}" if shown else ""
        for name, about in NUMBERS.items():
            if not name.startswith("recent_"):
                seconds = f"{name[:-2]}_seconds" if name.endswith("_s") else name
                told = f"mpiter_{seconds}{'_total' * (about['kind'] == 'counter')}"
                lines += [f"# HELP {told} {about['says']}", f"# TYPE {told} {about['kind']}"]
                lines.append(f"{told}{braced} {getattr(self, name)!r}")
        return "\n".join(lines) + "\n"

    def verdict(self) -> str:
        """Say whether the program has waited for the workers lately, and how many workers would suffice.

        >>> Stats(workers=2, batches=10, recent_batches=10, recent_s=1.0, recent_wait_s=0.01).verdict()
        'workers suffice'
        """
        if not self.workers:
            return "that is fetching itself, without workers"
        if self.recent_s < _TOO_SHORT_S:
            return "too short a time to tell"
        if self.recent_share < _WORTH_TELLING:
            return "workers suffice"
        enough = self.enough_workers
        return f"workers can't keep up{f'; {enough} would' if enough is not None and enough > self.workers else ''}"

    @property
    def enough_workers(self) -> int | None:
        """The fewest workers that load a batch while the step uses the one before, by what was measured lately.

        None where no number suffices, since the cores are used up, or where too little is known.
        """
        step_s = (self.recent_s - self.recent_wait_s) / max(self.recent_batches, 1)
        batch_s = self.sample_s * self.samples / max(self.batches, 1)
        cpu_s = batch_s * min(1.0, self.sample_cpu_s / max(self.sample_s, 1e-9))
        if not batch_s or cpu_s > step_s * machine.cores() or batch_s > step_s * _MOST_TOLD:
            return None
        return math.ceil(_TO_SPARE * batch_s / step_s)


NUMBERS = {name: one.metadata for name, one in Stats.__dataclass_fields__.items() if one.metadata}
if Stats.__doc__:  # under -OO there is none
    Stats.__doc__ += "\n    Attributes:\n" + "".join(
        f"        {name}: {one['says']}\n" for name, one in NUMBERS.items()
    )


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def total(parts: list[Stats]) -> Stats:
    """The numbers of several engines as one's."""
    if not parts:
        return Stats()
    numbers = {name: about["merge"]([getattr(part, name) for part in parts]) for name, about in NUMBERS.items()}
    return Stats(**numbers, skips=sum((part.skips for part in parts), ()))
