"""Where the contents of tar shards are kept, so that their headers are read once.

Beside each shard lies a hidden file with its contents; where none can be written, or at
a store, it lies in a folder of the user's caches.  It tells the size of the shard and
the time of its last change, and is made anew where these differ.  It is complete when
it appears.  Of several programs that need it, one makes it, and the others wait: the
shard is locked meanwhile, or a file in the caches for one at a store.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..machine import locked_within, opened_to_lock, replacing
from .headers import Contents, as_arrays, contents_of, of_arrays
from .paths import File

_log = logging.getLogger("mpiter")
# The form of what is written; another number makes all anew.
_FORM = 2
_ENDING = ".mpiter"
# A store takes long for each shard.  Here the headers of one keep a core busy.
_AT_ONCE_AT_A_STORE = 16
_AT_ONCE = 2
# Seconds between two lines about the progress.
_EVERY_S = 10.0
# What another program reads is waited for so long: it may be stopped.
_PATIENCE_S = 300.0


class _Progress:
    """Tells now and then how much of the headers has been read."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._lock = threading.Lock()
        # guarded by _lock:
        self._bytes = 0
        self._members = 0
        self._said = time.monotonic()

    def tell(self, more: int, members: int) -> None:
        with self._lock:
            self._bytes += more
            self._members += members
            now = time.monotonic()
            if now - self._said < _EVERY_S:
                return
            self._said = now
            _log.warning(
                "tar: read the headers of %s members, %.1f of %.1f GB; they are kept, "
                "and read once",
                f"{self._members:,}",
                self._bytes / 1e9,
                self._total / 1e9,
            )


def contents_of_all(files: Sequence[File], folder: Path | None) -> list[Contents]:
    """Return the contents of all shards, from where they are kept or by reading.

    They are kept in ``folder``; beside the shards if that is None.
    """
    found = [_kept(file, folder) for file in files]
    missing = [at for at, contents in enumerate(found) if contents is None]
    progress = _Progress(sum(files[at].size for at in missing))

    # Why shards can't be kept.
    problems: list[str] = []

    def read(at: int) -> None:
        contents = contents_of(files[at], progress.tell)
        found[at] = contents
        problem = _keep(files[at], folder, contents)
        if problem:
            problems.append(problem)

    def read_or_leave(at: int) -> None:
        with _locked(files[at], 0.0) as is_ours:
            if is_ours:
                # Another program may just have made it.
                found[at] = _kept(files[at], folder)
                if found[at] is None:
                    read(at)

    def wait_or_read(at: int) -> None:
        with _locked(files[at], _PATIENCE_S):
            found[at] = _kept(files[at], folder)
        # The other one was killed, or could keep nothing.  Those who have waited for it
        # don't wait for each other.
        if found[at] is None:
            read(at)

    is_here = all(files[at].is_local for at in missing)
    at_once = _AT_ONCE if is_here else _AT_ONCE_AT_A_STORE
    # First those that no other program reads now.
    for step in (read_or_leave, wait_or_read):
        missing = [at for at in missing if found[at] is None]
        if missing:
            with ThreadPoolExecutor(at_once) as pool:
                for _ in pool.map(step, missing):
                    pass
    if problems:
        _log.warning(
            "tar: what %s shards have can't be kept (%s), so their headers are "
            "read again next time; index= names a folder for that",
            f"{len(problems):,}",
            problems[0],
        )
    return [contents for contents in found if contents is not None]


@contextlib.contextmanager
def _locked(file: File, patience: float) -> Iterator[bool]:
    """Lock a shard among programs; the context's value is True if that succeeded.

    It is also True where it can't be locked.
    """
    with contextlib.ExitStack() as stack:
        is_ours = True
        # Not every file system has locks.
        with contextlib.suppress(OSError):
            fd = stack.enter_context(_opened_to_lock(file))
            is_ours = locked_within(fd, patience)
        yield is_ours


def _opened_to_lock(file: File) -> AbstractContextManager[int]:
    if file.is_local:
        return opened_to_lock(file.path, os.O_RDONLY)
    caches = _caches()
    if caches is None:
        raise FileNotFoundError("there is no folder of caches")
    caches.mkdir(parents=True, exist_ok=True)
    # Some shards share one, so that there are few.
    return opened_to_lock(caches / f"lock-{_name_of(file)[:2]}")


def _places(file: File, folder: Path | None) -> Iterable[Path]:
    """Return where the contents of a shard may be kept, the best place first."""
    name = _name_of(file)
    if folder is not None:
        return [folder / f"{name}{_ENDING}"]
    places: list[Path] = []
    if file.is_local:
        shard = Path(file.path)
        places.append(shard.with_name(f".{shard.name}{_ENDING}"))
    caches = _caches()
    if caches is not None:
        places.append(caches / f"{name}{_ENDING}")
    return places


def _caches() -> Path | None:
    """Return the folder of caches; None for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    caches = os.path.expanduser(named)
    if not os.path.isabs(caches):
        return None
    return Path(caches) / "mpiter"


def _name_of(file: File) -> str:
    return hashlib.blake2b(os.fsencode(file.path), digest_size=16).hexdigest()


def _signs(file: File) -> NDArray[Any]:
    """Return what is the same as long as a shard isn't changed."""
    told = repr((_FORM, file.size, file.version)).encode()
    return np.frombuffer(told, np.uint8)


def _kept(file: File, folder: Path | None) -> Contents | None:
    for place in _places(file, folder):
        try:
            with open(place, "rb") as opened, np.load(opened) as arrays:
                told = {name: arrays[name] for name in arrays.files}
            if np.array_equal(told.pop("signs"), _signs(file)):
                return of_arrays(told)
        # There is none, or it is damaged: of that NumPy and zipfile raise errors of
        # many types.
        except Exception:
            continue
    return None


def _keep(file: File, folder: Path | None, contents: Contents) -> str:
    """Keep what a shard has; return why it can't be kept, or nothing."""
    problem = f"{file.path}: no folder of caches"
    for place in _places(file, folder):
        try:
            # A folder that was named is made; those of shards are there.
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as opened:
                np.savez(opened, signs=_signs(file), **as_arrays(contents))
            return ""
        except OSError as error:
            problem = f"{file.path}: {error}"
    return problem
