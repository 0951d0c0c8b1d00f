"""Workers are started, watched and ended here: by a Pool with ``multiprocessing.Pool``'s ``map_async``.

::

    backends ───► crew ───────────► pool, threads, anypool ──────► member, pipes
    which Pool    the workers       ours, of processes or          one process,
                  of one iterator   threads, or any other          its two pipes

``starting`` starts processes; ``watch`` sees which worker makes no progress, by a ``stopwatch`` of the time in which we
run; ``endings`` says which worker died of what, and ends a stuck one.
"""

from .pool import Pool

__all__ = ["Pool"]
