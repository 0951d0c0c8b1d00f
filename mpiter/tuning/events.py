"""Rows of numbers as events in the Chrome trace format, and such a trace as plain values again.

Pure.  A trace is a JSON object: ``traceEvents``, of which each loop is a "process" with a "thread" for the consumer,
the prefetch thread and each worker; and ``otherData``, which has the options of each loop and what it counted.
Complete events (X) say what somebody did, counter events (C) how many batches are ready and on their way, instants (i)
that a worker ended or that there are others now.  Times are whole microseconds from the beginning of the trace, seconds
in ``args``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import OptionError

COLUMNS = {  # of the rows of each kind; times are seconds on the monotonic clock
    "wait": 3,  # began, ended; processor time of the thread when it began
    "batch": 5,  # its opening began, and ended; samples, bytes; processor time of the thread when it ended
    "order": 2,  # began, ended
    "deliver": 2,  # began, ended
    "task": 10,  # worker, began, seconds, rows, queue_s, cpu_s, delay_s, read_s, pack_s, cut again
    "queue": 3,  # at, batches in flight, batches ready
    "lost": 3,  # at, worker, was asked
    "size": 3,  # at, workers, n_prefetch
}
FORMAT = 1  # another number when a reader must know another way
CONSUMER, PREFETCH, WORKER = 1, 2, 3  # threads of a loop: worker 0 is number 3
Rows = npt.NDArray[np.float64]
_RIGHT_AFTER_S = 50e-6
_TOGETHER = 4096  # events that are written at once
_FIELDS = re.compile(r"%[.\d]*[dfg]")

_SPAN = '{"ph":"X","pid":%d,"tid":%s,"cat":"mpiter","name":"%s","ts":%%d,"dur":%%d,"args":{%s}}'
_TASK = '"rows":%d,"queue_s":%.9g,"cpu_s":%.9g,"delay_s":%.9g,"read_s":%.9g,"pack_s":%.9g,"again":%d,"s":%.9g'
_COUNTER = (
    '{"ph":"C","pid":%d,"tid":2,"cat":"mpiter","name":"batches","ts":%%d,"args":{"ready":%%d,"on their way":%%d}}'
)


@dataclass
class Loop:
    """What one loop has noted."""

    number: int
    zero: float  # the beginning of the trace, on the clock of the rows
    about: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, list[Rows]] = field(default_factory=lambda: {kind: [] for kind in COLUMNS})

    def add(self, kind: str, numbers: bytes) -> None:
        self.parts[kind].append(np.frombuffer(numbers).reshape(-1, COLUMNS[kind]))

    def rows(self, kind: str) -> Rows:
        return np.concatenate([np.empty((0, COLUMNS[kind])), *self.parts[kind]])

    def events(self) -> Iterator[str]:
        """As JSON texts, many at a time."""
        waits, batches, tasks = self.rows("wait"), self.rows("batch"), self.rows("task")
        yield ",\n".join(map(json.dumps, self._names(sorted(set(tasks[:, 0].astype(int).tolist())))))
        yield from self._spans(CONSUMER, "wait", waits[:, :2])
        yield from self._spans(CONSUMER, "open", batches[:, :4], '"samples":%d,"bytes":%d')
        yield from self._spans(CONSUMER, "step", _steps(waits, batches), '"cpu_s":%.6f')
        yield from self._spans(PREFETCH, "order", _joined(self.rows("order")), '"batches":%d,"s":%.9g')
        yield from self._spans(PREFETCH, "deliver", self.rows("deliver"))
        yield from self._tasks(tasks)
        times, ready, flying = _thinned(_queue(self.rows("queue"), batches)).T
        yield from _written(_COUNTER % self.number, [self._us(times), ready, flying])
        yield from map(json.dumps, self._marks())

    def _us(self, times: Rows) -> Rows:
        found: Rows = np.rint(1e6 * (times - self.zero))
        return found

    def _spans(self, thread: int, name: str, rows: Rows, args: str = "") -> Iterator[str]:
        began, ended, *more = rows.T
        since, until = self._us(began), self._us(ended)
        yield from _written(_SPAN % (self.number, thread, name, args), [since, np.maximum(until - since, 0), *more])

    def _tasks(self, rows: Rows) -> Iterator[str]:
        worker, began, seconds, *more = rows.T
        since, until = self._us(began), self._us(began + seconds)
        pattern = _SPAN % (self.number, "%d", "fetch", _TASK)
        yield from _written(pattern, [WORKER + worker, since, until - since, *more, seconds])

    def _marks(self) -> Iterator[dict[str, Any]]:
        for at, worker, was_asked in self.rows("lost").tolist():
            how = "has ended, as it was asked to" if was_asked else "was lost, and is replaced"
            yield self._mark(at, f"worker {worker:.0f} {how}", worker=int(worker), was_asked=int(was_asked))
        for at, workers, n_prefetch in self.rows("size").tolist():
            name = f"{workers:.0f} workers, n_prefetch {n_prefetch:.0f}"
            yield self._mark(at, name, workers=int(workers), n_prefetch=int(n_prefetch))

    def _mark(self, at: float, name: str, **args: int) -> dict[str, Any]:
        time = round(1e6 * (at - self.zero), 3)
        event = {"ph": "i", "s": "p", "pid": self.number, "tid": PREFETCH, "cat": "mpiter", "name": name}
        return event | {"ts": time, "args": args}

    def _names(self, workers: list[int]) -> Iterator[dict[str, Any]]:
        """Of the loop and of its threads."""
        size = self.about.get("batch_size", "?")
        yield self._named("process_name", 0, name=f"mpiter {self.number}: batches of {size}")
        yield self._named("process_sort_index", 0, sort_index=self.number)
        threads = {CONSUMER: "consumer", PREFETCH: "prefetch thread"}
        for thread, name in (threads | {WORKER + worker: f"worker {worker}" for worker in workers}).items():
            yield self._named("thread_name", thread, name=name)
            yield self._named("thread_sort_index", thread, sort_index=thread)

    def _named(self, what: str, thread: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "pid": self.number, "tid": thread, "name": what, "ts": 0, "args": args}


def _written(pattern: str, columns: list[Rows]) -> Iterator[str]:
    """One event for each row of the columns."""
    is_whole = [part[-1] == "d" for part in _FIELDS.findall(pattern)]
    for at in range(0, len(columns[0]), _TOGETHER):
        some = [column[at : at + _TOGETHER] for column in columns]
        values = [(one.astype(np.int64) if whole else one).tolist() for one, whole in zip(some, is_whole, strict=True)]
        yield ",\n".join(map(pattern.__mod__, zip(*values, strict=True)))


def _steps(waits: Rows, batches: Rows) -> Rows:
    """When the user was at work on a batch, from when he had it until he waited for the next; and his thread's part."""
    after = np.searchsorted(waits[:, 0], batches[:, 1])
    is_waited_for = after < len(waits)
    since, wait = batches[is_waited_for], waits[after[is_waited_for]]
    is_last_before = np.append(since[1:, 0], np.inf) >= wait[:, 0]  # else the next batch was in hand already
    since, wait = since[is_last_before], wait[is_last_before]
    cpu_s = np.clip(wait[:, 2] - since[:, 4], 0, wait[:, 0] - since[:, 1])
    return np.stack([since[:, 1], wait[:, 0], cpu_s], axis=1)


