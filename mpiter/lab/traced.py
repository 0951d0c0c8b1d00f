"""A recorded run in a report: who did what when, and what would have helped.

A trace is what `trace="run.json"` of an iterator or a loader has written; those that lie in the report's folder are
shown after the results.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import OptionError
from ..tuning.capacity import measured
from ..tuning.events import Recorded
from ..tuning.explain import Explanation, WhatIf, explain, headroom
from ..tuning.trace import read
from .text import number
from .views import Section, Span, Table, Timeline

SHOWN = 24  # steps of the trainer
_BEGINNING = b'{"traceEvents"'
_ABOUT = (
    "A run that was recorded: who did what when, and what its times say of other circumstances, by replaying them in "
    "the engine's own loop."
)


def sections(folder: Path) -> list[Section]:
    """One for each trace in the folder."""
    return [_section(path) for path in sorted(folder.glob("*.json")) if _is_trace(path)]


def _is_trace(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


def _section(path: Path) -> Section:
    recorded = read(path)
    try:
        found = explain(recorded, measured())
    except OptionError as why:  # too short
        return _made(path, (), (str(why),), ())
    best = found.best
    gain = "" if best is None else f"{best.name} would gain {best.gain:.0%}"
    says = f"The trainer waited {found.run.waited:.0%} of the time; {gain or 'no other options would gain anything'}."
    return _made(path, (says,), (), (_timeline(recorded), _table(found)))


def _made(path: Path, says: tuple[str, ...], absent: tuple[str, ...], views: tuple[Timeline | Table, ...]) -> Section:
    command = f"mpiter explain {path.name}"
    return Section(f"trace {path.stem}", f"A recorded run: {path.name}", _ABOUT, says, (), absent, views, command)


def _timeline(recorded: Recorded) -> Timeline:
    """Of some steps in the middle of the longest loop."""
    loops = [step.loop for step in recorded.steps]
    loop = max(set(loops), key=loops.count)
    steps = [step for step in recorded.steps if step.loop == loop]
    first = max(0, (len(steps) - SHOWN) // 2)
    shown = steps[first : first + SHOWN]
    begin, end = shown[0].began, shown[-1].began + shown[-1].seconds
    consumer = [(one, kind) for kind, some in (("wait", recorded.waits), ("step", recorded.steps)) for one in some]
    spans = [Span(one.began, one.began + one.seconds, kind) for one, kind in consumer if one.loop == loop]
    lanes = {"consumer": sorted(spans, key=lambda span: span.begin)}
    for task in recorded.fetched:
        if task.loop == loop:
            span = Span(task.began, task.began + task.seconds, "fetch", f"{task.rows} samples")
            lanes.setdefault(f"worker {task.worker}", []).append(span)
    cut = {name: tuple(_within(some, begin, end)) for name, some in sorted(lanes.items())}
    return Timeline(f"{len(shown)} steps", tuple(cut.items()), "From the middle of the run; the trace has it all.")


def _within(spans: list[Span], begin: float, end: float) -> Iterator[Span]:
    for span in spans:
        if span.end > begin and span.begin < end:
            yield Span(max(span.begin, begin) - begin, min(span.end, end) - begin, span.kind, span.label)


def _table(found: Explanation) -> Table:
    run = found.run
    rows = [(f"measured, {run.case.told}", number(run.samples_per_s), f"{run.waited:.0%}", "")]
    rows += [_row(found.replayed, "replayed", gain=False), *(_row(one, one.name) for one in found.what_ifs)]
    note = "".join(f"Not replayed: {what}.  " for what in run.not_replayed)
    note += f"With data for nothing the trainer would be {headroom(run):.2f} times as fast."
    return Table("What would have helped", ("", "samples/s", "waited", "gain"), tuple(rows), note)


def _row(one: WhatIf, name: str, gain: bool = True) -> tuple[str, str, str, str]:
    return name, number(one.samples_per_s), f"{one.waited:.0%}", f"{one.gain:+.0%}" if gain else ""
