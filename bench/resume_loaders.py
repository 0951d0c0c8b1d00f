"""The loaders of the resuming benchmark, ours and others.

Each is made, saved and resumed as its documentation says.

Each runs in its rank's process. A sample is its own index, and takes 5 ms, so that
workers have something in hand when one is killed.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

SAMPLE_S = 0.005


@dataclass(frozen=True)
class Seat:
    """One rank's place in a training: of how many it is, and what it loads with."""

    folder: Path  # of states and notes
    length: int
    rank: int
    size: int
    workers: int
    batch_size: int  # of this rank
    seed: int


class Samples:
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_S)
        return int(index)

    # grain compares the text that it has kept in a state with this.
    def __repr__(self) -> str:
        return f"Samples({self.length})"


class Loader:
    """An epoch's batches on one rank.

    A state is asked for between two batches, and loaded before the first.
    """

    # The environment whose Python has the module that the loader needs.
    environment: ClassVar[str] = "torch"
    module: ClassVar[str]
    # The way of resuming, in words.
    way: ClassVar[str]
    # Scenes that the loader isn't put to, and why.
    left_out: ClassVar[dict[str, str]] = {}

    def __init__(self, seat: Seat) -> None:
        self.seat = seat

    def batches(self) -> Iterator[Any]:
        raise NotImplementedError

    def state(self) -> Any:
        raise NotImplementedError

    def load(self, state: Any) -> None:
        raise NotImplementedError

    def workers(self) -> list[int]:
        """Return the processes that fetch."""
        return [
            process.pid for process in multiprocessing.active_children() if process.pid
        ]


# -- ours ------------------------------------------------------------------------------


class Ours(Loader):
    environment = "ours"
    module = "mpiter"
    way = (
        "batches(shard=(rank, size)): state_dict() of any rank, load_state_dict() on "
        "all of any number"
    )

    def __init__(self, seat: Seat) -> None:
        import mpiter

        super().__init__(seat)
        options = {
            "n_processes": seat.workers,
            "seed": seat.seed,
            "shard": (seat.rank, seat.size),
        }
        self.stream = mpiter.batches(Samples(seat.length), seat.batch_size, **options)

    def batches(self) -> Iterator[Any]:
        return iter(self.stream)

    def state(self) -> Any:
        return self.stream.state_dict()

    def load(self, state: Any) -> None:
        self.stream.load_state_dict(state)

    def workers(self) -> list[int]:
        return list(self.stream.worker_pids)


class OursEpochs(Ours):
    way = "DataLoader(shuffle=True, shard=(rank, size)): the same"

    def __init__(self, seat: Seat) -> None:
        Loader.__init__(self, seat)
        options: dict[str, Any] = {
            "num_workers": seat.workers,
            "seed": seat.seed,
            "shard": (seat.rank, seat.size),
        }
        self.stream: Any = self.kind()(
            Samples(seat.length), seat.batch_size, shuffle=True, **options
        )

    def kind(self) -> Any:
        import mpiter

        return mpiter.DataLoader


class OursOfTorch(OursEpochs):
    environment = "torch"
    module = "torch"
    way = "torch.DataLoader(shuffle=True, shard=(rank, size)): the same"

    def kind(self) -> Any:
        import mpiter.torch

        return mpiter.torch.DataLoader


def keys_of(batch: Any) -> list[int]:
    """Return the keys of the samples in a batch of any loader."""
    if hasattr(batch, "tolist"):
        batch = batch.tolist()
    return [int(key) for key in batch]


# -- torchdata, and what goes through its loader ---------------------------------------

OTHER_RANKS = ("ranks", "batches")  # scenes
ACROSS_RANKS = (
    'not documented: its README has state handled "across multiprocess workers (but '
    'not across ranks)"'
)


class Torchdata(Loader):
    module = "torchdata"
    way = (
        "StatefulDataLoader: state_dict(), load_state_dict(); ranks by "
        "StatefulDistributedSampler, each its own state"
    )
    left_out = dict.fromkeys(OTHER_RANKS, ACROSS_RANKS)

    def __init__(self, seat: Seat) -> None:
        import torch
        from torchdata.stateful_dataloader import StatefulDataLoader

        super().__init__(seat)
        options: dict[str, Any] = {
            "num_workers": seat.workers,
            "batch_size": seat.batch_size,
        }
        dataset = self.dataset()
        if dataset is None:
            generator = torch.Generator().manual_seed(seat.seed)
            dataset = Samples(seat.length)
            options = options | {"shuffle": True, "generator": generator}
        self.loader = StatefulDataLoader(dataset, **options)

    def dataset(self) -> Any:
        return None

    def batches(self) -> Iterator[Any]:
        return iter(self.loader)

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        self.loader.load_state_dict(state)


def slowly(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(SAMPLE_S)
    return sample


class Datasets(Torchdata):
    module = "datasets"
    way = (
        "IterableDataset.shuffle(buffer_size=32) in a StatefulDataLoader: "
        "state_dict(), load_state_dict()"
    )
    left_out = dict.fromkeys(
        OTHER_RANKS,
        "not documented: split_dataset_by_node, and no word of a state that other "
        "ranks saved",
    )

    def dataset(self) -> Any:
        import datasets

        made = datasets.Dataset.from_dict(
            {"key": list(range(self.seat.length))}
        ).to_iterable_dataset(num_shards=24)
        return made.shuffle(seed=self.seat.seed, buffer_size=32).map(slowly)

    def batches(self) -> Iterator[Any]:
        return (batch["key"] for batch in self.loader)


# -- grain -----------------------------------------------------------------------------


class Grain(Loader):
    module = "grain"
    way = (
        "DataLoader: get_state(), set_state() of its iterator; ranks by ShardOptions, "
        "each its own state"
    )

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        self.iterator = iter(self.loader())

    def loader(self) -> Any:
        import grain

        seat = self.seat
        shard = grain.sharding.ShardOptions(seat.rank, seat.size, drop_remainder=False)
        sampler = grain.samplers.IndexSampler(
            seat.length, shard_options=shard, shuffle=True, num_epochs=1, seed=seat.seed
        )
        batch = grain.transforms.Batch(seat.batch_size, drop_remainder=False)
        return grain.DataLoader(
            data_source=Samples(seat.length),
            sampler=sampler,
            operations=[batch],
            worker_count=seat.workers,
        )

    def batches(self) -> Iterator[Any]:
        return self.iterator  # type: ignore[no-any-return]

    def state(self) -> Any:
        return self.iterator.get_state()

    def load(self, state: Any) -> None:
        self.iterator.set_state(state)


class GrainElastic(Grain):
    way = (
        "experimental.ElasticIterator: get_state() of any rank, set_state() on all of "
        "any number; no remainder"
    )

    def loader(self) -> Any:
        import grain

        seat = self.seat
        shard = grain.sharding.ShardOptions(seat.rank, seat.size)
        dataset = grain.MapDataset.source(Samples(seat.length)).shuffle(seed=seat.seed)
        options = grain.MultiprocessingOptions(num_workers=seat.workers)
        return grain.experimental.ElasticIterator(
            dataset, seat.batch_size * seat.size, shard, multiprocessing_options=options
        )


LOADERS: dict[str, type[Loader]] = {
    "ours": Ours,
    "ours, DataLoader": OursEpochs,
    "ours, torch": OursOfTorch,
    "torchdata": Torchdata,
    "grain": Grain,
    "grain, elastic": GrainElastic,
    "datasets": Datasets,
}
