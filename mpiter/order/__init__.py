"""Which samples come next, computed from plain values.

``order`` gives the indices at any position of an epoch.  ``cursor`` plans batches: a
cursor is a position between two batches, a plan describes the next one, or a rank's
part of it.  ``state`` writes a cursor as JSON, and ``ranks`` finds out which rank this
process is.
"""
