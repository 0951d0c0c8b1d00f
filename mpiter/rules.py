"""The options that the loop, its workers and the memory between them need.

They are plain values, made once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# A batch that takes longer to fetch is split over the workers, unless handing over is
# dear as well.
DEAR_S = 0.05


@dataclass(frozen=True, slots=True)
class Skip:
    """Leave out samples that fail, at most ``most`` in all; one more is an error.

    ``on_error="skip"`` has no limit.  ``stats().skipped`` is their number;
    ``stats().skips`` has index and error of the first hundred.

    >>> from mpiter import batches
    >>> class Odd:
    ...     def __len__(self):
    ...         return 6
    ...     def __getitem__(self, index):
    ...         return index // (index % 2)
    >>> skip = Skip(most=3)
    >>> with batches(Odd(), 3, n_processes=0, shuffle=False, on_error=skip) as stream:
    ...     print(*stream)
    [1] [3 5]
    """

    most: int | None = None


OnError = Literal["raise", "skip"] | Skip  # what ``on_error=`` may be


@dataclass(frozen=True, slots=True)
class Door:
    """How the user of one interface avoids workers or imports: words for messages."""

    without: str  # workers
    forked: str  # workers, which import nothing

    @property
    def way_around(self) -> str:
        return (
            f"Forked workers import nothing: pass {self.forked}. Or do without "
            f"workers, by {self.without}."
        )


BATCHES = Door("n_processes=0", "backend=mpiter.Process('fork')")
ITERATORS = Door("SerialIterator", "backend=mpiter.Process('fork')")
LOADERS = Door("num_workers=0", "multiprocessing_context='fork'")


@dataclass(frozen=True, slots=True)
class Rules:
    """The options that are plain values."""

    workers: int
    # The workers are threads of the consumer's process, or the consumer itself.
    in_process: bool = False
    # They share memory with the consumer's process, which sees there what each has in
    # hand.
    shares_memory: bool = True
    dear_s: float = DEAR_S
    batch_size: int = 1  # rows at the most
    n_prefetch: int = 1
    run_ahead: int | None = None
    in_order: bool = True
    skips_errors: bool = False
    most_skipped: int | None = None
    # The user takes batches sample by sample, not as columns.
    as_samples: bool = True
    seed: int = 0  # of the samples' randomness
    sample_timeout: float | None = None
    # The number of samples that a worker fetches before it is replaced.
    max_samples: int | None = None
    # The most samples that a worker has under way; 0 of a stream, which has no keys,
    # and of a dataset that reads many at once.
    concurrency: int = 1
    # The most rows that it has begun for that, which may be whole batches.
    rows_begun: int = 1
    door: Door = BATCHES

    @property
    def starts_processes(self) -> bool:
        """True if the workers are processes on this machine that mpiter starts."""
        return self.shares_memory and not self.in_process

    @property
    def most(self) -> int:
        """The largest number of batches in flight.

        They are finished batches, two for each worker, and one that is planned.
        """
        if self.run_ahead is None:
            return self.n_prefetch + 2 * self.workers + 1
        return self.n_prefetch + self.run_ahead

    @property
    def reserve(self) -> int:
        """The number of rooms that the loop needs, however many batches the user keeps.

        A room is the memory of one batch.
        """
        return self.n_prefetch + self.workers + 2
