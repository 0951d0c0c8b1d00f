"""datasets' interleaved datasets in the benchmark of orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from orders_job import ACROSS_RANKS, TOGETHER, Job, Stateful, packed, stacked


class Datasets(Stateful):
    way = (
        "interleave_datasets, map(batched=True) that packs 1,000 at once, in a "
        "StatefulDataLoader"
    )
    left_out: ClassVar[dict[str, str]] = {
        "ranks": ACROSS_RANKS,
        "resized": ACROSS_RANKS,
    }

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
        rows = mix.map(_packed, batched=True, batch_size=TOGETHER)
        self.loader = StatefulDataLoader(
            rows, job.batch, num_workers=job.workers, collate_fn=_stacked
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
    return {name: [*column] for name, column in packed(batch["tokens"]).items()}


def _stacked(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(one) for name, one in stacked(samples).items()}
