"""``mpiter audit``: what was promised against what was handed out, counted over all ranks and restarts.

Reads what ``receipts=`` has written, or any other program in that form.  A restart makes void what earlier files noted
at its place or beyond: those of the same rank, and those of another number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .asked import at_least
from .errors import OptionError
from .receipts import ENDING, VERSION

__all__ = ["Verdict", "audit"]

_FIRST = 5  # samples that are named
_KINDS = "batch", "fill", "skipped", "failed"
_BATCH, _FILL, _SKIPPED, _FAILED = range(4)
_ROW = np.dtype([(name, np.int64) for name in ("kind", "epoch", "place", "count", "line", "start", "log")])
_Place = tuple[int, int]  # an epoch, and a place in it


@dataclass
class _Log:
    """One file: what one start of one rank was handed."""

    path: Path
    rank: int = 0
    size: int = 1
    time: float = 0.0
    starts: list[tuple[_Place, int | None, int | None]] = field(default_factory=list)  # length and step with them
    rows: list[tuple[int, ...]] = field(default_factory=list)  # samples of a line that have one kind
    keys: list[int | str] = field(default_factory=list)  # of all rows
    ends: set[int] = field(default_factory=set)  # epochs that came to their end
    is_torn: bool = False

    def read(self) -> _Log:
        *lines, last = self.path.read_bytes().split(b"\n")
        self.is_torn = bool(last)  # by a kill
        for number, line in enumerate(lines, 1):
            try:
                self._take(number, json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
                raise OptionError(f"{self.path}: line {number} is no receipt: {line[:60]!r} ({error}).") from None
        return self

    def _take(self, number: int, told: dict[str, Any]) -> None:
        if number == 1:
            if told["receipts"] != VERSION:
                raise ValueError(f"version {told['receipts']!r}; this mpiter reads {VERSION}")
            self.rank, self.size, self.time = _whole(told["rank"]), _whole(told["size"]), float(told["time"])
        elif "from" in told:
            epoch, place = map(_whole, told["from"])
            self.starts.append(((epoch, place), told.get("length"), told.get("step")))
        elif "end" in told:
            self.ends.add(_whole(told["end"]))
        elif not self.starts:
            raise ValueError("it must say first where the training starts")
        else:
            kind = next(kind for kind in ("batch", "skipped", "failed") if kind in told)
            (epoch, place), keys, fills = map(_whole, told[kind]), told["keys"], _whole(told.get("fills", 0))
            if not {*map(type, keys)} <= {int, str} or fills > len(keys):
                raise ValueError("its keys are not whole numbers and strings, or fewer than its fills")
            for sort, count in ((_KINDS.index(kind), len(keys) - fills), (_FILL, fills)):
                if count:
                    self.rows.append((sort, epoch, place, count, number, len(self.starts) - 1))
            self.keys += keys


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= 1 << 53:
        raise ValueError(f"{number!r:.40} is no whole number from 0 to 2^53")
    return number


@dataclass(frozen=True, slots=True)
class Epoch:
    """What came in one epoch."""

    epoch: int
    state: str  # "whole", "incomplete" or "broken off": all ranks went on to a later one
    length: int | None  # samples that it has; None: no file tells
    samples: int  # that came, each counted once
    missing: int = 0  # that never came
    twice: int = 0
    failed: int = 0  # in whose place came an error
    skipped: int = 0  # that were left out, by on_error="skip"
    fills: int = 0  # that came once more, to fill up a last step
    dropped: int = 0  # that were left out at the end, by drop_last
    named: tuple[str, ...] = ()  # the first of those that something is wrong with

    @property
    def is_sound(self) -> bool:
        """Has each sample come once, as far as the epoch has come?"""
        has_more = self.length is not None and self.samples > self.length
        return not (self.missing or self.twice or self.failed or has_more or self.state == "broken off")

    def line(self) -> str:
        """The epoch in a line."""
        told = f"each of {self.samples:,} samples exactly once"
        if not self.is_sound or self.samples != self.length:
            of = "" if self.length is None else f" of {self.length:,}"
            told = f"{self.samples:,}{of} samples" + ", each exactly once" * self.is_sound
        told += "" if self.state == "whole" else f"; {self.state}"
        counts = {
            "never came": self.missing,
            "came several times": self.twice,
            "failed": self.failed,
            "were skipped since they failed": self.skipped,
            "fill up the last step": self.fills,
            "were left out by drop_last": self.dropped,
        }
        beside = [f"{count:,} {what}" for what, count in counts.items() if count]
        return f"epoch {self.epoch}: {told}" + (f" ({', '.join(beside)})" if beside else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a training; ``audit()`` returns it.

    >>> import tempfile, mpiter
    >>> from mpiter.audit import audit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loader = mpiter.DataLoader(range(10), 4, receipts=folder)
    ...     first = next(iter(loader))
    ...     verdict = audit(folder)
    >>> verdict.is_sound, [(epoch.epoch, epoch.state, epoch.samples, epoch.length) for epoch in verdict.epochs]
    (True, [(0, 'incomplete', 4, 10)])
    """

    epochs: tuple[Epoch, ...]
    absent: tuple[int, ...]  # ranks of the last start that have no file
    starts: tuple[int, ...]  # how many ranks there were, start for start
    files: int
    torn: int = 0  # files whose last line was torn off

    @property
    def missing(self) -> int:
        """Samples that never came, of all epochs."""
        return sum(epoch.missing for epoch in self.epochs)

    @property
    def twice(self) -> int:
        """Samples that came several times, of all epochs."""
        return sum(epoch.twice for epoch in self.epochs)

    @property
    def is_sound(self) -> bool:
        """Has nothing been lost and nothing repeated, and has each rank left a file?"""
        return not self.absent and all(epoch.is_sound for epoch in self.epochs)

    def lines(self) -> Iterator[str]:
        """The verdict in words."""
        ranks = ", then ".join(f"{size} rank{'s' * (size != 1)}" for size in self.starts)
        torn = f", {self.torn} with a last line that a kill has torn" if self.torn else ""
        yield f"{self.files} file{'s' * (self.files != 1)}: {ranks}{torn}"
        for epoch in self.epochs:
            yield epoch.line()
            yield from (f"  {one}" for one in epoch.named)
        yield from (f"rank {rank} of {self.starts[-1]} has left no file" for rank in self.absent)
        yield "sound: nothing lost, nothing repeated" if self.is_sound else "not sound"


