"""What the iterator and its prefetch loop say to each other: where to go, by which rules, and what comes back.

Values, passed between the consumer's thread and the prefetch thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cursor import Cursor, Plans
from .transport import Contents

_AUTO_RUN_AHEAD = 64  # batches beyond n_prefetch, unless told otherwise; the bytes bind first where batches are large


@dataclass(slots=True)
class Delivery:
    """What ``next()`` gets: a batch, an error in its place, or neither at the end."""

    after: Cursor
    contents: Contents | None = None
    error: BaseException | None = None
    counts: bool = True  # as handed out: ``after`` is where the iterator then stands
    number: int = 0  # among the deliveries of its course

    @property
    def holds_a_slot(self) -> bool:
        return self.contents is not None and not self.contents.copied


@dataclass(frozen=True, slots=True)
class Course:
    """Where to go on from, by which plans, and under which number."""

    generation: int
    cursor: Cursor
    seed: int
    plans: Plans


@dataclass(frozen=True, slots=True)
class Rules:
    """The options that bind the engine."""

    n_prefetch: int
    run_ahead: int | None
    workers: int
    skips_errors: bool
    in_order: bool

    @property
    def most_run_ahead(self) -> int:
        """Batches beyond ``n_prefetch``, however small they are."""
        return _AUTO_RUN_AHEAD if self.run_ahead is None else self.run_ahead

    @property
    def reserve(self) -> int:
        """Rooms that the engine needs for itself, whatever the user keeps."""
        return self.n_prefetch + self.workers + 2
