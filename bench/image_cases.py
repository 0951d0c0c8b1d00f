"""The photographs of the images' benchmark, and the loaders that read them: one class each.

Runs in the process that is measured and in its workers; a loader's package is imported by its class only.
Guarantees: each loader hands out uint8 arrays of batch, height, width, channels, and labels, of the same files, and its
crops are of the same distribution; the files are generated, always the same ones, and few enough to stay in the page
cache: decoding is measured, not the disk.
"""

from __future__ import annotations

import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from mpiter.lab import photographs

LENGTH = 1 << 14  # a virtual one, so that no epoch ends in the timed part
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
N_PREFETCH = 2


@dataclass(frozen=True)
class Case:
    """Photographs of one size, and the crops that are wanted."""

    says: str
    size: photographs.Size
    photographs: int
    side: int  # of a crop
    batch_size: int

    def files(self, root: Path, most: int) -> list[str]:
        return photographs.files_of(root, self.size, min(self.photographs, most))


CASES = {
    "224": Case("500x375 JPEG of 80 kB, crops to 224, batches of 32", photographs.SMALL, 256, 224, 32),
    "128": Case("500x375 JPEG of 80 kB, crops to 128, batches of 32", photographs.SMALL, 256, 128, 32),
    "camera": Case("4000x3000 JPEG of 3.5 MB, crops to 224, batches of 4", photographs.CAMERA, 8, 224, 4),
}


# -- the files -------------------------------------------------------------------------------------------------------


def write_files(root: Path, cases: list[str], most: int) -> None:
    """What the cases read; each file once."""
    for case in map(CASES.__getitem__, cases):
        photographs.write_files(root, case.size, min(case.photographs, most))


# -- plain Python and Pillow, as one writes it -----------------------------------------------------------------------


class Photographs:
    """`dataset[i]` is a random crop of a file, decoded by Pillow, and the file's number."""

    def __init__(self, files: list[str], side: int) -> None:
        self.files, self.side = files, side

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        label = index % len(self.files)
        with Image.open(self.files[label]) as file:
            image = file.convert("RGB")
        left, top, width, height = part(*image.size)
        box = (left, top, left + width, top + height)
        return np.asarray(image.resize((self.side, self.side), Image.Resampling.BILINEAR, box)), label


