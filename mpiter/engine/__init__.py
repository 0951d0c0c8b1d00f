"""The prefetch loop, and the pump by which iterators and loaders own it.

::

    options ──────► pump ─────────────────► prefetch ───────────────► communicator
    checked, once   a run from a place on   the loop, in its thread   the bounded queue
                                                                      back to the pump
                                            ├── team, rooms: the workers, and where batches lie
                                            ├── ledger: rows not yet finished, cut into blocks
                                            └── recovery: what a worker's end means for them

``alone`` is the pump without workers, ``hook`` how others hear of what happens, ``run`` what pump and loop say to each
other, ``outcome`` what becomes of a batch, ``lifetime`` when a loop ends.
"""
