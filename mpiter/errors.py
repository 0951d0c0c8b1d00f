"""Every error that mpiter itself raises: the type names the cause, the text the remedy.

An error that a *dataset* raises keeps its own type.  Each class here also derives from
the builtin exception that a caller would expect for its cause, so ``except ValueError``
continues to work.
"""

import contextlib
import os
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Sequence
from numbers import Integral
from typing import Any

# Reached as mpiter.errors.NAME only.
__all__ = [
    "DamagedFile",
    "DatasetNotPicklable",
    "DocumentError",
    "IteratorClosed",
    "LeafError",
    "RankError",
    "SampleNotSendable",
    "SharedMemoryFull",
    "UnevenSamples",
    "WorkerStartError",
]


class MpiterError(Exception):
    """Base class of all errors that mpiter itself raises.

    >>> from mpiter import OptionError, WorkerCrashed
    >>> issubclass(OptionError, MpiterError), issubclass(WorkerCrashed, MpiterError)
    (True, True)
    """


class UnevenSamples(MpiterError, ValueError):
    """The samples of a batch differ in shape or type, so no array can hold them.

    ``rows`` names two that differ.  See ``ragged`` of ``batches()``.

    >>> from mpiter import batches
    >>> next(batches([1, None], 2, n_processes=0, shuffle=False))
    Traceback (most recent call last):
    mpiter.errors.UnevenSamples: the samples of this batch are uneven:
    1 in its row 0, None in row 1.  Pass ragged=...
    """

    rows: tuple[int, ...] = ()


class OptionError(MpiterError, ValueError):
    """An argument, or a combination of arguments, is invalid.

    The text says what would be valid.

    >>> from mpiter import DataLoader
    >>> DataLoader([1, 2, 3], batch_size=0)
    Traceback (most recent call last):
    mpiter.errors.OptionError: batch_size=0 must be at least 1.
    """


class StateError(MpiterError, ValueError):
    """A saved state can't be loaded here; the iterator is unchanged.

    Make it with the options of the saved one.

    >>> from mpiter import DataLoader
    >>> state = DataLoader(range(10), batch_size=5).state_dict()
    >>> DataLoader(range(9), batch_size=5).load_state_dict(state)
    Traceback (most recent call last):
    mpiter.errors.StateError: the state was saved with dataset_length=10,
    this loader has dataset_length=9.
    """


class LeafError(MpiterError, TypeError):
    """A kind of leaf that the program has added doesn't do what it must.

    The text names the leaf by its type, and the method.  See ``mpiter.Leaf``.

    >>> from mpiter.errors import LeafError, MpiterError
    >>> issubclass(LeafError, MpiterError)
    True
    """


class DocumentError(MpiterError, ValueError):
    """A document can't be packed, because it isn't what ``mpiter.Pack`` was told.

    The text names the document, and the component of a mixture that it is from.

    >>> import mpiter
    >>> rows = mpiter.Pack([[1, 2, 3]], capacity=8, lengths=[2])
    >>> rows[0]
    Traceback (most recent call last):
    mpiter.errors.DocumentError: document 0 has 3 tokens in its field 'tokens', and
    its length was told to be 2; measure the lengths anew.
    """


class DamagedFile(MpiterError, ValueError):
    """A file of a dataset can't be read as what it should be.

    The text names the file, and the part of it.

    >>> import pathlib, tempfile
    >>> from mpiter.files import Parquet
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "cut.parquet")
    ...     _ = path.write_bytes(b"PAR1 and no more than that")
    ...     Parquet(path)
    Traceback (most recent call last):
    mpiter.errors.DamagedFile: the footer of ... can't be read: ...
    """


class RankError(MpiterError, RuntimeError):
    """The ranks of a training can't go on together.

    One has ended, or they differ in what must be the same.  See ``Checkpoint``, which
    each of the ranks has with the same path and parts.

    >>> import os, mpiter
    >>> os.environ |= {"RANK": "1", "WORLD_SIZE": "4"}  # as a launcher sets them
    >>> with mpiter.Checkpoint("run.npz", {"a": 1}):
    ...     pass
    Traceback (most recent call last):
    mpiter.errors.RankError: RANK and WORLD_SIZE say that this is rank 1 of 4,
    but nothing is initialised by ...
    >>> del os.environ["RANK"], os.environ["WORLD_SIZE"]
    """


class DatasetNotPicklable(MpiterError, TypeError):
    """The dataset can't be sent to worker processes.

    The text names the attribute that can't be pickled.  Open such things in
    ``worker_init`` or on first use, or leave them out in ``__getstate__``.  The
    attribute ``is_handle`` is True for a file, a connection or the like, which a forked
    worker would share with others.

    >>> import threading
    >>> from mpiter import Process, batches
    >>> next(batches([threading.Lock()], 1, n_processes=1, backend=Process("spawn")))
    Traceback (most recent call last):
    mpiter.errors.DatasetNotPicklable: dataset[0] (lock) cannot be pickled: ...
    """

    is_handle = False


class SampleNotSendable(MpiterError, TypeError):
    """A sample can't be sent back from a worker.

    Return arrays, numbers, strings or containers of them.

    >>> import threading
    >>> from mpiter import DataLoader
    >>> def collate(samples):
    ...     return threading.Lock()
    >>> next(iter(DataLoader([1], num_workers=1, collate_fn=collate)))
    Traceback (most recent call last):
    mpiter.errors.SampleNotSendable: ... returned lock, which cannot be sent from
    a worker: ...
    """


class SampleError(MpiterError, RuntimeError):
    """A dataset raised an error that can't be sent, and the text repeats it.

    It is the same with one that must not be sent, like StopIteration.

    >>> from mpiter import DataLoader
    >>> def collate(samples):
    ...     return next(iter([]))
    >>> next(iter(DataLoader([1], num_workers=1, collate_fn=collate)))
    Traceback (most recent call last):
    mpiter.errors.SampleError: ... raised StopIteration: ...
    """


