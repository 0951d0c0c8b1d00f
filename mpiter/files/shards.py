"""``Shards``: reads the members of tar shards, of whole samples or one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, NoReturn

from ..errors import DamagedFile, add_note
from ..order.order import Indices
from .grouped import Groups
from .headers import Contents
from .members import GAP, Members
from .paths import File
from .ranges import Ranges

# Samples that follow each other are read in one go: so many bytes at most.
_AT_ONCE = 1 << 22


class Span(NamedTuple):
    """Where a sample lies."""

    sample: int
    shard: int
    # Its first member, and the one behind its last.
    first: int
    end: int
    # The byte of the shard where the first one begins, and where the last one ends.
    begin: int
    stop: int


class Shards:
    """Some tar shards.  Their samples have numbers, and so have all members."""

    def __init__(self, files: Sequence[File], contents: Sequence[Contents]) -> None:
        self._files = files
        self._members = Members(contents)
        self._ranges = Ranges(files)
        # The names of all fields.
        self.fields = self._members.names
        # For each member the number of its field.
        self.numbers = self._members.fields

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._members)

    def sample_keys(self) -> Iterator[str]:
        """Yield the names of all samples; their folders are part of these."""
        return self._members.keys()

    def key(self, sample: int) -> str:
        return self._members.key(sample)

    def runs(self, size: int) -> Groups:
        """Return the samples in runs of neighbours of some ``size`` bytes each."""
        return self._members.runs(size)

    def words(self, sample: int) -> str:
        """Return in words which sample this is."""
        members = self._members
        first = int(members.firsts[sample])
        path = self._files[members.shard_of(first)].path
        last = ", the last one before its damage" if sample in members.damage else ""
        return f"{sample} ({members.key(sample)!r} of {path}{last})"

    def read(self, samples: Indices) -> Iterator[tuple[Span, list[bytes]]]:
        """Yield the bytes of the members of each of some samples."""
        run: list[Span] = []
        facts = zip(samples.tolist(), *self._members.spans(samples), strict=True)
        for span in map(Span._make, facts):
            if span.sample in self._members.apart:
                if run:
                    yield from self._values(run)
                    run = []
                yield span, [*map(self.fetch, range(span.first, span.end))]
                continue
            if run and not _goes_on(run, span):
                yield from self._values(run)
                run = []
            run.append(span)
        if run:
            yield from self._values(run)

    def _values(self, run: Sequence[Span]) -> Iterator[tuple[Span, list[bytes]]]:
        """Read samples that lie side by side in one go."""
        base = run[0].begin
        data = self._range(run[0].shard, run[0].first, base, run[-1].stop)
        members = self._members
        for span in run:
            if span.sample in members.damage:
                self._fail_as_last(span.sample, span.end - 1)
            begins = members.begins[span.first : span.end].tolist()
            sizes = members.sizes[span.first : span.end].tolist()
            values: list[bytes] = []
            for at, size in enumerate(sizes):
                begin = begins[at] - base
                value = data[begin : begin + size]
                if len(value) < size:
                    self._fail_short(span.first + at, len(value))
                values.append(value)
            yield span, values

    # -- single members ----------------------------------------------------------------

    def find(self, fields: Collection[str]) -> Indices:
        """Return the number of each sample's first member in one of these fields.

        It is -1 where a sample has none.
        """
        return self._members.find(fields)

    def name(self, member: int) -> str:
        """Return the name of a member; its extension is in small letters."""
        return self._members.name(member)

    def source(self, member: int) -> str:
        """Return in words where a member lies."""
        path = self._files[self._members.shard_of(member)].path
        begin = int(self._members.begins[member])
        return f"{path}: member {self.name(member)!r} at byte {begin:,}"

    def fetch(self, member: int) -> bytes:
        """Read the bytes of a member."""
        members = self._members
        sample = members.sample_of(member)
        if sample in members.damage:
            self._fail_as_last(sample, member)
        begin = int(members.begins[member])
        size = int(members.sizes[member])
        data = self._range(members.shard_of(member), member, begin, begin + size)
        if len(data) < size:
            self._fail_short(member, len(data))
        return data

    def _range(self, shard: int, member: int, begin: int, end: int) -> bytes:
        try:
            return self._ranges.read(shard, begin, end)
        except Exception as error:
            add_note(error, f"mpiter: reading {self.source(member)}.")
            raise

    def _fail_as_last(self, sample: int, member: int) -> NoReturn:
        """Raise an error of a sample that may lack members."""
        damage = self._members.damage[sample]
        self.fail(member, f"is the last one before the damage: {damage}")

    def _fail_short(self, member: int, there: int) -> NoReturn:
        size = int(self._members.sizes[member])
        self.fail(member, f"has {size:,} bytes, and the file ends after {there:,}")

    def fail(
        self, member: int, why: str, cause: BaseException | None = None
    ) -> NoReturn:
        raise DamagedFile(f"{self.source(member)} {why}.") from cause


def _goes_on(run: Sequence[Span], span: Span) -> bool:
    """True if a sample lies behind others, and is read together with them."""
    gap = span.begin - run[-1].stop
    length = span.stop - run[0].begin
    return span.shard == run[0].shard and 0 <= gap <= GAP and length <= _AT_ONCE
