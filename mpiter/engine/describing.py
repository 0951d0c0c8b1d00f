"""The one line that ``repr()`` gives of an iterator, a loader or a checkpoint.

Runs in the user's thread.  Guarantees that nothing raises, whatever state the object is in, and that of a dataset or a
sampler only ``len()`` is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ..datasets.columns import Table, users
from .options import Options

Facts = list[str]


def in_a_line(owner: object, what: str, facts: Callable[[], Facts]) -> str:
    """Return ``what`` and its ``facts`` in one line; an object that is only half made is described as Python does."""
    try:
        return f"<{what}: {'; '.join(facts())}>"
    except Exception:
        return object.__repr__(owner)


def source(dataset: Any, batches: str, options: Options) -> str:
    """Return what is loaded, and how."""
    found, workers = users(dataset), options.workers
    name = f"{type(found.columns).__name__} of columns" if type(found) is Table else type(found).__name__
    with contextlib.suppress(Exception):  # the class is the user's, and may have no length
        name += f" of {len(found):,} samples"
    work = "no workers" if options.n_workers == 0 else "1 worker" if workers == 1 else f"{workers} workers"
    return f"{name}, {batches}, {work}"


def place(epoch: int, batch: int, batches: int | None) -> str:
    """Return how many batches of an epoch have been handed out; of how many, if that is known."""
    return f"epoch {epoch}, batch {batch:,}" + ("" if batches is None else f" of {batches:,}")
