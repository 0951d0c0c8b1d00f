"""What would help, by how much: the recorded times of a run, replayed under other circumstances.

Pure.  A trace (``trace="run.json"``) has what each task and each step of the trainer took; the simulation goes through
the same times with other workers, another ``n_prefetch``, a faster decoder, a store that answers at once, more memory,
or another trainer.  Guarantees that what is predicted is compared with the run itself: the replay of what was done is
in the table, beside what was measured.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .. import machine
from ..engine.pilot import Setting
from ..errors import OptionError
from ..rules import Rules
from .advice import Times, advised
from .capacity import most_workers
from .events import Fetched, Opened, Recorded, Span
from .simulation import Load, Machine, Outcome, Service, simulate
from .virtual import SHARE

# Processor time that a task costs a worker beside its samples: 256 and 253 µs with one worker and with two, on a
# virtual machine with two threads of a core (`worker_cpu_s` without `fetch_cpu_s`, of 600 tasks); on others unknown.
HANDOVER_S = 0.25e-3
_MOST_SAMPLES = 50_000  # that are replayed
_MOST_BATCHES = 400
_LEAST_BATCHES = 20
_WARM = 0.2  # of the batches: until all flows
_TURNS = 0.2  # of the batches: so many follow one of another iterator
_WORTH = 0.03  # of the rate: less is no gain
_N_PREFETCH = 2  # of workers where there were none: what batches() has unless told otherwise
_NOT_REPLAYED = {"max_samples": "that workers are replaced (maxtasksperchild)"}  # by the name of the rule


@dataclass(frozen=True, slots=True)
class Case:
    """All that a replay depends on.

    Attributes:
        load: the times of samples and steps.
        machine: cores and memory.
        setting: workers (none: the trainer fetches) and batches that wait.
        run_ahead: the option; None: as far as it goes.
        in_order: the option.
        each: how many samples dataset[i] gives: some where a worker makes the batch (``collate_fn``).
    """

    load: Load
    machine: Machine
    setting: Setting
    run_ahead: int | None = None
    in_order: bool = True
    each: float = 1.0

    @property
    def told(self) -> str:
        """The setting in words."""
        return "workers: {}, n_prefetch: {}".format(*self.setting) if self.setting.workers else "no workers"

    @property
    def samples(self) -> float:
        """In a batch."""
        return self.each * self.load.batch_size

    @property
    def is_short_of_memory(self) -> bool:
        """Does it take fewer batches than might be on their way?"""
        workers, n_prefetch = self.setting
        rules = Rules(workers=workers, n_prefetch=n_prefetch, run_ahead=self.run_ahead)
        return self.machine.memory_bytes // SHARE < (rules.most + rules.reserve) * self.load.room_bytes

    def replay(self, batches: int = _MOST_BATCHES) -> Outcome:
        """Go through it."""
        ahead, in_order = self.run_ahead, self.in_order
        return simulate(self.load, self.machine, *self.setting, batches, run_ahead=ahead, in_order=in_order)


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded run, or where workers came or went the longest part of it without that.

    Attributes:
        case: what it takes to replay it.
        backend: by its name.
        batches: that were handed out.
        not_replayed: what the replay leaves out, in words.
        batch_s: seconds from one to the next, measured, without the beginning.
        waited: by the trainer, a share of the time, likewise.
    """

    case: Case
    backend: str
    batches: int
    batch_s: float
    waited: float
    not_replayed: tuple[str, ...] = ()

    @property
    def samples_per_s(self) -> float:
        """Measured."""
        return self.case.samples / self.batch_s


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One thing that could be otherwise.

    Attributes:
        name: in words.
        case: what it was predicted from.
        samples_per_s: predicted.
        waited: by the trainer, a share of the time, predicted.
        gain: of the rate, a share, against the replay of what was done.
        can_be_carried_out: by other options alone.
    """

    name: str
    case: Case
    samples_per_s: float
    waited: float
    gain: float
    can_be_carried_out: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """The replay of what was done, and what would come of something else, the most useful first."""

    run: Run
    replayed: WhatIf
    what_ifs: tuple[WhatIf, ...]

    @property
    def best(self) -> WhatIf | None:
        """What gains most by other options alone."""
        useful = [one for one in self.what_ifs if one.can_be_carried_out and one.gain > _WORTH]
        return useful[0] if useful else None


def run_of(recorded: Recorded, capacity: Sequence[float] = (1.0,)) -> Run:
    """The longest run in a trace, of it the longest part under one setting.

    Processor time counts longer where threads share a core: times are taken back to those of a core of one's own, by
    how many were busy on the average and what ``capacity`` says of so many.
    """
    if not recorded.fetched:
        raise OptionError("the trace has no task that a worker has answered; record a longer run.")
    loops = [task.loop for task in recorded.fetched]
    loop = max(set(loops), key=loops.count)
    about = recorded.loops[loop]
    setting, since, until = _longest(recorded, loop)
    of_it = [task for task in recorded.fetched if task.loop == loop and task.rows]
    tasks = sorted([t for t in of_it if since <= t.began < until] or of_it, key=lambda task: task.began)
    steps = [step for step in recorded.steps if step.loop == loop and since <= step.began < until]
    if len(steps) < _LEAST_BATCHES:
        raise OptionError(f"the trace has {len(steps)} steps of the trainer; {_LEAST_BATCHES} are needed at least.")
    opens = [opened for opened in recorded.opens if opened.loop == loop]
    _refuse_many_at_once(recorded.opens)
    first = int(_WARM * len(steps))
    whole_s = steps[-1].began - steps[first].began
    since, until = steps[first].began, steps[-1].began
    waited_s = sum(wait.seconds for wait in recorded.waits if wait.loop == loop and since <= wait.began < until)
    cpu_s = sum(task.cpu_s for task in tasks) + sum(step.cpu_s for step in steps)
    speed = _speed(cpu_s / max(tasks[-1].began + tasks[-1].seconds - tasks[0].began, 1e-9), capacity)
    load = Load(
        samples=tuple(_services(tasks, speed)),
        steps=tuple(_step(step, speed) for step in steps),
        batch_size=int(about["batch_size"]),
        task_s=HANDOVER_S,
        batch_s=statistics.fmean(opened.seconds for opened in opens),
        room_bytes=max(opened.bytes for opened in opens),
    )
    return Run(
        case=Case(
            load,
            Machine(tuple(capacity), recorded.memory_bytes),
            setting,
            about.get("run_ahead") if setting.workers else None,
            about.get("in_order", True),
            statistics.median(opened.samples for opened in opens) / load.batch_size,
        ),
        backend=about.get("backend", ""),
        batches=len(steps),
        not_replayed=tuple(said for name, said in _NOT_REPLAYED.items() if about.get(name)),
        batch_s=whole_s / (len(steps) - 1 - first),
        waited=waited_s / whole_s if whole_s else 0.0,
    )


def _refuse_many_at_once(opens: Sequence[Opened]) -> None:
    """Batches of one are replayed, who then has the workers' time and the trainer's steps for himself."""
    turns = sum(one.loop != other.loop for one, other in itertools.pairwise(sorted(opens, key=lambda one: one.began)))
    if turns > _TURNS * len(opens):
        raise OptionError(
            "several iterators handed out batches in turn, or the shards of one stream: a replay has only one, so "
            "nothing is predicted; record one alone (of a stream, with one worker)."
        )


def _longest(recorded: Recorded, loop: int) -> tuple[Setting, float, float]:
    """The setting under which the most steps followed each other, from when, and until when."""
    about = recorded.loops[loop]
    if about.get("backend") == "serial":
        return Setting(0, _N_PREFETCH), -math.inf, math.inf
    workers = about.get("workers_first") or about["workers"]
    began = [(-math.inf, Setting(int(workers), int(about["n_prefetch"])))]
    began += [(one.at, Setting(one.workers, one.n_prefetch)) for one in recorded.resizes if one.loop == loop]
    ended = [at for at, _ in began[1:]] + [math.inf]
    parts = [(setting, since, until) for (since, setting), until in zip(began, ended, strict=True)]
    return max(parts, key=lambda part: sum(s.loop == loop and part[1] <= s.began < part[2] for s in recorded.steps))


def _speed(busy: float, capacity: Sequence[float]) -> float:
    """Of each thread, where so many are busy on the average."""
    busy = min(max(busy, 1.0), float(len(capacity)))
    low = int(busy)
    high = min(low + 1, len(capacity))
    together = capacity[low - 1] + (busy - low) * (capacity[high - 1] - capacity[low - 1])
    return min(1.0, together / busy)


def _services(tasks: Sequence[Fetched], speed: float) -> Iterator[Service]:
    """What each sample took: of a task with several, each the same."""
    left = _MOST_SAMPLES
    for task in tasks:
        cpu_s = min(task.cpu_s, task.seconds)
        wait_s = max(0.0, task.seconds - cpu_s - task.delay_s)
        for _ in range(min(task.rows, left)):
            yield Service(speed * cpu_s / task.rows, wait_s / task.rows)
        left -= task.rows
        if left <= 0:
            return


def _step(step: Span, speed: float) -> Service:
    cpu_s = min(step.cpu_s, step.seconds)
    return Service(speed * cpu_s, step.seconds - cpu_s)


def times_of(load: Load, workers: int) -> Times:
    """The averages, for the capacity model."""
    cpu_s = load.batch_size * statistics.fmean(one.cpu_s for one in load.samples)
    io_s = load.batch_size * statistics.fmean(one.wait_s for one in load.samples)
    step_s = statistics.fmean(one.cpu_s + one.wait_s for one in load.steps)
    step_cpu_s = statistics.fmean(one.cpu_s for one in load.steps)
    return Times(step_s, step_cpu_s, cpu_s, io_s, load.batch_size, workers)


def predicted(name: str, case: Case, against: float | None = None) -> WhatIf:
    """What would come of it; ``against`` is the rate of what was done."""
    outcome = case.replay()
    first = int(_WARM * outcome.batches)
    rate = case.samples / outcome.batch_s(first)
    return WhatIf(name, case, rate, outcome.waited(first), rate / against - 1 if against else 0.0)


def explain(recorded: Recorded, capacity: Sequence[float]) -> Explanation:
    """What would help, the most useful first."""
    run = run_of(recorded, capacity)
    if run.backend == "thread" and machine.gil_is_in_use():
        raise OptionError(
            "the workers of this run were threads under a GIL: what they waited for, a disk or each other, can't be "
            "told apart, so nothing is predicted; record it with processes."
        )
    done = predicted("as it was", run.case)
    cases = [(*one, True) for one in _under_other_options(run.case)]
    cases += [(*one, False) for one in _in_other_circumstances(run.case)]
    others = [
        replace(predicted(name, case, done.samples_per_s), can_be_carried_out=by_options)
        for name, case, by_options in cases
        if case != run.case
    ]
    return Explanation(run, done, tuple(sorted(others, key=lambda one: -one.gain)))


def _under_other_options(case: Case) -> Iterator[tuple[str, Case]]:
    load, (workers, n_prefetch), capacity = case.load, case.setting, case.machine.capacity
    useful, most = advised(times_of(load, workers), capacity).workers, most_workers(len(capacity))
    for count in sorted({workers // 2, workers + 1, 2 * workers, useful} - {0, workers}):
        if count <= max(most, workers):
            yield f"workers: {count}", replace(case, setting=Setting(count, n_prefetch))
    yield "no workers", replace(case, setting=Setting(0, n_prefetch))
    if workers:
        yield f"n_prefetch: {4 * n_prefetch}", replace(case, setting=Setting(workers, 4 * n_prefetch))
    yield "run_ahead: as far as memory allows", replace(case, run_ahead=None)


def _in_other_circumstances(case: Case) -> Iterator[tuple[str, Case]]:
    load = case.load
    if case.setting.workers and case.is_short_of_memory:
        more = replace(case.machine, memory_bytes=4 * case.machine.memory_bytes)
        yield "four times the memory", replace(case, machine=more)
    faster = [Service(one.cpu_s / 2, one.wait_s) for one in load.samples]
    yield "computing in dataset[i] takes half", replace(case, load=replace(load, samples=tuple(faster)))
    ready = [Service(one.cpu_s) for one in load.samples]
    yield "nothing in dataset[i] waits", replace(case, load=replace(load, samples=tuple(ready)))
    slower = [Service(1.5 * one.cpu_s, 1.5 * one.wait_s) for one in load.steps]
    yield "a trainer that takes 1.5 times as long", replace(case, load=replace(load, steps=tuple(slower)))


def headroom(run: Run) -> float:
    """How many times as fast the trainer would be if data cost nothing."""
    step_s = statistics.fmean(one.cpu_s + one.wait_s for one in run.case.load.steps) + run.case.load.batch_s
    return run.batch_s / step_s if step_s else float("inf")
