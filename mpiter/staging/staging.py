"""``Staging``: copies a dataset's samples from a slow store to a folder, ahead of the
workers, which read the copies.

A staged dataset is a copy of the user's object, of the same class, whose ``fetch``
looks into the folder first, in any process; in the iterator's process the threads of a
``Stager`` copy samples in its order, before the workers want them. Guarantees that a
sample which is just being copied is waited for, up to a timeout, and not read from the
store twice; that an error of the store is raised as the dataset's own; and that an
error of the folder ends only the copying.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import queue
import re
import threading
import weakref
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..datasets.columns import offered
from ..engine.hook import Hook
from ..engine.options import whole
from ..errors import OptionError
from ..order.cursor import Cursor, Plan, Plans
from ..pool.starting import never_interrupted
from ..transport.memory import SharedFile
from ..typevars import T
from .folder import Folder

_log = logging.getLogger("mpiter")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMGTP]?)(i?)B?\s*", re.IGNORECASE)
# Samples that may be copied beyond those that are planned, enough for any store.
_AHEAD = 1 << 14
# For another process to finish a copy, which may hang or be stopped: far below
# sample_timeout.
_PATIENCE_S = 5.0
# Sets of counters, one for each thread.
_LINES = 1021
_LINE = np.dtype([(name, np.int64) for name in ("hits", "fallbacks", "copied")])


class Staging:
    """Copies samples from a slow store to a local folder, ahead of the workers.

    ``of(dataset)`` stages a dataset with ``source(i)``, which returns the path or URL
    of sample i, and ``fetch(i)``, which returns its bytes. Copies are made in the order
    in which samples are wanted, until the tier is full, and stay.

    Args:
        tier: the folder of the copies, "~/…" too; one of a tmpfs, such as
            "/dev/shm/copies", keeps them in memory.
        capacity: the limit for all copies, of all datasets and processes: "200GB",
            "1.5TB", "64GiB", or a number.
        threads: how many of this process copy ahead; with 0, only samples that a worker
            has read are kept.

    >>> import tempfile
    >>> from mpiter.staging import Staging
    >>> class Numbers:
    ...     __len__ = lambda self: 6
    ...     source = lambda self, index: f"https://example.org/{index}"
    ...     fetch = lambda self, index: b"%d" % index
    ...     __getitem__ = lambda self, index: int(self.fetch(index))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     staged = Staging(folder, "1MB").of(Numbers())
    ...     print(staged[3], staged[3])
    3 3
    """

    def __init__(
        self, tier: str | os.PathLike[str], capacity: Any, *, threads: int = 4
    ) -> None:
        whole("threads", threads, least=0)
        name = os.path.expanduser(os.fspath(tier))
        if "://" in name:
            raise OptionError(
                f"tier={name!r:.60} is no folder of this machine; name one."
            )
        self._counts, self._threads = Counts(), int(threads)
        try:
            self._folder = Folder(name, bytes_of(capacity))
        except OSError as error:
            raise OptionError(
                f"copies cannot be kept in {name}: {error.strerror}; take another tier."
            ) from error

    def of(self, dataset: T) -> T:
        """Return a dataset like ``dataset`` whose ``fetch`` reads from the folder, and
        copies missing samples there.
        """
        if not hasattr(dataset, "__dict__") or any(
            offered(dataset, name) is None for name in ("source", "fetch")
        ):
            raise OptionError(
                f"{type(dataset).__name__} cannot be staged: it needs source(i), which "
                "returns sample i's path or URL, and fetch(i), which returns its "
                "bytes, of which dataset[i] makes the sample; and no __slots__."
            )
        staged: Any = copy.copy(dataset)
        fetch = StagedFetch(dataset, self._folder, self._counts)
        hook = partial(Stager, fetch, min(_AHEAD, len(staged)), self._threads)
        # Works for frozen dataclasses too.
        vars(staged).update(fetch=fetch, mpiter_hook=hook)
        return staged  # type: ignore[no-any-return]

    def stats(self) -> StagingStats:
        """Return a snapshot of the counters: what all processes have read and
        copied.
        """
        total = self._counts.totals()
        capacity = self._folder.capacity
        held_bytes = held = 0
        with contextlib.suppress(OSError):  # the tier is gone
            held_bytes, held = self._folder.used()
        return StagingStats(
            **total, held=held, held_bytes=held_bytes, capacity=capacity
        )


def bytes_of(capacity: Any) -> int:
    """Return ``capacity``, such as "200GB", as a number of bytes."""
    if isinstance(capacity, str) and (found := _SIZE.fullmatch(capacity)):
        number, prefix, binary = found.groups("")
        capacity = float(number) * (1024 if binary else 1000) ** " kmgtp".index(
            prefix.lower() or " "
        )
    if not isinstance(capacity, Real) or not 1 <= float(capacity) < 1 << 62:
        raise OptionError(
            f"capacity={capacity!r:.60} is no size; use a number of bytes, or '200GB', "
            "'1.5TB', '64GiB'."
        )
    return int(float(capacity))


class StagedFetch:
    """Replaces ``fetch`` in the staged copy of a dataset: reads the tier's copy, else
    the store, and keeps a copy.
    """

    def __init__(self, dataset: Any, folder: Folder, counts: Counts) -> None:
        self._dataset = dataset
        self._folder = folder
        self._counts = counts
        # True: in this process the folder was full, or has failed.
        self._has_ended = False

    def __call__(self, index: int) -> bytes:
        key = self._folder.key(self._dataset.source(index))
        data = self._folder.get(key)
        with contextlib.ExitStack() as stack:
            is_ours = False
            if data is None and not self._has_ended:
                try:
                    is_ours = stack.enter_context(self._folder.claim(key, _PATIENCE_S))
                    # Another process may have copied it meanwhile.
                    data = self._folder.get(key)
                except OSError as error:
                    self._end(error)
            if data is not None:
                self._counts.add(hits=1)
                return data
            data = self._from_store(index)
            self._counts.add(fallbacks=1)
            if is_ours:
                self._keep(key, data)
            return data

    def _keep(self, key: str, data: bytes) -> bool:
        """Write a copy; return False if there is no room for it, or the tier has
        failed.
        """
        has_kept = False
        try:
            has_kept = self._folder.keep(key, data)
            if not has_kept:
                size, copies = self._folder.used()
                # Less than an average copy doesn't fit.
                self._has_ended |= len(data) * copies < size
        except OSError as error:
            self._end(error)
        self._counts.add(copied=has_kept)
        return has_kept

    def _end(self, error: OSError) -> None:
        if not self._has_ended:
            # The error would keep its traceback's frames.
            self._has_ended, text = True, str(error)
            _log.warning(
                "nothing more is staged: %s. What is there is used; the rest comes "
                "from the store.",
                text,
            )

    def _from_store(self, index: int) -> bytes:
        # Takes any buffer, but no number and no list.
        return bytes(memoryview(self._dataset.fetch(index)))

    def copy(self, index: int) -> bool:
        """Copy a sample, unless a copy exists or is being made; return False if there
        is no room.
        """
        if self._has_ended:
            return False
        key = self._folder.key(self._dataset.source(index))
        if self._folder.has(key):
            return True
        with self._folder.claim(key) as is_ours:
            return (
                not is_ours
                or self._folder.has(key)
                or self._keep(key, self._from_store(index))
            )

    def held(self) -> NDArray[np.bool_]:
        """Return for each sample whether it has a copy."""
        there = self._folder.held()
        samples = len(self._dataset)
        keys = (
            self._folder.key(self._dataset.source(index)) for index in range(samples)
        )
        return np.fromiter((key in there for key in keys), bool, samples)


class Stager(Hook):
    """Copies samples ahead, in threads, for one iterator; the staged dataset's
    ``mpiter_hook()`` makes it.
    """

    def __init__(self, fetch: StagedFetch, ahead: int, threads: int) -> None:
        self._fetch = fetch
        self._ahead = ahead
        self._threads = threads
        # Samples to copy; None ends a thread.
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        # The position up to which batches are planned…
        self._after: Cursor | None = None
        # …and the number of samples beyond it that have been queued.
        self._front = 0
        self._has_ended = False

    def planned(self, plan: Plan, plans: Plans, *_: float) -> None:
        """Queue samples beyond the planned batch; those of the batch that have no copy
        yet are left to the workers.
        """
        begins = self._after is None
        if plan.before is self._after:
            self._front = max(0, self._front - (plan.samples or plan.rows))
        else:
            self._front = 0
        self._after = plan.after
        with contextlib.suppress(queue.Empty):
            while self._wanted.qsize() > self._front:
                self._wanted.get_nowait()
        if self._front <= self._ahead // 2 and not self._has_ended:
            while self._front < self._ahead and len(
                found := plans.beyond(plan.after, self._front, self._ahead)
            ):
                for index in found.tolist():
                    self._wanted.put(index)
                self._front += len(found)
        if begins:
            for number in range(self._threads):
                threading.Thread(
                    target=self._copy, name=f"mpiter-staging-{number}", daemon=True
                ).start()
        # Perhaps only now: the threads haven't been told yet.
        if self._has_ended:
            self.close()

    def _copy(self) -> None:
        never_interrupted()
        while not self._has_ended:
            index = self._wanted.get()
            # The worker that wants the sample will raise the store's error.
            with contextlib.suppress(Exception):
                if index is None or not self._fetch.copy(index):
                    self.close()

    def close(self) -> None:
        """Have the threads end after the sample that each is copying."""
        self._has_ended = True
        for _ in range(self._threads):
            self._wanted.put(None)


class StagingStats(NamedTuple):
    """The counters of a ``Staging``, which ``staging.stats()`` returns.

    Attributes:
        hits: samples that were read from the tier, the folder of copies.
        fallbacks: samples that a worker has read from the store, since the tier did not
            have them.
        copied: samples that were copied into the tier.
        held: copies in the tier, other datasets' included.
        held_bytes: bytes of these copies.
        capacity: the limit for ``held_bytes``.

    >>> from mpiter.staging import StagingStats
    >>> print(StagingStats(hits=3, fallbacks=1, held=3, held_bytes=3_000_000, capacity=1_000_000_000))
    75% of 4 reads were local; 3 copies held; 3.0 of 1,000.0 MB used
    """

    hits: int = 0
    fallbacks: int = 0
    copied: int = 0
    held: int = 0
    held_bytes: int = 0
    capacity: int = 0

    @property
    def hit_rate(self) -> float:
        """The fraction of reads that the tier served, from 0 to 1."""
        read = self.hits + self.fallbacks
        if read:
            return self.hits / read
        return 0.0

    def __str__(self) -> str:
        return (
            f"{self.hit_rate:.0%} of {self.hits + self.fallbacks:,} reads were local; "
            f"{self.held:,} copies held; {self.held_bytes / 1e6:,.1f} of "
            f"{self.capacity / 1e6:,.1f} MB used"
        )


class Counts:
    """Counters that all processes share; each thread adds to a set of its own, and
    ``totals`` sums them up.
    """

    def __init__(self) -> None:
        file = SharedFile()
        os.ftruncate(file.fd, _LINES * _LINE.itemsize)
        weakref.finalize(self, file.close)
        self.__setstate__(
            (f"/proc/{os.getpid()}/fd/{file.fd}", os.fstat(file.fd).st_ino)
        )

    def __getstate__(self) -> tuple[str, int]:
        return self._place

    def __setstate__(self, place: tuple[str, int]) -> None:
        self._place = path, inode = place
        self._lines: Any = np.zeros(_LINES, _LINE)
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:
                self._lines = np.memmap(path, _LINE, "r+", shape=_LINES).view(
                    np.ndarray
                )

    def add(self, **counts: int) -> None:
        line = self._lines[threading.get_native_id() % _LINES]
        for name, count in counts.items():
            line[name] += count

    def totals(self) -> dict[str, int]:
        return {name: int(self._lines[name].sum()) for name in _LINE.names or ()}
