"""The prefetch loop, and the pump by which iterators and loaders own it.

::

    options ──────► pump ─────────────────► prefetch ───────────────► communicator
    checked, once   a run from a place on   the loop, in its thread   the bounded queue
                                                                      back to the pump
                                            ├── first_sample, runahead: how far it may go
                                            ├── ledger, cutting: rows not yet finished, as tasks
                                            └── recovery: what a worker's end means for them

``run`` is what pump and loop say to each other, ``outcome`` what becomes of a batch, ``lifetime`` when a loop ends.
"""
