"""Who starts workers, watches and ends them: a Pool with ``multiprocessing.Pool``'s interface.

::

    backends ───► crew ───────────► pool, anypool ──────► member, pipes
    which Pool    the workers       ours, or any other,   one process,
                  of one iterator   with its results      its two pipes

``starting`` starts processes; ``watch`` and ``standstill`` see who makes no progress, by a ``stopwatch`` of the time in
which we run; ``endings`` says who died of what, and ends who is stuck.
"""

from .pool import Pool

__all__ = ["Pool"]
