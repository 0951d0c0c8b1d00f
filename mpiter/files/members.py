"""The members of all samples of some tar shards, by number."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices
from .grouped import Groups
from .headers import Contents
from .links import CODING

# Keys that are made in one go.
_AT_ONCE = 1 << 12
# What lies side by side has such gaps between its parts, in bytes.
GAP = 1 << 16


class Members:
    """The members of all samples: where they lie, and in which fields."""

    def __init__(self, shards: Sequence[Contents]) -> None:
        numbers: dict[str, int] = {}
        fields: list[NDArray[np.int32]] = []
        firsts: list[Indices] = []
        borders: list[Indices] = []
        members = 0
        letters = 0
        samples = 0
        # The first sample of each shard, and the number of all.
        ends = [0]
        # Why the last sample of a shard may lack members, by its number.
        self.damage: dict[int, str] = {}
        for shard in shards:
            # Shards number the fields as they come.
            number = [numbers.setdefault(name, len(numbers)) for name in shard.fields]
            fields.append(np.array(number, np.int32)[shard.numbers])
            firsts.append(shard.firsts[:-1] + members)
            borders.append(shard.borders[:-1] + letters)
            members += len(shard.begins)
            letters += len(shard.keys)
            samples += len(shard.firsts) - 1
            ends.append(samples)
            if shard.damage:
                self.damage[samples - 1] = shard.damage
        # The names of the fields.
        self.names = [*numbers]
        # For each member the byte where it begins, its bytes, and the number of its
        # field.
        self.begins: Indices = _joined([shard.begins for shard in shards])
        self.sizes: Indices = _joined([shard.sizes for shard in shards])
        self.fields: NDArray[np.int32] = np.concatenate(
            [np.empty(0, np.int32), *fields]
        )
        # The first member of each sample, and the number of all.
        self.firsts: Indices = _joined([*firsts, np.array([members])])
        self._keys = np.concatenate(
            [np.empty(0, np.uint8), *(shard.keys for shard in shards)]
        )
        self._borders: Indices = _joined([*borders, np.array([letters])])
        self._shards: Indices = np.array(ends, np.int64)
        # The samples whose members don't all lie side by side: some are links.
        gaps = self.begins[1:] - (self.begins[:-1] + self.sizes[:-1])
        is_first = np.zeros(members + 1, bool)
        is_first[self.firsts] = True
        is_apart = ((gaps < 0) | (gaps > GAP)) & ~is_first[1:-1]
        apart = np.flatnonzero(is_apart)
        self.apart = {*map(self.sample_of, apart.tolist())}

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def spans(self, samples: Indices) -> list[list[int]]:
        """Return of some samples what ``Span`` has, each fact of all samples."""
        firsts = self.firsts[samples]
        ends = self.firsts[samples + 1]
        stops = self.begins[ends - 1] + self.sizes[ends - 1]
        return [
            self._shards_of(samples).tolist(),
            firsts.tolist(),
            ends.tolist(),
            self.begins[firsts].tolist(),
            stops.tolist(),
        ]

    def _shards_of(self, samples: Indices) -> Indices:
        return np.searchsorted(self._shards, samples, side="right") - 1

    def shard_of(self, member: int) -> int:
        return int(self._shards_of(np.array([self.sample_of(member)]))[0])

    def sample_of(self, member: int) -> int:
        return int(np.searchsorted(self.firsts, member, side="right")) - 1

    def key(self, sample: int) -> str:
        begin, end = self._borders[sample : sample + 2].tolist()
        return self._keys[begin:end].tobytes().decode(*CODING)

    def keys(self) -> Iterator[str]:
        """Yield the keys of all samples."""
        for first in range(0, len(self), _AT_ONCE):
            borders = self._borders[first : first + _AT_ONCE + 1]
            some = self._keys[borders[0] : borders[-1]].tobytes()
            its = (borders - borders[0]).tolist()
            for begin, end in itertools.pairwise(its):
                yield some[begin:end].decode(*CODING)

    def name(self, member: int) -> str:
        """Return the name of a member; its extension is in small letters."""
        key = self.key(self.sample_of(member))
        return f"{key}.{self.names[self.fields[member]]}"

    def find(self, names: Collection[str]) -> Indices:
        """Return the first member of each sample in one of these fields; -1 for none.

        The members have numbers.
        """
        wanted = np.array([name in names for name in self.names], bool)
        at = np.flatnonzero(wanted[self.fields])
        found = np.full(len(self), -1, np.int64)
        # The first one is written last.
        samples = np.searchsorted(self.firsts, at, side="right") - 1
        found[samples[::-1]] = at[::-1]
        return found

    def runs(self, size: int) -> Groups:
        """Return the samples in runs of neighbours of some ``size`` bytes each."""
        before = np.concatenate(([0], np.cumsum(self.sizes)))
        run = before[self.firsts[:-1]] // size
        is_first = np.ones(len(self), bool)
        is_first[1:] = np.diff(run) > 0
        starts = np.append(np.flatnonzero(is_first), len(self))
        bytes_before = before[self.firsts[starts]]
        return Groups(np.diff(starts).tolist(), np.diff(bytes_before).tolist())


def _joined(parts: Sequence[Indices]) -> Indices:
    found: Indices = np.concatenate([np.empty(0, np.int64), *parts])
    return found
