"""``Staging``: copies a dataset's samples from a slow store ahead of the workers.

The copies lie in a folder, and the workers read them.  A staged dataset is a copy of
the user's object, of the same class, whose ``fetch`` looks into the folder first, in
any process; in the iterator's process the threads of a ``Stager`` copy samples in its
order, before the workers want them. Guarantees that a sample which is just being copied
is waited for, up to a timeout, and not read from the store twice; that an error of the
store is raised as the dataset's own; and that an error of the folder ends only the
copying.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import queue
import threading
import weakref
from functools import partial
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from ..amounts import size_of
from ..datasets.columns import offered
from ..engine.options import whole
from ..errors import OptionError
from ..hook import Coming, Hook, Planned, Position
from ..pool.starting import never_interrupted
from ..transport.memory import SharedFile
from ..typevars import T
from .folder import Folder

_log = logging.getLogger("mpiter")
# At most this many samples are copied beyond those that are planned; it is enough for
# any store.
_AHEAD = 1 << 14
# A worker waits this long for another process to finish a copy.  That process may hang
# or be stopped, so this is far below sample_timeout.
_PATIENCE_S = 5.0
_LINES = 1021  # sets of counters, one for each thread
_NAMES = ("hits", "fallbacks", "copied")
_LINE = np.dtype([(name, np.int64) for name in _NAMES])


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
        self,
        tier: str | os.PathLike[str],
        capacity: str | SupportsFloat,
        *,
        threads: int = 4,
    ) -> None:
        whole("threads", threads, least=0)
        name = os.path.expanduser(os.fspath(tier))
        if "://" in name:
            raise OptionError(
                f"tier={name!r:.60} is no folder of this machine; name one."
            )
        self._counts = Counts()
        self._threads = int(threads)
        try:
            self._folder = Folder(name, size_of("capacity", capacity))
        except OSError as error:
            raise OptionError(
                f"copies cannot be kept in {name}: {error.strerror}; take another tier."
            ) from error

    def of(self, dataset: T) -> T:
        """Return a dataset like ``dataset`` whose ``fetch`` reads from the folder.

        It copies missing samples there.
        """
        is_fit = hasattr(dataset, "__dict__") and all(
            offered(dataset, name) is not None for name in ("source", "fetch")
        )
        if not is_fit:
            raise OptionError(
                f"{type(dataset).__name__} cannot be staged: it needs source(i), which "
                "returns sample i's path or URL, and fetch(i), which returns its "
                "bytes, of which dataset[i] makes the sample; and no __slots__."
            )
        staged: Any = copy.copy(dataset)
        fetch = StagedFetch(dataset, self._folder, self._counts)
        ahead = min(_AHEAD, len(staged))
        hook = partial(Stager, fetch, ahead, self._threads)
        # Setting attributes would fail for frozen dataclasses.
        vars(staged).update(fetch=fetch, mpiter_hook=hook)
        return staged  # type: ignore[no-any-return]

    def stats(self) -> StagingStats:
        """Return a snapshot of what all processes have read and copied."""
        total = self._counts.totals()
        held_bytes = 0
        held = 0
        # A tier that was deleted holds nothing.
        with contextlib.suppress(OSError):
            held_bytes, held = self._folder.used()
        return StagingStats(
            **total,
            held=held,
            held_bytes=held_bytes,
            capacity=self._folder.capacity,
        )


class StagedFetch:
    """Replaces ``fetch`` in the staged copy of a dataset.

    It reads the tier's copy, else the store, and keeps a copy.
    """

    def __init__(
        self,
        dataset: Any,
        folder: Folder,
        counts: Counts,
    ) -> None:
        self._dataset = dataset
        self._folder = folder
        self._counts = counts
        # In this process the folder was full or has failed: nothing more is copied.
        self._has_ended = False

    def __call__(self, index: int) -> bytes:
        key = self._folder.key(self._dataset.source(index))
        data = self._folder.get(key)
        with contextlib.ExitStack() as stack:
            is_ours = False
            if data is None and not self._has_ended:
                try:
                    is_ours = stack.enter_context(self._folder.claim(key, _PATIENCE_S))
                    # Another process may have copied the sample while this one waited.
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
        """Write a copy; return False if there is no room, or the tier has failed."""
        has_kept = False
        try:
            has_kept = self._folder.keep(key, data)
            if not has_kept:
                size, copies = self._folder.used()
                # If not even a sample below the average fits, the tier counts as full;
                # after a larger one, smaller ones are tried further.
                self._has_ended |= len(data) * copies < size
        except OSError as error:
            self._end(error)
        self._counts.add(copied=has_kept)
        return has_kept

    def _end(self, error: OSError) -> None:
        if not self._has_ended:
            # A handler may keep the record, and with the error itself it would keep the
            # frames of its traceback.
            text = str(error)
            self._has_ended = True
            _log.warning(
                "nothing more is staged: %s. What is there is used; the rest comes "
                "from the store.",
                text,
            )

    def _from_store(self, index: int) -> bytes:
        # A user's `fetch` may return any buffer; `bytes` alone would take a number, or
        # a list of numbers, as well.
        return bytes(memoryview(self._dataset.fetch(index)))

    def copy(self, index: int) -> bool:
        """Copy a sample, unless a copy exists or is being made.

        Return False if there is no room.
        """
        if self._has_ended:
            return False
        key = self._folder.key(self._dataset.source(index))
        if self._folder.has(key):
            return True
        with self._folder.claim(key) as is_ours:
            # Another thread or process is copying it, or has done so meanwhile.
            if not is_ours or self._folder.has(key):
                return True
            return self._keep(key, self._from_store(index))

    def held(self) -> NDArray[np.bool_]:
        """Return for each sample whether it has a copy."""
        there = self._folder.held()
        length = len(self._dataset)
        sources = map(self._dataset.source, range(length))
        keys = map(self._folder.key, sources)
        return np.fromiter((key in there for key in keys), bool, length)


class Stager(Hook):
    """Copies samples ahead, in threads, for one iterator.

    The staged dataset's ``mpiter_hook()`` makes it.
    """

    def __init__(
        self,
        fetch: StagedFetch,
        ahead: int,
        threads: int,
    ) -> None:
        self._fetch = fetch
        self._ahead = ahead
        self._threads = threads
        # The queue has the samples to copy; None wakes a thread to end it.
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        # Batches are planned up to this cursor, and this many samples beyond it have
        # been queued.
        self._after: Position | None = None
        self._front = 0
        self._has_ended = False

    def planned(self, plan: Planned, coming: Coming, *_: float) -> None:
        """Queue samples beyond the planned batch.

        Those of the batch that have no copy yet are left to the workers.
        """
        begins = self._after is None
        # After a reset or a load the plans go on elsewhere, and nothing that is queued
        # is wanted next.
        if plan.before is self._after:
            self._front = max(0, self._front - (plan.samples or 0))
        else:
            self._front = 0
        self._after = plan.after
        # The threads take from the queue too, so it may be empty before it is short.
        with contextlib.suppress(queue.Empty):
            while self._wanted.qsize() > self._front:
                self._wanted.get_nowait()
        # The queue is filled up when half of it is used, not at each batch.
        if self._front <= self._ahead // 2 and not self._has_ended:
            while self._front < self._ahead:
                found = coming.beyond(plan.after, self._front, self._ahead)
                if not found:
                    break
                for index in found:
                    self._wanted.put(index)
                self._front += len(found)
        if begins:
            for number in range(self._threads):
                thread = threading.Thread(
                    target=self._copy,
                    name=f"mpiter-staging-{number}",
                    daemon=True,
                )
                thread.start()
        # Another thread may have called `close()`, and what was taken from the queue
        # above may be the Nones that should have woken the threads.  These would wait
        # for ever, so they get others.
        if self._has_ended:
            self.close()

    def _copy(self) -> None:
        never_interrupted()
        while not self._has_ended:
            index = self._wanted.get()
            # An error of the store ends only this copy: the worker that wants the
            # sample meets that error too, and raises it as the dataset's own.
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
    >>> print(StagingStats(
    ...     hits=3, fallbacks=1, held=3, held_bytes=3_000_000, capacity=1_000_000_000
    ... ))
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
    """Counters that all processes share.

    Each thread adds to a set of its own, and ``totals`` sums them up.
    """

    def __init__(self) -> None:
        file = SharedFile()
        os.ftruncate(file.fd, _LINES * _LINE.itemsize)
        weakref.finalize(self, file.close)
        path = f"/proc/{os.getpid()}/fd/{file.fd}"
        inode = os.fstat(file.fd).st_ino
        self.__setstate__((path, inode))

    def __getstate__(self) -> tuple[str, int]:
        return self._place

    def __setstate__(self, place: tuple[str, int]) -> None:
        self._place = place
        path, inode = place
        # The process that made the file may have ended, or run on another machine, and
        # the path may lead to another file.  Then this process counts for itself.
        self._lines: NDArray[Any] = np.zeros(_LINES, _LINE)
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:
                shared = np.memmap(path, _LINE, "r+", shape=_LINES)
                # A memmap itself is slower to index.
                self._lines = shared.view(np.ndarray)

    def add(self, **counts: int) -> None:
        line = self._lines[threading.get_native_id() % _LINES]
        for name, count in counts.items():
            line[name] += count

    def totals(self) -> dict[str, int]:
        totals = dict[str, int]()
        for name in _NAMES:
            totals[name] = int(self._lines[name].sum())
        return totals
