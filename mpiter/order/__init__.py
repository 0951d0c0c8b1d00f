"""Which samples come next: pure values, no process.

::

    order ───────► cursor ───────────────► horizon             checkpoint
    of an epoch,   a place between two     the next batch      a cursor as JSON,
    at any place   batches, and its step   to be asked for     and back, carefully
"""
