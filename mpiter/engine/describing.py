"""The one line that ``repr()`` gives of an iterator, a loader or a checkpoint.

Runs in the user's thread.  Guarantees that nothing raises, whatever state the object is
in, and that of a dataset or a sampler only ``len()`` is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ..datasets.columns import Table, users
from .options import Options

Facts = list[str]


def in_a_line(owner: object, what: str, facts: Callable[[], Facts]) -> str:
    """Return ``what`` and its ``facts`` in one line; an object that is only half made
    is described as Python does.
    """
    try:
        return f"<{what}: {'; '.join(facts())}>"
    except Exception:
        return object.__repr__(owner)


def source(dataset: Any, batches: str, options: Options) -> str:
    """Return what is loaded, and how."""
    found = users(dataset)
    workers = options.workers
    if type(found) is Table:
        name = f"{type(found.columns).__name__} of columns"
    else:
        name = type(found).__name__
    # The class is the user's, and may have no length.
    with contextlib.suppress(Exception):
        name += f" of {len(found):,} samples"
    if options.n_workers == 0:
        work = "no workers"
    else:
        work = "1 worker" if workers == 1 else f"{workers} workers"
    return f"{name}, {batches}, {work}"


def place(epoch: int, batch: int, batches: int | None) -> str:
    """Return how many batches of an epoch have been handed out; of how many, if that is
    known.
    """
    return f"epoch {epoch}, batch {batch:,}" + (
        "" if batches is None else f" of {batches:,}"
    )
