"""The loaders of the benchmark of orders for language models, ours and others.

Each mixes, packs, saves and resumes as its documentation says, and yields the tokens of
a batch of rows as one array.  A loader's package is imported by its class only.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from corpora import CAPACITY, corpora
from numpy.typing import NDArray

from mpiter.language.fit import best_fit

Rows = NDArray[np.int32]


@dataclass(frozen=True)
class Job:
    """What every loader is asked for, on one rank."""

    # Where the corpora are.
    folder: Path
    # How often the documents of each corpus come.
    weights: Mapping[str, float]
    # Rows in a batch of this rank.
    batch: int
    rank: int = 0
    size: int = 1
    workers: int = 0
    seed: int = 0
    # An epoch has each document once, or else corpora that have ended begin anew.
    once: bool = False
    shuffle: bool = True


class Loader:
    """Batches on one rank; a state is asked for between two, and loaded before all."""

    environment: ClassVar[str] = "torch"
    way: ClassVar[str]
    # Scenes that the loader isn't put to, and why.
    left_out: ClassVar[dict[str, str]] = {}

    def __init__(self, job: Job) -> None:
        self.job = job

    def batches(self) -> Iterator[Rows]:
        raise NotImplementedError

    def state(self) -> bytes:
        raise NotImplementedError

    def load(self, state: bytes) -> None:
        raise NotImplementedError

    def workers(self) -> list[int]:
        """Return the processes that fetch."""
        return [
            process.pid for process in multiprocessing.active_children() if process.pid
        ]

    @staticmethod
    def mixed(weights: Mapping[str, float], count: int, seed: int) -> Iterator[int]:
        """Yield the number of the component of each of the first samples."""
        raise NotImplementedError


class Numbered:
    """A component of a mixture whose samples are its number."""

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return self.number

    # grain compares the text that it has kept in a state with this.
    def __repr__(self) -> str:
        return f"Numbered({self.number}, {self.length})"


def numbered(weights: Mapping[str, float]) -> dict[str, Numbered]:
    return {name: Numbered(number, 5000) for number, name in enumerate(weights)}


# -- ours ------------------------------------------------------------------------------


class Ours(Loader):
    environment = "ours"
    way = "batches(Pack(Mix(...), 2048), shard=(rank, size))"

    def __init__(self, job: Job) -> None:
        import mpiter

        super().__init__(job)
        short: Any = "renormalise" if job.once else "repeat"
        mix = mpiter.Mix(corpora(job.folder), job.weights, short)
        self.stream: Any = self._opened(mix)

    def _opened(self, mix: Any) -> Any:
        import mpiter

        job = self.job
        return mpiter.batches(
            mpiter.Pack(mix, CAPACITY),
            job.batch,
            n_processes=job.workers,
            seed=job.seed,
            # The epoch's last step isn't filled up with rows that came before.
            shard=mpiter.Shard(job.rank, job.size, exact=job.once),
            shuffle=job.shuffle,
            epochs=1 if job.once else None,
        )

    def batches(self) -> Iterator[Rows]:
        for batch in self.stream:
            yield batch["tokens"]

    def state(self) -> bytes:
        return json.dumps(self.stream.state_dict()).encode()

    def load(self, state: bytes) -> None:
        self.stream.load_state_dict(json.loads(state))

    def workers(self) -> list[int]:
        return list(self.stream.worker_pids)

    @staticmethod
    def mixed(weights: Mapping[str, float], count: int, seed: int) -> Iterator[int]:
        import mpiter

        mix = mpiter.Mix(numbered(weights), weights, length=count)
        with mpiter.batches(mix, 500, n_processes=0, seed=seed) as stream:
            for batch in stream:
                yield from batch.tolist()


class OursUnpacked(Ours):
    way = 'batches(Mix(...), ragged="jagged"): the same documents, not packed'
    # So many documents have as many tokens as a row, roughly.
    _A_ROW = 5

    def _opened(self, mix: Any) -> Any:
        import mpiter

        job = self.job
        return mpiter.batches(
            mix,
            job.batch * self._A_ROW,
            n_processes=job.workers,
            seed=job.seed,
            ragged="jagged",
            epochs=None,
        )

    def batches(self) -> Iterator[Rows]:
        for batch in self.stream:
            yield batch.values


class Loop(Loader):
    """No loader: documents are copied from the mapped file, in a random order."""

    environment = "ours"
    way = "a loop in one process that copies documents, not packed"

    def batches(self) -> Iterator[Rows]:
        mapped = corpora(self.job.folder)
        rng = np.random.default_rng(self.job.seed)
        names = [*mapped]
        shares = np.array([self.job.weights[name] for name in names])
        while True:
            for which in rng.choice(len(names), 1000, p=shares / shares.sum()):
                corpus = mapped[names[which]]
                yield np.array(corpus[int(rng.integers(len(corpus)))])


# -- grain -----------------------------------------------------------------------------


class Grain(Loader):
    way = (
        "MapDataset.mix, BestFitPackIterDataset with 64 bins, mp_prefetch; each rank a "
        "slice"
    )
    left_out: ClassVar[dict[str, str]] = {
        "ranks": "not documented: ElasticIterator takes a MapDataset, and what packs "
        "is an IterDataset",
    }

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.iterator = iter(self._dataset())

    def _dataset(self) -> Any:
        import grain
        from absl import flags

        # Otherwise the flags of absl complain that nobody has parsed them.
        flags.FLAGS.mark_as_parsed()
        job = self.job
        sources = list[Any]()
        for corpus in corpora(job.folder).values():
            source: Any = grain.MapDataset.source(corpus)
            if job.shuffle:
                source = source.shuffle(seed=job.seed)
            if not job.once:
                source = source.repeat(None)
            sources.append(source)
        mix = grain.MapDataset.mix(sources, [*job.weights.values()])
        named = mix[job.rank :: job.size].map(_as_tokens)
        # One thread in each process: with 16, the default, it is slower.
        reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)
        packed = grain.experimental.BestFitPackIterDataset(
            named.to_iter_dataset(reading),
            length_struct={"tokens": CAPACITY},
            num_packing_bins=64,
        )
        batched = packed.batch(job.batch)
        if not job.workers:
            return batched
        options = grain.MultiprocessingOptions(
            num_workers=job.workers, per_worker_buffer_size=2
        )
        return batched.mp_prefetch(options)

    def batches(self) -> Iterator[Rows]:
        for batch in self.iterator:
            yield batch["tokens"]

    def state(self) -> bytes:
        return json.dumps(self.iterator.get_state()).encode()

    def load(self, state: bytes) -> None:
        self.iterator.set_state(json.loads(state))

    @staticmethod
    def mixed(weights: Mapping[str, float], count: int, seed: int) -> Iterator[int]:
        import grain

        sources = list[Any]()
        for component in numbered(weights).values():
            source: Any = grain.MapDataset.source(component)
            sources.append(source.shuffle(seed=seed).repeat(None))
        mix = grain.MapDataset.mix(sources, [*weights.values()])
        for place in range(count):
            yield mix[place]


def _as_tokens(document: Any) -> dict[str, Any]:
    return {"tokens": document}


# -- torchdata's nodes, and datasets ---------------------------------------------------

# Documents that are packed together, as trl packs a batch of `datasets.map`.
TOGETHER = 1000
ACROSS_RANKS = "not documented: each rank has a state of its own"


def rows_of(documents: Sequence[NDArray[np.int32]]) -> Rows:
    """Pack documents by best fit, the longest first, as trl does; ours is quick."""
    lengths = np.array([len(document) for document in documents])
    row_of, count = best_fit(lengths, CAPACITY)
    found = np.zeros((count, CAPACITY), np.int32)
    ends = [0] * count
    for row, document in zip(row_of.tolist(), documents, strict=True):
        end = ends[row] + len(document)
        found[row, ends[row] : end] = document
        ends[row] = end
    return found


class Reads:
    """Reads the documents with these keys, and packs them."""

    def __init__(self, folder: Path) -> None:
        self.corpora = corpora(folder)

    def __call__(self, keys: Sequence[tuple[str, int]]) -> list[Rows]:
        return [*rows_of([self.corpora[name][at] for name, at in keys])]


class Named:
    """Says of which component a key is."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, key: int) -> tuple[str, int]:
        return self.name, key


