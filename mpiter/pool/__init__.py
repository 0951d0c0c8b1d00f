"""Workers are started, watched and ended here: by a Pool with ``multiprocessing.Pool``'s ``map_async``.

::

    backends ───► crew ───────────► pool, anypool ───────────────► pipes
    which Pool    the workers       ours, of processes;            of one
                  of one iterator   threads, or any other          process

``workers`` has what all Pools share; ``starting`` starts processes; ``endings`` sees which worker makes no progress,
ends it, and says which one died of what.
"""

from .pool import Pool

__all__ = ["Pool"]
