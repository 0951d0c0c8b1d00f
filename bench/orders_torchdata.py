"""torchdata's nodes in the benchmark of orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from corpora import corpora
from orders_job import (
    ACROSS_RANKS,
    TOGETHER,
    Batch,
    Job,
    Stateful,
    numbered,
    packed,
    rows_of,
    stacked,
)


class Reads:
    """Reads the documents with these keys, and packs them."""

    def __init__(self, folder: Path) -> None:
        self.corpora = corpora(folder)

    def __call__(self, keys: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        return rows_of(packed([self.corpora[name][at] for name, at in keys]))


class Named:
    """Says of which component a key is."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, key: int) -> tuple[str, int]:
        return self.name, key


class TorchdataNodes(Stateful):
    way = (
        "MultiNodeWeightedSampler of keys, 1,000 packed at once in a ParallelMapper, "
        "Unbatcher, Batcher"
    )
    left_out: ClassVar[dict[str, str]] = {
        "ranks": ACROSS_RANKS,
        "resized": ACROSS_RANKS,
    }

    def __init__(self, job: Job) -> None:
        from torchdata import nodes

        super().__init__(job)
        stop = "ALL_DATASETS_EXHAUSTED" if job.once else "CYCLE_FOREVER"
        mix = self._mix(job, corpora(job.folder), stop)
        keys = nodes.Batcher(mix, TOGETHER, drop_last=False)
        reads = Reads(job.folder)
        found: Any = nodes.Mapper(keys, reads)
        if job.workers:
            found = nodes.ParallelMapper(keys, reads, job.workers, method="process")
        rows = nodes.Unbatcher(found)
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

    def batches(self) -> Iterator[Batch]:
        for rows in self.loader:
            yield stacked(rows)

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
