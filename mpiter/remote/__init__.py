"""Workers beyond this process's machine: a backend each for who starts them.

::

    consumer process                                         others' processes, anywhere
    loop ──► Workers.map_async(fetch, task) ───────────────► begin(setup) once, then fetch(task)
             cargo: the dataset, once for each node ───────►   mapped, read-only
             rooms ◄── rows, packed into one array ◄────────   beside the ticket

Beside them, receipts: what a rank was handed, noted (``receipts``) and judged (``audit/``).

``backend="ray"`` or ``Ray(…)``, and ``backend="mpi"`` or ``MPI()``, are what the iterators, ``batches()`` and
``DataLoader`` take as ``backend=``.
"""

from .mpi import MPI
from .ray import Ray

__all__ = ["MPI", "Ray"]
