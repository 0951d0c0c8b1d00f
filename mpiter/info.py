"""Who am I?  What dataset code can ask about the worker it runs in.

Runs in workers (and, for the serial backend, in the caller during a fetch).  Guarantees None outside of a fetch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker that a dataset's code runs in."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    backend: str

    @property
    def name(self) -> str:
        return f"{self.backend} worker {self.id}"


_here = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """The worker this code runs in, or None outside of a fetch.

    >>> get_worker_info() is None
    True
    """
    _here.asked = True
    return here()


def here() -> WorkerInfo | None:
    """The same, for ourselves."""
    return getattr(_here, "info", None)


def was_asked() -> bool:
    """Has somebody wanted to know since this was asked last?"""
    asked, _here.asked = getattr(_here, "asked", False), False
    return asked


def enter(info: WorkerInfo | None) -> None:
    """Say from now on who we are."""
    _here.info = info
