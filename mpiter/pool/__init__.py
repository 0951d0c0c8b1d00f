"""Starting, watching and ending workers, by a Pool of our own.

::

    backends ───► crew ───────────► pool, anypool ───────────────► pipes
    which Pool    the workers       our Pool of processes;         to one
                  of one iterator   threads, or another Pool       process

A Pool has the ``map_async`` of ``multiprocessing.Pool``, and ``workers`` has the base
class of all; ``starting`` starts processes; ``endings`` finds workers that make no
progress, ends them, and says in words why a worker ended.
"""
