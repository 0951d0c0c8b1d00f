"""``mpiter audit folder`` checks by the receipts that each sample came exactly once.

It counts over all ranks and restarts; it reads the logs and changes nothing.  If a rank
restarts at a place, what was logged before from there on is void: its own lines, and
those of all ranks if their number has changed.  Guarantees exit status 0 if nothing was
lost or repeated, 1 if something was, 2 if a log can't be read.  Ignores an incomplete
last line, left by a killed program.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
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
_Numbers = NDArray[np.int64]
_LARGEST = 1 << 53
_END = (_LARGEST, _LARGEST)
# At most so many lost or repeated samples are named.
_FIRST = 5
# How a sample came: it was handed out, or came again to fill up a step, or was skipped,
# or its batch was replaced by an error.
_HANDED, _FILL, _SKIPPED, _FAILED = range(4)


class Epoch(NamedTuple):
    """What the audit has found out about one epoch."""

    epoch: int
    is_over: bool
    is_sound: bool
    # The number of samples in the epoch; None if no log says.
    length: int | None
    # The number of samples that came, each counted once.
    samples: int
    missing: int  # samples that never came
    twice: int  # samples that came several times
    # How many samples of each component came, or documents of packed rows.
    components: dict[str, int]
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
    """Return the verdict on the logs in ``folder``.

    Raise an OptionError if one can't be read.

    >>> import tempfile, mpiter.receipts
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     notes = mpiter.receipts.Receipts(folder)
    ...     with mpiter.batches(range(10), 4, n_processes=0, hooks=notes) as stream:
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
        # The ranks of the last start that haven't begun a later epoch.
        going = set[_Who]()
        for who, last in reached.items():
            if who[1] == sizes[-1] and last <= epoch:
                going.add(who)
        begun = set[_Run]()
        for run in runs:
            if run.at[0] == epoch and run.at < run.void:
                begun.add(run)
        begins_within = begin > (epoch, 0)
        epochs.append(_epoch(epoch, some, begun, going, begins_within))
    is_sound = not faults and all(epoch.is_sound for epoch in epochs)
    ranks = ", then ".join(map(str, sizes))
    said = [f"logs: {len(files)}; ranks: {ranks}"]
    for (line, *samples), group in groupby(epochs, lambda epoch: epoch.lines):
        first, *others = (epoch.epoch for epoch in group)
        if others:
            said.append(f"epochs {first} to {others[-1]}: {line}")
        else:
            said.append(f"epoch {first}: {line}")
        said += samples
    said += faults
    if is_sound:
        said.append("sound: nothing lost, nothing repeated")
    else:
        said.append("not sound")
    missing = sum(epoch.missing for epoch in epochs)
    twice = sum(epoch.twice for epoch in epochs)
    return Verdict(
        is_sound,
        missing,
        twice,
        epochs=tuple(epochs),
        starts=tuple(sizes),
        lines=tuple(said),
    )


