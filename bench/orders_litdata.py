"""litdata in the benchmark of orders."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orders_job import A_ROW, Job, Stateful, documents_of, packed_tensors


class Litdata(Stateful):
    way = (
        "CombinedStreamingDataset of optimized datasets, 5 documents a row, packed in "
        "StreamingDataLoader's collate_fn"
    )

    def __init__(self, job: Job) -> None:
        from litdata import StreamingDataLoader

        super().__init__(job)
        os.environ["WORLD_SIZE"] = str(job.size)
        os.environ["GLOBAL_RANK"] = str(job.rank)
        self.loader = StreamingDataLoader(
            _mix(job.folder, job.weights, job.shuffle, job.seed),
            batch_size=job.batch * A_ROW,
            num_workers=job.workers,
            collate_fn=packed_tensors,
        )

    @classmethod
    def prepare(cls, folder: Path) -> None:
        for name, documents in documents_of(folder):
            _write(folder / name, documents.__getitem__, len(documents))

    @staticmethod
    def mixed(weights: Mapping[str, float], count: int, seed: int) -> Iterator[int]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for number, component in enumerate(weights):
                # A combination ends when the first of its datasets does.
                length = int(1.1 * count * weights[component])
                _write(folder / component, _Constant(number), length)
            mix = _mix(folder, weights, True, seed)
            yield from itertools.islice(mix, count)


class _Constant:
    """A function that gives one value."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, index: int) -> int:
        return self.value


def _write(folder: Path, fn: Callable[[int], Any], length: int) -> None:
    from litdata import optimize

    optimize(
        fn,
        [*range(length)],
        str(folder),
        chunk_bytes="16MB",
        num_workers=1,
        start_method="fork",
        verbose=False,
    )


def _mix(folder: Path, weights: Mapping[str, float], shuffle: bool, seed: int) -> Any:
    from litdata import CombinedStreamingDataset, StreamingDataset

    datasets = list[Any]()
    ratios = set[float]()
    for name, weight in weights.items():
        dataset = StreamingDataset(str(folder / name), shuffle=shuffle, seed=seed)
        datasets.append(dataset)
        ratios.add(len(dataset) / weight)
    if len(ratios) == 1:
        # It has these weights by itself, and then an epoch goes through all datasets.
        return CombinedStreamingDataset(datasets, seed)
    return CombinedStreamingDataset(
        datasets, seed, [*weights.values()], iterate_over_all=False
    )
