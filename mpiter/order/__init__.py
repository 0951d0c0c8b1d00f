"""Which samples come next, as pure values.

``order`` says it at any place of an epoch; a ``cursor`` is a place between two batches, and makes the plan of the next,
of all of an order or a rank's share of it; ``horizon`` says which batch is to be asked for; ``state`` writes a cursor
as JSON.  ``ranks``, which looks around in its process, says which rank this is.
"""