def part(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random part, as torchvision draws them."""
    for _ in range(10):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randrange(width - w + 1), random.randrange(height - h + 1), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


# -- the loaders -----------------------------------------------------------------------------------------------------


class Loader(ABC):
    """At work on a case; `next` gives pictures and labels as arrays."""

    def __init__(self, case: Case, files: list[str], workers: int) -> None:
        self.case, self.files, self.workers = case, files, workers
        self.begin()

    @staticmethod
    def find(file: str) -> None:
        """An error where its package isn't installed, or can't decode."""
        import PIL  # noqa: F401

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def next(self) -> tuple[Any, Any]: ...

    @abstractmethod
    def close(self) -> None: ...

    def about(self) -> dict[str, str]:
        """Who decodes."""
        return {}

    @property
    def plain(self) -> Photographs:
        return Photographs(self.files, self.case.side)


class Chainer(Loader):
    """MultiprocessIterator, and concat_examples."""

    @staticmethod
    def find(file: str) -> None:
        import mpiter.chainer_compat  # noqa: F401

    def begin(self) -> None:
        import chainer

        self._concat = chainer.dataset.concat_examples
        self._iterator = chainer.iterators.MultiprocessIterator(
            self.plain, self.case.batch_size, n_processes=self.workers, n_prefetch=N_PREFETCH
        )

    def next(self) -> tuple[Any, Any]:
        return self._concat(next(self._iterator))  # type: ignore[no-any-return]

    def close(self) -> None:
        self._iterator.finalize()


class Torch(Loader):
    """DataLoader with its default collate."""

    @staticmethod
    def find(file: str) -> None:
        import torch  # noqa: F401

    def begin(self) -> None:
        import torch.utils.data

        loader: Any = torch.utils.data.DataLoader(
            self.plain,  # type: ignore[arg-type,unused-ignore]
            self.case.batch_size,
            shuffle=True,
            num_workers=self.workers,
            prefetch_factor=N_PREFETCH,
        )
        self._batches = iter(loader)

    def next(self) -> tuple[Any, Any]:
        pictures, labels = next(self._batches)
        return pictures.numpy(), labels.numpy()

    def close(self) -> None:
        del self._batches


class SpdlPillow(Loader):
    """SPDL's pipeline over the plain dataset: threads, each picture a task, then batches."""

    @staticmethod
    def find(file: str) -> None:
        import spdl.pipeline  # noqa: F401

    def begin(self) -> None:
        import spdl.pipeline

        builder: Any = spdl.pipeline.PipelineBuilder()
        self._pipeline = self._stages(builder).add_sink(N_PREFETCH).build(num_threads=self.workers)
        self._pipeline.start()
        self._batches = iter(self._pipeline.get_iterator())

    def _stages(self, builder: Any) -> Any:
        samples = builder.add_source(self._indices()).pipe(self.plain.__getitem__, concurrency=self.workers)
        return samples.aggregate(self.case.batch_size).pipe(_stacked)

    def _indices(self) -> Iterator[int]:
        while True:
            yield from np.random.default_rng().permutation(LENGTH).tolist()

    def next(self) -> tuple[Any, Any]:
        return next(self._batches)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._pipeline.stop()


class Spdl(SpdlPillow):
    """The same, decoded, cut and resized by SPDL itself, which is FFmpeg."""

    @staticmethod
    def find(file: str) -> None:
        import spdl.io

        try:
            spdl.io.demux_image(file)  # in the pipeline each file would fail, and nothing ever come
        except RuntimeError as error:
            raise ImportError("spdl_io finds no FFmpeg: its libraries belong on LD_LIBRARY_PATH") from error

    def _stages(self, builder: Any) -> Any:
        import spdl.io

        size, side = (self.case.size.width, self.case.size.height), self.case.side

        def decode(index: int) -> tuple[Any, int]:
            label = index % len(self.files)
            left, top, width, height = part(*size)
            wanted = f"crop={width}:{height}:{left}:{top},scale={side}:{side}:flags=bilinear,format=pix_fmts=rgb24"
            return spdl.io.decode_packets(spdl.io.demux_image(self.files[label]), filter_desc=wanted), label

        def batch(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
            frames, labels = zip(*samples, strict=True)
            return spdl.io.to_numpy(spdl.io.convert_frames(list(frames))), np.array(labels)

        frames = builder.add_source(self._indices()).pipe(decode, concurrency=self.workers)
        return frames.aggregate(self.case.batch_size).pipe(batch)


def _stacked(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
    pictures, labels = zip(*samples, strict=True)
    return np.stack(pictures), np.array(labels)


class Ours(Loader):
    """`batches()` over an ImageList, with RandomResizedCrop, by a decoder."""

    decoder, scaled, filter = "pillow", False, "bilinear"

    def begin(self) -> None:
        import mpiter.images

        pairs = ((self.files[index % len(self.files)], index % len(self.files)) for index in range(LENGTH))
        crop = mpiter.images.RandomResizedCrop(self.case.side, SCALE, RATIO, self.filter)
        self._dataset = mpiter.images.ImageList(pairs, crop, decoder=self.decoder, scaled=self.scaled)
        options: dict[str, Any] = {"n_processes": self.workers, "n_prefetch": N_PREFETCH, "epochs": None}
        self._batches = mpiter.batches(self._dataset, self.case.batch_size, **options)

    def next(self) -> tuple[Any, Any]:
        return next(self._batches)

    def close(self) -> None:
        self._batches.close()

    def about(self) -> dict[str, str]:
        return self._dataset.about()


class OursFull(Ours):
    """The fastest decoder that is there."""

    decoder = "auto"


class OursScaled(OursFull):
    """The same, of JPEG no more pixels than the crop needs."""

    scaled = True


class OursBest(OursScaled):
    """The same, and resized by OpenCV to nearly the same pixels."""

    filter = "smooth"


# -- the machine -----------------------------------------------------------------------------------------------------


class Busy:
    """So many processes that decode, cut and fill batches of their own; nobody hands anything over."""

    def __init__(self, case: Case, files: list[str], processes: int) -> None:
        from mmap import mmap

        self._case, self._dataset = case, Photographs(files, case.side)
        self._counts: Any = np.frombuffer(mmap(-1, 64 * processes), np.int64)[::8]  # a cache line each
        target: Callable[[int], None] = self._fill
        self._processes = [get_context("fork").Process(target=target, args=(k,), daemon=True) for k in range(processes)]
        for process in self._processes:
            process.start()

    def _fill(self, number: int) -> None:
        rows = self._case.batch_size
        random.seed(number)
        pictures, labels = np.empty((rows, self._case.side, self._case.side, 3), np.uint8), np.empty(rows, np.int64)
        for count in itertools.count():
            row = count % rows
            pictures[row], labels[row] = self._dataset[random.randrange(LENGTH)]
            self._counts[number] += 1

    def done(self) -> int:
        """Pictures so far."""
        return int(self._counts.sum())

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
