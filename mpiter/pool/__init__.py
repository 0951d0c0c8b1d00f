"""Starting, watching and ending workers, by a Pool with the ``map_async`` of ``multiprocessing.Pool``.

::

    backends ───► crew ───────────► pool, anypool ───────────────► pipes
    which Pool    the workers       our Pool of processes;         to one
                  of one iterator   threads, or another Pool       process

``workers`` has the base class of all Pools; ``starting`` starts processes; ``endings`` finds workers that make no
progress, ends them, and says in words why a worker ended.
"""
