"""``Staging``: the options of a tier, checked, and the datasets that are staged in it.

Runs where the dataset is made.  A staged dataset is a copy of the user's whose ``fetch`` looks into the tier first: of
the same class, with the same attributes, for whatever loader.
"""

from __future__ import annotations

import copy
import os
import re
import time
from functools import partial
from numbers import Real
from typing import Any

from ..datasets.access import offered
from ..engine.options import whole
from ..errors import OptionError
from ..typevars import T
from .counts import Counts, StagingStats
from .folder import Folder
from .staged import StagedFetch
from .stager import Stager

_AHEAD = 1 << 14  # samples: enough for any store, and their numbers are made in one go
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMGTP]?)(i?)B?\s*", re.IGNORECASE)


class Staging:
    """Copies samples from a slow store to a local folder, ahead of the workers.

    A dataset that says where its bytes lie (``source(i)``, a path or a URL) and brings them (``fetch(i)``) is staged by
    ``of(dataset)``. What is kept stays: the first samples that fit, in the order in which they are first wanted.

    Args:
        tier: a folder, "~/…" too; for copies in memory one of a tmpfs, such as "/dev/shm/copies".
        capacity: how much may be kept there, by all datasets and all processes: "200GB", "1.5TB", "64GiB", or bytes.
        ahead: samples that may be copied beyond what the iterator has planned.
        workers: threads of this process that copy ahead; 0: samples are kept when a worker has read them.

    >>> import tempfile
    >>> from mpiter.staging import Staging
    >>> class Numbers:
    ...     __len__ = lambda self: 6
    ...     source = lambda self, index: f"https://example.org/{index}"
    ...     fetch = lambda self, index: b"%d" % index
    ...     __getitem__ = lambda self, index: int(self.fetch(index))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     staged = Staging(folder, "1MB").of(Numbers())
    ...     print(staged[3], staged[3], staged.about()["staging"])
    3 3 50% of 2 reads were local; 1 of 6 samples held; 0.0 of 1.0 MB used
    """

    def __init__(self, tier: str | os.PathLike[str], capacity: Any, *, ahead: int = _AHEAD, workers: int = 4) -> None:
        whole("ahead", ahead, least=1)
        whole("workers", workers, least=0)
        if os.name != "posix":
            raise OptionError("staging needs the file locks of Linux or macOS; leave it out here.")
        name = os.fsdecode(tier) if isinstance(tier, (str, os.PathLike)) else ""
        if not name or "://" in name:
            raise OptionError(f"tier={tier!r:.60} is no folder of this machine; name one.")
        self._counts, self._began = Counts(), time.time()
        try:
            self._folder = Folder(os.path.expanduser(name), size_of(capacity))
        except OSError as error:
            raise OptionError(f"copies cannot be kept in {name}: {error.strerror}; take another tier.") from error
        self._ahead, self._workers = int(ahead), int(workers)

    def of(self, dataset: T) -> T:
        """The same dataset, staged."""
        _check(dataset)
        staged: Any = copy.copy(dataset)
        if self._folder.path in getattr(offered(staged, "fetch"), "tiers", ()):
            raise OptionError(f"this dataset is staged in {self._folder.path} already; another tier may come before.")
        fetch = StagedFetch(staged, self._folder, self._counts)
        about = partial(_about, offered(staged, "about"), self)
        observer = partial(Stager, fetch, min(self._ahead, len(staged)), self._workers)
        for name, value in (("fetch", fetch), ("about", about), ("plan_observer", observer)):
            object.__setattr__(staged, name, value)  # frozen dataclasses too
        self._counts.add(samples=len(staged), held=int(fetch.held().sum()))
        return staged  # type: ignore[no-any-return]

    def stats(self) -> StagingStats:
        """A snapshot of what has been read and copied, in whatever process."""
        total, capacity = self._counts.totals(), self._folder.capacity
        try:
            used = self._folder.used()
        except OSError:  # the tier is gone
            return StagingStats(total["hits"], total["fallbacks"], capacity=capacity)
        has_all = total["samples"] > 0 and (used.is_full or total["held"] >= total["samples"])
        return StagingStats(
            **total,
            held_bytes=used.size,
            capacity=capacity,
            is_full=used.is_full,
            staged_s=max(0.0, used.changed - self._began) if has_all else None,
        )


def _about(own: Any, staging: Staging) -> dict[str, str]:
    return {**({} if own is None else own()), "staging": str(staging.stats())}


def size_of(capacity: Any) -> int:
    """How many bytes "200GB" are."""
    if isinstance(capacity, str) and (found := _SIZE.fullmatch(capacity)):
        number, prefix, binary = found.groups()
        step = 1024 if binary else 1000
        capacity = float(number) * step ** (" kmgtp".index(prefix.lower()) if prefix else 0)
    if not isinstance(capacity, Real) or isinstance(capacity, bool) or not 1 <= float(capacity) < 1 << 62:
        raise OptionError(f"capacity={capacity!r:.60} is no size; use a number of bytes, or '200GB', '1.5TB', '64GiB'.")
    return int(float(capacity))


def _check(dataset: Any) -> None:
    if isinstance(dataset, type):
        raise OptionError(f"{dataset.__name__} is a class; stage one of its objects, {dataset.__name__}(…).")
    missing = [f"{name}(i)" for name in ("source", "fetch") if offered(dataset, name) is None]
    if missing:
        raise OptionError(
            f"{type(dataset).__name__} has no method {' and no '.join(missing)}, so it cannot be staged: source(i) "
            f"says where a sample's bytes lie, fetch(i) brings them, dataset[i] makes the sample of them."
        )
