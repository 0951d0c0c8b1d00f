"""The prefetch loop, and the pump by which iterators and loaders own it.

::

    options ─────► pump ───────────────► prefetch ─────────────► communicator
    checked, once  a run from a place on the loop, in its thread the bounded queue
                                                                 back to the pump
                                         ├── team, rooms: the workers, and where
                                         │   batches lie
                                         ├── ledger: rows not yet finished, cut
                                         │   into blocks
                                         └── recovery: what a worker's end means
                                             for them

``alone`` is the pump without workers, ``hook`` tells others what happens, ``delivery``
is a batch on its way, ``lifetime`` ends forgotten loops.

A *plan* describes one coming batch, a *run* is the batches from one position on.
Workers fetch a batch in *blocks*, contiguous rows of it, and write them into its
*room*, a *slot* of shared memory; what fits no column is sent aside.
"""
