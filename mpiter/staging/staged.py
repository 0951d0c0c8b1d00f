"""What takes the place of a dataset's ``fetch``: the copy if there is one, else the store, whose bytes are kept then.

Runs wherever the dataset does: in workers, in the consumer's own process, in the threads that copy ahead.  It
guarantees that a sample which another thread or process is copying is waited for instead of being read from the store
twice, unless that takes longer than a sample should; that what is kept stays; that an error of the store is the
dataset's, and an error of the tier ends the copying only.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import warn
from .counts import Counts
from .folder import Folder

_PATIENCE_S = 5.0  # for a sample that another process copies, which may hang or be stopped: far below sample_timeout


class StagedFetch:
    """``dataset.fetch`` of a dataset that is staged."""

    def __init__(self, dataset: Any, folder: Folder, counts: Counts) -> None:
        self._dataset, self._folder, self._counts = dataset, folder, counts
        self._before = getattr(dataset, "__dict__", {}).get("fetch")  # of another tier, behind this one
        self.tiers: list[str] = [folder.path, *getattr(self._before, "tiers", ())]
        self._has_ended = False  # in this process

    def __call__(self, index: int) -> bytes:
        key = self._key(index)
        data = self._folder.get(key)
        if data is None:
            return self._fetched(index, key)
        self._counts.add(hits=1)
        return data

    def _key(self, index: int) -> str:
        return self._folder.key(self._dataset.source(index))

    def _fetched(self, index: int, key: str) -> bytes:
        with contextlib.ExitStack() as stack:
            is_ours = False
            try:
                if not self._has_ended and (not self._folder.used().is_full or self._folder.has(key)):  # damaged
                    is_ours = stack.enter_context(self._folder.claim(key, _PATIENCE_S))
            except OSError as error:
                self._end(error)
            data = self._folder.get(key)  # another may have copied it meanwhile
            if data is not None:
                self._counts.add(hits=1)
                return data
            data = self._from_store(index)
            self._counts.add(fallbacks=1)
            if is_ours:
                self._keep(key, data)
            return data

    def _from_store(self, index: int) -> bytes:
        fetch = _of_class(self._dataset, "fetch") if self._before is None else self._before
        found = fetch(index)
        if not isinstance(found, (bytes, bytearray, memoryview)):
            raise TypeError(f"fetch({index}) of the dataset returned {type(found).__name__}; staging keeps bytes.")
        return bytes(found)

    def _keep(self, key: str, data: bytes) -> bool:
        """Whether there was room for a copy."""
        self._counts.add(held=-self._folder.has(key))  # a damaged one
        try:
            has_kept = self._folder.keep(key, data)
        except OSError as error:
            self._end(error)
            return False
        self._counts.add(held=has_kept, copied=has_kept)
        return has_kept

    def _end(self, error: OSError) -> None:
        if not self._has_ended:
            self._has_ended = True
            warn(f"nothing more is staged: {error.strerror}. What is there is used; the rest comes from the store.")

    def copy(self, index: int) -> bool:
        """Copy a sample unless that is done or under way; False if there is no room for it, or for any."""
        if self._has_ended or self._folder.used().is_full:
            return False
        key = self._key(index)
        if self._folder.has(key):
            return True
        with self._folder.claim(key) as is_ours:
            return not is_ours or self._folder.has(key) or self._keep(key, self._from_store(index))

    def held(self) -> NDArray[np.bool_]:
        """Which of the samples the tier has."""
        there, samples = self._folder.held(), len(self._dataset)
        return np.fromiter((self._key(index) in there for index in range(samples)), bool, samples)


def _of_class(dataset: Any, name: str) -> Callable[..., Any]:
    """The method that the dataset's class has, whatever the dataset has under that name itself."""
    found = inspect.getattr_static(type(dataset), name)
    bind = getattr(type(found), "__get__", None)
    return found if bind is None else bind(found, dataset, type(dataset))  # type: ignore[no-any-return]
