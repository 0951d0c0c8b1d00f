"""``backend="ray"``: the workers are Ray's actors, on any nodes of a cluster."""

from __future__ import annotations

import importlib.util
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from ..engine.options import seconds
from ..errors import OptionError
from ..pool.backends import Backend, Cargo, Launch, packed


@dataclass(eq=False)
class Ray(Backend):
    """Runs the workers on a Ray cluster: each is an actor.

    It is started on any node that has room, and replaced if it is lost.  Nodes need
    mpiter and what the dataset imports, installed there or by ``runtime_env``.  The
    dataset's arrays are read-only in the workers, because all workers of a node share
    them.

    Args:
        address: as for ``ray.init``; None means the cluster that the program is
            connected to, else that of this machine, else one that is started here and
            stays until the program ends.
        runtime_env: Ray's ``runtime_env`` of the workers.
        cpus_per_worker: CPUs that each worker requests.
        resources: further resources that each worker requests, such as ``{"loader":
            1}``; they decide where it runs.
        start_timeout: seconds to wait for the first worker to start; after that an
            error is raised.

    >>> from mpiter import batches
    >>> half = Ray(cpus_per_worker=0.5)
    >>> with batches(
    ...     range(6), 4, n_processes=1, shuffle=False, backend=half
    ... ) as stream:
    ...     print(*stream)
    [0 1 2 3] [4 5]
    """

    address: str | None = None
    _: KW_ONLY
    runtime_env: dict[str, Any] | None = None
    cpus_per_worker: float = 1
    resources: dict[str, float] | None = None
    start_timeout: float = 60.0

    name = "ray"
    # Sending a task takes a millisecond or two.
    dear_s = 1.0

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise OptionError(
                "backend='ray' needs Ray, which is not installed: pip install "
                "'mpiter[ray]'."
            )
        seconds("start_timeout", self.start_timeout)
        if str(self.address).startswith("ray://"):
            raise OptionError(
                f"address={self.address!r:.60} is for Ray's client, whose object store "
                "is elsewhere; run the program on a node of the cluster, with "
                "address='auto'."
            )

    def launch(self, cargo: Cargo) -> Launch:
        """Connect to Ray, and put the dataset into its object store."""
        from . import actors

        actors.connect(self.address)
        wanted = {
            "num_cpus": self.cpus_per_worker,
            "runtime_env": self.runtime_env,
            "resources": self.resources,
        }
        pool = partial(actors.Actors, wanted, self.start_timeout)
        return packed(cargo, actors.InStore, pool)
