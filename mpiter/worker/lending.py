"""A row's own memory, lent to the dataset while that fetches the row's sample: what is made there needn't be copied.

Runs in workers.  Lent to the iterator's dataset itself only, whose sample goes straight to the pen: what another object
is given, a cache for instance, may be kept, and the memory is another batch's before long.  Lent for large samples
only, which don't wait for others from then on: they lie in one array, and nobody could tell whether they change.
"""

from __future__ import annotations

import threading
from typing import Any

from ..samples.caution import FEW
from .board import Cell
from .registry import Worker


class _Here(threading.local):
    worker: Worker | None = None
    lend: Any = None


_here = _Here()


def lend_by(worker: Worker | None, pen: Any = None) -> Any:
    """From now on, in this thread: the row that the worker is at; None: nobody lends.  Returns what ``back`` takes."""
    before = _here.worker, _here.lend
    _here.worker = worker
    _here.lend = getattr(pen, "lend", None) if worker is not None and pen.stride <= FEW else None
    return before


def back(before: Any) -> None:
    """Who has lent before ``lend_by``, does so again."""
    _here.worker, _here.lend = before


def row_for(dataset: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Where ``dataset`` may make the array of the sample that it is asked for; None if it must find memory itself."""
    worker = _here.worker
    if worker is None or _here.lend is None or dataset is not worker.dataset:
        return None
    found = _here.lend(worker.cells[Cell.ROW], shape, dtype)
    worker.habits.caution.is_singly |= found is not None
    return found
