"""Workers that may run on other machines: Ray's actors and MPI's ranks."""

from .mpi import MPI
from .ray import Ray

__all__ = ["MPI", "Ray"]
