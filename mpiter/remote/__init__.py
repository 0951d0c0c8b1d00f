"""Workers that may run on other machines: Ray's actors and MPI's ranks.

::

    consumer process                                         workers, anywhere
    loop ──► map_async(fetch, task) ───────────────────────► begin(setup) once, then fetch(task)
             the dataset, once for each node or rank ──────►   shared by a node, or a rank's own copy
             slots ◄── the rows of a batch as packed bytes ◄   sent with the answer
"""

from .mpi import MPI
from .ray import Ray

__all__ = ["MPI", "Ray"]
