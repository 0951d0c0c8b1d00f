"""The readers of the benchmark of Parquet files, ours and others.

Each hands out batches as dicts of columns: NumPy's arrays for numbers, lists or arrays
of `str` for text, and an array for each row of a column of lists.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

# Columns by name, each with a value for every row.
Batch = dict[str, Any]
BATCH = 1000


@dataclass(frozen=True)
class Job:
    """What every reader is asked for."""

    # Where the files are.
    folder: Path
    shuffle: bool
    workers: int
    seed: int = 0
    # The rows are read once; else again and again.
    once: bool = False
    # The size of our windows, if it isn't that of the option's default.
    window: str = "64MB"

    @property
    def files(self) -> list[str]:
        return [str(path) for path in sorted(self.folder.glob("*.parquet"))]


class Reader:
    """Batches of a job; a state is asked for between two, and loaded before all."""

    environment: ClassVar[str] = "ours"
    way: ClassVar[str]
    can_shuffle: ClassVar[bool] = True
    # Why it isn't resumed, if it can't be.
    no_state: ClassVar[str] = ""

    def __init__(self, job: Job) -> None:
        self.job = job

    def batches(self) -> Iterator[Batch]:
        while True:
            yield from self.a_pass()
            if self.job.once:
                return

    def a_pass(self) -> Iterator[Batch]:
        """Yield all rows once, or those that are left after the state."""
        raise NotImplementedError

    def state(self) -> bytes:
        raise NotImplementedError

    def load(self, state: bytes) -> None:
        raise NotImplementedError

    def decodes(self) -> float | None:
        """Return how often a row group was decoded on average, if it is counted."""
        return None


def columns_in(rows: pa.RecordBatch) -> Batch:
    """Return the columns of some rows as NumPy has them, and text as a list."""
    from pyarrow import types

    found = Batch()
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if types.is_string(column.type):
            found[name] = column.to_pylist()
        else:
            found[name] = column.to_numpy(zero_copy_only=False)
    return found


# -- ours ------------------------------------------------------------------------------


class Ours(Reader):
    way = "batches(Parquet(folder), 1000, n_processes=2): writable columns"

    def __init__(self, job: Job) -> None:
        import mpiter
        from mpiter.files import Parquet

        super().__init__(job)
        self.dataset = Parquet(job.folder, window=job.window)
        self.stream: Any = mpiter.batches(
            self.dataset,
            BATCH,
            n_processes=self._processes,
            seed=job.seed,
            shuffle=job.shuffle,
            ragged="list",
            epochs=1 if job.once else None,
        )

    @property
    def _processes(self) -> int:
        return self.job.workers

    def batches(self) -> Iterator[Batch]:
        yield from self.stream

    def state(self) -> bytes:
        return json.dumps(self.stream.state_dict()).encode()

    def load(self, state: bytes) -> None:
        self.stream.load_state_dict(json.loads(state))

    def decodes(self) -> float:
        return float(self.dataset.decodes().mean())


class OursAlone(Ours):
    way = "the same with n_processes=0: in the program's own process"

    @property
    def _processes(self) -> int:
        return 0


# -- pyarrow ---------------------------------------------------------------------------


class IterBatches(Reader):
    way = "ParquetFile.iter_batches(1000), file after file: read-only columns"
    can_shuffle = False
    no_state = "has no state: a program skips what it had"

    def a_pass(self) -> Iterator[Batch]:
        from pyarrow import parquet

        for path in self.job.files:
            with parquet.ParquetFile(path) as file:
                for rows in file.iter_batches(BATCH):
                    yield columns_in(rows)


# -- datasets --------------------------------------------------------------------------


def as_it_is(batch: Batch) -> Batch:
    return batch


def stacked(rows: Sequence[dict[str, Any]]) -> Batch:
    """Make a batch of rows as Python has them."""
    found = Batch()
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, str):
            found[name] = values
        elif isinstance(first, list):
            found[name] = [np.array(value) for value in values]
        else:
            found[name] = np.array(values)
    return found


class _OfDatasets(Reader):
    environment = "torch"
    loader: Any

    def a_pass(self) -> Iterator[Batch]:
        yield from self.loader

    def state(self) -> bytes:
        return pickle.dumps(self.loader.state_dict())

    def load(self, state: bytes) -> None:
        self.loader.load_state_dict(pickle.loads(state))


class Streamed(_OfDatasets):
    way = (
        "load_dataset(streaming=True).shuffle(), whose buffer has 1,000 rows, in a "
        " StatefulDataLoader that collates by NumPy"
    )

    def __init__(self, job: Job) -> None:
        import datasets
        from torchdata.stateful_dataloader import StatefulDataLoader

        super().__init__(job)
        rows = datasets.load_dataset(
            "parquet", data_files=job.files, split="train", streaming=True
        )
        if job.shuffle:
            rows = rows.shuffle(seed=job.seed)
        # Each of its ways to hand out NumPy's columns takes longer.
        self.loader = StatefulDataLoader(
            rows, BATCH, num_workers=job.workers, collate_fn=stacked
        )


class Mapped(_OfDatasets):
    way = (
        'load_dataset().with_format("numpy"), whole batches of indices in a '
        "StatefulDataLoader; the files are converted before"
    )

    def __init__(self, job: Job) -> None:
        import datasets
        import torch
        from torch.utils.data import BatchSampler, SequentialSampler
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import RandomSampler

        super().__init__(job)
        rows: Any = datasets.load_dataset(
            "parquet", data_files=job.files, split="train"
        ).with_format("numpy")
        order: Any = SequentialSampler(rows)
        if job.shuffle:
            chance = torch.Generator().manual_seed(job.seed)
            order = RandomSampler(rows, generator=chance)
        self.loader = StatefulDataLoader(
            rows,
            batch_size=None,
            sampler=BatchSampler(order, BATCH, drop_last=False),
            num_workers=job.workers,
            collate_fn=as_it_is,
        )


# -- torchdata -------------------------------------------------------------------------


class Cuts:
    """Reads a row group, and cuts it into batches."""

    def __init__(self, files: Sequence[str], seed: int | None) -> None:
        self._files = files
        self._seed = seed

    def __call__(self, place: tuple[int, int]) -> list[Batch]:
        from pyarrow import parquet

        number, group = place
        with parquet.ParquetFile(self._files[number]) as file:
            rows = file.read_row_group(group, use_threads=False)
        if self._seed is not None:
            rng = np.random.default_rng((self._seed, *place))
            rows = rows.take(rng.permutation(len(rows)))
        batches = rows.combine_chunks().to_batches(max_chunksize=BATCH)
        return [columns_in(batch) for batch in batches]


class Torchdata(Reader):
    environment = "torch"
    way = (
        "nodes: row groups in random order, ParallelMapper that shuffles and cuts each "
        "by itself, Unbatcher"
    )

    def __init__(self, job: Job) -> None:
        import torch
        from pyarrow import parquet
        from torch.utils.data import SequentialSampler
        from torchdata import nodes
        from torchdata.stateful_dataloader.sampler import RandomSampler

        super().__init__(job)
        files = job.files
        places = list[tuple[int, int]]()
        for number, path in enumerate(files):
            groups = parquet.read_metadata(path).num_row_groups
            places += [(number, group) for group in range(groups)]
        order: Any = SequentialSampler(places)
        if job.shuffle:
            chance = torch.Generator().manual_seed(job.seed)
            order = RandomSampler(places, generator=chance)
        keys = nodes.Mapper(nodes.SamplerWrapper(order), places.__getitem__)
        cuts = Cuts(files, job.seed if job.shuffle else None)
        groups_of_batches = nodes.ParallelMapper(
            keys, cuts, job.workers, method="process"
        )
        self.loader: Any = nodes.Loader(nodes.Unbatcher(groups_of_batches))

    def a_pass(self) -> Iterator[Batch]:
        yield from self.loader

    def state(self) -> bytes:
        return pickle.dumps(self.loader.state_dict())

    def load(self, state: bytes) -> None:
        self.loader.load_state_dict(pickle.loads(state))


READERS: dict[str, type[Reader]] = {
    "ours": Ours,
    "ours, no workers": OursAlone,
    "iter_batches": IterBatches,
    "datasets, streamed": Streamed,
    "datasets, mapped": Mapped,
    "torchdata": Torchdata,
}
