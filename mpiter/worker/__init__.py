"""All that runs in a worker.

::

    worker ───────► fetch ◄─────────── task                   board, blackbox
    its beginning   sample by sample   what is asked for,     what it tells of itself,
                                       and the answer         alive or dead

``seeding`` ties randomness to places, ``faults`` takes errors down, ``mail`` brings what is printed, ``info`` says who
we are, ``limits`` and ``allocator`` keep libraries modest, ``lifeline`` ends it with its parent, and ``preloaded`` is
what the fork server imports.
"""