class WorkerStartError(MpiterError, RuntimeError):
    """A worker could not start.

    An import, unpickling the dataset, or ``worker_init`` failed.  The text contains the
    worker's traceback; the following ``next()`` tries again.

    >>> from mpiter import batches
    >>> next(batches([1, 2], 1, n_processes=1, worker_init=lambda info: 1 // 0))
    Traceback (most recent call last):
    mpiter.errors.WorkerStartError: worker 0 could not start: ...
    """


def could_not_start(error: Exception) -> WorkerStartError:
    """Return the error for workers that the operating system refuses to start."""
    remedy = (
        "Look at the limits (ulimit -u, -n, -v) and the working directory, or use "
        "fewer workers."
    )
    return WorkerStartError(f"the workers cannot be started: {error}. {remedy}")


def with_traceback(error: BaseException, remedy: str = "") -> str:
    """Return in words what an error is, then the remedy, then the traceback."""
    # This function of Python's works even if the error's ``__str__`` fails.
    named = "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return f"{named}\n{remedy}\n{trace}"


class WorkerCrashed(MpiterError, RuntimeError):
    """A sample has ended its worker twice, or the workers keep dying.

    Or another library's Pool has ended, or no longer answers, since it lost a worker.
    The text says how, and why if that is known.  If a sample is named, the following
    ``next()`` continues after its batch, and ``on_error="skip"`` leaves it out. A
    loader's begins with what torch's says then, such as "DataLoader worker (pid 7) is
    killed by signal: Killed".

    Attributes:
        pid: number of the worker process that ended last; None if it wasn't one on this
            machine, or was stuck.
        exitcode: its exit code, or the number of the signal that killed it as a
            negative number.

    >>> import os
    >>> from mpiter import DataLoader
    >>> def collate(samples):
    ...     os._exit(1)
    >>> next(iter(DataLoader([1], num_workers=1, collate_fn=collate)))
    Traceback (most recent call last):
    mpiter.errors.WorkerCrashed: DataLoader worker (pid(s) ...) exited unexpectedly;
    ... has ended its worker twice: ...
    """

    pid: int | None = None
    exitcode: int | None = None


class BatchTimeout(MpiterError, RuntimeError, TimeoutError):
    """A batch did not come within the loader's ``timeout``; it may still come.

    >>> import time
    >>> from mpiter import DataLoader
    >>> def collate(samples):
    ...     time.sleep(60)
    >>> slow = DataLoader([1], num_workers=1, timeout=0.1, collate_fn=collate)
    >>> with slow as loader:
    ...     next(iter(loader))
    Traceback (most recent call last):
    mpiter.errors.BatchTimeout: DataLoader timed out after 0.1 seconds; ...
    """


class SharedMemoryFull(MpiterError, MemoryError):
    """The slots don't fit into memory; the text has the sizes.

    A slot is a piece of shared memory that holds one batch.

    >>> import numpy as np
    >>> from mpiter import batches
    >>> huge = [np.broadcast_to(np.int8(0), 1 << 45)] * 5
    >>> next(batches(huge, 5, n_processes=1, backend="thread"))
    Traceback (most recent call last):
    mpiter.errors.SharedMemoryFull: a slot of 175921860.4 MB does not fit: ...
    """


class IteratorClosed(MpiterError, NotImplementedError):
    """The iterator was closed; make a new one.

    Chainer raises NotImplementedError if a closed one is reset.

    >>> from mpiter import batches
    >>> with batches([1, 2], 1, n_processes=0) as it:
    ...     pass
    >>> next(it)
    Traceback (most recent call last):
    mpiter.errors.IteratorClosed: the iterator is closed; make a new one.
    """


class RemoteTraceback(Exception):
    """The text of a worker's traceback, which is the ``__cause__`` of its error."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


# Warnings are attributed to no line of a file in here, which would say nothing to the
# user.
OURS = os.path.dirname(__file__) + os.sep


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, unless its class forbids that."""
    with contextlib.suppress(Exception):
        error.add_note(note)


def name_samples(
    error: BaseException, keys: Sequence[Any], rows: Sequence[int]
) -> None:
    """Note on ``error`` which samples it is about.

    They are those in ``rows``, or all in ``keys`` if ``rows`` is empty.
    """
    shown = list[Any]()
    for key in keys:
        # The ``repr()`` of NumPy's numbers has their type, too.
        if isinstance(key, Integral):
            key = int(key)
        shown.append(key)
    # The class of an error may forbid notes.
    with contextlib.suppress(Exception):
        for row in rows:
            key = repr(shown[row])[:60]
            error.add_note(
                f"mpiter: sample {key} in row {row}; dataset[{key}] repeats it in this "
                "process."
            )
        if not rows:
            error.add_note(
                "mpiter: the samples of this batch are [dataset[i] for i in "
                f"{shown!r:.1000}]."
            )


def warn(message: str | Warning, category: type[Warning] = RuntimeWarning) -> None:
    """Warn, as if by the line of the user's code from which this was called."""
    frame = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back  # type: ignore[assignment]
        level += 1
    warnings.warn(message, category, stacklevel=level)


class Notices:
    """Warnings of mpiter's own from other threads and processes.

    The coming ``next()`` gives each text once.
    """

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._given: set[str] = set()

    def add(self, *texts: str) -> None:
        self._texts.extend(texts)

    def give(self) -> None:
        """Warn the caller; if a warning raises, the rest stays for the next call."""
        while self._texts:
            text = self._texts.popleft()
            if text not in self._given:
                self._given.add(text)
                warn(text)