def _queue(seen: Rows, batches: Rows) -> Rows:
    """Batches that are ready, and that are on their way, whenever that changed: as the loop saw it, less those that
    the consumer has taken since."""
    if not len(seen):
        return seen
    times = np.concatenate([seen[:, 0], batches[:, 0]])
    order = np.argsort(times, kind="stable")
    is_seen = order < len(seen)
    latest = np.maximum.accumulate(np.where(is_seen, np.arange(len(order)), -1))
    taken = np.cumsum(~is_seen)
    since: Rows = taken - np.where(latest < 0, 0, taken[latest])
    flying, ready = (
        np.maximum(0, np.where(latest < 0, 0, seen[np.minimum(order[latest], len(seen) - 1), at]) - since)
        for at in (1, 2)
    )
    return np.stack([times[order], ready, np.maximum(0, flying - ready)], axis=1)


def _joined(orders: Rows) -> Rows:
    """Of batches that were planned one right after the other one span, with their number and their own seconds."""
    if not len(orders):
        return np.empty((0, 4))
    began, ended = orders.T
    first = np.flatnonzero(np.append(True, began[1:] > ended[:-1] + _RIGHT_AFTER_S))
    after = np.append(first[1:], len(orders))
    return np.stack([began[first], ended[after - 1], after - first, np.add.reduceat(ended - began, first)], axis=1)


