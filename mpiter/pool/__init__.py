"""Who starts workers, watches and ends them: a Pool with ``multiprocessing.Pool``'s interface.

::

    backends ───► crew ───────────► pool, anypool ──────► member, pipes
    which Pool    the workers       ours, or any other,   one process,
                  of one iterator   with its results      its two pipes

``starting`` starts processes; ``watch`` sees which worker makes no progress, by a ``stopwatch`` of the time in which we
run; ``endings`` says which worker died of what, and ends a stuck one.
"""

from .pool import Pool

__all__ = ["Pool"]
