"""Memory that carries batches from workers to the consumer.

::

    memory ───► slots
    the arena   its ranges, one
    (a memfd)   for each batch
"""
