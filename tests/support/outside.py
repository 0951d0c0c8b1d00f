"""A backend and a hook as another package would make them, from public names only."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import mpiter


class FuturesPool:
    """An executor of the standard library, with the two verbs of a Pool."""

    def __init__(
        self,
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Any, ...],
    ) -> None:
        # Forking a program that has threads, as the tests have, may deadlock.
        context = multiprocessing.get_context("forkserver")
        self.executor = ProcessPoolExecutor(workers, context, initializer, initargs)

    def map_async(
        self,
        func: Callable[[Any], Any],
        items: list[Any],
        chunksize: int,
        callback: Callable[[list[Any]], object],
        error_callback: Callable[[BaseException], object],
    ) -> None:
        def answered(future: Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                error_callback(error)
            else:
                callback([future.result()])

        for item in items:
            self.executor.submit(func, item).add_done_callback(answered)

    def terminate(self) -> None:
        self.executor.shutdown(cancel_futures=True)


class Futures(mpiter.Backend):
    """Runs the workers in an executor's processes."""

    name = "futures"

    def pool(
        self,
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Any, ...],
    ) -> FuturesPool:
        return FuturesPool(workers, initializer, initargs)


class Counted(mpiter.Hook):
    """Counts the samples that workers have fetched, and those that were handed out."""

    def __init__(self) -> None:
        self.fetched = 0
        self.handed = 0

    def answered(self, done: Any) -> None:
        self.fetched += done.rows

    def handed_out(
        self, batch: Any, samples: int | None, began: float, ended: float
    ) -> None:
        self.handed += samples or 0
