"""What peers load: samples from memory, and the digest that proves what arrived.

Runs in the process that is measured and, pickled or inherited, in its workers.
Guarantees: 64 distinct float32 images, or JPEG files, in memory behind a long virtual
length, so neither storage nor the page cache is measured; no `__getitems__` and no
slicing, so every loader fetches sample by sample through `dataset[i]`; the label *is*
the index (int64), so a digest notices a lost, repeated or misplaced sample. Which
samples straggle is a function of the index alone: all loaders meet the same ones.
Tensors and columns, which are for loaders without workers, hold the same images and
labels: in one array of the whole length where a dataset has them in one. Tokens come
from a file that is mapped, and that has no name any more.
"""

from __future__ import annotations

import enum
import hashlib
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from photographs import SMALL, photograph

Array = np.ndarray[Any, Any]
# An image and its label, as arrays, numbers or tensors.
Sample = tuple[Any, Any]
Columns = tuple[Array, Array]
DISTINCT = 64
# It is so long that no peer meets an epoch boundary (and its restart) inside the timed
# part.
LENGTH = 1 << 20
STRAGGLER_PERIOD = 1 << 16


class Images:
    """`dataset[i]` is `(images[i % 64], np.int64(i))`.

    The image is a view, so fetching costs about a microsecond.
    """

    def __init__(
        self, shape: tuple[int, ...], length: int = LENGTH, seed: int = 0
    ) -> None:
        self.images = np.random.default_rng(seed).random(
            (DISTINCT, *shape), dtype=np.float32
        )
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Array, np.int64]:
        return self.images[index % DISTINCT], np.int64(index)


class Stragglers(Images):
    """The same images, each computed for a while.

    One in fifty, at a fixed pseudo-random place, takes fifty times as long.
    """

    def __init__(
        self, shape: tuple[int, ...], length: int, seed: int, work_s: float
    ) -> None:
        super().__init__(shape, length, seed)
        slow = (
            np.random.default_rng(1).permutation(STRAGGLER_PERIOD)
            < STRAGGLER_PERIOD // 50
        )
        self.work_s = np.where(slow, 50 * work_s, work_s).tolist()

    def __getitem__(self, index: int) -> tuple[Array, np.int64]:
        work(self.work_s[index % STRAGGLER_PERIOD])
        return super().__getitem__(index)


class Photographs(Images):
    """JPEG files in memory, each decoded and scaled when it is asked for."""

    def __init__(
        self, shape: tuple[int, ...], length: int = LENGTH, seed: int = 0
    ) -> None:
        super().__init__((), length, seed)
        self.shape = shape
        self.files = [
            photograph(np.random.default_rng((seed, number)), SMALL)
            for number in range(DISTINCT)
        ]

    def __getitem__(self, index: int) -> tuple[Array, np.int64]:
        from PIL import Image

        with Image.open(io.BytesIO(self.files[index % DISTINCT])) as file:
            scaled = file.convert("RGB").resize(self.shape[1::-1])
        return np.asarray(scaled, np.float32), np.int64(index)


class Sleeping(Images):
    """The same images, each of which is waited for, as for the answer of a store."""

    def __init__(
        self, shape: tuple[int, ...], length: int, seed: int, answer_s: float
    ) -> None:
        super().__init__(shape, length, seed)
        self.answer_s = answer_s

    def __getitem__(self, index: int) -> tuple[Array, np.int64]:
        time.sleep(self.answer_s)
        return super().__getitem__(index)


def work(cpu_s: float) -> None:
    """Compute for so many CPU seconds of this thread.

    A preempted worker must do all its work, which a sleep wouldn't ask of it.
    """
    clock = time.thread_time
    end = clock() + cpu_s
    while clock() < end:
        pass


# -- tensors and columns ---------------------------------------------------------------


