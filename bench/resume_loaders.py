"""What a loader of the resuming benchmark is, and ours; a sitting makes one, in its process.

A sample is its own index, and takes 5 ms, so that workers have something in hand when one is killed.
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

SAMPLE_S = 0.005


@dataclass(frozen=True)
class Seat:
    """One rank's place in a training: of how many it is, and what it loads with."""

    folder: Path  # for those that read their own format
    length: int
    rank: int
    size: int
    workers: int
    batch_size: int  # of this rank
    seed: int


class Samples:
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_S)
        return int(index)

    def __repr__(self) -> str:  # grain compares it
        return f"Samples({self.length})"


class Loader:
    """An epoch's batches on one rank; a state is asked for between two of them, and loaded before the first."""

    packages: ClassVar[tuple[str, ...]]  # distributions, the one that it is named for first
    way: ClassVar[str]  # of resuming
    left_out: ClassVar[dict[str, str]] = {}  # scenes that it isn't put to, and why

    def __init__(self, seat: Seat) -> None:
        self.seat = seat

    @classmethod
    def find(cls) -> dict[str, str]:
        """The versions of what it needs; ImportError, if that isn't all here."""
        return {package: importlib.metadata.version(package) for package in cls.packages}

    @classmethod
    def prepare(cls, seat: Seat) -> None:
        """Write the samples to its folder, in its own format."""

    def batches(self) -> Iterator[Any]:
        raise NotImplementedError

    def state(self) -> Any:
        raise NotImplementedError

    def load(self, state: Any) -> None:
        raise NotImplementedError

    def workers(self) -> list[int]:
        """Processes that fetch."""
        return [process.pid for process in multiprocessing.active_children() if process.pid]

    def tidy(self) -> None:
        """After an epoch: what a killed process of it may have left on the machine."""


# -- ours ------------------------------------------------------------------------------------------------------------


class Ours(Loader):
    packages = ("numpy",)
    way = "batches(shard=(rank, size)): state_dict() of any rank, load_state_dict() on all of any number"

    def __init__(self, seat: Seat) -> None:
        import mpiter

        super().__init__(seat)
        options = {"n_processes": seat.workers, "seed": seat.seed, "shard": (seat.rank, seat.size)}
        self.stream = mpiter.batches(Samples(seat.length), seat.batch_size, **options)

    @classmethod
    def find(cls) -> dict[str, str]:
        import mpiter

        return {"mpiter": mpiter.__version__}

    def batches(self) -> Iterator[Any]:
        return iter(self.stream)

    def state(self) -> Any:
        return self.stream.state_dict()

    def load(self, state: Any) -> None:
        self.stream.load_state_dict(state)

    def workers(self) -> list[int]:
        return list(self.stream.worker_pids)


class OursEpochs(Ours):
    way = "DataLoader(shuffle=True, shard=(rank, size)): the same"

    def __init__(self, seat: Seat) -> None:
        Loader.__init__(self, seat)
        options: dict[str, Any] = {"num_workers": seat.workers, "seed": seat.seed, "shard": (seat.rank, seat.size)}
        self.stream: Any = self.kind()(Samples(seat.length), seat.batch_size, shuffle=True, **options)

    def kind(self) -> Any:
        import mpiter

        return mpiter.DataLoader


class OursOfTorch(OursEpochs):
    way = "torch.DataLoader(shuffle=True, shard=(rank, size)): the same"

    @classmethod
    def find(cls) -> dict[str, str]:
        return super().find() | {"torch": importlib.metadata.version("torch")}

    def kind(self) -> Any:
        import mpiter.torch

        return mpiter.torch.DataLoader


def keys_of(batch: Any) -> list[int]:
    """Of whatever a loader calls a batch."""
    return [int(key) for key in (batch.tolist() if hasattr(batch, "tolist") else batch)]
