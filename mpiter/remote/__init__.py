"""Workers beyond this process's machine: Ray's actors and MPI's ranks.

::

    consumer process                                         workers, anywhere
    loop ──► map_async(fetch, task) ───────────────────────► begin(setup) once, then fetch(task)
             the dataset, once for each node or rank ──────►   mapped, or a copy
             slots ◄── the rows of a batch as packed bytes ◄   beside the ticket
"""

from .mpi import MPI
from .ray import Ray

__all__ = ["MPI", "Ray"]