class Tensors(Images):
    """The same images as tensors, each with its index, an int."""

    def __init__(self, shape: tuple[int, ...], length: int, seed: int) -> None:
        import torch

        super().__init__(shape, length, seed)
        self.tensors = torch.from_numpy(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.tensors[index % DISTINCT], index


def columns(shape: tuple[int, ...], length: int, seed: int) -> Columns:
    """Return the same images, again and again, and their indices, as two arrays."""
    images = Images(shape, length, seed).images
    return np.resize(images, (length, *shape)), np.arange(length)


def tensor_dataset(shape: tuple[int, ...], length: int, seed: int) -> Any:
    """Return these columns as torch's own dataset of tensors."""
    import torch

    return torch.utils.data.TensorDataset(
        *map(torch.from_numpy, columns(shape, length, seed))
    )


class InOneCall:
    """The rows of a dataset of tensors, a batch of which is fetched by one call."""

    def __init__(self, shape: tuple[int, ...], length: int, seed: int) -> None:
        self.images, self.labels = tensor_dataset(shape, length, seed).tensors

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        return [(self.images[index], self.labels[index]) for index in indices]


class Tokens:
    """Tokens of a mapped file from an index on, and those one further on.

    That is what a language model is trained with.

    The file is temporary: it lies in no folder, and is gone with this process.
    """

    def __init__(self, shape: tuple[int, ...], length: int, seed: int) -> None:
        (self.count,) = shape
        self.length = length
        rng = np.random.default_rng(seed)
        with tempfile.TemporaryFile() as file:
            rng.integers(0, 50_000, length + self.count, np.uint16).tofile(file)
            file.flush()
            self.tokens: Array = np.memmap(file, np.uint16, mode="r")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        import torch

        end = index + self.count
        first = self.tokens[index:end].astype(np.int64)
        second = self.tokens[index + 1 : end + 1].astype(np.int64)
        return torch.from_numpy(first), torch.from_numpy(second)


# -- cases -----------------------------------------------------------------------------


class Form(enum.Enum):
    """What a loader must be able to read."""

    # Samples of arrays, fetched one by one.
    samples = enum.auto()
    # Samples of tensors, as torch's loader collates them.
    tensors = enum.auto()
    # A tuple of arrays.
    columns = enum.auto()


LABELLED = "float32 and an int64 label"
STRAGGLES = f"{LABELLED}; {{}} us of CPU a sample, one in 50 takes 50x"
DECODED = f"{LABELLED}; decoded from JPEG files of {SMALL} and scaled"


@dataclass(frozen=True)
class Case:
    """One dataset and its batch size."""

    name: str
    batch_size: int
    shape: tuple[int, ...]
    # This makes the dataset from shape, length and seed.
    makes: Callable[[tuple[int, ...], int, int], Any] = Images
    form: Form = Form.samples
    # This says what a sample consists of, after its shape.
    says: str = LABELLED
    length: int = LENGTH
    # Such a case is never shuffled.
    is_in_order: bool = False

    @property
    def about(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"batches of {self.batch_size} x {shape} {self.says}"

    def dataset(self, length: int | None = None, seed: int = 0) -> Any:
        if length is None:
            length = self.length
        return self.makes(self.shape, length, seed)

    @property
    def checked_length(self) -> int:
        """Four whole batches and a half one: the short last batch is checked too."""
        return 4 * self.batch_size + self.batch_size // 2


SAMPLES = (
    Case("16x8", 16, (8,)),
    Case("128x8", 128, (8,)),
    Case("28x28", 128, (28, 28)),
    Case("3x64x64", 128, (3, 64, 64)),
    Case("3x224x224", 64, (3, 224, 224)),
    # A sample takes 20 µs, a slow one 1 ms. How samples travel may still matter: the
    # limit is 3 to 5 times the peers here.
    Case(
        "straggler",
        32,
        (28, 28),
        partial(Stragglers, work_s=0.00002),
        says=STRAGGLES.format(20),
    ),
    Case("jpeg", 32, (224, 224, 3), Photographs, says=DECODED),
    # A sample takes 0.2 ms, a slow one 10 ms. The work itself leaves twice the peers at
    # most, so this case runs only if `--cases` names it.
    Case(
        "straggler_heavy",
        8,
        (28, 28),
        partial(Stragglers, work_s=0.0002),
        says=STRAGGLES.format(200),
    ),
    Case(
        "sleeping",
        16,
        (28, 28),
        partial(Sleeping, answer_s=0.001),
        says=f"{LABELLED}; each is waited for, 1 ms",
    ),
)
# Tensors and columns come in these sizes. Those that lie in memory as a whole have so
# many rows, 200 MB of them at most.
ROWS_HELD = {"16x8": 1 << 18, "28x28": 1 << 16, "3x64x64": 1 << 12}


def held(plain: Case, rows: int) -> Iterator[Case]:
    """Yield the case ``plain`` in the other forms in which a program may hold data."""
    size = plain.name
    tensors = replace(plain, form=Form.tensors)
    says = "float32 and an int, as tensors"
    yield replace(tensors, name=f"{size} tensors", makes=Tensors, says=says)
    tensors = replace(tensors, length=rows)
    says = f"{LABELLED}; a TensorDataset"
    yield replace(
        tensors, name=f"{size} TensorDataset", makes=tensor_dataset, says=says
    )
    says = f"{LABELLED}; tensors, fetched by __getitems__"
    yield replace(tensors, name=f"{size} getitems", makes=InOneCall, says=says)
    in_memory = replace(plain, form=Form.columns, makes=columns, length=rows)
    says = f"{LABELLED}; columns in memory"
    yield replace(in_memory, name=f"{size} columns", says=f"{says}, shuffled")
    in_memory = replace(in_memory, is_in_order=True)
    yield replace(in_memory, name=f"{size} columns in order", says=f"{says}, in order")


CASES = {case.name: case for case in SAMPLES}
for _size, _rows in ROWS_HELD.items():
    CASES |= {case.name: case for case in held(CASES[_size], _rows)}
TOKENS = "int64, twice: tokens of a mapped file, as tensors"
CASES["tokens"] = Case(
    "tokens", 16, (1024,), Tokens, Form.tensors, TOKENS, length=10_000_000
)


# -- what arrived ----------------------------------------------------------------------


class Digest:
    """The digest of samples: dtype, shape and every byte of both parts, in order.

    The order is that in which they were added.
    """

    def __init__(self) -> None:
        self._samples: list[bytes] = []

    def add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            found = hashlib.blake2b(digest_size=16)
            for part in sample:
                array = np.asarray(part, order="C")
                found.update(f"{array.dtype.str}{array.shape}".encode())
                found.update(array.data)
            self._samples.append(found.digest())

    def add_columns(self, both: tuple[Any, Any]) -> None:
        """Add the rows of two arrays, or of two tensors."""
        self.add(zip(*map(np.asarray, both), strict=True))

    def hex(self, in_order: bool = True) -> str:
        """Return it in figures.

        That of a shuffled epoch, without the order, is the same for each order.
        """
        samples = self._samples if in_order else sorted(self._samples)
        return hashlib.blake2b(b"".join(samples), digest_size=16).hexdigest()


def expected_digest(case: Case, seed: int = 0, in_order: bool = True) -> str:
    """Return the digest of the in-process loop over the checked samples."""
    dataset = case.dataset(case.checked_length, seed)
    digest = Digest()
    if case.form is Form.columns:
        digest.add_columns(dataset)
    else:
        digest.add(dataset[index] for index in range(len(dataset)))
    return digest.hex(in_order)
