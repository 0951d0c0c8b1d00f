"""Groups of samples that are decoded once a machine, for all processes that read them.

The first process that needs a group decodes it into memory without a name; the others
map that (``places.py``).  A process keeps the groups that it used last, as many bytes
as it was told, and memory is free once no process keeps it: also when they are killed.
Where memory can't be shared so, each process decodes for itself.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import tempfile
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .grouped import MOST
from .places import Door, Places

T = TypeVar("T")
_SHARES = sys.platform == "linux"

# So many groups are kept, however large they are.
_LEAST = 2
# So many windows of groups are kept: the next one is decoded meanwhile, and other
# processes may be somewhat behind.
_WINDOWS = 3
# At least those of so many are, as they are estimated.
_NEEDED = 2
# Bytes of memory that tell where its values lie.
_HEADERS = 1 << 12
# At most so many groups, since each may have a descriptor.
_MOST = _WINDOWS * MOST


class _Kept(NamedTuple, Generic[T]):
    """A group that this process keeps."""

    group: T
    # The bytes that it takes.
    size: int
    # The memory that it was decoded into here, which others open; None if it was
    # mapped.
    descriptor: int | None


class Shelf(Generic[T]):
    """The groups of some files that this process has.

    ``decode(group, descriptor, in_order)`` writes a group into memory.  ``in_order``
    says whether its samples are read as they lie.  ``open(descriptor)`` maps it, and
    returns what is used of it.  ``window`` is the size of a window, and ``sizes`` are
    estimates of the groups' sizes.  The groups of three windows are kept, as they are
    measured; and at least those of two as they are estimated, since each sample of a
    window may be in any of its groups.
    """

    def __init__(
        self,
        name: str,
        sizes: NDArray[np.int64],
        window: int,
        decode: Callable[[int, int, bool], None],
        open: Callable[[int], T],
        door: Door | None = None,
    ) -> None:
        # guarded by _lock: the groups that are kept, the last that was used at the end.
        self._kept: OrderedDict[int, _Kept[T]] = OrderedDict()
        # guarded by _lock: the bytes that they take, and those that ``sizes`` tells.
        self._bytes = 0
        self._told = 0
        self._end = weakref.finalize(self, _let_go_of_all, self._kept)
        self._begin()
        self._window = window
        self._decode = decode
        self._open = open
        self._sizes = sizes
        self._places: Places | None = None
        if _SHARES:
            self._places = Places(name, len(sizes), door)
        # How often each group was decoded, where nothing is shared.
        self._decodes = np.zeros(len(sizes), np.int64)

    def _begin(self) -> None:
        """Have locks of its own, also in a process that was forked."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # guarded by _lock: of several threads that need a group, one gets it for all.
        self._turns: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        # guarded by _lock: the groups that a thread is to decode, whether there is one,
        # and the groups that it was told last.
        self._coming: deque[int] = deque()
        self._is_ahead = False
        self._asked: Sequence[int] = ()

    @property
    def door(self) -> Door | None:
        """Where the workers of this process find what is shared."""
        if self._places is None:
            return None
        return self._places.door

    def decodes(self) -> NDArray[np.int64]:
        """Return how often each group was decoded, on this machine so far."""
        if self._places is None:
            return self._decodes.copy()
        return self._places.decodes()

    def take(
        self,
        groups: Sequence[int],
        in_order: bool = False,
        coming: Sequence[int] = (),
    ) -> list[T]:
        """Return these groups, which are kept, mapped or decoded.

        ``in_order`` says whether samples are read as they lie.  ``coming`` are groups
        that will be needed soon: a thread decodes them meanwhile.
        """
        if self._pid != os.getpid():
            self._begin()
        found: dict[int, T] = {}
        busy: list[int] = []
        for group in groups:
            one = self._get(group, in_order, waits=False)
            if one is None:
                busy.append(group)
            else:
                found[group] = one
        self._go_ahead(coming, in_order)
        # Others are decoding these.
        for group in busy:
            one = self._get(group, in_order, waits=True)
            assert one is not None
            found[group] = one
        return [found[group] for group in groups]

    def _go_ahead(self, groups: Sequence[int], in_order: bool) -> None:
        """Have a thread decode groups, unless they are kept or it was told already."""
        with self._lock:
            if self._asked != groups:
                self._asked = groups
                # What was asked for before may not be wanted any more.
                self._coming = deque(groups)
            if not self._coming or self._is_ahead:
                return
            self._is_ahead = True
        # It sees which worker it decodes for.
        context = contextvars.copy_context()
        # It isn't a daemon: Python must not end while it is in Arrow's code.
        thread = threading.Thread(
            target=context.run,
            args=(self._decode_ahead, in_order),
            name="mpiter-decodes-ahead",
        )
        try:
            thread.start()
        except RuntimeError:
            # The system has no more threads, or Python ends.
            with self._lock:
                self._is_ahead = False

    def _decode_ahead(self, in_order: bool) -> None:
        while True:
            with self._lock:
                if not self._coming or not threading.main_thread().is_alive():
                    self._is_ahead = False
                    return
                group = self._coming.popleft()
            # A damaged group is an error for those rows that are asked for.
            with contextlib.suppress(Exception):
                self._get(group, in_order, waits=False)

    def _get(self, group: int, in_order: bool, waits: bool) -> T | None:
        """Return a group; None if it would have to be waited for."""
        kept = self._find(group)
        if kept is not None:
            return kept.group
        with self._lock:
            turn = self._turns[group]
        if not turn.acquire(blocking=waits):
            return None
        try:
            # Another thread may have got it meanwhile.
            kept = self._find(group) or self._fetch(group, in_order, waits)
            if kept is None:
                return None
            return kept.group
        finally:
            turn.release()

    def _find(self, group: int) -> _Kept[T] | None:
        with self._lock:
            kept = self._kept.get(group)
            if kept is not None:
                self._kept.move_to_end(group)
            return kept

    def _fetch(self, group: int, in_order: bool, waits: bool) -> _Kept[T] | None:
        """Map a group or decode it; None if another process is just decoding it."""
        places = self._places
        if places is None:
            with tempfile.TemporaryFile(prefix="mpiter-") as file:
                self._decodes[group] += 1
                self._decode(group, file.fileno(), in_order)
                return self._keep(group, self._opened(group, file.fileno(), None))
        with places.locked(group, waits) as is_ours:
            if not is_ours:
                return None
            descriptor = places.open(group)
            if descriptor is not None:
                try:
                    return self._keep(group, self._opened(group, descriptor, None))
                finally:
                    os.close(descriptor)
            descriptor = places.create(group)
            try:
                self._decode(group, descriptor, in_order)
                opened = self._opened(group, descriptor, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            places.tell(group, descriptor)
            return self._keep(group, opened)

    def _opened(self, group: int, descriptor: int, kept: int | None) -> _Kept[T]:
        size = os.fstat(descriptor).st_size - _HEADERS
        told = int(self._sizes[group])
        return _Kept(self._open(descriptor), max(told, size), kept)

    def _keep(self, group: int, kept: _Kept[T]) -> _Kept[T]:
        """Keep a group, and let go of those that were used longest ago."""
        with self._lock:
            self._kept[group] = kept
            self._bytes += kept.size
            self._told += int(self._sizes[group])
            while len(self._kept) > _LEAST and self._is_full:
                oldest, its = self._kept.popitem(last=False)
                self._bytes -= its.size
                self._told -= int(self._sizes[oldest])
                _let_go(its)
        return kept

    @property
    def _is_full(self) -> bool:
        if len(self._kept) > _MOST:
            return True
        has_needed = self._told > _NEEDED * self._window
        return has_needed and self._bytes > _WINDOWS * self._window


def _let_go(kept: _Kept[Any]) -> None:
    if kept.descriptor is not None:
        with contextlib.suppress(OSError):
            os.close(kept.descriptor)


def _let_go_of_all(kept: OrderedDict[int, _Kept[Any]]) -> None:
    for one in kept.values():
        _let_go(one)
