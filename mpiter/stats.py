"""The frozen snapshot that ``stats()`` returns: what an iterator has done, and where the time went.

For everybody: the progress line, the tuner, the report, the tests.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import machine
from .errors import OptionError

_WORTH_TELLING = 0.05  # of the time
_TOO_SHORT_S = 0.2  # to tell anything
_TO_SPARE, _MOST_TOLD = 1.02, 64  # of loading that is hidden; workers: beyond, the step takes no time to speak of
_IN_WORDS = ("skips", "dataset")  # what is no number
_RARE = ("errors", "skipped", "restarts", "renewals", "odd_rows", "copies")


@dataclass(frozen=True, slots=True)
class Stats:
    """What an iterator has done so far, and what it holds at the moment: ``it.stats()``.

    Attributes:
        batches: batches handed out.
        samples: samples in them.
        odd_rows: samples that fitted no column and travelled as objects.
        copies: batches handed out as copies.
        errors: samples whose fetch raised.
        skipped: samples whose fetch raised and that ``on_error="skip"`` left out, also by workers that are gone.
        restarts: workers replaced because they had died or were stuck.
        renewals: workers replaced because they had fetched ``maxtasksperchild`` samples.
        tasks: tasks that workers have answered.
        cut_again: tasks that ran over their time budget.
        payload_bytes: bytes of the rooms of the batches handed out.
        order_s: seconds spent on the order of the samples.
        queue_s: seconds that tasks were on their way to a worker, added up.
        fetch_s: seconds of workers in ``dataset[i]``.
        fetch_cpu_s: seconds of ``fetch_s`` and ``pack_s`` that were work, not waiting.
        fetch_delay_s: seconds of ``fetch_s`` and ``pack_s`` in which a worker waited for a core, where that is counted.
        read_s: seconds of ``fetch_s`` in the dataset's ``read(i)``, where a worker process sees inside the dataset.
        pack_s: seconds of workers on writing samples.
        deliver_s: seconds spent on handing batches out.
        sample_s: seconds that fetching a sample takes, lately.
        wait_s: seconds that ``next()`` waited, up to now.
        start_s: seconds of ``wait_s`` until the first batch came: workers had to start.
        seconds: seconds since the first batch came.
        own_cpu_s: seconds of ``seconds`` that this process computed, all its threads together; 0 where unknown.
        recent_s: seconds since one has looked last, a second and a batch ago or more.
        recent_wait_s: seconds of ``recent_s`` that ``next()`` waited.
        recent_batches: batches handed out in ``recent_s``.
        workers: workers that fetch; 0 where ``next()`` does.
        threads: workers that are threads of this process.
        worker_bytes: of the worker processes' own memory: without the dataset's arrays and the slots, which they share.
        worker_cpu_s: processor time of the worker processes of the moment, their start included.
        ready_batches: batches that are finished and wait to be taken.
        in_flight_batches: batches planned and not yet taken, the ready ones included.
        in_flight_bytes: bytes of the batches in flight.
        peak_in_flight_batches: the most batches that were in flight.
        peak_in_flight_bytes: the most bytes that were in flight.
        room_bytes: bytes of one batch on its way.
        leased_batches: batches handed out and still referenced.
        slots: slots of shared memory.
        free_slots: slots that nobody uses.
        slot_bytes: bytes of all slots.
        skips: index and error of the samples that were left out, of the first hundred.
        dataset: what the dataset's ``about()`` says of it, where it has one.

    >>> from mpiter import batches
    >>> it = batches(range(10), 4, n_processes=0)
    >>> seen = next(it)
    >>> it.stats().batches, it.stats().samples
    (1, 4)
    >>> print(it.stats())
    1 batch, 4 samples; the first came after ... s
    ...
    """

    batches: int = 0
    samples: int = 0
    odd_rows: int = 0
    copies: int = 0
    errors: int = 0
    skipped: int = 0
    restarts: int = 0
    renewals: int = 0
    tasks: int = 0
    cut_again: int = 0
    payload_bytes: int = 0
    order_s: float = field(default=0.0, compare=False)
    queue_s: float = field(default=0.0, compare=False)
    fetch_s: float = field(default=0.0, compare=False)
    fetch_cpu_s: float = field(default=0.0, compare=False)
    fetch_delay_s: float = field(default=0.0, compare=False)
    read_s: float = field(default=0.0, compare=False)
    pack_s: float = field(default=0.0, compare=False)
    deliver_s: float = field(default=0.0, compare=False)
    sample_s: float = 0.0
    wait_s: float = 0.0
    start_s: float = 0.0
    seconds: float = field(default=0.0, compare=False)
    own_cpu_s: float = field(default=0.0, compare=False)
    recent_s: float = field(default=0.0, compare=False)
    recent_wait_s: float = field(default=0.0, compare=False)
    recent_batches: int = field(default=0, compare=False)
    workers: int = field(default=0, compare=False)
    threads: int = field(default=0, compare=False)
    worker_bytes: int = field(default=0, compare=False)
    worker_cpu_s: float = field(default=0.0, compare=False)
    ready_batches: int = 0
    in_flight_batches: int = 0
    in_flight_bytes: int = 0
    peak_in_flight_batches: int = 0
    peak_in_flight_bytes: int = 0
    room_bytes: int = 0
    leased_batches: int = 0
    slots: int = 0
    free_slots: int = 0
    slot_bytes: int = 0
    skips: tuple[tuple[Any, str], ...] = ()
    dataset: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        """A few lines to read: does one wait for data, and who could help?"""
        if not self.batches:
            return "no batch yet"
        rare = ((name, getattr(self, name)) for name in _RARE)
        lines = [
            f"{_counted(self.batches, 'batch', 'batches')}, {_counted(self.samples, 'sample', 'samples')}; "
            f"the first came after {self.start_s:.2f} s",
            f"waited {self.recent_share:.0%} of the last {self.recent_s:.1f} s, "
            f"for {_counted(self.recent_batches, 'batch', 'batches')}: {self.verdict}",
            f"{self.ready_batches} ready, {self.in_flight_batches} on their way "
            f"({self.in_flight_bytes / 1e6:,.1f} MB), {self.leased_batches} held; "
            f"fetching a sample takes {1e3 * self.sample_s:.3g} ms",
            ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in rare if count),
            ", ".join(f"{name}: {said}" for name, said in self.dataset.items()),
        ]
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def transform_s(self) -> float:
        """Seconds of ``fetch_s`` beside reading, where a worker sees inside the dataset; else 0."""
        return max(0.0, self.fetch_s - self.read_s) if self.read_s else 0.0

    @property
    def recent_share(self) -> float:
        """How much of the time since one has looked last ``next()`` waited: 0 to 1."""
        return min(1.0, self.recent_wait_s / self.recent_s) if self.recent_s > 0 else 0.0

    @property
    def batches_per_s(self) -> float:
        """Batches that were handed out in a second, since one has looked last."""
        return self.recent_batches / self.recent_s if self.recent_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        """The samples in them, if batches were as large as all of them on the average."""
        return self.batches_per_s * self.samples / self.batches if self.batches else 0.0

    def as_dict(self, prefix: str = "mpiter/") -> dict[str, float]:
        """All of it as plain numbers, for ``wandb.log()``, Lightning's ``log_dict()``, MLflow and the like.

        >>> Stats(batches=2, recent_s=4.0, recent_wait_s=1.0).as_dict()["mpiter/recent_share"]
        0.25
        """
        names = (*NUMBERS, "transform_s", "recent_share", "batches_per_s", "samples_per_s")
        return {prefix + name: getattr(self, name) for name in names}

    def as_prometheus(self, labels: Mapping[str, object] | None = None) -> str:
        """All but what is recent as text for Prometheus to scrape: rates it makes itself.

        >>> print(Stats(batches=2).as_prometheus({"loader": "train"}))
        # HELP mpiter_batches_total batches handed out.
        # TYPE mpiter_batches_total counter
        mpiter_batches_total{loader="train"} 2
        ...
        """
        shown = ",".join(f'{_name_of_label(name)}="{_escaped(value)}"' for name, value in (labels or {}).items())
        lines = []
        for name in NUMBERS:
            if name.startswith("recent_"):
                continue
            told = f"mpiter_{f'{name[:-2]}_seconds' if name.endswith('_s') else name}{'_total' * (name in _COUNTERS)}"
            if name in _MEANING:
                lines.append(f"# HELP {told} {_MEANING[name]}")
            lines.append(f"# TYPE {told} {'counter' if name in _COUNTERS else 'gauge'}")
            lines.append(f"{told}{f'{{{shown}}}' * bool(shown)} {getattr(self, name)!r}")
        return "\n".join(lines) + "\n"

    @property
    def verdict(self) -> str:
        """Does one wait for the workers, since one has looked last; and how many would suffice?"""
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
        """The fewest workers that load a batch while the step has the one before, by what was measured lately.

        A step and loading take turns without workers, and ``max(step, loading / workers)`` with them.  None where no
        number does, since the cores are used up, or where too little is known.
        """
        step_s = (self.recent_s - self.recent_wait_s) / max(self.recent_batches, 1)
        batch_s = self.sample_s * self.samples / max(self.batches, 1)
        cpu_s = batch_s * min(1.0, self.fetch_cpu_s / max(self.fetch_s + self.pack_s, 1e-9))
        if not batch_s or cpu_s > step_s * machine.cores() or batch_s > step_s * _MOST_TOLD:
            return None
        return math.ceil(_TO_SPARE * batch_s / step_s)


NUMBERS = tuple(name for name in Stats.__dataclass_fields__ if name not in _IN_WORDS)


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


# What only grows as long as the workers stay, and what each line of the docstring says; under -OO there is none.
_COUNTERS = {
    "batches",
    "samples",
    "odd_rows",
    "copies",
    "errors",
    "skipped",
    "restarts",
    "renewals",
    "tasks",
    "cut_again",
}
_COUNTERS |= {"payload_bytes", "order_s", "queue_s", "fetch_s", "fetch_cpu_s", "fetch_delay_s", "read_s", "pack_s"}
_COUNTERS |= {"deliver_s", "wait_s", "own_cpu_s"}
_MEANING = {name: said.replace("``", "") for name, said in re.findall(r"^ +(\w+): (.+)$", Stats.__doc__ or "", re.M)}


def _name_of_label(name: str) -> str:
    if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
        raise OptionError(f"{name!r} is no name that a label may have; use letters, digits and _.")
    return name


def _escaped(value: object) -> str:
    """A label's value, as the exposition format has it."""
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def total(parts: list[Stats]) -> Stats:
    """Of several engines: what adds up, added up; of times and sizes of one thing, the greatest."""
    if not parts:
        return Stats()
    of_one = {"sample_s", "room_bytes", "start_s", "seconds", "own_cpu_s", "recent_s"}
    merge = {name: max if name in of_one else sum for name in NUMBERS}
    numbers = {name: how([getattr(part, name) for part in parts]) for name, how in merge.items()}
    return Stats(**numbers, skips=sum((part.skips for part in parts), ()), dataset=parts[0].dataset)
