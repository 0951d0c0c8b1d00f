"""The code that runs in a worker.

::

    worker ───────► fetch ◄─────────── block                  board
    how it starts   sample by sample   the rows to fetch,     what it is doing,
                    └── sheets         and the answer         and its last stack
                        where it writes

In ``caller`` the consumer's own thread acts as a worker.  ``here`` knows what a thread
is fetching, ``seeding`` makes random draws depend on the sample's position, ``home``
sets up worker processes and ends them with their parent.
"""
