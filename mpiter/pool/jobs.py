"""What has been asked of a Pool: calls, cut into jobs of several items, and what will come of them.

Plain records, used in whichever thread uses the Pool.  A *job* is what one worker gets at a time.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_CHUNKS = 4  # a worker, unless the caller says how many items go into one job


def chunks(items: list[Any], size: int | None, workers: int) -> Iterator[tuple[int, list[Any]]]:
    """The items of each job, and where the first of them stands."""
    if size is not None and size < 1:
        raise ValueError(f"chunksize={size} must be at least 1")
    size = size or max(1, -(-len(items) // (_CHUNKS * max(1, workers))))
    for at in range(0, len(items), size):
        yield at, items[at : at + size]


@dataclass(eq=False, slots=True)
class Job:
    """One task: some of a result's items."""

    number: int
    result: Result
    at: int  # where its values belong
    items: list[Any]
    pickled: bytes = b""

    def fail(self, error: BaseException) -> None:
        """It will not be answered."""
        self.result.take(self.at, len(self.items), (), error)


class Result:
    """What will come of a call: ``multiprocessing.pool.AsyncResult``'s interface."""

    def __init__(
        self, wait: Callable[[float | None], None], length: int, callback: Any, error_callback: Any, single: bool
    ) -> None:
        self._wait, self._missing, self._single = wait, length, single
        self._callbacks = callback, error_callback
        self._values: list[Any] = [None] * length
        self._error: BaseException | None = None

    def ready(self) -> bool:
        """Is it there?  Nothing comes while nobody waits, so this looks."""
        self.wait(0)
        return not self._missing

    def successful(self) -> bool:
        if self._missing:
            raise ValueError(f"{self!r} not ready")
        return self._error is None

    def wait(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while self._missing:
            left = left_until(end)
            self._wait(left)
            if left == 0:
                return

    def get(self, timeout: float | None = None) -> Any:
        self.wait(timeout)
        if self._missing:
            raise multiprocessing.TimeoutError
        if self._error is not None:
            raise self._error
        return self._values[0] if self._single else self._values

    def drop(self, error: BaseException) -> None:
        """Nothing will come of it any more, and nobody is called."""
        if self._missing:
            self._error, self._missing = error, 0

    def take(self, at: int, count: int, values: Sequence[Any], error: BaseException | None) -> None:
        if error is None:
            self._values[at : at + count] = values
        elif self._error is None:
            self._error = error
        self._missing -= count
        if not self._missing:
            callback = self._callbacks[self._error is not None]
            if callback is not None:
                callback(self._error or (self._values[0] if self._single else self._values))


def left_until(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


def taken(table: dict[int, Any]) -> list[Any]:
    """What was in ``table``, which is empty afterwards."""
    values = list(table.values())
    table.clear()
    return values


def applied(call: Any) -> Any:
    func, args, kwds = call
    return func(*args, **kwds)