class Stateful(Loader):
    """The base of loaders that have a state as torch's users know it."""

    loader: Any

    def state(self) -> bytes:
        return pickle.dumps(self.loader.state_dict())

    def load(self, state: bytes) -> None:
        self.loader.load_state_dict(pickle.loads(state))


class TorchdataNodes(Stateful):
    way = (
        "MultiNodeWeightedSampler of keys, 1,000 packed at once in a ParallelMapper, "
        "Unbatcher, Batcher"
    )
    left_out: ClassVar[dict[str, str]] = {"ranks": ACROSS_RANKS}

    def __init__(self, job: Job) -> None:
        from torchdata import nodes

        super().__init__(job)
        stop = "ALL_DATASETS_EXHAUSTED" if job.once else "CYCLE_FOREVER"
        mix = self._mix(job, corpora(job.folder), stop)
        keys = nodes.Batcher(mix, TOGETHER, drop_last=False)
        reads = Reads(job.folder)
        packed: Any = nodes.Mapper(keys, reads)
        if job.workers:
            packed = nodes.ParallelMapper(keys, reads, job.workers, method="process")
        rows = nodes.Unbatcher(packed)
        self.loader = nodes.Loader(nodes.Batcher(rows, job.batch, drop_last=False))

    @staticmethod
    def _mix(job: Job, datasets: Mapping[str, Any], stop: str) -> Any:
        from torch.utils.data import DistributedSampler
        from torchdata import nodes

        found = dict[str, Any]()
        for name, dataset in datasets.items():
            sampler: Any = DistributedSampler(
                dataset, job.size, job.rank, shuffle=job.shuffle, seed=job.seed
            )
            found[name] = nodes.Mapper(nodes.SamplerWrapper(sampler), Named(name))
        return nodes.MultiNodeWeightedSampler(
            found,
            dict(job.weights),
            getattr(nodes.StopCriteria, stop),
            job.rank,
            job.size,
            job.seed,
        )

    def batches(self) -> Iterator[Rows]:
        for rows in self.loader:
            yield np.stack(rows)

    @classmethod
    def mixed(
        cls, weights: Mapping[str, float], count: int, seed: int
    ) -> Iterator[int]:
        from torchdata import nodes

        job = Job(Path(), weights, 1, seed=seed)
        names = [*weights]
        mix = nodes.Loader(cls._mix(job, numbered(weights), "CYCLE_FOREVER"))
        for name, _ in itertools.islice(mix, count):
            yield names.index(name)


