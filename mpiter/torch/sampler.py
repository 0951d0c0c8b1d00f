"""What frameworks see as the sampler of a torch loader that has ``shard=``: a ``DistributedSampler``, so they add none.

A door: imports torch.  The loader draws its batches from the order itself.  Asked in its place, this gives the keys
of the epoch that ``set_epoch()`` has named, with a warning: whoever asks may be about to share them out once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from ..errors import warn
from ..order.cursor import Cursor, Pace
from ..order.order import Order, Sequential, Shuffled
from ..order.ranks import Shard
from ..order.share import Share


class ShardSampler(torch.utils.data.DistributedSampler[int]):  # type: ignore[misc]
    """A rank's part of each epoch."""

    def __init__(self, dataset: Any, batch_size: int, drop_last: bool, shuffle: bool, seed: int, shard: Shard) -> None:
        # not super().__init__(), which asks for a process group: there may be one later, or none
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.shuffle, self.seed, self.shard, self.epoch = shuffle, seed, shard, 0

    def _share(self) -> Share:
        return self.shard.share()

    @property
    def rank(self) -> int:
        return self._share().rank

    @property
    def num_replicas(self) -> int:
        return self._share().size

    def __len__(self) -> int:
        return self._share().samples(len(self.dataset), self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[int]:
        if self._share().size > 1:
            warn(
                "somebody draws from the sampler of a loader that has shard=, in the loader's place: if that is a "
                "framework which shares batches out itself (Accelerate's prepare()), each rank gets a part of its "
                "part, and samples are missing.  Leave the loader out there, or leave shard= out here."
            )
        pace = Pace(self.batch_size, False, self.epoch + 1, self.drop_last, self._share())
        cursor = Cursor(0, self.epoch, False, self.order(self.epoch, self.seed))
        while (plan := pace.step(cursor)) is not None:
            for stretch in plan.stretches:
                yield from map(int, stretch.indices)
            cursor = plan.after

    def order(self, epoch: int, seed: int) -> Order:
        """Of all ranks."""
        length = len(self.dataset)
        return Shuffled(length, seed, epoch) if self.shuffle else Sequential(length)
