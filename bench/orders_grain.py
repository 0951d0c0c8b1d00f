"""grain in the benchmark of orders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from corpora import CAPACITY, corpora
from orders_job import Batch, Job, Loader, numbered

ACROSS_RANKS = (
    "not documented: ElasticIterator takes a MapDataset, and what packs is an "
    "IterDataset"
)


class Grain(Loader):
    way = (
        "MapDataset.mix, BestFitPackIterDataset with 64 bins, mp_prefetch; each rank a "
        "slice"
    )
    left_out: ClassVar[dict[str, str]] = {
        "ranks": ACROSS_RANKS,
        "resized": ACROSS_RANKS,
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

    def batches(self) -> Iterator[Batch]:
        yield from self.iterator

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
