"""Judges receipts: has each sample come exactly once, over all ranks and restarts, and did all go by one order?

Pure, but for the files.  Guarantees that nothing is held for each sample but a number, and of an order that has a name
not even that: positions are judged as intervals.  A restart makes void what earlier files noted at its place or beyond:
those of the same rank, and those of another number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...errors import OptionError
from ..receipts import ENDING
from .epochs import Judge, Launch
from .logs import LARGEST, Log
from .reading import read
from .verdict import Verdict

_NOWHERE = LARGEST, LARGEST  # a place that nobody comes to

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def audit(paths: Paths, length: int | None = None) -> Verdict:
    """Join the logs in these folders (or files) and judge them; an OptionError says that one cannot be read.

    ``length`` promises, where the logs don't, that each epoch has each of the samples 0 to ``length - 1`` once.

    >>> import tempfile, mpiter
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with mpiter.batches(range(10), 4, n_processes=0, receipts=folder) as stream:
    ...         for batch in stream:
    ...             pass
    ...     print(*audit(folder).lines(), sep="\\n")
    1 log: 1 rank
    epoch 0: each of 10 samples exactly once
    sound: nothing lost, nothing repeated
    """
    logs = _logs([paths] if isinstance(paths, (str, os.PathLike)) else list(paths))
    launches = _launches(logs)
    last = launches[-1]
    judge = Judge(logs, [_bounds(at, logs) for at in range(len(logs))], last, length)
    epochs = tuple(judge.epoch(epoch) for epoch in judge.epochs.tolist())
    absent = tuple(rank for rank in range(min(last.size, len(last.logs) + 8)) if rank not in last.began)
    return Verdict(
        epochs=epochs,
        parted=(*_broken(logs), *_at_once(logs), *_left_behind(last), *judge.gaps(), *judge.parted),
        absent=absent,
        files=len(logs),
        starts=tuple(launch.size for launch in launches),
        torn=sum(log.torn > 0 for log in logs),
    )


def _logs(paths: Sequence[str | os.PathLike[str]]) -> list[Log]:
    files: dict[str, Path] = {}
    for path in map(Path, paths):
        try:
            is_there = path.exists()
            found = [one for one in sorted(path.glob(f"*{ENDING}")) if one.is_file()] if path.is_dir() else [path]
        except (OSError, ValueError) as error:
            raise OptionError(f"{path!s:.200}: the receipts cannot be read ({error}).") from error
        if not is_there:
            raise OptionError(f"{path}: there is no such folder or file of receipts.")
        if not found:
            raise OptionError(f"{path}: there are no receipts (*{ENDING}) in this folder.")
        files |= {os.path.realpath(one): one for one in found}
    logs = [log for path in files.values() if (log := read(path)) is not None]
    if not logs:
        raise OptionError(f"{', '.join(map(str, paths))}: the receipts have nothing in them yet.")
    return sorted(logs, key=lambda log: (log.time, log.path))


def _launches(logs: list[Log]) -> list[Launch]:
    """Which logs began together: one for each rank, and all of one number of ranks."""
    launches: list[Launch] = []
    for log in logs:
        if not launches or launches[-1].size != log.size or log.rank in launches[-1].began:
            before = launches[-1].logs if launches and launches[-1].size == log.size else {}
            launches.append(Launch(log.size, dict(before)))
        launches[-1].logs[log.rank] = log
        launches[-1].began.add(log.rank)
    return launches


def _bounds(at: int, logs: list[Log]) -> list[tuple[int, int]]:
    """For each start of a log, the place from which on what came of it is void."""
    log = logs[at]
    others = (other for other in logs[at + 1 :] if other.rank == log.rank or other.size != log.size)
    least = min((start[:2] for other in others for start in other.starts), default=_NOWHERE)
    found = []
    for start in reversed(log.starts):
        found.append(least)
        least = min(least, start[:2])
    return found[::-1]


def _at_once(logs: list[Log]) -> Iterable[str]:
    """Two who take each other for a restart."""
    latest: dict[tuple[int, int], Log] = {}
    for log in logs:
        other = latest.get((log.rank, log.size))
        if other is not None and other.last > log.time:
            yield (
                f"two programs, or two loaders, were rank {log.rank} of {log.size} at the same time: each takes the "
                f"other for its restart: {other.name} and {log.name}; give each loader a folder, each program a rank"
            )
        if other is None or log.last > other.last:
            latest[log.rank, log.size] = log


def _left_behind(last: Launch) -> Iterable[str]:
    """A rank that had come further than where another went back to, and did not go back with it."""
    logs = sorted(last.logs.values(), key=lambda log: log.time)
    for at, log in enumerate(logs):
        mine = {start[:2] for start in log.starts}
        for other in logs[at + 1 :]:
            epoch, place = back = other.starts[0][:2]
            if back not in mine and log.reached() >= back:
                yield (
                    f"rank {other.rank} began anew at epoch {epoch}, place {place} ({other.name}), and "
                    f"rank {log.rank}, which had come further, did not go back there ({log.name})"
                )
                break


def _broken(logs: list[Log]) -> Iterable[str]:
    for log in logs:
        if log.breaks:
            more = f" (nor do {len(log.breaks) - 1} others)" if len(log.breaks) > 1 else ""
            yield (
                f"{log.breaks[0]}{more}: a record before it is missing, repeated or altered, or the samples were not "
                f"those that the order has there"
            )