class Datasets(Stateful):
    way = (
        "interleave_datasets, map(batched=True) that packs 1,000 at once, in a "
        "StatefulDataLoader"
    )
    left_out: ClassVar[dict[str, str]] = {"ranks": ACROSS_RANKS}

    def __init__(self, job: Job) -> None:
        import datasets
        import pyarrow
        from datasets.distributed import split_dataset_by_node
        from torchdata.stateful_dataloader import StatefulDataLoader

        super().__init__(job)
        sources = list[Any]()
        for name in job.weights:
            tokens = np.memmap(job.folder / f"{name}.bin", np.int32, "r")
            offsets = np.load(job.folder / f"{name}.offsets.npy")
            lists = pyarrow.ListArray.from_arrays(
                pyarrow.array(offsets.astype(np.int32)), pyarrow.array(tokens)
            )
            source: Any = datasets.Dataset(pyarrow.table({"tokens": lists}))
            source = source.with_format("numpy").to_iterable_dataset(num_shards=8)
            if job.shuffle:
                source = source.shuffle(seed=job.seed, buffer_size=1000)
            sources.append(source)
        mix = self._mix(sources, job.weights, job.seed, job.once)
        if job.size > 1:
            mix = split_dataset_by_node(mix, job.rank, job.size)
        packed = mix.map(_packed, batched=True, batch_size=TOGETHER)
        self.loader = StatefulDataLoader(
            packed, job.batch, num_workers=job.workers, collate_fn=_stacked
        )

    @staticmethod
    def _mix(
        sources: Sequence[Any], weights: Mapping[str, float], seed: int, once: bool
    ) -> Any:
        import datasets

        total = sum(weights.values())
        stopping: Any = "all_exhausted_without_replacement" if once else "all_exhausted"
        return datasets.interleave_datasets(
            [*sources],
            [weight / total for weight in weights.values()],
            seed,
            stopping_strategy=stopping,
        )

    def batches(self) -> Iterator[Rows]:
        while True:
            yield from self.loader
            if self.job.once:
                return

    @classmethod
    def mixed(
        cls, weights: Mapping[str, float], count: int, seed: int
    ) -> Iterator[int]:
        import datasets

        sources = list[Any]()
        for number, name in enumerate(weights):
            column = {"of": [number] * int(2 * count * weights[name])}
            sources.append(datasets.Dataset.from_dict(column).to_iterable_dataset())
        mix = cls._mix(sources, weights, seed, once=False)
        for sample in itertools.islice(mix, count):
            yield sample["of"]


def _packed(batch: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": [*rows_of(batch["tokens"])]}


def _stacked(samples: Sequence[dict[str, Any]]) -> Rows:
    return np.stack([sample["tokens"] for sample in samples])


LOADERS: dict[str, type[Loader]] = {
    "ours": Ours,
    "ours, not packed": OursUnpacked,
    "loop": Loop,
    "grain": Grain,
    "torchdata": TorchdataNodes,
    "datasets": Datasets,
}
