"""``check_dataset``: fetches samples in this process and in workers, and compares them.

Guarantees that what is wrong with the dataset is an AssertionError with cause and
remedy, and that an error which the dataset raises for a sample is raised as it is.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ..engine.options import whole
from ..errors import DatasetNotPicklable, LeafError, UnevenSamples
from ..iterators.iterators import MultiprocessIterator, SerialIterator
from ..samples.batch import collate, settle_as
from ..samples.copying import copied
from ..samples.kinds import leaf_for
from ..samples.leaf import added
from .same import difference, same

_SEED = 20
_BATCH = 4
_DESCRIPTORS = "/proc/self/fd"
SEEDED = (
    "mpiter.get_rng() or a global generator, seeded for each sample, not from a "
    "generator of the dataset's own"
)


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """The measurements of ``check_dataset``.

    Attributes:
        samples: number of samples that were fetched.
        sample_s: median of the seconds that fetching a sample takes.
        slowest_s: seconds that the slowest sample took.
        sample_bytes: median of the bytes of the arrays and numbers in a sample.
        is_even: True if all samples have the same shapes and types, so that they can be
            stacked.

    >>> from mpiter.testing import check_dataset
    >>> check_dataset([(0.5, 1), (1.5, 0)]).is_even
    True
    """

    samples: int
    sample_s: float
    slowest_s: float
    sample_bytes: int
    is_even: bool


def check_dataset(
    dataset: object, *, samples: int = 32, n_processes: int = 2, uneven: bool = False
) -> DatasetReport:
    """Check that workers fetch from ``dataset`` what a plain loop would.

    The first ``samples`` samples are fetched by this process and by ``n_processes``
    workers.  The check fails if the dataset can't be pickled, if a sample raises, if a
    sample depends on anything but its index, the seed and the epoch (such as a random
    generator of the dataset's own), if a ``Leaf`` doesn't put together what it has
    taken apart, if fetching leaves files open, or, unless ``uneven`` is True, if the
    samples can't be stacked.

    >>> from mpiter.testing import check_dataset
    >>> check_dataset([(0.5, 1), (1.5, 0)] * 10).samples
    20
    """
    whole("samples", samples, least=1)
    seconds = []
    here = []
    with _serial(dataset, 1) as singly:
        before = _open_files()
        # Of an order that the dataset brings, the samples may be fewer than these.
        for _ in range(samples):
            began = time.perf_counter()
            found = next(singly, None)
            if found is None:
                break
            seconds.append(time.perf_counter() - began)
            # The dataset may reuse the sample's memory for the next one.
            here.append(copy.deepcopy(found[0]))
        count = len(here)
        assert count, "there is nothing to check: the dataset is empty."
    # Some files are opened once and stay open, such as a library's.
    left_open = _open_files() - before
    assert left_open < max(2, count // 2), (
        f"fetching {count} samples has left {left_open} files open; close each file "
        "that dataset[index] opens."
    )
    again = _fetched(_serial(dataset, _BATCH), count)
    _compare(here, again, "when it is fetched once more with the same seed")
    for index, sample in enumerate(here):
        _check_leaves(sample, f"dataset[{index}]")
    with warnings.catch_warnings():
        # Workers can be forked with a dataset that can't be pickled, but the warning
        # of that is what this check looks for.
        warnings.simplefilter("error", RuntimeWarning)
        workers = MultiprocessIterator(
            dataset,
            _BATCH,
            repeat=False,
            shuffle=False,
            seed=_SEED,
            n_processes=n_processes,
        )
        try:
            there = _fetched(workers, count)
        except (DatasetNotPicklable, RuntimeWarning) as error:
            raise AssertionError(
                f"the dataset can't be sent to workers as it is: {error}"
            ) from error
    _compare(here, there, "when a worker fetches it")
    unevenness = _unevenness(here)
    assert not unevenness or uneven, (
        f"mpiter.batches() can't stack the samples: {unevenness} Pass uneven=True to "
        "check_dataset if that is meant."
    )
    sizes = [_bytes_of(sample) for sample in here]
    return DatasetReport(
        samples=count,
        sample_s=float(np.median(seconds)),
        slowest_s=max(seconds),
        sample_bytes=int(np.median(sizes)),
        is_even=not unevenness,
    )


def _serial(dataset: object, batch_size: int) -> SerialIterator:
    if callable(getattr(type(dataset), "worker_init", None)):
        # Without workers it is called on this very object, and what it opens can't be
        # sent to workers afterwards.
        dataset = copy.copy(dataset)
    return SerialIterator(dataset, batch_size, repeat=False, shuffle=False, seed=_SEED)


def _fetched(iterator: MultiprocessIterator | SerialIterator, count: int) -> list[Any]:
    n_batches = -(-count // _BATCH)
    found = list[Any]()
    with iterator:
        for batch in islice(iterator, n_batches):
            for sample in batch:
                found.append(copy.deepcopy(sample))
    return found[:count]


def _compare(here: list[Any], there: list[Any], when: str) -> None:
    pairs = zip(here, there, strict=True)
    for index, (one, other) in enumerate(pairs):
        assert same(one, other), (
            f"dataset[{index}] is another sample {when}. It must depend on the index "
            f"alone, and draw from {SEEDED}."
        )


def _check_leaves(value: object, name: str) -> None:
    """Check that leaves of the program's put together what they take apart."""
    one = added.get(type(value))
    if one is not None:
        found = difference(copied(value), value, name)
        assert not found, (
            f"{one.name} puts another {one.kind} together than it took apart: {found}. "
            "Its join must return the value whose parts split has returned."
        )
    elif isinstance(value, dict):
        for key, part in value.items():
            _check_leaves(part, f"{name}[{key!r:.40}]")
    elif isinstance(value, (tuple, list)):
        for at, part in enumerate(value):
            _check_leaves(part, f"{name}[{at}]")


def _unevenness(samples: list[Any]) -> str:
    """Return why the samples can't be stacked; nothing if they can."""
    try:
        collate(samples, settle_as("raise"))
    except LeafError:
        # That is no matter of the dataset's.
        raise
    except (UnevenSamples, TypeError, ValueError) as error:
        return str(error)
    return ""


def _bytes_of(sample: object) -> int:
    if isinstance(sample, dict):
        return sum(map(_bytes_of, sample.values()))
    if isinstance(sample, (tuple, list)):
        return sum(map(_bytes_of, sample))
    if (one := added.get(type(sample))) is not None:
        return sum(map(_bytes_of, one.split(sample)))
    if (kind := leaf_for(sample)) is not None:
        return kind.size(rows=1)
    return int(getattr(sample, "nbytes", 0))


def _open_files() -> int:
    if os.path.isdir(_DESCRIPTORS):
        return len(os.listdir(_DESCRIPTORS))
    return 0
