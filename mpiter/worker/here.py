"""What this thread is fetching: for dataset code that asks, and for what must be found as it was.

Whatever fetches puts a ``Frame`` of its own in place for the time of a fetch; ``info``, ``seeding``, ``parts`` and
``forks`` read it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

NONE: frozenset[str] = frozenset()


class Frame:
    """One fetch; as it is made here, none."""

    __slots__ = ("at", "beyond", "drawn", "hearer", "keys", "seeds", "worker")

    def __init__(self) -> None:
        self.worker: Any = None  # the WorkerInfo
        self.at: Callable[[], tuple[int, int, int]] | None = None  # the sample: its seed, epoch and position
        self.seeds = NONE  # the global generators that are seeded for each sample
        self.beyond = 0  # samples into a row that is made of several
        self.drawn: Any = None  # the generator that this sample has asked for, and its place
        self.hearer: Any = None  # of failures of parts of a row
        self.keys: list[Any] | None = None  # that the dataset is asked for, one after the other


class Here(threading.local):
    """Each thread's own."""

    def __init__(self) -> None:
        self.now = Frame()
        self.asked = False  # has somebody wanted to know what worker this is?


here = Here()
