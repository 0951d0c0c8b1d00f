"""What this thread is fetching: for dataset code that asks, and for what must be found as it was.

Set by whatever fetches, for the time of a fetch, and read by ``info``, ``seeding``, ``parts`` and ``forks``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

NONE: frozenset[str] = frozenset()


class Here(threading.local):
    """Each thread's own; outside of a fetch all is as it stands here."""

    worker: Any = None  # the WorkerInfo
    asked = False  # has somebody wanted to know that?
    at: Callable[[], tuple[int, int, int]] | None = None  # the sample that is fetched: seed, epoch, position
    seeds: frozenset[str] = NONE  # the global generators that are seeded for each
    beyond = 0  # samples into a row that is made of several
    drawn: Any = None  # the generator that this sample has asked for, and its place
    hearer: Any = None  # of failures of parts of a row
    keys: list[Any] | None = None  # that a dataset is asked for, one after the other


here = Here()
