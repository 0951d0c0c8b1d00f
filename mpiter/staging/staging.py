"""``Staging``: what a user says of it, checked, and the dataset that comes of it.

Runs where the dataset is made.  A staged dataset is a copy of the user's whose ``fetch`` looks into the tier first:
of the same class, with the same attributes, for whatever loader.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
import time
from numbers import Real
from typing import Any, TypeVar

from ..datasets.access import offered
from ..engine.options import whole
from ..errors import OptionError
from .counts import Cell, Counts, StagingStats
from .folder import Folder, FolderShelf, where_is
from .ledger import Ledger
from .memory import Memory, MemoryShelf
from .staged import Shelf, StagedFetch
from .stager import Ahead

D = TypeVar("D")

_AHEAD = 1 << 14  # samples: enough for any store, and their numbers are made in one go
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMGTP]?)(i?)B?\s*", re.IGNORECASE)


class Staging:
    """Copies samples from a slow store into memory or onto a local disk, ahead of the workers.

    A dataset that says where its bytes lie (``source(i)``, a path or a URL) and brings them (``fetch(i)``) is staged by
    ``of(dataset)``. What is kept stays: the first samples that fit, in the order in which they are first wanted.

    Args:
        tier: a folder, "~/…" too, or "memory".
        capacity: how much may be kept there, by all datasets and all processes: "200GB", "1.5TB", "64GiB", or bytes.
        ahead: samples that may be copied beyond what the iterator has planned.
        workers: threads of this process that copy ahead; 0: samples are kept when a worker has read them.

    >>> import os, tempfile
    >>> import numpy as np
    >>> import mpiter
    >>> from mpiter.staging import Staging
    >>> class Files:
    ...     def __init__(self, paths):
    ...         self.paths = paths
    ...     def __len__(self):
    ...         return len(self.paths)
    ...     def source(self, index):
    ...         return self.paths[index]
    ...     def fetch(self, index):
    ...         with open(self.source(index), "rb") as file:
    ...             return file.read()
    ...     def __getitem__(self, index):
    ...         return np.frombuffer(self.fetch(index), np.uint8)
    >>> folder = tempfile.mkdtemp()
    >>> paths = [os.path.join(folder, f"{number}.bin") for number in range(8)]
    >>> for number, path in enumerate(paths):
    ...     with open(path, "wb") as file:
    ...         _ = file.write(bytes([number] * 100))
    >>> staging = Staging("memory", "1MB")
    >>> staged = staging.of(Files(paths))
    >>> with mpiter.batches(staged, 4, epochs=2, n_processes=2) as stream:
    ...     sum(len(batch) for batch in stream)
    16
    >>> staging.stats().held, staging.stats().hits >= 8
    (8, True)
    """

    def __init__(self, tier: str | os.PathLike[str], capacity: Any, *, ahead: int = _AHEAD, workers: int = 4) -> None:
        whole("ahead", ahead, least=1)
        whole("workers", workers, least=0)
        if os.name != "posix":
            raise OptionError("staging needs the file locks of Linux or macOS; leave it out here.")
        self._tier, self._place = _opened(tier, size_of(capacity))
        self._ahead, self._workers = int(ahead), int(workers)
        self._counts, self._began = Counts(), time.monotonic()

    def of(self, dataset: D) -> D:
        """The same dataset, staged."""
        _check(dataset)
        staged: Any = copy.copy(dataset)
        if self._tier in getattr(offered(staged, "fetch"), "tiers", ()):
            raise OptionError(f"this dataset is staged in {self._tier} already; another tier may come before that.")
        shelf = self._shelf(staged)
        fetch = StagedFetch(staged, shelf, self._counts, self._tier)
        about = _About(offered(staged, "about"), _Account(self._counts, shelf.ledger, self._began))
        ahead = Ahead(fetch, min(self._ahead, len(staged)), self._workers)
        try:
            for name, value in (("fetch", fetch), ("about", about), ("plan_observer", ahead)):
                object.__setattr__(staged, name, value)  # frozen dataclasses too
        except AttributeError as error:
            raise OptionError(f"{type(dataset).__name__} cannot be staged: {error}; give it a __dict__.") from error
        self._counts.add(Cell.SAMPLES, len(staged))
        self._counts.add(Cell.FOUND, fetch.found())
        return staged  # type: ignore[no-any-return]

    def _shelf(self, dataset: Any) -> Shelf:
        if isinstance(self._place, Memory):
            samples, held = self._place.reclaim()
            self._counts.add(Cell.SAMPLES, -samples)
            self._counts.add(Cell.FOUND, -held)
            return MemoryShelf(self._place, len(dataset))
        root = getattr(dataset, "root", None)
        if not isinstance(root, (str, bytes, os.PathLike)):
            root = os.path.dirname(where_is(dataset.source(0))) if len(dataset) else ""
        return FolderShelf(self._place, root)

    def stats(self) -> StagingStats:
        """A snapshot of what has been read and copied, in whatever process."""
        return _Account(self._counts, self._place.ledger, self._began).stats()

    def __repr__(self) -> str:
        return f"<Staging in {self._tier}: {self.stats()}>"


def _opened(tier: Any, capacity: int) -> tuple[str, Folder | Memory]:
    """The tier, and its name."""
    name = os.fsdecode(tier) if isinstance(tier, (str, os.PathLike)) else ""
    if not name or "://" in name:
        raise OptionError(f"tier={tier!r:.60} is no folder of this machine; name one, or pass 'memory'.")
    if name == "memory":
        return name, Memory(capacity)
    if name.lower() == "memory":
        raise OptionError(f"tier={tier!r} may be memory or a folder: pass 'memory', or './{name}' for the folder.")
    try:
        folder = Folder(os.path.expanduser(name), capacity)
    except OSError as error:
        raise OptionError(f"copies cannot be kept in {name}: {error.strerror}; take another tier.") from error
    return folder.path, folder


def size_of(capacity: Any) -> int:
    """How many bytes "200GB" are."""
    if isinstance(capacity, str) and (found := _SIZE.fullmatch(capacity)):
        number, prefix, binary = found.groups()
        step = 1024 if binary else 1000
        capacity = float(number) * step ** (" kmgtp".index(prefix.lower()) if prefix else 0)
    if not isinstance(capacity, Real) or isinstance(capacity, bool) or not 1 <= float(capacity) < 1 << 62:
        raise OptionError(f"capacity={capacity!r:.60} is no size; use a number of bytes, or '200GB', '1.5TB', '64GiB'.")
    return int(float(capacity))


class _Account:
    """What there is to be told."""

    def __init__(self, counts: Counts, ledger: Ledger, began: float) -> None:
        self._counts, self._ledger, self._began = counts, ledger, began

    def stats(self) -> StagingStats:
        total = self._counts.total
        samples, is_full = total(Cell.SAMPLES), self._ledger.is_full
        held = total(Cell.FOUND) + total(Cell.KEPT) - total(Cell.DAMAGED)
        last = self._counts.largest(Cell.LAST_KEPT_NS) / 1e9
        return StagingStats(
            hits=total(Cell.HITS),
            hit_bytes=total(Cell.HIT_BYTES),
            fallbacks=total(Cell.STORE_READS),
            fallback_bytes=total(Cell.STORE_BYTES),
            copied=total(Cell.KEPT),
            copied_bytes=total(Cell.KEPT_BYTES),
            refused=total(Cell.REFUSED),
            damaged=total(Cell.DAMAGED),
            samples=samples,
            held=held,
            held_bytes=self._ledger.used[0],
            capacity=self._ledger.capacity,
            is_full=is_full,
            staged_s=max(0.0, last - self._began) if samples and (is_full or held >= samples) else None,
            ended=self._counts.why_ended,
        )


class _About:
    """``about`` of a dataset that is staged: what it says of itself, and what is staged."""

    def __init__(self, own: Any, account: _Account) -> None:
        self._own, self._account = own, account

    def __call__(self) -> dict[str, str]:
        return {**({} if self._own is None else self._own()), "staging": str(self._account.stats())}


def _check(dataset: Any) -> None:
    if isinstance(dataset, type):
        raise OptionError(f"{dataset.__name__} is a class; stage one of its objects, {dataset.__name__}(…).")
    missing = [f"{name}(i)" for name in ("source", "fetch") if offered(dataset, name) is None]
    if missing:
        raise OptionError(
            f"{type(dataset).__name__} has no method {' and no '.join(missing)}, so it cannot be staged: source(i) "
            f"says where a sample's bytes lie, fetch(i) brings them, and dataset[i] makes the sample of what fetch(i) "
            f"gives."
        )
    if not hasattr(type(dataset), "__len__"):
        raise OptionError(f"{type(dataset).__name__} has no len(), so it cannot be staged: nobody knows its samples.")
    for name in ("source", "fetch"):
        _check_takes_an_index(dataset, name)


def _check_takes_an_index(dataset: Any, name: str) -> None:
    try:
        signature = inspect.signature(getattr(dataset, name))
    except (TypeError, ValueError):
        return  # what isn't written in Python may not say
    try:
        signature.bind(0)
    except TypeError as error:
        raise OptionError(
            f"{name}{signature} of {type(dataset).__name__} cannot be called as {name}(i), with the number of a "
            f"sample: {error}."
        ) from error