def audit(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], length: int | None = None) -> Verdict:
    """Join the receipts in these folders (or files) and count; an OptionError says that one cannot be read.

    ``length`` promises, where the files don't, that each epoch has each of the samples 0 to ``length - 1`` once.

    >>> import tempfile, mpiter
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with mpiter.batches(range(10), 4, n_processes=0, receipts=folder) as stream:
    ...         for batch in stream:
    ...             pass
    ...     print(*audit(folder).lines(), sep="\\n")
    1 file: 1 rank
    epoch 0: each of 10 samples exactly once
    sound: nothing lost, nothing repeated
    """
    logs = _read([paths] if isinstance(paths, (str, os.PathLike)) else paths)
    launches: list[dict[int, _Log]] = []  # the files that began together, by rank
    for log in logs:
        if not launches or log.rank in launches[-1] or log.size != next(iter(launches[-1].values())).size:
            launches.append({})
        launches[-1][log.rank] = log
    last = launches[-1]
    size = next(iter(last.values())).size
    return Verdict(
        epochs=tuple(_epochs(logs, [*last.values()], length)),
        absent=tuple(rank for rank in range(min(size, len(last) + 8)) if rank not in last),
        starts=tuple(next(iter(launch.values())).size for launch in launches),
        files=len(logs),
        torn=sum(log.is_torn for log in logs),
    )


def _read(paths: Iterable[str | os.PathLike[str]]) -> list[_Log]:
    files = []
    for path in map(Path, paths):
        found = sorted(path.glob(f"*{ENDING}")) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            raise OptionError(f"{path}: there are no receipts (*{ENDING}) here.")
        files += found
    logs = [log for path in files if (log := _Log(path).read()).starts]
    if not logs:
        raise OptionError(f"{files[0].parent}: the receipts have nothing in them yet.")
    return sorted(logs, key=lambda log: (log.time, log.path))


def _bounds(at: int, logs: list[_Log]) -> list[_Place]:
    """For each start of a file, the place from which on what came of it is void."""
    log, least = logs[at], (1 << 54, 0)
    for other in logs[at + 1 :]:
        if other.rank == log.rank or other.size != log.size:
            least = min(least, *(place for place, _, _ in other.starts))
    found = []
    for place, _, _ in reversed(log.starts):
        found.append(least)
        least = min(least, place)
    return found[::-1]


