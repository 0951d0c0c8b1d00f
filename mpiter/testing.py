"""Checks for your program's tests: whether workers can load a dataset, and whether a loader resumes exactly.

Both raise an AssertionError that names cause and remedy; an error of a sample is raised as it is.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from .engine.options import whole
from .errors import DatasetNotPicklable, UnevenSamples
from .iterators.iterators import MultiprocessIterator, SerialIterator
from .samples import tensors
from .samples.batch import collate, settle_as

__all__ = ["DatasetReport", "check_dataset", "check_resume"]

_SEED = 20
_BATCH = 4
_DESCRIPTORS = "/proc/self/fd"
_SEEDED = "mpiter.get_rng() or a global generator, seeded for each sample, not from a generator of the dataset's own"


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """The measurements of ``check_dataset``.

    Attributes:
        samples: number of samples that were fetched.
        sample_s: median of the seconds that fetching a sample takes.
        slowest_s: seconds that the slowest sample took.
        sample_bytes: median of the bytes of the arrays in a sample.
        is_even: True if all samples have the same shapes and types, so that they can be stacked.

    >>> from mpiter.testing import check_dataset
    >>> check_dataset([(0.5, 1), (1.5, 0)]).is_even
    True
    """

    samples: int
    sample_s: float
    slowest_s: float
    sample_bytes: int
    is_even: bool


def check_dataset(dataset: Any, *, samples: int = 32, n_processes: int = 2, uneven: bool = False) -> DatasetReport:
    """Check that workers can fetch from ``dataset``, and that their samples are those of a plain loop.

    The first ``samples`` samples are fetched by this process and by ``n_processes`` workers.  The check fails if the
    dataset can't be pickled, if a sample raises, if a sample depends on anything but its index, the seed and the epoch
    (such as a random generator of the dataset's own), if fetching leaves files open, or, unless ``uneven`` is True, if
    the samples can't be stacked.

    >>> from mpiter.testing import check_dataset
    >>> check_dataset([(0.5, 1), (1.5, 0)] * 10).samples
    20
    """
    whole("samples", samples, least=1)
    seconds, here = [], []
    with _serial(dataset, 1) as singly:
        count = min(samples, len(singly.dataset))
        assert count, "there is nothing to check: the dataset is empty."
        before = _open_files()
        for _ in range(count):
            began = time.perf_counter()
            (sample,) = next(singly)
            seconds.append(time.perf_counter() - began)
            here.append(copy.deepcopy(sample))
    left_open = _open_files() - before
    assert left_open < max(2, count // 2), (
        f"fetching {count} samples has left {left_open} files open; close each file that dataset[index] opens."
    )
    _compare(here, _fetched(_serial(dataset, _BATCH), count), "when it is fetched once more with the same seed")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a dataset that can't be pickled is forked, with a warning
        workers = MultiprocessIterator(
            dataset, _BATCH, repeat=False, shuffle=False, seed=_SEED, n_processes=n_processes
        )
        try:
            there = _fetched(workers, count)
        except (DatasetNotPicklable, RuntimeWarning) as error:
            raise AssertionError(f"the dataset can't be sent to workers as it is: {error}") from error
    _compare(here, there, "when a worker fetches it")
    is_even = _is_even(here)
    assert is_even or uneven, (
        "the samples differ in shape or type, so they can't be stacked; mpiter.batches(ragged='list') or 'pad' takes "
        "them. Pass uneven=True if that is meant."
    )
    sample_bytes = int(np.median([*map(_array_bytes, here)]))
    return DatasetReport(count, float(np.median(seconds)), max(seconds), sample_bytes, is_even)


def check_resume(make_loader: Callable[[], Any], *, batches: int = 20) -> int:
    """Check that a loader resumes exactly from a state saved after any batch; return the number of states tried.

    ``make_loader`` returns a new loader or iterator.  Its first ``batches`` batches, across epochs, are compared with
    those that a new one gives after loading each state that was saved on the way.  Choose a small dataset, so that an
    epoch ends among these batches.

    >>> import mpiter
    >>> from mpiter.testing import check_resume
    >>> check_resume(lambda: mpiter.batches(range(20), 4, n_processes=0, seed=1), batches=8)
    9
    """
    states, whole = [], list[Any]()
    with _closing(make_loader()) as loader:
        states.append(_saved(loader))
        for batch in islice(_endless(loader), batches):
            whole.append(copy.deepcopy(batch))
            states.append(_saved(loader))
    assert whole, "the loader has given no batch."
    for place, state in enumerate(states):
        with _closing(make_loader()) as loader:
            loader.load_state_dict(state)
            wanted = whole[place:]
            for at, batch in enumerate(islice(_endless(loader), len(wanted))):
                assert _same(batch, wanted[at]), (
                    f"resumed after batch {place}, batch {place + at} is another one than without the interruption. "
                    f"The order of a torch loader that shuffles needs generator=; samples must draw from {_SEEDED}; "
                    f"and what the loader wraps must load all that its state_dict() holds."
                )
                wanted[at] = None
            left = sum(one is not None for one in wanted)
            assert not left, f"resumed after batch {place}, {left} of {len(wanted)} batches did not come."
    return len(states)


@contextlib.contextmanager
def _closing(loader: Any) -> Iterator[Any]:
    try:
        yield loader
    finally:
        getattr(loader, "close", lambda: None)()


def _serial(dataset: Any, batch_size: int) -> SerialIterator:
    return SerialIterator(dataset, batch_size, repeat=False, shuffle=False, seed=_SEED)


def _endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of epoch after epoch, until two are empty: one may be, after a resume at an epoch's end."""
    empty = 0
    while empty < 2:
        empty += 1
        for batch in loader:
            empty = 0
            yield batch


def _saved(loader: Any) -> Any:
    """Return the loader's state after a round trip through JSON, or through pickle if it isn't JSON-able."""
    state = loader.state_dict()
    try:
        return json.loads(json.dumps(state))
    except TypeError:
        return pickle.loads(pickle.dumps(state))


def _fetched(iterator: Any, count: int) -> list[Any]:
    with iterator:
        found = [copy.deepcopy(sample) for batch in islice(iterator, -(-count // _BATCH)) for sample in batch]
    return found[:count]


def _compare(here: list[Any], there: list[Any], when: str) -> None:
    for index, (one, other) in enumerate(zip(here, there, strict=True)):
        assert _same(one, other), (
            f"dataset[{index}] is another sample {when}. It must depend on the index alone, and draw from {_SEEDED}."
        )


def _is_even(samples: list[Any]) -> bool:
    try:
        collate(samples, settle_as("raise"))
    except (UnevenSamples, TypeError, ValueError):
        return False
    return True


def _array_bytes(sample: Any) -> int:
    if isinstance(sample, (tuple, list, dict)):
        return sum(map(_array_bytes, sample.values() if isinstance(sample, dict) else sample))
    return int(getattr(sample, "nbytes", 0))


def _same(one: Any, other: Any) -> bool:
    """True if two samples or batches are equal, to the last bit of their arrays."""
    are_lists = isinstance(one, list) and isinstance(other, list)  # a Batch equals its copy, which is a plain list
    if type(one) is not type(other) and not are_lists:
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if hasattr(type(one), "__dataclass_fields__"):
        return all(_same(getattr(one, name, None), getattr(other, name, None)) for name in one.__dataclass_fields__)
    if hasattr(one, "requires_grad"):
        one, other = (tensor.detach().to_dense() for tensor in (one, other))
    if (mine := tensors.as_bytes(one)) is not None and (theirs := tensors.as_bytes(other)) is not None:
        return mine[1:] == theirs[1:] and mine[0].tobytes() == theirs[0].tobytes()
    if isinstance(one, np.ndarray):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        if type(one) in (np.ndarray, np.memmap) and not one.dtype.hasobject:
            return bool(one.tobytes() == other.tobytes())
    with contextlib.suppress(Exception):  # some kinds can't be compared…
        if np.all(one == other):
            return True
    with contextlib.suppress(Exception):  # …others not be pickled
        return pickle.dumps(one) == pickle.dumps(other)
    return False


def _open_files() -> int:
    return len(os.listdir(_DESCRIPTORS)) if os.path.isdir(_DESCRIPTORS) else 0
