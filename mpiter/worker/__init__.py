"""All that runs in a worker.

::

    worker ───────► fetch ◄─────────── block                  board, blackbox
    its beginning   sample by sample   what is asked for,     what it tells of itself,
                    └── sheets         and the answer         alive or dead
                        where it writes

``caller`` is the consumer's own thread as a worker, ``seeding`` ties randomness to places, ``faults`` takes errors
down, ``mail`` brings what is printed, ``info`` says who we are, ``limits`` and ``allocator`` keep libraries modest,
``lifeline`` ends it with its parent, and ``preloaded`` is what the fork server imports.
"""