@dataclass(eq=False, slots=True)
class _Run:
    """The samples that a rank was handed from the place ``at`` on.

    From ``void`` on, a later run replaces them.
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
    # The rank, the place, and the line in the file, in words.
    name: str
    # The position of its first sample in the order of all ranks; -1 if it is unknown.
    position: int
    keys: NDArray[Any]
    kinds: NDArray[np.uint8]
    components: dict[str, int]


def _read(path: Path, runs: list[_Run], lines: list[_Line]) -> None:
    """Read a log, and add its content to ``runs`` and ``lines``."""
    number = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                record = json.loads(line)
                epoch = int(record["epoch"])
                place = int(record.get("place", _LARGEST))
                at = (epoch, place)
                now = float(record["time"])
                if number == 1 or "receipts" in record:
                    rank = int(record["rank"])
                    size = int(record["size"])
                    length = record.get("length")
                    if length is not None:
                        length = int(length)
                    step = int(record.get("step") or 0)
                    runs.append(
                        _Run(
                            path.name,
                            (rank, size),
                            at,
                            length,
                            step,
                            began=now,
                            until=now,
                        )
                    )
                    continue
                run = runs[-1]
                run.until = max(run.until, now)
                keys = record.get("keys", [])
                usual = _FAILED if record.get("failed") else _HANDED
                kinds = np.full(len(keys), usual, np.uint8)
                kinds[record.get("skipped", [])] = _SKIPPED
                fills = record.get("fills", 0)
                kinds[len(keys) - fills :] = _FILL
                if {*map(type, keys)} <= {int}:
                    keys = np.array(keys, np.int64)
                else:
                    keys = np.array([str(_as_tuple(key)) for key in keys])
                rank, size = run.who
                name = (
                    f"rank {rank} of {size} at place {place}, line {number} of "
                    f"{path.name}"
                )
                position = record.get("at", -1)
                components = dict[str, int]()
                for one, count in record.get("components", {}).items():
                    components[one] = int(count)
                lines.append(_Line(run, at, name, position, keys, kinds, components))
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


def _as_tuple(key: object) -> Any:
    """Return a key that is a tuple as such: in JSON it has become a list."""
    if isinstance(key, list):
        return tuple(map(_as_tuple, key))
    return key


def _launches(runs: list[_Run]) -> tuple[list[int], list[str]]:
    """Return the number of ranks at each start, and what is wrong.

    It is wrong if two loaders were the same rank at the same time, and if the ranks of
    the last start haven't begun at the same place.
    """
    sizes = list[int]()
    joined = set[_Who]()
    faults = dict[_Who, str]()
    # Each rank's last run.
    latest = dict[_Who, _Run]()
    # Each rank's first run of its last program, which has a file of its own.
    begun = dict[_Who, _Run]()
    for run in runs:
        rank, size = run.who
        before = latest.get(run.who)
        latest[run.who] = run
        # A further run in the same file belongs to the same program.
        if before is not None and before.file == run.file:
            continue
        # A new start shows by another number of ranks, or by a rank that the present
        # start has already.
        if not sizes or sizes[-1] != size or run.who in joined:
            sizes.append(size)
            joined.clear()
        joined.add(run.who)
        begun[run.who] = run
        last = run
        if before is not None and before.until > run.began:
            faults[run.who] = (
                f"two loaders were rank {rank} of {size} at the same time: "
                f"{before.file}, {run.file}"
            )
    # A log may claim any number of ranks, so only some that are missing are named.
    size = sizes[-1]
    where = f"at epoch {last.at[0]}, place {last.at[1]}"
    for rank in range(min(size, len(begun) + _FIRST)):
        who = (rank, size)
        if who not in begun or not _begin_together(begun[who], last):
            faults.setdefault(
                who,
                f"rank {rank} of {size} has no log that begins as the last start, "
                f"{where}",
            )
    return sizes, [*faults.values()]


def _begin_together(one: _Run, other: _Run) -> bool:
    """True if two ranks began together: at the same place, or almost.

    With ``exact=True`` fewer samples than ranks may be left of an epoch.  A rank that
    gets none of them is at the end, or in the next epoch already.
    """
    first, later = sorted((one, other), key=lambda run: run.at)
    if first.at == later.at:
        return True
    epoch, place = first.at
    length = first.length
    if length is None:
        return False
    ends = [(epoch, length), (epoch + 1, 0)]
    if later.at not in ends:
        return False
    highest_rank = max(one.who[0], other.who[0])
    return length - place <= highest_rank


def _standing(
    runs: list[_Run], lines: list[_Line]
) -> tuple[dict[_Who, int], dict[int, list[_Line]]]:
    """Return each rank's last epoch, and each epoch's lines that aren't void.

    The last epoch is the one in which the rank's last run began.
    """
    # The least place from which each rank began again, among the runs seen so far.
    least = dict[_Who, _At]()
    reached = {run.who: 0 for run in runs}
    standing = dict[int, list[_Line]]()
    # From the last run to the first, so that those that replace a run come before it.
    for run in reversed(runs):
        own_rank, own_size = run.who
        for (rank, size), at in least.items():
            if rank == own_rank or size != own_size:
                run.void = min(run.void, at)
        known = least.get(run.who, _END)
        least[run.who] = min(known, run.at)
        if run.at < run.void:
            epoch = run.at[0]
            reached[run.who] = max(reached[run.who], epoch)
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
    """Count one epoch.

    ``begun`` are the runs that began within, ``going`` the ranks that haven't begun a
    later epoch.
    """
    ended = set[_Who]()
    for line in lines:
        if line.at[1] == _LARGEST:
            ended.add(line.run.who)
    length = lines[0].run.length
    # The positions of the ranks that may still be in this epoch.
    reached = list[int]()
    for who in going - ended:
        position = 0
        for line in lines:
            if line.run.who == who:
                position = max(position, line.position + len(line.keys))
        reached.append(position)
    is_over = not reached
    has_positions = True
    spans = []
    for line in lines:
        if len(line.keys) and line.position < 0:
            has_positions = False
        span = np.arange(len(line.keys)) + line.position
        spans.append(span)
    positions = np.concatenate(spans)
    keys = np.concatenate([line.keys for line in lines])
    kinds = np.concatenate([line.kinds for line in lines])
    own = kinds != _FILL
    # A dataset's samples are told apart by their keys.  What a sampler gives may have
    # a key twice, so these are told apart by their positions, where there are any.
    ids = positions
    if length is not None or not has_positions:
        ids = keys
    came, times = np.unique(ids[own], return_counts=True)
    there = np.arange(len(came))
    if has_positions:
        there = np.unique(positions[own])
    runs = begun | {line.run for line in lines}
    tail = _tail(epoch, runs, length, has_positions)
    end = length or 0
    if len(there):
        end = max(end, int(there[-1]) + 1)
    begins, sizes = _gaps(there, end)
    if has_positions:
        begins, sizes = _cut(begins, sizes, tail)
    # A gap is excused if its samples may have come before the logs begin, were left out
    # by drop_last, or are still to come.  Without positions there is one gap, at the
    # end.
    before = begins_within & ((begins == 0) | (not has_positions))
    dropped = ~before & is_over & (begins >= tail)
    furthest = min(reached, default=0) * has_positions
    not_yet = ~before & (not is_over) & (begins >= furthest)
    lost = ~(before | dropped | not_yet)
    missing = int(sizes[lost].sum())
    what = "position"
    gaps = (begins[lost], sizes[lost])
    if length is not None:
        if came.dtype.kind == "U":
            promised = came
        else:
            promised = came[(came >= 0) & (came < length)]
        excused = int(sizes[~lost].sum())
        missing = max(0, length - len(promised) - excused)
        # If no gap is excused, each sample is missing whose key hasn't come.
        if lost.all() and came.dtype.kind == "i":
            what = "sample"
            gaps = _gaps(promised, length)
    named = list[str]()
    if missing and (has_positions or what == "sample"):
        firsts, counts = gaps
        for first, count in zip(firsts[:_FIRST], counts[:_FIRST], strict=True):
            gap = f"  never came: {what} {first}"
            if count > 1:
                gap += f" to {first + count - 1}"
            named.append(gap)
    # The line that each sample is in.
    lengths = [len(line.keys) for line in lines]
    line_of = np.repeat(np.arange(len(lines)), lengths)
    for one in came[times > 1][:_FIRST]:
        rows = np.flatnonzero(own & (ids == one))
        sample = f"sample {keys[rows[0]]}"
        if has_positions:
            sample += f" at position {positions[rows[0]]}"
        names = []
        for row in rows[:_FIRST]:
            line = lines[line_of[row]]
            names.append(line.name)
        named.append(f"  came several times: {sample}: {'; '.join(names)}")
    samples = len(np.unique(ids[kinds == _HANDED]))
    twice = int((times > 1).sum())
    failed = int((kinds == _FAILED).sum())
    skipped = int((kinds == _SKIPPED).sum())
    has_too_many = length is not None and samples > length
    is_sound = not (missing or twice or failed or has_too_many)
    told = f"{samples:,}"
    if length is not None:
        told += f" of {length:,}"
    told += " samples"
    if is_sound:
        told += ", each exactly once"
        if samples == length:
            told = f"each of {length:,} samples exactly once"
    happened = {
        "never came": missing,
        "came several times": twice,
        "failed, and an error came in their batch's place": failed,
        "were skipped since they failed": skipped,
        "came again to fill up the last step": int((~own).sum()),
        "were left out by drop_last": int(sizes[dropped].sum()),
        "may have come before the logs begin": int(sizes[before].sum()),
    }
    for what, count in happened.items():
        if count:
            told += f"; {count:,} {what}"
    if not is_over:
        told += "; incomplete: it has not come to its end"
    components = Counter[str]()
    for line in lines:
        components.update(line.components)
    if components:
        each = [f"{name} {count:,}" for name, count in sorted(components.items())]
        named.append(f"  of the components: {', '.join(each)}")
    return Epoch(
        epoch,
        is_over,
        is_sound,
        length,
        samples,
        missing,
        twice,
        dict(components),
        lines=(told, *named),
    )


def _tail(
    epoch: int,
    runs: set[_Run],
    length: int | None,
    has_positions: bool,
) -> int:
    """Return the position from which on ``drop_last`` leaves out samples.

    It is beyond all positions if nothing is left out.
    """
    tails = list[int]()
    for run in runs:
        if length is None or not run.step:
            continue
        begin = 0
        if run.at[0] == epoch:
            begin = run.at[1]
        # The rest is left out by the run that comes to the epoch's end: it begins
        # before, and none replaces it before.
        if begin >= length or run.void < (epoch, length):
            continue
        if has_positions:
            rest = (length - begin) % run.step
            tails.append(length - rest)
        else:
            # Only the number of samples is known: of those that came, and of the fewest
            # that may have come.
            tails.append(length - run.step + 1)
    return max(tails, default=_LARGEST)


def _cut(begins: _Numbers, sizes: _Numbers, at: int) -> tuple[_Numbers, _Numbers]:
    """Return the gaps with these beginnings and sizes, cut in two at a position.

    Only a gap that goes across the position ``at`` is cut.
    """
    ends = begins + sizes
    across = (begins < at) & (at < ends)
    second_begins = np.full(across.sum(), at)
    second_ends = ends[across]
    ends = np.where(across, at, ends)
    begins = np.concatenate([begins, second_begins])
    ends = np.concatenate([ends, second_ends])
    return begins, ends - begins


def _gaps(there: NDArray[Any], length: int) -> tuple[_Numbers, _Numbers]:
    """Return the gaps between sorted numbers: their beginnings and sizes.

    The numbers are ``there``, and the gaps lie from 0 to ``length``.
    """
    edges = np.concatenate([[-1], there, [length]])
    sizes = np.diff(edges) - 1
    begins = edges[:-1] + 1
    is_gap = sizes > 0
    return begins[is_gap], sizes[is_gap]


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
