"""The loaders that are compared, one class each.

Runs in the measured process of one turn. A loader's package is imported by its class
only, so each may live in an environment of its own. Guarantees: every peer gets the
same number of workers and the same prefetch (`n_prefetch`, torch's `prefetch_factor`),
the rest of its configuration being its default unless its class says otherwise; `touch`
obtains every sample of a list (every column of a columns batch) inside the timed part,
so that a lazily made list is paid for; it reads no bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cases import Array, Columns, Digest, Images


@dataclass(frozen=True)
class Setup:
    """What every loader is asked for."""

    batch_size: int
    workers: int
    n_prefetch: int
    shuffle: bool
    repeat: bool
    seed: int = 0

    @property
    def as_chainer_says_it(self) -> dict[str, Any]:
        """Return the arguments of Chainer's iterator, and of ours."""
        return {
            "batch_size": self.batch_size,
            "repeat": self.repeat,
            "shuffle": self.shuffle,
            "n_processes": self.workers,
            "n_prefetch": self.n_prefetch,
        }


class Peer(ABC):
    """A running loader: `batches` yields what it hands out.

    `touch` and `readings` know whether those are lists.
    """

    batches: Iterator[Any]
    # The module that is imported of the loader's package, and how to get that.
    module = "numpy"
    remedy = "pip install mpiter"

    @abstractmethod
    def __init__(self, dataset: Any, setup: Setup) -> None: ...

    @classmethod
    def find(cls) -> None:
        """Raise an ImportError where its package isn't installed."""
        importlib.import_module(cls.module)

    @staticmethod
    def touch(batch: Any) -> None:
        _images, _labels = batch

    def readings(self) -> dict[str, Callable[[Digest, Any], None]]:
        """Return the ways in which a batch can be read, each to the last byte."""
        return {"columns": lambda digest, batch: digest.add_columns(batch)}

    def stats(self) -> Any:
        return None

    # The in-process loop has nothing to stop, so this isn't abstract.
    def close(self) -> None:  # noqa: B027
        """Stop the workers."""


def _touch_samples(batch: Any) -> None:
    for _image, _label in batch:
        pass


class InProcess(Peer):
    """No workers: `[dataset[i] ...]` and `np.stack`, in the consumer."""

    def __init__(self, dataset: Images, setup: Setup) -> None:
        self.batches = self._loop(dataset, setup)

    @staticmethod
    def _loop(dataset: Images, setup: Setup) -> Iterator[tuple[Array, Array]]:
        while True:
            order = np.arange(len(dataset))
            if setup.shuffle:
                order = np.random.permutation(len(dataset))
            for start in range(0, len(dataset), setup.batch_size):
                samples = [
                    dataset[index]
                    for index in order[start : start + setup.batch_size].tolist()
                ]
                yield (
                    np.stack([image for image, _ in samples]),
                    np.array([label for _, label in samples]),
                )
            if not setup.repeat:
                return


class Indexing(Peer):
    """No loader: rows of the columns by a shuffled index, or in order by slices.

    The slices are copied.
    """

    def __init__(self, dataset: Columns, setup: Setup) -> None:
        self.batches = self._loop(dataset, setup)

    @staticmethod
    def _loop(dataset: Columns, setup: Setup) -> Iterator[Columns]:
        images, labels = dataset
        size = setup.batch_size
        while True:
            if setup.shuffle:
                order = np.random.permutation(len(images))
                for start in range(0, len(images), size):
                    rows = order[start : start + size]
                    yield images[rows], labels[rows]
            else:
                for start in range(0, len(images), size):
                    end = start + size
                    yield images[start:end].copy(), labels[start:end].copy()
            if not setup.repeat:
                return


def _chainer_imports_unaided() -> bool:
    numpy_version = tuple(map(int, np.__version__.split(".")[:2]))
    has_old_setuptools = importlib.util.find_spec("pkg_resources") is not None
    return numpy_version < (1, 24) and sys.version_info < (3, 12) and has_old_setuptools


