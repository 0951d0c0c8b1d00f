"""Workers that may run on other machines: Ray's actors and MPI's ranks."""

from collections.abc import Callable

from ..pool.backends import Backend
from .mpi import MPI
from .ray import Ray

__all__ = ["MPI", "Ray"]

# What ``backend="ray"`` and ``backend="mpi"`` stand for.
BY_NAME: dict[str, Callable[[], Backend]] = {"ray": Ray, "mpi": MPI}
