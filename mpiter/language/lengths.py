"""The lengths of documents: passed, told by the dataset, or found by reading once."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.lengths import DocumentLengths
from ..errors import OptionError, add_note
from ..iterators.iterators import batches
from ..machine import cores, replacing
from .rows import TOKENS, told, wrong
from .windows import Lengths

__all__ = ["measure_lengths"]

_log = logging.getLogger("mpiter")
# Documents in a batch of the pass that reads them all.
_AT_ONCE = 256
# So few documents are read without workers.
_FEW = 10_000
# Seconds between two lines about its progress.
_EVERY_S = 10.0


class _Measured:
    """A dataset of the lengths of another one's documents."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> int:
        try:
            document = self.dataset[index]
        except Exception as error:
            where = told(self.dataset, index)
            add_note(error, f"mpiter: document {where}, read for its length.")
            raise
        if isinstance(document, dict):
            if not document:
                raise wrong(self.dataset, index, "has no fields")
            document = document.get(TOKENS, next(iter(document.values())))
        try:
            return len(document)
        except TypeError as error:
            why = f"is a {type(document).__name__}, which has no length"
            raise wrong(self.dataset, index, why) from error


def measure_lengths(
    dataset: Any, path: str | os.PathLike[str] | None = None, n_processes: int = 2
) -> Lengths:
    """Read all documents once, with workers, and return their lengths.

    With ``path`` they are saved there, as an ``.npy`` file.

    >>> from mpiter.language import measure_lengths
    >>> measure_lengths([[1, 2, 3], [4]], n_processes=0)
    array([3, 1], dtype=uint32)
    """
    total = len(dataset)
    found = np.empty(total, np.uint32)
    done = 0
    told = time.monotonic()
    with batches(
        _Measured(dataset), _AT_ONCE, shuffle=False, n_processes=n_processes
    ) as stream:
        for lengths in stream:
            found[done : done + len(lengths)] = lengths
            done += len(lengths)
            now = time.monotonic()
            if now - told > _EVERY_S:
                told = now
                _log.warning("lengths: %s of %s documents", f"{done:,}", f"{total:,}")
    if path is not None:
        with replacing(Path(path)) as file:
            np.save(file, found)
    return found


def lengths_for(dataset: Any, given: Any, name: str = "lengths") -> Any:
    """Return the lengths of a dataset's documents, as the argument says."""
    if not hasattr(dataset, "__len__"):
        raise OptionError(
            f"the dataset ({type(dataset).__name__}) has no len(): its documents must "
            "be known before, so those of a stream can't be packed or dealt."
        )
    if given is None:
        given = getattr(dataset, "lengths", None)
    # These are read here in no time.
    if given is None and len(dataset) <= _FEW:
        return measure_lengths(dataset, n_processes=0)
    if given is None:
        _log.warning(
            "pack: reading all %s documents once for their lengths; lengths= takes "
            "the path of a file that keeps them",
            f"{len(dataset):,}",
        )
        return measure_lengths(dataset, n_processes=min(4, cores()))
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        if path.exists():
            given = np.load(path, mmap_mode="r")
        else:
            given = measure_lengths(dataset, path, min(4, cores()))
    elif not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise OptionError(
            f"{name}={given!r:.60} must have a number for each document: an array, or "
            "the path of a file.  Lengths that a dataset has are an attribute or a "
            "property, not a method."
        )
    # A mapped array stays one, and is sent to workers by its file's name.
    stays = isinstance(given, (np.ndarray, DocumentLengths))
    if isinstance(given, (list, tuple)) or (hasattr(given, "__array__") and not stays):
        given = _as_array(name, given)
    is_array = isinstance(given, np.ndarray)
    if is_array and (given.ndim != 1 or given.dtype.kind not in "iu"):
        raise OptionError(
            f"{name}= is an array of {given.dtype} with shape {given.shape}; it must "
            "have a whole number for each document."
        )
    if len(given) != len(dataset):
        raise OptionError(
            f"{name}= has {len(given):,} numbers, and there are {len(dataset):,} "
            "documents."
        )
    if is_array and given.dtype.kind == "i" and len(given) and given.min() < 0:
        raise OptionError(f"{name}= has negative numbers.")
    return given


def _as_array(name: str, given: Any) -> Lengths:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise OptionError(f"{name}= has {given!r:.60}, and needs numbers.") from error
