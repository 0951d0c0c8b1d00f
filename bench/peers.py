"""The rows of the transport benchmark: which loader, in which environment, with which options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cases import Images
from limit import Limit
from loaders import (
    Chainer,
    ChainerSerial,
    ChainerThreads,
    Grain,
    InProcess,
    Ours,
    OursAlone,
    OursColumns,
    OursSerial,
    OursThreads,
    OursTorch,
    OursTorchAlone,
    Peer,
    Setup,
    Spdl,
    Torch,
    TorchAlone,
)


@dataclass(frozen=True)
class Row:
    """A line of the result: which loader, in which environment, with which options."""

    environment: str
    peer: type[Peer] | type[Limit]
    options: dict[str, Any]
    says: str
    variant: bool = False  # enters no requirement: half the time

    def open(self, dataset: Images, setup: Setup) -> Peer:
        assert issubclass(self.peer, Peer)
        return self.peer(dataset, setup, **self.options)


ROWS = {
    "in_process": Row("ours", InProcess, {}, "no workers, np.stack"),
    "limit": Row("ours", Limit, {}, "workers fill shared slots, nobody consumes"),
    "chainer": Row("chainer", Chainer, {}, "MultiprocessIterator, lists"),
    "torch": Row("torch", Torch, {}, "DataLoader, columns (tensors)"),
    "grain": Row("ours", Grain, {}, "MapDataset in worker processes, columns", variant=True),
    "spdl": Row("ours", Spdl, {}, "a pipeline of threads, columns", variant=True),
    "ours": Row("ours", Ours, {}, "MultiprocessIterator, lists, all defaults (on Linux: fork server)"),
    "ours_columns": Row("ours", OursColumns, {}, "batches(), columns"),
    "ours_torch": Row("torch", OursTorch, {}, "mpiter.torch.DataLoader, columns (tensors)"),
    "ours_alone": Row("ours", OursAlone, {}, "batches(n_processes=0), columns"),
    "ours_serial": Row("chainer", OursSerial, {}, "SerialIterator, lists, no workers"),
    "chainer_serial": Row("chainer", ChainerSerial, {}, "SerialIterator, lists, no workers"),
    "ours_threads": Row("chainer", OursThreads, {}, "MultithreadIterator, lists"),
    "chainer_threads": Row("chainer", ChainerThreads, {}, "MultithreadIterator, lists"),
    "ours_torch_alone": Row("torch", OursTorchAlone, {}, "mpiter.torch.DataLoader, no workers"),
    "torch_alone": Row("torch", TorchAlone, {}, "DataLoader, no workers"),
    "ours_copy": Row("ours", Ours, {"copy": True}, "lists, copy=True", variant=True),
    "ours_packed": Row("ours", Ours, {"serializer": "packed"}, 'lists, serializer="packed"', variant=True),
    "ours_fork": Row("ours", Ours, {"start_method": "fork"}, "lists, workers forked", variant=True),
    "ours_spawn": Row("ours", Ours, {"start_method": "spawn"}, "lists, workers spawned", variant=True),
}
OURS, PEERS = ("ours", "ours_columns"), ("chainer", "torch")
ALONE = {"ours_alone": "in_process", "ours_serial": "chainer_serial", "ours_torch_alone": "torch_alone"}
NO_WORKERS = (*ALONE, *ALONE.values())
FEW_ROWS = ("in_process", "limit", "chainer", "torch", "ours", "ours_columns", "ours_torch", "ours_alone")