class Chainer(Peer):
    """Chainer's MultiprocessIterator: lists of samples."""

    touch = staticmethod(_touch_samples)
    module = "chainer"
    remedy = (
        "pip install 'mpiter[chainer]', with setuptools<81 as a build constraint "
        "(docs/chainer.md)"
    )

    def __init__(self, dataset: Images, setup: Setup) -> None:
        from chainer.iterators import MultiprocessIterator

        self._iterator = self.batches = MultiprocessIterator(
            dataset, **setup.as_chainer_says_it
        )

    @classmethod
    def find(cls) -> None:
        if not _chainer_imports_unaided():
            import mpiter.chainer_compat  # noqa: F401
        super().find()

    def readings(self) -> dict[str, Callable[[Digest, Any], None]]:
        return {"list": lambda digest, batch: digest.add(batch)}

    def close(self) -> None:
        self._iterator.finalize()


class ChainerSerial(Chainer):
    """Chainer's SerialIterator: lists of samples, without workers."""

    def __init__(self, dataset: Images, setup: Setup) -> None:
        from chainer.iterators import SerialIterator

        self._iterator = self.batches = SerialIterator(
            dataset, setup.batch_size, repeat=setup.repeat, shuffle=setup.shuffle
        )


class ChainerThreads(Chainer):
    """Chainer's MultithreadIterator: lists of the dataset's own samples."""

    def __init__(self, dataset: Images, setup: Setup) -> None:
        from chainer.iterators import MultithreadIterator

        self._iterator = self.batches = MultithreadIterator(
            dataset,
            setup.batch_size,
            repeat=setup.repeat,
            shuffle=setup.shuffle,
            n_threads=setup.workers,
        )


class Torch(Peer):
    """torch's DataLoader with its default collate: columns, as tensors."""

    module = "torch"
    remedy = "pip install torch"

    def __init__(self, dataset: Any, setup: Setup) -> None:
        workers = {
            "prefetch_factor": setup.n_prefetch,
            "persistent_workers": setup.repeat,
        }
        self.batches = self._loop(
            self._opened(dataset, setup, num_workers=setup.workers, **workers),
            setup.repeat,
        )

    @staticmethod
    def _kind() -> Any:
        import torch

        return torch.utils.data.DataLoader

    def _opened(self, dataset: Any, setup: Setup, **workers: Any) -> Any:
        import torch

        torch.manual_seed(setup.seed)
        return self._kind()(dataset, setup.batch_size, shuffle=setup.shuffle, **workers)

    @staticmethod
    def _loop(loader: Any, repeat: bool) -> Iterator[Any]:
        yield from loader
        while repeat:
            yield from loader

    def close(self) -> None:
        self.batches.close()  # type: ignore[attr-defined]


class TorchAlone(Torch):
    """The same without workers, which is its default."""

    def __init__(self, dataset: Any, setup: Setup) -> None:
        self.batches = self._loop(self._opened(dataset, setup), setup.repeat)


class OursTorch(Torch):
    """`mpiter.torch.DataLoader` in its place."""

    @staticmethod
    def _kind() -> Any:
        from mpiter.torch import DataLoader

        return DataLoader


class OursTorchAlone(OursTorch, TorchAlone):
    """The same without workers."""


class Grain(Peer):
    """grain's MapDataset, batched in its worker processes: columns.

    One thread in each of them and a short queue: with grain's own defaults (16 threads,
    500 batches ahead) threads contend for the GIL over samples as cheap as these, and
    it is ten times slower.
    """

    module = "grain"
    remedy = "pip install grain"

    def __init__(self, dataset: Images, setup: Setup) -> None:
        import grain
        from absl import flags

        # Otherwise the flags of absl complain that nobody has parsed them.
        flags.FLAGS.mark_as_parsed()
        source: Any = grain.MapDataset.source(dataset)
        if setup.shuffle:
            source = source.shuffle(seed=setup.seed)
        if setup.repeat:
            source = source.repeat(None)
        options = grain.MultiprocessingOptions(
            num_workers=setup.workers, per_worker_buffer_size=setup.n_prefetch
        )
        reading = grain.ReadOptions(
            num_threads=1, prefetch_buffer_size=setup.n_prefetch
        )
        batched = (
            source.batch(setup.batch_size).to_iter_dataset(reading).mp_prefetch(options)
        )
        self.batches = iter(batched)

    def close(self) -> None:
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()


