"""One epoch after the other of what receipts say: what came, what didn't, what came twice, who goes by which order.

Pure: arithmetic on columns, one row for each run of samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .counting import FIRST, About, by_key, by_position
from .logs import COLUMNS, Ints, Kind, Log, Told, spread
from .reading import strings
from .verdict import Epoch, Found, Sample, State, Where

_BY = 4  # that were handed a sample, named
_COMES = Kind.BATCH, Kind.SKIPPED, Kind.FAILED

Columns = dict[str, Ints]


@dataclass
class Launch:
    """Ranks that began together; of one that has left nothing, its log before."""

    size: int
    logs: dict[int, Log] = field(default_factory=dict)
    began: set[int] = field(default_factory=set)  # ranks whose log is of this launch


class Judge:
    """All that the logs have, joined."""

    def __init__(
        self, logs: list[Log], bounds: list[list[tuple[int, int]]], last: Launch, length: int | None = None
    ) -> None:
        self._logs, self._length = logs, length
        self.parted: list[str] = []
        self._keys, columns = _joined(logs)
        is_valid, is_comparable = _standing(logs, columns, bounds)
        has_samples = columns["kind"] != Kind.END
        self._rows = _by_epoch(columns, is_valid & has_samples)
        self._void = _by_epoch(columns, ~is_valid & is_comparable & has_samples)
        self._ends = _by_epoch(columns, is_valid & ~has_samples)
        self.epochs = np.union1d(self._rows["epoch"], self._ends["epoch"])
        self._begins = min(start[:2] for log in logs for start in log.starts)
        numbers = {id(log): number for number, log in enumerate(logs)}
        self._reached = {numbers[id(log)]: self._last_of(numbers[id(log)], log) for log in last.logs.values()}

    def gaps(self) -> Iterator[str]:
        """Epochs that nobody noted, between others."""
        for at in np.flatnonzero(np.diff(self.epochs) > 1).tolist():
            yield f"of the epochs between {self.epochs[at]} and {self.epochs[at + 1]} nothing was noted"

    def epoch(self, epoch: int) -> Epoch:
        """What came in it."""
        rows = _of(self._rows, epoch)
        tolds = self._tolds(epoch, rows)
        told = tolds[0]
        length = told.length if self._length is None else self._length
        coming, handed = _chosen(rows, np.isin(rows["kind"], _COMES)), _chosen(rows, rows["kind"] == Kind.BATCH)
        has_positions, has_one_order = bool((coming["first"] >= 0).all()), len({one[:3] for one in tolds}) == 1
        state, frontier = self._state(epoch, rows)
        begins_within = self._begins[0] == epoch and self._begins[1] > 0
        about = About(length, self._step(epoch, tolds), state != "incomplete", frontier, begins_within)
        if has_positions and has_one_order and (told.order is not None or length is None):
            runs = [(some["first"], some["count"]) for some in (coming, handed)]
            count, ids = by_position(runs[0], runs[1], about), None
        else:
            ids = self._ids(coming)
            are_numbers = not any(self._logs[log].has_text for log in np.unique(coming["log"]))
            count = by_key(
                ids, ids if len(handed["kind"]) == len(coming["kind"]) else self._ids(handed), about, are_numbers
            )
        if state == "broken off" and not count.missing:  # who counts batches needn't come to the end
            state = "whole"
        self._compare(epoch, rows, _of(self._void, epoch))
        missing = [self._missing(one, epoch, None if ids is not None else told) for one in count.first_missing]
        twice = [self._twice(one, coming, ids) for one in count.first_twice]
        return Epoch(
            epoch=epoch,
            state=state,
            length=length,
            samples=count.samples,
            missing=Found(count.missing, tuple(missing)),
            twice=Found(count.twice, tuple(twice)),
            failed=self._listed(rows, Kind.FAILED),
            skipped=self._listed(rows, Kind.SKIPPED),
            fillings=int(rows["count"][rows["kind"] == Kind.FILL].sum()),
            dropped=count.dropped,
            before=count.before,
            not_yet=count.not_yet,
        )

    # -- who has got how far -------------------------------------------------------------------------------------

    def _state(self, epoch: int, rows: Columns) -> tuple[State, int | None]:
        """How the epoch ended, if it did, and from which position on samples may be still to come."""
        ends = _of(self._ends, epoch)
        reached = []
        for number, last in self._reached.items():
            if last > epoch or number in ends["log"]:
                continue
            mine = rows["log"] == number
            reached.append(int((rows["first"] + rows["count"])[mine].max()) if mine.any() else 0)
        if reached:
            return "incomplete", max(0, min(reached))
        return ("whole" if len(ends["log"]) else "broken off"), None

    def _step(self, epoch: int, tolds: list[Told]) -> int:
        """Fewer samples than this may be left out at the end, by those who came to it."""
        ended = [self._logs[number].starts[start].told for number, start in _starts(_of(self._ends, epoch))]
        return max((one.step or 0 for one in ended or tolds), default=0)

    def _last_of(self, number: int, log: Log) -> int:
        """The last epoch that a rank has come to."""
        mine = self._rows["epoch"][self._rows["log"] == number]
        return max(max(start.epoch for start in log.starts), int(mine.max(initial=0)))

    # -- orders --------------------------------------------------------------------------------------------------

    def _tolds(self, epoch: int, rows: Columns) -> list[Told]:
        """What the files say of this epoch's order; where ranks don't agree, they part."""
        found: dict[Told, Log] = {}
        tolds = []
        for number, start in _starts(rows):
            log = self._logs[number]
            tolds.append(log.starts[start].told)
            found.setdefault(tolds[-1]._replace(step=None), log)
        if len(found) > 1:
            (one, first), (other, second) = list(found.items())[:2]
            self.parted.append(
                f"epoch {epoch}: rank {first.rank} goes by {one} ({first.name}), rank {second.rank} by {other} "
                f"({second.name})"
            )
        return tolds or [self._logs[-1].starts[-1].told]

    def _compare(self, epoch: int, rows: Columns, void: Columns) -> None:
        """What was done over again: the same samples, with the same contents?"""
        both = {name: np.concatenate([rows[name], void[name]]) for name in rows}
        hashed = _chosen(both, (both["digest"] != 0) & (both["kind"] == Kind.BATCH))
        order = np.lexsort((hashed["key"], hashed["count"], hashed["first"]))
        hashed = _chosen(hashed, order)
        same = np.ones(max(0, len(order) - 1), bool)
        for name in ("first", "count"):
            same &= hashed[name][1:] == hashed[name][:-1]
        if hashed["first"].size and (hashed["first"] >= 0).all():
            self._part(epoch, hashed, np.flatnonzero(same & (hashed["digest"][1:] != hashed["digest"][:-1])), "bytes")
        listed = _chosen(both, (both["key"] >= 0) & (both["first"] >= 0))
        if len(void["kind"]) and len(listed["kind"]):
            position = spread(listed["first"], listed["count"])
            order = np.argsort(position, kind="stable")
            key, position = self._keys[spread(listed["key"], listed["count"])][order], position[order]
            bad = np.flatnonzero((position[1:] == position[:-1]) & (key[1:] != key[:-1]))
            row = np.repeat(np.arange(len(listed["kind"])), listed["count"])[order]
            if len(bad):
                pair = _chosen(listed, row[[bad[0], bad[0] + 1]])
                self._part(epoch, pair, np.zeros(1, np.int64), "samples")

    def _part(self, epoch: int, rows: Columns, bad: Ints, what: str) -> None:
        if len(bad):
            one, other = (self._where(rows, int(bad[0]) + more) for more in (0, 1))
            self.parted.append(f"epoch {epoch}: other {what} the second time: {one}, and {other}")

    # -- samples -------------------------------------------------------------------------------------------------

    def _ids(self, rows: Columns) -> Ints:
        """The key of each sample, or its number."""
        found = np.empty(int(rows["count"].sum()), np.int64)
        ends = np.cumsum(rows["count"])
        for number, start in _starts(rows):
            mine = (rows["log"] == number) & (rows["start"] == start)
            listed = mine & (rows["key"] >= 0)
            found[spread((ends - rows["count"])[listed], rows["count"][listed])] = self._keys[
                spread(rows["key"][listed], rows["count"][listed])
            ]
            named = mine & (rows["key"] < 0)
            if named.any():
                told, epoch = self._logs[number].starts[start].told, int(rows["epoch"][0])
                keys = told.keys(epoch, spread(rows["first"][named], rows["count"][named]))
                found[spread((ends - rows["count"])[named], rows["count"][named])] = keys
        return found

    def _missing(self, one: int, epoch: int, told: Told | None) -> Sample:
        if told is None:
            return Sample(one, None)
        return Sample(_key_at(told, epoch, one), one)

    def _twice(self, one: int, coming: Columns, ids: Ints | None) -> Sample:
        """Who was handed it: the sample at this position, or with this number."""
        if ids is None:
            at = np.flatnonzero((coming["first"] <= one) & (one < coming["first"] + coming["count"]))[:_BY]
            return self._sample(coming, int(at[0]), one - int(coming["first"][at[0]]), at.tolist())
        places = np.flatnonzero(ids == one)[:_BY]
        ends = np.cumsum(coming["count"])
        at = np.searchsorted(ends, places, "right")
        offset = int(places[0] - (ends - coming["count"])[at[0]])
        return self._sample(coming, int(at[0]), offset, at.tolist())

    def _listed(self, rows: Columns, kind: Kind) -> Found:
        some = _chosen(rows, rows["kind"] == kind)
        first = [
            (row, at) for row, count in enumerate(some["count"][:FIRST].tolist()) for at in range(min(count, FIRST))
        ]
        return Found(int(some["count"].sum()), tuple(self._sample(some, row, at, [row]) for row, at in first[:FIRST]))

    def _sample(self, rows: Columns, row: int, offset: int, by: Sequence[int]) -> Sample:
        log, first, key = (int(rows[name][row]) for name in ("log", "first", "key"))
        position = None if first < 0 else first + offset
        where = tuple(self._where(rows, one) for one in by)
        if key >= 0:
            number = int(self._keys[key + offset])
            texts = strings(self._logs[log].path, {number}) if self._logs[log].has_text else {}
            return Sample(texts.get(number, number), position, where)
        told = self._logs[log].starts[int(rows["start"][row])].told
        return Sample(_key_at(told, int(rows["epoch"][row]), position), position, where)

    def _where(self, rows: Columns, row: int) -> Where:
        log = self._logs[int(rows["log"][row])]
        return Where(log.rank, log.size, int(rows["place"][row]), int(rows["step"][row]), log.name)


def _key_at(told: Told, epoch: int, position: int | None) -> int | None:
    if told.order is None or position is None or position >= (told.length or 0):
        return None
    return int(told.keys(epoch, np.array([position], np.int64))[0])


# -- columns -----------------------------------------------------------------------------------------------------------


def _joined(logs: list[Log]) -> tuple[Ints, Columns]:
    """The listed keys of all, and the columns, in which each row knows its log."""
    parts: dict[str, list[Ints]] = {name: [] for name in (*COLUMNS, "log")}
    keys: list[Ints] = []
    before = 0
    for number, log in enumerate(logs):
        for name in COLUMNS:
            column = np.array(log.columns[name], np.int64)
            parts[name].append(np.where(column >= 0, column + before, -1) if name == "key" else column)
        parts["log"].append(np.full(len(parts["kind"][-1]), number, np.int64))
        keys.append(np.frombuffer(log.keys, np.int64))
        before += len(log.keys)
    return np.concatenate(keys), {name: np.concatenate(columns) for name, columns in parts.items()}


def _standing(
    logs: list[Log], columns: Columns, bounds: list[list[tuple[int, int]]]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows no restart has made void, and which, if one has, it should have done over again the same way."""
    ends = np.cumsum([0, *(len(log.starts) for log in logs)])
    flat = np.array([bound for some in bounds for bound in some], np.int64).reshape(-1, 2)
    epoch, place = flat[ends[columns["log"]] + columns["start"]].T
    is_valid = (columns["epoch"] < epoch) | ((columns["epoch"] == epoch) & (columns["place"] < place))
    return is_valid, (epoch > 0) | (place > 0)  # a training that starts anew is another one


def _starts(rows: Columns) -> list[tuple[int, int]]:
    """Which starts of which logs they are of."""
    many = int(rows["start"].max(initial=0)) + 1
    return [divmod(one, many) for one in np.unique(rows["log"] * many + rows["start"]).tolist()]


def _chosen(columns: Columns, which: NDArray[np.generic]) -> Columns:
    return {name: column[which] for name, column in columns.items()}


def _by_epoch(columns: Columns, which: NDArray[np.bool_]) -> Columns:
    rows = np.flatnonzero(which)
    return _chosen(columns, rows[np.argsort(columns["epoch"][rows], kind="stable")])


def _of(columns: Columns, epoch: int) -> Columns:
    begin, end = np.searchsorted(columns["epoch"], [epoch, epoch + 1])
    return {name: column[begin:end] for name, column in columns.items()}
