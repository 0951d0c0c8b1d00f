"""Makes iterators of lists in one way, with workers or without."""

from __future__ import annotations

from typing import Any

import mpiter

_OF_WORKERS = (
    "n_processes",
    "backend",
    "n_prefetch",
    "dataset_timeout",
    "maxtasksperchild",
)


def iterator(dataset: Any, batch_size: int, *args: Any, **options: Any) -> Any:
    """Return a MultiprocessIterator, or a SerialIterator if there are no workers.

    There are none with ``n_processes=0`` or ``backend="serial"``.
    """
    if options.get("n_processes") != 0 and options.get("backend") != "serial":
        return mpiter.MultiprocessIterator(dataset, batch_size, *args, **options)
    options = {
        name: value for name, value in options.items() if name not in _OF_WORKERS
    }
    return mpiter.SerialIterator(dataset, batch_size, *args, **options)
