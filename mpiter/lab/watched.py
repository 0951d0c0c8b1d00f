"""Who did what when: workers write down when they fetched a sample, the consumer when it waited.

`Watched` runs in the workers, the rest in the process that is measured.  Guarantees one clock for all, the machine's
monotonic one, and a file for each worker, so that nobody waits for anybody.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.access import reader_of

SHOWN = 8  # steps of a timeline
Stretch = tuple[float, float, str, str]  # begin, end, kind, label


class Watched:
    """A dataset whose workers write down when they fetched what; the clock is the machine's, the same for all."""

    _entry = struct.Struct("<qdd")

    def __init__(self, dataset: Any, folder: str) -> None:
        self._dataset, self._folder = dataset, folder
        self._fd = -1
        self.repeatable = getattr(dataset, "repeatable", True)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        begin = time.monotonic()
        sample = self._dataset[index]
        self._note([index], begin)
        return sample

    def _note(self, indices: Sequence[int], begin: float) -> None:
        if self._fd < 0:
            path = os.path.join(self._folder, f"{os.getpid()}.fetched")
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        end = time.monotonic()
        os.write(self._fd, b"".join(self._entry.pack(index, begin, end) for index in indices))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fd": -1}

    @classmethod
    def entries(cls, file: Path) -> Iterator[tuple[int, float, float]]:
        data = file.read_bytes()
        yield from cls._entry.iter_unpack(data[: len(data) // cls._entry.size * cls._entry.size])


class WatchedTogether(Watched):
    """One that is read many samples at once."""

    def __getitems__(self, indices: list[int]) -> Any:
        read = reader_of(self._dataset)
        assert read is not None, "it was read so in the main process"
        begin = time.monotonic()
        samples = read(np.array(indices))
        self._note(indices, begin)
        return samples


def watch(dataset: Any, folder: str) -> Watched:
    """The dataset, read as it was, with its workers' notes in a folder."""
    return (WatchedTogether if reader_of(dataset) else Watched)(dataset, folder)


def watched(folder: str, batch_size: int) -> list[list[Stretch]]:
    """For each worker, what it fetched: a span for all rows of a batch that followed one another."""
    found = []
    for file in sorted(Path(folder).glob("*.fetched")):
        spans: list[Stretch] = []
        for index, begin, end in Watched.entries(file):
            label = f"batch {index // batch_size}"
            if spans and spans[-1][3] == label and begin - spans[-1][1] < 1e-3:
                spans[-1] = (spans[-1][0], end, "fetch", label)
            else:
                spans.append((begin, end, "fetch", label))
        found.append(spans)
    return found


def lanes(consumer: list[Stretch], workers: list[list[Stretch]]) -> list[Any]:
    """The last few steps, in seconds from their beginning."""
    shown = consumer[-2 * SHOWN :]
    left, right = shown[0][0], shown[-1][1]
    names = ["consumer", *(f"worker {number}" for number in range(len(workers)))]
    found = []
    for name, spans in zip(names, [shown, *workers], strict=True):
        seen = [span for span in spans if span[1] > left and span[0] < right]
        cut = [[max(b, left) - left, min(e, right) - left, kind, label] for b, e, kind, label in seen]
        found.append([name, cut])
    return found
