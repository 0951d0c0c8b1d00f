"""The one line that ``repr()`` gives of an iterator, a loader or a checkpoint.

Runs in the user's thread.  Guarantees that nothing raises, whatever state the object is
in, and that of a dataset or a sampler only ``len()`` is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ..datasets.columns import Table, users
from .options import Options

Facts = list[str]


def in_a_line(owner: object, what: str, facts: Callable[[], Facts]) -> str:
    """Return ``what`` and its ``facts`` in one line."""
    try:
        return f"<{what}: {'; '.join(facts())}>"
    except Exception:
        # The object is only half made: Python's own line has to do.
        return object.__repr__(owner)


def source(dataset: object, batches: str, options: Options) -> str:
    """Return what is loaded, and how."""
    found = users(dataset)
    workers = options.workers
    if type(found) is Table:
        name = f"{type(found.columns).__name__} of columns"
    else:
        name = type(found).__name__
    # The class is the user's: it may have no length, and ``len()`` may raise anything.
    with contextlib.suppress(Exception):
        name += f" of {len(found):,} samples"
    if options.fetches_here:
        work = "no workers"
    elif workers == 1:
        work = "1 worker"
    else:
        work = f"{workers} workers"
    return f"{name}, {batches}, {work}"


def place(epoch: int, batch: int, batches: int | None) -> str:
    """Return how many batches of an epoch have been handed out.

    Of how many is said if that is known.
    """
    text = f"epoch {epoch}, batch {batch:,}"
    if batches is not None:
        text += f" of {batches:,}"
    return text
