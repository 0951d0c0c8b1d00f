"""mosaicml-streaming in the benchmark of orders."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orders_job import A_ROW, Job, Stateful, documents_of, packed_tensors


class Mosaic(Stateful):
    environment = "mosaic"
    way = (
        "Streams with proportions, stratified batches of 5 documents a row, packed in "
        "StreamingDataLoader's collate_fn"
    )

    def __init__(self, job: Job) -> None:
        from streaming import StreamingDataLoader

        super().__init__(job)
        _be_ranked(job)
        documents = job.batch * A_ROW
        dataset = _mix(
            job.folder, job.weights, documents, job.shuffle, job.seed, size=None
        )
        self.loader = StreamingDataLoader(
            dataset,
            batch_size=documents,
            num_workers=job.workers,
            collate_fn=_packed,
        )

    @classmethod
    def prepare(cls, folder: Path) -> None:
        for name, documents in documents_of(folder):
            samples = ({"tokens": document} for document in documents)
            _write(folder / name, {"tokens": "ndarray:int32"}, samples)

    def state(self) -> bytes:
        return json.dumps(self.loader.state_dict()).encode()

    def load(self, state: bytes) -> None:
        self.loader.load_state_dict(json.loads(state))

    @staticmethod
    def mixed(weights: Mapping[str, float], count: int, seed: int) -> Iterator[int]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for number, component in enumerate(weights):
                samples = ({"of": number} for _ in range(5000))
                _write(folder / component, {"of": "int"}, samples)
            mix = _mix(folder, weights, 8 * A_ROW, True, seed, size=count)
            # An epoch ends with the first component that has too few for a batch.
            epochs = itertools.chain.from_iterable(itertools.repeat(mix))
            for sample in itertools.islice(epochs, count):
                yield sample["of"]


def _write(
    folder: Path, columns: dict[str, str], samples: Iterable[dict[str, Any]]
) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns=columns) as out:
        for sample in samples:
            out.write(sample)


def _mix(
    folder: Path,
    weights: Mapping[str, float],
    documents: int,
    shuffle: bool,
    seed: int,
    size: int | None,
) -> Any:
    from streaming import Stream, StreamingDataset

    streams = [
        Stream(local=str(folder / name), proportion=weight)
        for name, weight in weights.items()
    ]
    return StreamingDataset(
        streams=streams,
        epoch_size=size,
        batch_size=documents,
        shuffle=shuffle,
        shuffle_seed=seed,
        # The same number of each component in every batch, which "random" hasn't.
        batching_method="stratified",
    )


def _be_ranked(job: Job) -> None:
    """Tell streaming which rank this is, by the variables that torchrun sets."""
    from torch import distributed

    os.environ["RANK"] = str(job.rank)
    os.environ["WORLD_SIZE"] = str(job.size)
    # Each rank is a machine of its own, and they run one after the other: a group of
    # one stands for all of them, since nobody else would come to its barriers.
    os.environ["LOCAL_RANK"] = "0"
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    if job.size > 1 and not distributed.is_initialized():
        store = distributed.HashStore()
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def _packed(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    import torch

    documents = [sample["tokens"] for sample in samples]
    # The loader takes the length of a batch's first value for the number of samples.
    lengths = torch.tensor([len(document) for document in documents])
    return {"lengths": lengths} | packed_tensors(documents)
