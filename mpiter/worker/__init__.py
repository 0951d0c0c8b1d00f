"""All that runs in a worker.

::

    worker ───────► fetch ◄─────────── block                  board
    its beginning   sample by sample   what is asked for,     what it tells of itself,
                    └── sheets         and the answer         alive or dead
                        where it writes

``caller`` is the consumer's own thread as a worker, ``here`` says what a thread is fetching, ``seeding`` ties
randomness to places, ``mail`` brings what is printed, ``home`` makes a process a good worker that ends with its
parent, ``preloaded`` is what the fork server imports.
"""
