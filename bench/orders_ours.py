"""mpiter in the benchmark of orders, and a loop that only copies documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from corpora import CAPACITY, corpora
from orders_job import A_ROW, Batch, Job, Loader, numbered


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

    def batches(self) -> Iterator[Batch]:
        yield from self.stream

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

    def _opened(self, mix: Any) -> Any:
        import mpiter

        job = self.job
        return mpiter.batches(
            mix,
            job.batch * A_ROW,
            n_processes=job.workers,
            seed=job.seed,
            ragged="jagged",
            epochs=None,
        )

    def batches(self) -> Iterator[Batch]:
        for batch in self.stream:
            yield {"tokens": batch.values}


class Loop(Loader):
    """No loader: documents are copied from the mapped file, in a random order."""

    environment = "ours"
    way = "a loop in one process that copies documents, not packed"

    def batches(self) -> Iterator[Batch]:
        mapped = corpora(self.job.folder)
        rng = np.random.default_rng(self.job.seed)
        names = [*mapped]
        shares = np.array([self.job.weights[name] for name in names])
        while True:
            for which in rng.choice(len(names), 1000, p=shares / shares.sum()):
                corpus = mapped[names[which]]
                document = np.array(corpus[int(rng.integers(len(corpus)))])
                yield {"tokens": document}
