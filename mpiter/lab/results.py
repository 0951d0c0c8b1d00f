"""A result: what one experiment has found, as a document that can be kept, read again and compared.

Pure but for `keep` and `load`.  Layout of the JSON (`SCHEMA`): a heading (command, start, machine, versions, commit,
settings), `rows` (each a row on a case with its numbers, and for every figure the median, the spread and the value of
each round), `absent`, `problems`, `warnings`, `says`, and `turns`, everything as it was measured.  The CSV holds the
rows.  Guarantees that a file is written whole or not at all, and never over another one unless told to.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import MpiterError
from .series import Series
from .spreads import LEAST_ROUNDS, NOISY, Spread, ratio, spread
from .turns import placed

SCHEMA = "mpiter.lab/1"
_HEADING = ("started", "took_s", "machine", "commit", "versions", "again")
_PLAIN = ("settings", "absent", "problems", "ended_by", "extra", "turns")  # that are kept as they are
_OWN = ("experiment", "complete", "says", "warnings", "rows", *_PLAIN)


class ResultError(MpiterError):
    """A result that is there already, or can't be read; the text says which and what to do."""


@dataclass(frozen=True)
class Row:
    """The figures of one row on one case at one place of the axes, by round."""

    row: str
    case: str
    at: Mapping[str, float]
    by_round: Mapping[str, Mapping[int, float]]

    def __getitem__(self, figure: str) -> Spread:
        return spread(list(self.by_round[figure].values()))

    def __contains__(self, figure: str) -> bool:
        return figure in self.by_round

    @property
    def label(self) -> str:
        return placed(self.row, at=self.at)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.row, self.case, *sorted(self.at.items())

    def get(self, figure: str) -> Spread | None:
        return self[figure] if figure in self.by_round else None

    @property
    def rounds(self) -> int:
        return max((len(values) for values in self.by_round.values()), default=0)


@dataclass
class Result:
    """What one experiment has found."""

    experiment: str
    heading: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # row, or row on case -> why
    problems: list[str] = field(default_factory=list)
    ended_by: str = ""
    extra: dict[str, Any] = field(default_factory=dict)  # what answers bring beside figures, by row and case: the last
    turns: list[dict[str, Any]] = field(default_factory=list)

    def find(self, row: str, case: str, **at: float) -> Row | None:
        """The row of that name on this case, at these numbers; those not named may be any."""
        for found in self.rows:
            if (found.row, found.case) == (row, case) and all(found.at.get(k) == v for k, v in at.items()):
                return found
        return None

    def ratio(self, one: Row | None, other: Row | None, figure: str) -> Spread | None:
        """How many times as much; None where either is missing or has run once only."""
        if one is None or other is None or figure not in one or figure not in other:
            return None
        return ratio(one.by_round[figure], other.by_round[figure])

    def values_of(self, name: str) -> list[Any]:
        """The different values of an axis, smallest first, or the cases and rows as they came."""
        if name in ("row", "case"):
            return list(dict.fromkeys(getattr(row, name) for row in self.rows))
        return sorted({row.at[name] for row in self.rows if name in row.at})

    def warnings(self) -> list[str]:
        """What a reader must know before he believes a figure."""
        found = [f"ended early: {self.ended_by}"] if self.ended_by else []
        if self.rows and max(row.rounds for row in self.rows) < LEAST_ROUNDS:
            found.append("a single round: figures without spread, and no ratio is taken from them")
        return [*found, *self._noise(), *self._problems()]

    def _problems(self) -> Iterator[str]:
        """Each once, whatever the number of turns that had it."""
        places: dict[str, dict[str, None]] = {}
        for problem in self.problems:
            where, _, what = problem.partition(": ")
            places.setdefault(what, {})[where] = None
        for what, (first, *others) in places.items():
            yield f"{first}{f' (and {len(others)} more)' if others else ''}: {what}"

    def _noise(self) -> Iterator[str]:
        for case in self.values_of("case"):
            rows = [row for row in self.rows if row.case == case]
            loud = [(row[name].relative, name, row) for row in rows for name in row.by_round if row[name].is_noisy]
            if loud:
                most, name, row = max(loud, key=lambda found: found[0])
                of_all = f"{len(loud)} of {sum(len(row.by_round) for row in rows)} figures"
                yield (
                    f"{case}: {of_all} (marked ~) differ between rounds by more than {NOISY:.0%} of their median, "
                    f"{name} of {row.label} by {most:.0%}"
                )


