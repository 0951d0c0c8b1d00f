"""The two loaders of the course project, written again to be compared with.

They are the small systems that they were.

`DataLoader` fetches a batch when it is asked for.  `DataLoaderPar` has worker processes
with an index queue each and one output queue for all; the consumer keeps items that
come too early in a cache and stays `prefetch_batches` ahead. Both run in the consumer
process and hand out lists of samples, in order, once through the dataset. Their weak
points are theirs and are kept: both sides wait by asking again and again, every sample
is a message of its own, pickled, and the number of cores plays no part.  Only a
worker's death is noticed here, which the original was not made for.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from queue import Empty
from typing import Any

# After so many questions in vain it looks at the workers.
_PATIENCE = 10_000


class DataLoader:
    """Loads one batch after the other."""

    def __init__(self, dataset: Any, batch_size: int) -> None:
        self._dataset = dataset
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[Any]]:
        for start in range(0, len(self._dataset), self._batch_size):
            stop = min(start + self._batch_size, len(self._dataset))
            yield [self._dataset[index] for index in range(start, stop)]


class DataLoaderPar:
    """Workers fetch, the consumer puts in order."""

    def __init__(
        self, dataset: Any, batch_size: int, num_workers: int, prefetch_batches: int = 2
    ) -> None:
        self._length = len(dataset)
        self._batch_size = batch_size
        self._ahead = prefetch_batches * batch_size
        context = multiprocessing.get_context("fork")
        self._index_queues: list[Any] = [context.Queue() for _ in range(num_workers)]
        self._output: Any = context.Queue()
        self._workers = [
            context.Process(
                target=_work, args=(dataset, queue, self._output), daemon=True
            )
            for queue in self._index_queues
        ]
        for worker in self._workers:
            worker.start()
        self._turns = itertools.cycle(self._index_queues)
        self._asked = self._next = self._asked_in_vain = 0
        # Batches that came before their turn.
        self._cache: dict[int, Any] = {}

    def __iter__(self) -> Iterator[list[Any]]:
        while self._next < self._length:
            stop = min(self._next + self._batch_size, self._length)
            yield [self._get() for _ in range(self._next, stop)]

    def _get(self) -> Any:
        while self._asked < min(self._length, self._next + self._ahead):
            next(self._turns).put(self._asked)
            self._asked += 1
        while self._next not in self._cache:
            try:
                index, item = self._output.get(timeout=0)
            except Empty:
                # It asks again at once: this is how the original waited.
                self._asked_in_vain += 1
                if self._asked_in_vain % _PATIENCE == 0 and not all(
                    worker.is_alive() for worker in self._workers
                ):
                    raise RuntimeError(
                        "a worker of DataLoaderPar has died (the original waits for "
                        "ever)"
                    ) from None
                continue
            self._cache[index] = item
        self._next += 1
        return self._cache.pop(self._next - 1)

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()
            worker.join()
        for queue in (*self._index_queues, self._output):
            queue.cancel_join_thread()
            queue.close()


def _work(dataset: Any, indices: Any, output: Any) -> None:
    while True:
        try:
            index = indices.get(timeout=0)
        except Empty:
            continue
        output.put((index, dataset[index]))
