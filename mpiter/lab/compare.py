"""What changed between two folders of results, beyond the noise.

Pure.  A row is compared with the row of the same name on the same case at the same place, figure by figure.
Guarantees that a change is only told where both have three rounds or more, their quartiles (of few rounds all values)
lie apart, and it is well above the two spreads together and `LEAST`: of noise alone less than one figure in a
hundred is told; that whatever else differs (machine, versions, commit, settings) is told first; and that figures which
mean something else (so many seconds for other work) are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .results import Result, Row, making_sense
from .spreads import Spread
from .surroundings import commit_in_words
from .text import median
from .views import Table

LEAST, LEAST_ROUNDS = 0.05, 3
FALSE = 0.01  # of figures that noise alone may change
_PACE = "A machine that changed its pace from one to the other changes all of them: measure twice what matters."
_MEANING = ("iterations", "batch_size", "step_ms", "images", "prefetch")  # settings that figures are about
_SAFELY = 2.0  # times both spreads: of noise alone, less than one figure in a hundred then passes for a change
CONSTANT = {"payload_mb"}  # nothing that could change
BETTER_IF_MORE = {
    *("batches_per_s", "mb_per_s", "images_per_s", "samples_per_s", "first_per_s", "later_per_s", "steps_per_s"),
}
BETTER_IF_LESS = {
    *("cpu_ms", "parent_cpu_ms", "workers_cpu_ms", "first_batch_s", "peak_mb", "copied_mb", "piped_mb", "seconds"),
    *("batch_ms", "wait_ms", "step_ms", "batch_s", "read_ms", "transform_ms", "collate_ms", "tree_mb"),
    "tracemalloc_mb",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is told of two folders."""

    remarks: tuple[str, ...]
    tables: tuple[Table, ...]
    says: str


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one row, before and after."""

    row: Row
    figure: str
    before: Spread
    after: Spread

    @property
    def relative(self) -> float:
        if self.before.median:
            return self.after.median / self.before.median - 1
        return math.copysign(math.inf, self.after.median) if self.after.median else 0.0

    @property
    def is_beyond_noise(self) -> bool:
        before, after = self.before.edges, self.after.edges
        if before is None or after is None or min(len(self.before.values), len(self.after.values)) < LEAST_ROUNDS:
            return False
        are_apart = before[1] < after[0] or after[1] < before[0]
        return are_apart and abs(self.relative) > max(LEAST, _SAFELY * (self.before.relative + self.after.relative))

    @property
    def verdict(self) -> str:
        if self.figure in BETTER_IF_MORE:
            return "better" if self.relative > 0 else "worse"
        return ("better" if self.relative < 0 else "worse") if self.figure in BETTER_IF_LESS else "different"


def compared(before: Mapping[str, Result], after: Mapping[str, Result]) -> Comparison:
    remarks, tables, compared_figures, beyond = [], [], 0, 0
    for name in dict.fromkeys((*before, *after)):
        if name not in before or name not in after:
            remarks.append(f"{name}: only in the {'second' if name not in before else 'first'} folder")
            continue
        with making_sense(f"{name}.json of one of the two"):
            remarks += _differences(name, before[name], after[name])
            if others := _other_meanings(before[name], after[name]):
                remarks.append(f"{name}: not compared, since its figures are about another {' and '.join(others)}")
                continue
            changes = list(_changes(before[name], after[name]))
            told = [change for change in changes if change.is_beyond_noise]
        compared_figures += len(changes)
        beyond += len(told)
        if told:
            tables.append(_table(name, told))
    return Comparison(tuple(remarks), tuple(tables), _says(beyond, compared_figures))


def _other_meanings(before: Result, after: Result) -> list[str]:
    return [what for what in _MEANING if before.settings.get(what) != after.settings.get(what)]


def _says(beyond: int, figures: int) -> str:
    if not figures:
        return "nothing could be compared: the two have no figure in common"
    says = f"{beyond} of {figures} figures changed beyond the noise within the runs"
    return says + (f", of which up to {math.ceil(FALSE * figures)} may be chance. {_PACE}" if beyond else ".")


def _changes(before: Result, after: Result) -> Iterator[Change]:
    later = {row.key: row for row in after.rows}
    for row in before.rows:
        same = later.get(row.key)
        if same is not None:
            for figure in row.by_round:
                if figure in same and figure not in CONSTANT:
                    yield Change(row, figure, row[figure], same[figure])


def _differences(name: str, before: Result, after: Result) -> Iterator[str]:
    """What else is not the same."""
    for what in ("cpu", "cores_usable", "system"):
        one, other = before.heading["machine"][what], after.heading["machine"][what]
        if one != other:
            yield f"{name}: another machine: {what} {one} / {other}"
    if before.heading["commit"] != after.heading["commit"]:
        one, other = (commit_in_words(result.heading["commit"]) for result in (before, after))
        yield f"{name}: commit: {one} / {other}"
    yield from _unequal(name, "version of {}", before.heading["versions"], after.heading["versions"])
    yield from _unequal(name, "setting {}", before.settings, after.settings)
    here, there = ({row.key for row in result.rows} for result in (before, after))
    if here - there:
        yield f"{name}: {len(here - there)} rows are in the first folder only"
    if there - here:
        yield f"{name}: {len(there - here)} rows are in the second folder only"
    for which, result in (("first", before), ("second", after)):
        if result.ended_by:
            yield f"{name}: the {which} run ended early: {result.ended_by}"


def _unequal(name: str, what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            yield f"{name}: {what.format(key)}: {before.get(key)} / {after.get(key)}"


def _table(name: str, changes: list[Change]) -> Table:
    rows = []
    for change in sorted(changes, key=lambda change: -abs(change.relative)):
        where = f"{change.row.label} on {change.row.case}"
        figures = median(change.before), median(change.after), f"{change.relative:+.0%}", change.verdict
        rows.append((where, change.figure, *figures))
    return Table(name, ("row", "figure", "before", "after", "change", ""), tuple(rows))
