"""Which samples come next: pure values.

::

    order ───────► cursor ───────────────► horizon             checkpoint
    of an epoch,   a place between two     the next batch      a cursor as JSON,
    at any place   batches, and its step   to be asked for     and back, carefully

``share`` is one rank's part of an order; ``ranks``, which looks around in its process, says which rank that is.
"""
