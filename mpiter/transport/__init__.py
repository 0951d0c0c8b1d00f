"""Memory that carries batches from workers to the consumer.

::

    memory ───► slots ──────► transports             transport
    the arena   its ranges,   slots, and packed:     what the engine
    (a memfd)   lent          copied once            knows of them
"""