def gathered(experiment: str, heading: dict[str, Any], settings: dict[str, Any], series: Series) -> Result:
    """The result of a series."""
    result = Result(experiment, heading, settings, ended_by=series.ended_by)
    found: dict[tuple[Any, ...], Row] = {}
    for number, turn, answer in series.answers:
        where = {"row": turn.row, "case": turn.case, "at": turn.at, "round": number}
        result.turns.append(where | {name: value for name, value in answer.items() if name != "extra"})
        if "absent" in answer:
            is_told = result.absent.setdefault(turn.row, answer["absent"]) == answer["absent"]
            if not is_told:
                result.absent[f"{turn.row} on {turn.case}"] = answer["absent"]
        elif "error" in answer:
            result.problems.append(f"{turn}: {answer['error']}")
        else:
            row = found.setdefault(turn.key, Row(turn.row, turn.case, turn.at, {}))
            for name, value in answer["figures"].items():
                row.by_round.setdefault(name, {})[number] = value  # type: ignore[attr-defined]
            result.problems += [f"{turn}: {problem}" for problem in answer.get("problems", ())]
            if "extra" in answer:
                result.extra.setdefault(turn.row, {}).setdefault(turn.case, {}).update(answer["extra"])
    result.rows = list(found.values())
    return result


def document(result: Result, says: Iterable[str], warnings: Iterable[str]) -> dict[str, Any]:
    """The result as JSON holds it."""
    found = {"experiment": result.experiment, "complete": not result.ended_by, "says": list(says)}
    found |= {"warnings": list(warnings), "rows": [_row_as_json(row) for row in result.rows]}
    return result.heading | found | {name: getattr(result, name) for name in _PLAIN}


def _row_as_json(row: Row) -> dict[str, Any]:
    figures = {}
    for name, values in row.by_round.items():
        about = {"median": row[name].median, "iqr": row[name].iqr}
        figures[name] = about | {"rounds": list(values), "values": list(values.values())}
    return {"row": row.row, "case": row.case, "at": dict(row.at), "figures": figures}


def from_document(read: Mapping[str, Any], name: str = "this file") -> Result:
    """The result again; a file of another schema is refused."""
    if read.get("schema") != SCHEMA:
        raise ResultError(f"{name} has the schema {read.get('schema')!r}, not {SCHEMA!r}; measure again.")
    missing = [key for key in (*_HEADING, *_OWN) if key not in read]
    if missing:
        raise ResultError(f"{name} lacks {', '.join(missing)}; measure again.")
    rows = [
        Row(
            str(row["row"]),
            str(row["case"]),
            {axis: float(value) for axis, value in row["at"].items()},
            {
                figure: {int(at): _finite(value) for at, value in zip(found["rounds"], found["values"], strict=True)}
                for figure, found in row["figures"].items()
            },
        )
        for row in read["rows"]
    ]
    heading = {key: value for key, value in read.items() if key not in _OWN}
    return Result(str(read["experiment"]), heading, rows=rows, **{name: read[name] for name in _PLAIN})


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} was never measured")
    return float(value)


@contextmanager
def making_sense(name: str) -> Iterator[None]:
    """Within, what a document says is taken at its word; if that can't be, the user hears which one it is."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ResultError(f"{name} holds something that makes no sense here: {error!r}") from error


def as_csv(result: Result) -> str:
    """A line for each row and figure."""
    out = io.StringIO()
    axes = list(dict.fromkeys(name for row in result.rows for name in row.at))
    write = csv.writer(out, lineterminator="\n").writerow
    write(["schema", "experiment", "row", "case", *axes, "figure", "median", "iqr", "rounds"])
    for row in result.rows:
        for figure in row.by_round:
            at, found = [row.at.get(axis, "") for axis in axes], row[figure]
            write(
                [SCHEMA, result.experiment, row.row, row.case, *at, figure, found.median, found.iqr, len(found.values)]
            )
    return out.getvalue()


def refuse_what_cannot_be_kept(file: Path, force: bool) -> None:
    """Before anything is measured: is there such a file already, could it be written?"""
    if file.is_dir():
        raise ResultError(f"{file} is a folder, where a result should be; name another folder with --out.")
    if file.exists() and not force:
        raise ResultError(f"{file} exists; name another folder with --out, or write over it with --force.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise ResultError(f"nothing can be kept in {file.parent} ({error}); name another folder with --out.") from error


def keep(file: Path, text: str) -> None:
    """Write it whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise ResultError(f"{file} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def load(file: Path) -> Result | None:
    """The result that a file holds; None where it holds something that was never the lab's."""
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(read, dict):
            return None
        is_ours = str(read.get("schema")).startswith(SCHEMA.partition("/")[0] + "/")
        return from_document(read, str(file)) if is_ours else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ResultError(f"{file} can't be read as a result of the lab: {error}") from error


def folder_of(path: Path, may_be_empty: bool = False) -> dict[str, Result]:
    """All results in a folder, by experiment."""
    if not path.is_dir():
        raise ResultError(f"{path} is no folder; name the one that --out named.")
    found = {}
    for file in sorted(path.glob("*.json")):
        if (result := load(file)) is None:
            continue
        if result.experiment in found:
            raise ResultError(f"{path} holds two results of {result.experiment}; leave one of them.")
        found[result.experiment] = result
    if not (found or may_be_empty):
        raise ResultError(f"{path} holds no results; make some with 'mpiter lab all --out {path}'.")
    return found
