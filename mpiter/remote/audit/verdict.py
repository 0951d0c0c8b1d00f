"""What an audit has found, as values, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

State = Literal["whole", "incomplete", "broken off"]


@dataclass(frozen=True, slots=True)
class Where:
    """Who was handed a sample: a rank, in which record of which file, at which place."""

    rank: int
    size: int
    place: int
    record: int
    file: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} at place {self.place}, record {self.record} of {self.file}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One that something is wrong with."""

    key: int | str | None  # None: nobody has told it
    position: int | None  # in the order of all ranks, where there is one
    where: tuple[Where, ...] = ()

    def __str__(self) -> str:
        key = "a sample" if self.key is None else f"sample {self.key}"
        return key if self.position is None else f"{key} at position {self.position}"


@dataclass(frozen=True, slots=True)
class Found:
    """How many samples, and the first few of them."""

    count: int = 0
    first: tuple[Sample, ...] = ()

    def lines(self, what: str) -> Iterator[str]:
        """In words."""
        if self.count:
            yield f"{self.count:,} {what}" + (", the first of them:" if self.count > len(self.first) > 0 else ":")
            for sample in self.first:
                yield f"  {sample}"
                yield from (f"    {where}" for where in sample.where)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What came in one epoch."""

    epoch: int
    state: State
    length: int | None  # samples that it has; None: nobody has told
    samples: int  # that came, each counted once
    missing: Found  # that never came
    twice: Found  # that came several times
    failed: Found  # in whose place came an error
    skipped: Found  # that were left out, by on_error="skip"
    fillings: int = 0  # samples that came once more, to fill up a last step
    dropped: int = 0  # that were left out at the end, by drop_last
    before: int = 0  # that may have come before the logs begin
    not_yet: int = 0  # that are to come, if somebody goes on

    @property
    def is_sound(self) -> bool:
        is_whole = self.state != "broken off" and not (self.missing.count or self.twice.count or self.failed.count)
        return is_whole and not self._has_more

    @property
    def _has_more(self) -> bool:
        """Than were promised."""
        return self.length is not None and self.samples > self.length

    @property
    def _summary(self) -> str:
        if self._has_more:
            return f"{self.samples:,} different samples came of {self.length:,} that were promised"
        if not self.is_sound:
            return f"not each of {self.length:,} samples exactly once" if self.length is not None else "not sound"
        if self.length is None:
            told = f"{self.samples:,} samples, each once; nobody has told how many there are"
        elif self.state == "whole" and self.samples == self.length:
            told = f"each of {self.length:,} samples exactly once"
        else:
            told = f"{self.samples:,} of {self.length:,} samples, each exactly once"
        return told + ("; incomplete: it has not come to its end" if self.state == "incomplete" else "")

    def line(self) -> str:
        """In one line."""
        beside = {
            "that fill up the last step": self.fillings,
            "left out by drop_last": self.dropped,
            "skipped since they failed": self.skipped.count,
            "of before the logs begin": self.before,
        }
        more = [f"{count:,} {what}" for what, count in beside.items() if count]
        return self._summary + (f" ({', '.join(more)})" if more else "")

    def lines(self) -> Iterator[str]:
        """All about it."""
        yield f"epoch {self.epoch}: {self.line()}"
        if self.state == "broken off":
            yield "  it was broken off: nobody came to its end, and all went on to a later one"
        for found, what in (
            (self.missing, "never came"),
            (self.twice, "came several times"),
            (self.failed, "failed, and an error came in their batch's place"),
            (self.skipped, "were skipped since they failed"),
        ):
            yield from (f"  {line}" for line in found.lines(what))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a training's receipts; ``audit()`` returns it.

    >>> import tempfile, mpiter
    >>> from mpiter.remote.audit import audit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loader = mpiter.DataLoader(range(10), 4, receipts=folder)
    ...     first = next(iter(loader))
    ...     verdict = audit(folder)
    >>> verdict.is_sound, verdict.missing, verdict.twice, verdict.parted
    (True, 0, 0, ())
    >>> [(epoch.epoch, epoch.state, epoch.samples, epoch.length) for epoch in verdict.epochs]
    [(0, 'incomplete', 4, 10)]
    """

    epochs: tuple[Epoch, ...]
    parted: tuple[str, ...]  # where ranks, or restarts, don't go by one order, or a log isn't what was written
    absent: tuple[int, ...]  # ranks of the last start that have no log
    files: int
    starts: tuple[int, ...]  # how many ranks there were, start for start
    torn: int = 0  # files whose last record was torn off

    @property
    def missing(self) -> int:
        """Samples that never came, of all epochs."""
        return sum(epoch.missing.count for epoch in self.epochs)

    @property
    def twice(self) -> int:
        """Samples that came several times, of all epochs."""
        return sum(epoch.twice.count for epoch in self.epochs)

    @property
    def is_sound(self) -> bool:
        """Has nothing been lost, nothing repeated, and did all go by one order?"""
        return not (self.parted or self.absent) and all(epoch.is_sound for epoch in self.epochs)

    def lines(self, each: bool = False) -> Iterator[str]:
        """The verdict in words; ``each``: with a line for each epoch, else those that are alike have one together."""
        yield f"{_of(self.files, 'log')}: {', then '.join(_of(size, 'rank') for size in self.starts)}"
        for (line, plain), group in groupby(self.epochs, lambda epoch: (epoch.line(), epoch.is_sound)):
            epochs = list(group)
            if each or not plain or len(epochs) == 1 or epochs[0].skipped.count:
                for epoch in epochs:
                    yield from epoch.lines()
            else:
                yield f"epochs {epochs[0].epoch} to {epochs[-1].epoch}: {line}"
        if not self.epochs:
            yield "nothing has been handed out yet"
        for rank in self.absent:
            yield f"rank {rank} of {self.starts[-1]} has left no log"
        yield from self.parted
        if self.torn:
            yield f"{_of(self.torn, 'log')} with a torn last record, which a program that is killed leaves"
        yield "sound: nothing lost, nothing repeated" if self.is_sound else "not sound"


def _of(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
