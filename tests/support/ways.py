"""One constructor for every way to fetch: an iterator of lists, with workers or without."""

from __future__ import annotations

from typing import Any

import mpiter

_OF_WORKERS = ("n_processes", "backend", "n_prefetch", "dataset_timeout", "maxtasksperchild")


def iterator(dataset: Any, batch_size: int, *args: Any, **options: Any) -> Any:
    """``MultiprocessIterator``; where ``n_processes`` is 0, a ``SerialIterator`` without what is about workers."""
    if options.get("n_processes") != 0:
        return mpiter.MultiprocessIterator(dataset, batch_size, *args, **options)
    options = {name: value for name, value in options.items() if name not in _OF_WORKERS}
    return mpiter.SerialIterator(dataset, batch_size, *args, **options)
