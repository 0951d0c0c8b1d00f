"""``backend="ray"``: the fetches run on Ray's actors, on whatever node of a cluster has room for them.

Runs in the consumer process.  The dataset is put into Ray's object store once, from where each node fetches it once;
workers read its arrays there, read-only.  Samples come back through the store as well (``instore``).  A Ray that we
have started, since nobody had, stays until the program ends, as after ``ray.init()``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
from functools import partial
from typing import Any, ClassVar

import numpy as np

from .. import machine
from ..datasets import ship
from ..errors import OptionError, SharedMemoryFull, WorkerStartError
from ..pool.backends import Launch
from ..transport.transport import Transport
from .actors import Actors
from .instore import InStore

_SHARE = 4  # of the object store: what batches on their way may take, and as much what the user keeps
_TO_ANSWER_S = 5.0  # that who has an address may take to accept a connection
_REMEDY = "Open such things in worker_init or on first use, and leave them out in __getstate__."


class Ray:
    """Workers on a Ray cluster: an actor each, which Ray places and replaces on any node that lives.

    Arrays of batches are read-only views of Ray's object store on this node; ``copy=True`` gives writable ones.  Nodes
    need mpiter and what the dataset imports, installed or by way of ``runtime_env``.

    Args:
        address: as ``ray.init`` has it; None is what the program is connected to, else the cluster of this machine,
            else one that is started here.
        runtime_env: Ray's, for the workers.
        cpus_per_worker: that each worker asks of the cluster.
        resources: that each asks for beside, ``{"loader": 1}`` say: where it may run.
        writable: each worker has its own copy of the dataset's arrays; else those of a node share read-only ones.
        start_timeout: seconds until it is an error that the cluster has no place for any worker.

    >>> from mpiter import batches
    >>> with batches(range(6), 4, n_processes=1, shuffle=False, backend=Ray(cpus_per_worker=0.5)) as stream:
    ...     print(*stream)
    [0 1 2 3] [4 5]
    """

    name, shares_memory, in_process = "ray", False, False
    dear_s = 1.0  # handing a task over takes a millisecond or two, and what came in two parts is copied together

    def __init__(
        self,
        address: str | None = None,
        *,
        runtime_env: dict[str, Any] | None = None,
        cpus_per_worker: float = 1,
        resources: dict[str, float] | None = None,
        writable: bool = False,
        start_timeout: float = 60.0,
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise OptionError("backend='ray' needs Ray, which is not installed: pip install 'mpiter[ray]'.")
        if not (address is None or isinstance(address, str)):
            raise OptionError(f"address={address!r:.60} must be a string, 'auto' or '10.0.0.1:6379' say, or None.")
        if address is not None and address.startswith("ray://"):
            raise OptionError(
                f"address={address!r:.60} is for Ray's client, whose object store is elsewhere; run the program on a "
                f"node of the cluster, with address='auto'."
            )
        if not (isinstance(cpus_per_worker, (int, float)) and cpus_per_worker >= 0):
            raise OptionError(f"cpus_per_worker={cpus_per_worker!r:.60} must be a number from 0 on.")
        if not (isinstance(start_timeout, (int, float)) and start_timeout > 0):
            raise OptionError(f"start_timeout={start_timeout!r:.60} must be a number of seconds above 0.")
        self.address, self.writable, self.start_timeout = address, writable, start_timeout
        self.options: dict[str, Any] = {
            "num_cpus": cpus_per_worker,
            "runtime_env": runtime_env,
            "resources": resources,
            "scheduling_strategy": "SPREAD",
        }

    def __repr__(self) -> str:
        return f"Ray(address={self.address!r}, cpus_per_worker={self.options['num_cpus']!r})"

    def transport(self, copy: bool) -> Transport:
        """What carries the batches."""
        return InStore(copy)

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        _connect(self.address)
        try:
            return _Launched(self, ship.Shipment(cargo, hold=_InStoreWritable if self.writable else _InStore))
        except (MemoryError, Warning, SharedMemoryFull, WorkerStartError):
            raise
        except Exception as error:
            raise ship.explain(cargo[0], "dataset", error, _REMEDY) from error


def _connect(address: str | None) -> None:
    """Use the Ray that there is, or start one."""
    import ray

    if ray.is_initialized():
        _be_at(address)
        return
    host, _, port = (address or "").rpartition(":")
    try:
        if host and port.isdigit():  # Ray would try for a minute, and print what it thinks of it
            socket.create_connection((host, int(port)), _TO_ANSWER_S).close()
        ray.init(address=address)
    except (OSError, ConnectionError, RuntimeError, ValueError) as error:
        where = "here" if address is None else f"at {address}"
        raise WorkerStartError(f"there is no Ray to be had {where}: {error}. `ray start --head` starts one.") from error


def _be_at(address: str | None) -> None:
    """The Ray that this program uses already has to be the one that is meant."""
    import ray

    there = ray.get_runtime_context().gcs_address
    if address not in {None, "auto", "local"} and _found_at(address) != _found_at(there):
        raise WorkerStartError(
            f"this program uses the Ray at {there} already, and address={address!r:.60} is another: leave address out, "
            f"or call ray.shutdown() before."
        )


def _found_at(address: str) -> tuple[str, str]:
    """Host, as a number that others know it by where that can be found out, and port."""
    import ray

    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, UnicodeError):
        host = socket.gethostbyname(host)
    return ray.util.get_node_ip_address() if host.startswith("127.") else host, port


class _InStore:
    """Buffers in Ray's object store."""

    maps_files: ClassVar = False

    copies = False  # for each worker

    def __init__(self, buffers: list[memoryview]) -> None:
        import ray

        size = sum(buffer.nbytes for buffer in buffers)
        try:
            self._there: Any = ray.put([np.frombuffer(buffer, np.uint8) for buffer in buffers])
        except ray.exceptions.ObjectStoreFullError as error:
            raise SharedMemoryFull(
                f"the dataset ({size / 1e6:.0f} MB) does not fit into Ray's object store: {error}. Start Ray with a "
                f"larger object_store_memory, or use np.memmap and files."
            ) from error
        except ray.exceptions.RayError as error:
            raise WorkerStartError(f"Ray's object store takes no dataset: {error}") from error

    def buffers(self, is_own: bool) -> list[Any]:
        """On whatever node this is; the first who asks there waits until it has come."""
        import ray

        arrays = ray.get(self._there)
        return [array.copy() for array in arrays] if self.copies and is_own else list(arrays)

    def close(self) -> None:
        self._there = None


class _InStoreWritable(_InStore):
    """Each worker has its own copy."""

    copies = True


class _Launched:
    """Actors about to start."""

    grows = True

    def __init__(self, backend: Ray, cargo: ship.Shipment) -> None:
        self.cargo, self._backend = cargo, backend
        self.dumps, self.carries = ship.by_value, cargo.holds
        self.most_bytes = min(machine.memory_total() // (2 * _SHARE), _store_bytes() // _SHARE)
        self.pool = partial(Actors, _within_a_group(backend.options), backend.start_timeout)

    def close(self) -> None:
        self.cargo.close()


def _within_a_group(options: dict[str, Any]) -> dict[str, Any]:
    """Workers have their places in the placement group that this program has for what it starts (Ray Train, Tune)."""
    import ray

    group = ray.util.get_current_placement_group()
    if group is None or not ray.get_runtime_context().should_capture_child_tasks_in_placement_group:
        return options
    within = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
    return {**options, "scheduling_strategy": within}


def _store_bytes() -> int:
    """How much the object store of this node holds."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    found = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["NodeID"] == here]
    return int(found[0] if found else 0) or machine.memory_total()
