"""Who am I?  What dataset code can ask about the worker it runs in.

Runs in workers (and, for the serial backend, in the caller during a fetch).  Guarantees None outside of a fetch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .here import here as _here


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker that a dataset's code runs in.

    Attributes:
        id: from 0 on; a worker's successor has the same.
        num_workers: how many there are.
        seed: of the iterator, or of the loader's epoch.
        dataset: the worker's own copy of it.
        backend: its name: "process", "thread", "serial", "ray" or "mpi".

    >>> from mpiter import batches
    >>> def tell(info):
    ...     print(f"{info.name} of {info.num_workers}")
    >>> x = next(batches([1, 2], 2, n_processes=0, worker_init=tell))
    serial worker 0 of 1
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    backend: str

    @property
    def name(self) -> str:
        """Backend and number in words."""
        return f"{self.backend} worker {self.id}"


def get_worker_info() -> WorkerInfo | None:
    """The worker this code runs in, or None outside of a fetch.

    >>> from mpiter import batches
    >>> class Numbers:
    ...     def __len__(self):
    ...         return 2
    ...     def __getitem__(self, index):
    ...         return index, get_worker_info().name
    >>> next(batches(Numbers(), 2, n_processes=0, shuffle=False))
    (array([0, 1]), ['serial worker 0', 'serial worker 0'])
    >>> get_worker_info() is None
    True
    """
    _here.asked = True
    return _here.now.worker  # type: ignore[no-any-return]


def here() -> WorkerInfo | None:
    """The same, for ourselves."""
    return _here.now.worker  # type: ignore[no-any-return]


def was_asked() -> bool:
    """Has somebody wanted to know since this was asked last?"""
    asked, _here.asked = _here.asked, False
    return asked


def enter(info: WorkerInfo | None) -> None:
    """Say from now on who we are."""
    _here.now.worker = info