class Spdl(Peer):
    """SPDL's pipeline, in threads: a batch of indices, its samples, columns."""

    module = "spdl.pipeline"
    remedy = "pip install spdl_core"

    def __init__(self, dataset: Images, setup: Setup) -> None:
        import spdl.pipeline

        def batch(indices: list[int]) -> tuple[Array, Array]:
            samples = [dataset[index] for index in indices]
            return np.stack([image for image, _ in samples]), np.array(
                [label for _, label in samples]
            )

        builder: Any = spdl.pipeline.PipelineBuilder()
        self._pipeline = (
            builder.add_source(self._indices(len(dataset), setup))
            .pipe(batch, concurrency=setup.workers, output_order="input")
            .add_sink(setup.n_prefetch)
            .build(num_threads=setup.workers)
        )
        self._pipeline.start()
        self.batches = iter(self._pipeline.get_iterator())

    @staticmethod
    def _indices(length: int, setup: Setup) -> Iterator[list[int]]:
        for epoch in itertools.count():
            order = np.arange(length)
            if setup.shuffle:
                order = np.random.default_rng((setup.seed, epoch)).permutation(length)
            for start in range(0, length, setup.batch_size):
                yield order[start : start + setup.batch_size].tolist()
            if not setup.repeat:
                return

    def close(self) -> None:
        self._pipeline.stop()


class _OfMpiter(Peer):
    """Either way to read."""

    module = "mpiter"
    _iterator: Any

    def stats(self) -> Any:
        return self._iterator.stats()

    def close(self) -> None:
        self._iterator.close()


class Ours(_OfMpiter):
    """mpiter's MultiprocessIterator: lists of samples that are also columns.

    Without `start_method` it is the default one.
    """

    touch = staticmethod(_touch_samples)

    def __init__(
        self,
        dataset: Images,
        setup: Setup,
        start_method: str | None = None,
        **options: Any,
    ) -> None:
        import mpiter

        if start_method is not None:
            options["backend"] = mpiter.Process(start_method=start_method)
        self._iterator = self.batches = mpiter.MultiprocessIterator(
            dataset, **setup.as_chainer_says_it, **options
        )

    def readings(self) -> dict[str, Callable[[Digest, Any], None]]:
        return {
            "list": lambda digest, batch: digest.add(batch),
            "columns": lambda digest, batch: digest.add_columns(batch.columns),
        }


class OursColumns(_OfMpiter):
    """`mpiter.batches`: columns."""

    def __init__(self, dataset: Any, setup: Setup) -> None:
        import mpiter

        self._iterator = self.batches = mpiter.batches(
            dataset,
            setup.batch_size,
            shuffle=setup.shuffle,
            epochs=None if setup.repeat else 1,
            n_processes=setup.workers,
            n_prefetch=setup.n_prefetch,
        )


class OursAlone(OursColumns):
    """`mpiter.batches` without workers: columns."""

    def __init__(self, dataset: Any, setup: Setup) -> None:
        super().__init__(dataset, replace(setup, workers=0))


class OursSerial(Ours):
    """mpiter's SerialIterator: lists of the dataset's own samples."""

    def __init__(self, dataset: Images, setup: Setup) -> None:
        import mpiter

        self._iterator = self.batches = mpiter.SerialIterator(
            dataset, setup.batch_size, repeat=setup.repeat, shuffle=setup.shuffle
        )


class OursThreads(Ours):
    """mpiter's MultithreadIterator: lists of the dataset's own samples."""

    def __init__(self, dataset: Images, setup: Setup) -> None:
        import mpiter

        self._iterator = self.batches = mpiter.MultithreadIterator(
            dataset,
            setup.batch_size,
            repeat=setup.repeat,
            shuffle=setup.shuffle,
            n_threads=setup.workers,
        )
