"""``mpiter audit folder`` checks by the receipts that each sample came exactly once,
over all ranks and restarts.

Reads the logs and changes nothing.  If a rank restarts at a place, what was logged
before from there on is void: its own lines, and those of all ranks if their number has
changed.  Guarantees exit status 0 if nothing was lost or repeated, 1 if something was,
2 if a log can't be read.  Ignores an incomplete last line, left by a killed program.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import OptionError
from .receipts import ENDING, Folder

__all__ = ["audit"]

# A rank, and the number of ranks.
_Who = tuple[int, int]
# An epoch, and a place (a number that grows from batch to batch) in it.
_At = tuple[int, int]
_LARGEST = 1 << 53
_END = _LARGEST, _LARGEST
# At most so many lost or repeated samples are named.
_FIRST = 5
_HANDED, _FILL, _SKIPPED, _FAILED = range(4)


class Epoch(NamedTuple):
    """What the audit has found out about one epoch."""

    epoch: int
    is_over: bool
    is_sound: bool
    # Samples in the epoch; None if no log says.
    length: int | None
    # Samples that came, each counted once.
    samples: int
    missing: int  # samples that never came
    twice: int  # samples that came several times
    # The result in words, and the first samples that were lost or repeated.
    lines: tuple[str, ...]


class Verdict(NamedTuple):
    """The result of an audit."""

    # Nothing was lost, nothing repeated, and each rank has its log.
    is_sound: bool
    missing: int
    twice: int
    epochs: tuple[Epoch, ...]
    # The number of ranks at each start of the training.
    starts: tuple[int, ...]
    # The verdict in words; epochs with the same result share a line.
    lines: tuple[str, ...]


def audit(folder: Folder) -> Verdict:
    """Return the verdict on the logs in ``folder``; raise an OptionError if one can't
    be read.

    >>> import tempfile, mpiter
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with mpiter.batches(range(10), 4, n_processes=0, receipts=folder) as stream:
    ...         batches = list(stream)
    ...     print(*audit(folder).lines, sep="\\n")
    logs: 1; ranks: 1
    epoch 0: each of 10 samples exactly once
    sound: nothing lost, nothing repeated
    """
    files = sorted(Path(folder).glob(f"*{ENDING}"))
    runs = list[_Run]()
    lines = list[_Line]()
    for path in files:
        _read(path, runs, lines)
    if not runs:
        raise OptionError(
            f"{folder}: there are no receipts (*{ENDING}) with anything in them."
        )
    runs.sort(key=lambda run: run.began)
    sizes, faults = _launches(runs)
    reached, standing = _standing(runs, lines)
    epochs = list[Epoch]()
    begin = min(run.at for run in runs)
    for epoch, some in sorted(standing.items()):
        if epochs and epoch > epochs[-1].epoch + 1:
            faults.append(
                f"of the epochs between {epochs[-1].epoch} and {epoch} nothing was "
                "noted"
            )
        going = {
            who
            for who, other in reached.items()
            if who[1] == sizes[-1] and other <= epoch
        }
        begun = {run for run in runs if run.at[0] == epoch and run.at < run.void}
        epochs.append(_epoch(epoch, some, begun, going, begin > (epoch, 0)))
    is_sound = not faults and all(epoch.is_sound for epoch in epochs)
    said = [f"logs: {len(files)}; ranks: {', then '.join(map(str, sizes))}"]
    for (line, *samples), group in groupby(epochs, lambda epoch: epoch.lines):
        first, *others = (epoch.epoch for epoch in group)
        said += [
            f"epochs {first} to {others[-1]}: {line}"
            if others
            else f"epoch {first}: {line}",
            *samples,
        ]
    said += [
        *faults,
        "sound: nothing lost, nothing repeated" if is_sound else "not sound",
    ]
    missing = sum(epoch.missing for epoch in epochs)
    twice = sum(epoch.twice for epoch in epochs)
    return Verdict(is_sound, missing, twice, tuple(epochs), tuple(sizes), tuple(said))


@dataclass(eq=False, slots=True)
class _Run:
    """The samples that a rank was handed from the place ``at`` on; from ``void`` on, a
    later run replaces them.
    """

    file: str
    who: _Who
    at: _At
    length: int | None
    step: int
    began: float
    until: float
    void: _At = _END


class _Line(NamedTuple):
    """A batch that a log names; or the end of an epoch, at the largest place."""

    run: _Run
    at: _At
    # Rank, place and line in the file, in words.
    name: str
    # Of its first sample, in the order of all ranks; -1: unknown.
    position: int
    keys: NDArray[Any]
    kinds: NDArray[np.uint8]


def _read(path: Path, runs: list[_Run], lines: list[_Line]) -> None:
    """Read a log, and add its content to ``runs`` and ``lines``."""
    number = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                record = json.loads(line)
                at = (int(record["epoch"]), int(record.get("place", _LARGEST)))
                now = float(record["time"])
                if number == 1 or "receipts" in record:
                    who = (int(record["rank"]), int(record["size"]))
                    length = record.get("length")
                    if length is None:
                        length = None
                    else:
                        length = int(length)
                    runs.append(
                        _Run(
                            path.name,
                            who,
                            at,
                            length,
                            int(record.get("step") or 0),
                            now,
                            now,
                        )
                    )
                    continue
                runs[-1].until, keys = max(runs[-1].until, now), record.get("keys", [])
                kinds = np.full(
                    len(keys), _FAILED if record.get("failed") else _HANDED, np.uint8
                )
                kinds[record.get("skipped", [])] = _SKIPPED
                kinds[len(keys) - record.get("fills", 0) :] = _FILL
                if {*map(type, keys)} <= {int}:
                    keys = np.array(keys, np.int64)
                else:
                    keys = np.array([*map(str, keys)])
                name = (
                    f"rank {runs[-1].who[0]} of {runs[-1].who[1]} at place {at[1]}, "
                    f"line {number} of {path.name}"
                )
                lines.append(
                    _Line(runs[-1], at, name, record.get("at", -1), keys, kinds)
                )
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise OptionError(
            f"{path}: line {number} is damaged, or no receipt ({error!r:.90})."
        ) from error


def _launches(runs: list[_Run]) -> tuple[list[int], list[str]]:
    """Return the number of ranks at each start, and what is wrong with the places where
    ranks began.
    """
    sizes = list[int]()
    joined = set[_Who]()
    faults = dict[_Who, str]()
    # Each rank's last run, and the first of its file.
    latest = dict[_Who, _Run]()
    begun = dict[_Who, _Run]()
    for run in runs:
        before, (rank, size) = latest.get(run.who), run.who
        latest[run.who] = run
        if before is None or before.file != run.file:
            if not sizes or sizes[-1] != size or run.who in joined:
                sizes = [*sizes, size]
                joined = set()
            joined.add(run.who)
            begun[run.who] = last = run
            if before is not None and before.until > run.began:
                faults[run.who] = (
                    f"two loaders were rank {rank} of {size} at the same time: "
                    f"{before.file}, {run.file}"
                )
    for who in [
        (rank, sizes[-1]) for rank in range(min(sizes[-1], len(begun) + _FIRST))
    ]:
        if who not in begun or not _begin_together(begun[who], last):
            where = f"at epoch {last.at[0]}, place {last.at[1]}"
            faults.setdefault(
                who,
                f"rank {who[0]} of {who[1]} has no log that begins as the last start, "
                f"{where}",
            )
    return sizes, [*faults.values()]


def _begin_together(one: _Run, other: _Run) -> bool:
    """True if two ranks began at the same place, or one of them at the end of an epoch
    whose last samples it lacked.

    With ``exact=True`` fewer samples than ranks may be left: a rank without one is in
    the next epoch already.
    """
    first, later = sorted((one, other), key=lambda run: run.at)
    if first.at == later.at:
        return True
    (epoch, place), length = first.at, first.length
    is_at_end = later.at == (epoch + 1, 0) or later.at == (epoch, length)
    return (
        is_at_end
        and length is not None
        and length - place <= max(one.who[0], other.who[0])
    )


def _standing(
    runs: list[_Run], lines: list[_Line]
) -> tuple[dict[_Who, int], dict[int, list[_Line]]]:
    """Return the last epoch in which each rank began a run, and each epoch's lines that
    aren't void.
    """
    least = dict[_Who, _At]()
    reached = dict.fromkeys((run.who for run in runs), 0)
    standing = dict[int, list[_Line]]()
    for run in reversed(runs):
        later = (
            at
            for (rank, size), at in least.items()
            if rank == run.who[0] or size != run.who[1]
        )
        run.void = min(later, default=_END)
        least[run.who] = min(run.at, least.get(run.who, _END))
        reached[run.who] = max(reached[run.who], run.at[0] * (run.at < run.void))
    for line in lines:
        if line.at < line.run.void:
            standing.setdefault(line.at[0], []).append(line)
    return reached, standing


def _epoch(
    epoch: int,
    lines: list[_Line],
    begun: set[_Run],
    going: set[_Who],
    begins_within: bool,
) -> Epoch:
    """Count one epoch; ``begun`` are the runs that began within, ``going`` the ranks
    that haven't begun a later one.
    """
    ends = [line for line in lines if line.at[1] == _LARGEST]
    length = lines[0].run.length
    # Positions of the ranks that may still be in this epoch.
    reached = []
    for who in going - {line.run.who for line in ends}:
        reached.append(
            max(
                (
                    line.position + len(line.keys)
                    for line in lines
                    if line.run.who == who
                ),
                default=0,
            )
        )
    is_over = not reached
    has_positions = all(line.position >= 0 for line in lines if len(line.keys))
    keys = np.concatenate([line.keys for line in lines])
    kinds = np.concatenate([line.kinds for line in lines])
    positions = np.concatenate(
        [np.arange(len(line.keys)) + line.position for line in lines]
    )
    own = kinds != _FILL
    ids = keys if length is not None or not has_positions else positions
    came, times = np.unique(ids[own], return_counts=True)
    if has_positions:
        there = np.unique(positions[own])
    else:
        there = np.arange(len(came))
    tail = _tail(epoch, begun | {line.run for line in lines}, length, has_positions)
    begins, sizes = _gaps(there, max([length or 0, *there[-1:] + 1]))
    if has_positions:
        begins, sizes = _cut(begins, sizes, tail)
    before = begins_within & ((begins == 0) | (not has_positions))
    dropped = ~before & is_over & (begins >= tail)
    not_yet = (
        ~before & (not is_over) & (begins >= min(reached, default=0) * has_positions)
    )
    lost = ~(before | dropped | not_yet)
    missing = int(sizes[lost].sum())
    what = "position"
    gaps = (begins[lost], sizes[lost])
    if length is not None:
        if came.dtype.kind == "U":
            promised = came
        else:
            promised = came[(came >= 0) & (came < length)]
        missing = max(0, length - len(promised) - int(sizes[~lost].sum()))
        if lost.all() and came.dtype.kind == "i":
            what = "sample"
            gaps = _gaps(promised, length)
    runs = [
        f"{one} to {one + more - 1}" if more > 1 else one
        for one, more in zip(*gaps, strict=True)
    ]
    named = [
        f"  never came: {what} {run}"
        for run in runs[:_FIRST]
        if missing and (has_positions or what == "sample")
    ]
    line_of = np.repeat(
        np.arange(len(lines)), np.array([len(line.keys) for line in lines])
    )
    for rows in (
        np.flatnonzero(own & (ids == one)) for one in came[times > 1][:_FIRST]
    ):
        position = f" at position {positions[rows[0]]}" * has_positions
        by = "; ".join(lines[line_of[row]].name for row in rows[:_FIRST])
        named.append(f"  came several times: sample {keys[rows[0]]}{position}: {by}")
    samples = len(np.unique(ids[kinds == _HANDED]))
    twice = int((times > 1).sum())
    failed = int((kinds == _FAILED).sum())
    skipped = int((kinds == _SKIPPED).sum())
    is_sound = not (
        missing or twice or failed or (length is not None and samples > length)
    )
    told = f"{samples:,}{'' if length is None else f' of {length:,}'} samples{', each exactly once' * is_sound}"
    if is_sound and samples == length:
        told = f"each of {length:,} samples exactly once"
    else:
        told = told
    counts = {
        "never came": missing,
        "came several times": twice,
        "failed, and an error came in their batch's place": failed,
        "were skipped since they failed": skipped,
        "came again to fill up the last step": int((~own).sum()),
        "were left out by drop_last": int(sizes[dropped].sum()),
        "may have come before the logs begin": int(sizes[before].sum()),
    }
    told = "; ".join(
        [told, *(f"{count:,} {what}" for what, count in counts.items() if count)]
    )
    told += "" if is_over else "; incomplete: it has not come to its end"
    return Epoch(
        epoch, is_over, is_sound, length, samples, missing, twice, (told, *named)
    )


def _tail(epoch: int, runs: set[_Run], length: int | None, has_positions: bool) -> int:
    """Return the position from which on ``drop_last`` leaves out the rest of an epoch;
    beyond all if it does not.
    """
    tails = []
    for run in runs:
        if run.at[0] == epoch:
            begin = run.at[1]
        else:
            begin = 0
        # The rest is left out by the run that comes to the epoch's end: it begins
        # before, and none replaces it before.
        if (
            length is None
            or not run.step
            or begin >= length
            or run.void < (epoch, length)
        ):
            continue
        # Without positions only their number is known: of those that came, and of the
        # fewest that may have come.
        tails.append(
            length - (length - begin) % run.step
            if has_positions
            else length - run.step + 1
        )
    return max(tails, default=_LARGEST)


def _cut(
    begins: NDArray[np.int64], sizes: NDArray[np.int64], at: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the gaps with these beginnings and sizes; one that goes across the
    position ``at`` is cut in two there.
    """
    ends = begins + sizes
    across = (begins < at) & (at < ends)
    begins = np.concatenate([begins, np.full(across.sum(), at)])
    ends = np.concatenate([np.where(across, at, ends), ends[across]])
    return begins, ends - begins


def _gaps(
    there: NDArray[Any], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the gaps between the sorted numbers ``there``, from 0 to ``length``: their
    beginnings and sizes.
    """
    edges = np.concatenate([[-1], there, [length]])
    sizes = np.diff(edges) - 1
    return (edges[:-1] + 1)[sizes > 0], sizes[sizes > 0]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = (
        "Has each sample of each epoch come exactly once, over all ranks and "
        "restarts?  If not, which ones not?"
    )
    parser = commands.add_parser(
        "audit", help="did each sample come exactly once?", description=about
    )
    parser.add_argument(
        "folder", metavar="FOLDER", help="with the receipts of one training"
    )
    parser.set_defaults(run=_command)


def _command(options: argparse.Namespace) -> int:
    found = audit(options.folder)
    print("\n".join(found.lines))
    return 0 if found.is_sound else 1