def _epochs(logs: list[_Log], last: list[_Log], promised: int | None) -> Iterator[Epoch]:
    rows = np.array([(*row, at) for at, log in enumerate(logs) for row in log.rows], _ROW)
    bounds = [_bounds(at, logs) for at in range(len(logs))]
    limit = np.array([bounds[row["log"]][row["start"]] for row in rows]).reshape(-1, 2)
    epoch, place = rows["epoch"], rows["place"]
    is_valid = (epoch < limit[:, 0]) | ((epoch == limit[:, 0]) & (place < limit[:, 1]))
    keys = np.array([key for log in logs for key in log.keys])  # text, if any of them is
    of_key = np.repeat(np.arange(len(rows)), rows["count"])
    ended = {(one, at) for at, log in enumerate(logs) for one in log.ends if (one + 1, 0) <= bounds[at][-1]}
    begins = min(place for log in logs for place, _, _ in log.starts)
    for number in sorted({*epoch[is_valid].tolist(), *(one for one, _ in ended)}):
        mine = is_valid & (epoch == number)
        kinds = {kind: np.flatnonzero((mine & (rows["kind"] == kind))[of_key]) for kind in range(4)}
        tolds = [logs[row["log"]].starts[row["start"]] for row in rows[mine]] or [log.starts[-1] for log in last]
        length, step = tolds[0][1] if promised is None else promised, max(one[2] or 0 for one in tolds)
        reached = {at: max((row[1] for row in logs[at].rows), default=-1) for at in map(logs.index, last)}
        is_behind = any(epoch <= number and (number, at) not in ended for at, epoch in reached.items())
        has_ended = any(one == number for one, _ in ended)
        state = "incomplete" if is_behind else "whole" if has_ended else "broken off"
        at = np.concatenate([kinds[kind] for kind in (_BATCH, _SKIPPED, _FAILED)])
        came, count = np.unique(keys[at], return_counts=True)
        begins_within = begins[0] == number and begins[1] > 0  # then no file has what came before
        may_lack = length is None or state == "incomplete" or begins_within
        lost, missing = ([], 0) if may_lack else _lost(came, length or 0)
        dropped = 0
        if has_ended and missing < step:
            lost, missing, dropped = [], 0, missing
        if state == "broken off" and length is not None and not missing:  # a loop that counts batches sees no end
            state = "whole"
        named = [f"sample {key} never came" for key in lost]
        for key in came[count > 1][:_FIRST].tolist():
            there = [rows[of_key[one]] for one in at[keys[at] == key]]
            where = "; ".join(f"line {row['line']} of {logs[row['log']].path.name}" for row in there)
            named.append(f"sample {key} came several times: {where}")
        named += [f"sample {key} failed" for key in keys[kinds[_FAILED]][:_FIRST].tolist()]
        named += [f"sample {key} was skipped" for key in keys[kinds[_SKIPPED]][:_FIRST].tolist()]
        yield Epoch(
            epoch=number,
            state=state,
            length=length,
            samples=len(np.unique(keys[kinds[_BATCH]])),
            missing=missing,
            twice=int((count > 1).sum()),
            failed=len(kinds[_FAILED]),
            skipped=len(kinds[_SKIPPED]),
            fills=len(kinds[_FILL]),
            dropped=dropped,
            named=tuple(named),
        )


def _lost(came: Any, length: int) -> tuple[list[int], int]:
    """The first of the samples that never came, and how many didn't."""
    if came.dtype.kind != "i":
        return [], max(0, length - len(came))
    is_there = np.zeros(length, bool)
    is_there[came[(came >= 0) & (came < length)]] = True
    lost = np.flatnonzero(~is_there)
    return lost[:_FIRST].tolist(), len(lost)


# -- the command -------------------------------------------------------------------------------------------------------


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommand `mpiter audit`."""
    about = "Has each sample of each epoch come exactly once, over all ranks and restarts?  Reads what receipts= wrote."
    parser = commands.add_parser("audit", help="did each sample come exactly once?", description=about)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="of receipts, of one training; or single files")
    parser.add_argument("--length", type=at_least(0), metavar="N", help="samples of an epoch, where no file tells")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the verdict; 1 where something was lost or repeated."""
    found = audit(options.folders, options.length)
    print("\n".join(found.lines()))
    return int(not found.is_sound)
