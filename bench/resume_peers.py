"""The others of the resuming benchmark, each loaded from, saved and resumed as its documentation says."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

from resume_loaders import SAMPLE_S, Loader, Ours, OursEpochs, OursOfTorch, Samples, Seat

# -- torchdata, and what goes through its loader ---------------------------------------------------------------------

OTHER_RANKS = ("ranks", "batches")  # scenes
ACROSS_RANKS = 'not documented: its README has state handled "across multiprocess workers (but not across ranks)"'


class Torchdata(Loader):
    packages = ("torchdata", "torch")
    way = "StatefulDataLoader: state_dict(), load_state_dict(); ranks by StatefulDistributedSampler, each its own state"
    left_out = dict.fromkeys(OTHER_RANKS, ACROSS_RANKS)

    def __init__(self, seat: Seat) -> None:
        import torch
        from torchdata.stateful_dataloader import StatefulDataLoader

        super().__init__(seat)
        options: dict[str, Any] = {"num_workers": seat.workers, "batch_size": seat.batch_size}
        dataset = self.dataset()
        if dataset is None:
            generator = torch.Generator().manual_seed(seat.seed)
            dataset, options = Samples(seat.length), options | {"shuffle": True, "generator": generator}
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
    packages = ("datasets", "torchdata", "torch")
    way = "IterableDataset.shuffle(buffer_size=32) in a StatefulDataLoader: state_dict(), load_state_dict()"
    left_out = dict.fromkeys(
        OTHER_RANKS, "not documented: split_dataset_by_node, and no word of a state that other ranks saved"
    )
    shuffling: ClassVar[dict[str, int]] = {"buffer_size": 32}

    def dataset(self) -> Any:
        import datasets

        made = datasets.Dataset.from_dict({"key": list(range(self.seat.length))}).to_iterable_dataset(num_shards=24)
        return made.shuffle(seed=self.seat.seed, **self.shuffling).map(slowly)

    def batches(self) -> Iterator[Any]:
        return (batch["key"] for batch in self.loader)


class DatasetsNoBuffer(Datasets):
    """Its documentation says that a buffer is lost; this has none to lose."""

    way = "the same with buffer_size=1, max_buffer_input_shards=1: only the order of the shards is shuffled"
    shuffling: ClassVar[dict[str, int]] = {"buffer_size": 1, "max_buffer_input_shards": 1}


# -- grain -----------------------------------------------------------------------------------------------------------


class Grain(Loader):
    packages = ("grain",)
    way = "DataLoader: get_state(), set_state() of its iterator; ranks by ShardOptions, each its own state"

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
            data_source=Samples(seat.length), sampler=sampler, operations=[batch], worker_count=seat.workers
        )

    def batches(self) -> Iterator[Any]:
        return self.iterator  # type: ignore[no-any-return]

    def state(self) -> Any:
        return self.iterator.get_state()

    def load(self, state: Any) -> None:
        self.iterator.set_state(state)


class GrainElastic(Grain):
    way = "experimental.ElasticIterator: get_state() of any rank, set_state() on all of any number; no remainder"

    def loader(self) -> Any:
        import grain

        seat = self.seat
        shard = grain.sharding.ShardOptions(seat.rank, seat.size)
        dataset = grain.MapDataset.source(Samples(seat.length)).shuffle(seed=seat.seed)
        options = grain.MultiprocessingOptions(num_workers=seat.workers)
        return grain.experimental.ElasticIterator(
            dataset, seat.batch_size * seat.size, shard, multiprocessing_options=options
        )


# -- loaders of a format of their own --------------------------------------------------------------------------------


def itself(index: int) -> int:
    return index


def after_a_while(sample: Any) -> Any:
    time.sleep(SAMPLE_S)
    return sample


class LitData(Loader):
    packages = ("litdata", "torch")
    way = "StreamingDataLoader: state_dict(), load_state_dict(); the number of workers and ranks may change"

    def __init__(self, seat: Seat) -> None:
        import litdata

        super().__init__(seat)
        dataset = litdata.StreamingDataset(
            str(seat.folder / "litdata"), shuffle=True, drop_last=True, seed=seat.seed, transform=after_a_while
        )
        self.loader = litdata.StreamingDataLoader(dataset, batch_size=seat.batch_size, num_workers=seat.workers)

    @classmethod
    def prepare(cls, seat: Seat) -> None:
        import litdata

        litdata.optimize(
            itself, list(range(seat.length)), str(seat.folder / "litdata"), num_workers=1, chunk_size=24, verbose=False
        )

    def batches(self) -> Iterator[Any]:
        return iter(self.loader)

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        self.loader.load_state_dict(state)


class Mosaic(LitData):
    packages = ("mosaicml-streaming", "torch")
    way = "StreamingDataLoader: state_dict(), load_state_dict(); the same order on any number of workers and ranks"

    def __init__(self, seat: Seat) -> None:
        import torch.distributed

        streaming = self.module()
        Loader.__init__(self, seat)
        if seat.size > 1:  # as a training does before it loads; else each of its steps here makes a group of its own
            torch.distributed.init_process_group("gloo")
        streaming.base.util.clean_stale_shared_memory()  # as it asks for at the start of a program

        class Slow(streaming.StreamingDataset):  # type: ignore[name-defined, misc]
            def __getitem__(self, at: Any) -> Any:
                return after_a_while(super().__getitem__(at))

        dataset = Slow(
            local=str(seat.folder / "mosaic"), shuffle=True, shuffle_seed=seat.seed, batch_size=seat.batch_size
        )
        self.loader = streaming.StreamingDataLoader(dataset, batch_size=seat.batch_size, num_workers=seat.workers)

    @staticmethod
    def module() -> Any:
        """The package; without torchvision, which only its pictures need, something stands in for that."""
        import transformers.feature_extraction_utils  # noqa: F401  # looks for torchvision by itself

        try:
            importlib.import_module("torchvision")
        except ImportError:
            for name in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
                sys.modules[name] = ModuleType(name)
            functional = sys.modules["torchvision.transforms.functional"] = ModuleType("functional")
            functional.to_tensor = None  # type: ignore[attr-defined]
            sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        return importlib.import_module("streaming")

    @classmethod
    def prepare(cls, seat: Seat) -> None:
        streaming = cls.module()
        with streaming.MDSWriter(out=str(seat.folder / "mosaic"), columns={"key": "int"}, size_limit=1 << 9) as out:
            for key in range(seat.length):
                out.write({"key": key})

    def batches(self) -> Iterator[Any]:
        return (batch["key"] for batch in self.loader)

    def tidy(self) -> None:
        if self.seat.size == 1:
            self.module().base.util.clean_stale_shared_memory()


LOADERS: dict[str, type[Loader]] = {
    "ours": Ours,
    "ours, DataLoader": OursEpochs,
    "ours, torch": OursOfTorch,
    "torchdata": Torchdata,
    "grain": Grain,
    "grain, elastic": GrainElastic,
    "datasets": Datasets,
    "datasets, no buffer": DatasetsNoBuffer,
    "litdata": LitData,
    "mosaic": Mosaic,
}
