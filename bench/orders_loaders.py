"""The loaders of the benchmark of orders for language models, ours and others.

Each mixes, packs, saves and resumes as its documentation says, and yields the tokens of
a batch of rows as one array.  A loader's package is imported by its class only.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from corpora import CAPACITY, corpora
from numpy.typing import NDArray

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


LOADERS: dict[str, type[Loader]] = {
    "ours": Ours,
    "ours, not packed": OursUnpacked,
    "loop": Loop,
    "grain": Grain,
}