def _thinned(queue: Rows) -> Rows:
    """The last of each millisecond: who wants more of a curve can't see it."""
    is_last = np.diff((1e3 * queue[:, 0]).astype(np.int64), append=-1) != 0
    kept: Rows = queue[is_last]
    return kept


# -- and back ----------------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """What the consumer or the prefetch thread did, in seconds from the beginning of the trace."""

    loop: int
    began: float
    seconds: float
    cpu_s: float = 0.0  # of steps: of the thread that asks for batches


class Fetched(NamedTuple):
    """A task that a worker has answered."""

    loop: int
    worker: int
    began: float
    seconds: float
    rows: int
    queue_s: float
    cpu_s: float
    delay_s: float  # that the worker waited for a core
    read_s: float
    pack_s: float
    again: bool  # it was cut: its rest is another task


class Opened(NamedTuple):
    """A batch that was handed out, and how long it took to open."""

    loop: int
    began: float
    seconds: float
    samples: int
    bytes: int


class Resize(NamedTuple):
    """From then on there were to be so many workers, and batches that wait."""

    loop: int
    at: float
    workers: int
    n_prefetch: int


@dataclass(frozen=True)
class Recorded:
    """A trace as plain values: what it takes to replay the run.

    ``loops`` has for each the options that bind it (``batch_size``, ``workers``, ``n_prefetch``, ``run_ahead``, …,
    ``backend``) and what it counted (``counters``, as in ``Stats``), by its number.
    """

    loops: dict[int, dict[str, Any]]
    fetched: list[Fetched]
    waits: list[Span]
    opens: list[Opened]
    steps: list[Span]  # the user's own, between two batches
    orders: list[Span]
    deliveries: list[Span]
    left_out: int  # rows that were too many for the file
    cores: int
    memory_bytes: int = 1 << 40
    resizes: list[Resize] = field(default_factory=list)


_OF_TASKS = ("rows", "queue_s", "cpu_s", "delay_s", "read_s", "pack_s")
_LISTS = {"wait": "waits", "step": "steps", "order": "orders", "deliver": "deliveries"}


def recorded(trace: Any) -> Recorded:
    """What the JSON object of a trace says."""
    other = trace.get("otherData") if isinstance(trace, dict) else None
    if not isinstance(other, dict) or other.get("mpiter") != FORMAT:
        raise OptionError("this is no trace of this version of mpiter; pass what trace= has written.")
    spans: dict[str, list[Span]] = {name: [] for name in _LISTS.values()}
    fetched, opens, resizes = [], [], []
    for event in trace["traceEvents"]:
        if event["ph"] not in ("X", "i") or event.get("cat") != "mpiter":
            continue
        loop, began, args = event["pid"], event["ts"] / 1e6, event["args"]
        if event["ph"] == "i":
            if "workers" in args:
                resizes.append(Resize(loop, began, **args))
            continue
        seconds = event["dur"] / 1e6
        if event["name"] == "fetch":
            values = {name: args[name] for name in _OF_TASKS}
            task = Fetched(loop, event["tid"] - WORKER, began, args["s"], again=bool(args["again"]), **values)
            fetched.append(task)
        elif event["name"] == "open":
            opens.append(Opened(loop, began, seconds, args["samples"], args["bytes"]))
        else:
            spans[_LISTS[event["name"]]].append(Span(loop, began, args.get("s", seconds), args.get("cpu_s", 0.0)))
    loops = {int(number): about for number, about in other["loops"].items()}
    memory_bytes, left_out, cores = other["memory_bytes"], other["left_out"], other["cores"]
    return Recorded(
        loops,
        fetched,
        opens=opens,
        **spans,
        left_out=left_out,
        cores=cores,
        memory_bytes=memory_bytes,
        resizes=resizes,
    )
