"""``backend="ray"``: the fetches run on Ray's actors, on whatever node of a cluster has room for them.

Runs in the consumer process.  The dataset is put into Ray's object store once, from where each node fetches it once;
workers read its arrays there, read-only.  The rows of a batch come back through the store as packed bytes, and are
copied once, into a slot.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from ..datasets import ship
from ..errors import MpiterError, OptionError
from ..pool.backends import Launch

_REMEDY = "Open such things in worker_init or on first use, and leave them out in __getstate__."


@dataclass(eq=False)
class Ray:
    """Workers on a Ray cluster: an actor each, which Ray places and replaces on any node that lives.

    Nodes need mpiter and what the dataset imports, installed or by way of ``runtime_env``.  The dataset's arrays are
    read-only in the workers, as those of a node share them.

    Args:
        address: as ``ray.init`` has it; None is what the program is connected to, else the cluster of this machine,
            else one that is started here, and stays until the program ends.
        runtime_env: Ray's, for the workers.
        cpus_per_worker: that each worker asks of the cluster.
        resources: that each asks for beside, ``{"loader": 1}`` say: where it may run.
        start_timeout: seconds until it is an error that the cluster has no place for any worker.

    >>> from mpiter import batches
    >>> with batches(range(6), 4, n_processes=1, shuffle=False, backend=Ray(cpus_per_worker=0.5)) as stream:
    ...     print(*stream)
    [0 1 2 3] [4 5]
    """

    address: str | None = None
    _: KW_ONLY
    runtime_env: dict[str, Any] | None = None
    cpus_per_worker: float = 1
    resources: dict[str, float] | None = None
    start_timeout: float = 60.0

    name, shares_memory, in_process = "ray", False, False
    dear_s = 1.0  # handing a task over takes a millisecond or two

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise OptionError("backend='ray' needs Ray, which is not installed: pip install 'mpiter[ray]'.")
        if str(self.address).startswith("ray://"):
            raise OptionError(
                f"address={self.address!r:.60} is for Ray's client, whose object store is elsewhere; run the program "
                f"on a node of the cluster, with address='auto'."
            )
        if not (isinstance(self.cpus_per_worker, (int, float)) and self.cpus_per_worker >= 0):
            raise OptionError(f"cpus_per_worker={self.cpus_per_worker!r:.60} must be a number from 0 on.")
        if not (isinstance(self.start_timeout, (int, float)) and self.start_timeout > 0):
            raise OptionError(f"start_timeout={self.start_timeout!r:.60} must be a number of seconds above 0.")

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        """Put the dataset into the object store."""
        from . import actors

        actors.connect(self.address)
        wanted = {"num_cpus": self.cpus_per_worker, "runtime_env": self.runtime_env, "resources": self.resources}
        return launched(cargo, actors.InStore, partial(actors.Actors, wanted, self.start_timeout), grows=True)


def launched(cargo: tuple[Any, Any], hold: Any, pool: Callable[..., Any], grows: bool) -> Launch:
    """Pack the dataset, whose buffers ``hold`` keeps; one that can't travel is refused by the attribute's name."""
    try:
        return Launch(ship.Shipment(cargo, hold=hold), pool, ship.by_value, grows)
    except (MemoryError, Warning, MpiterError):
        raise
    except Exception as error:
        raise ship.explain(cargo[0], "dataset", error, _REMEDY) from error
