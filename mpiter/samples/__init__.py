"""A sample as columns and bytes: mpiter's own serialization.

::

    tree ────────────────────► writing ───────────────► batch
    what a sample consists     the loop that fetches    what the
    of, where columns lie      samples into columns     user holds
                               └── envelope, byvalue: what fits no column, sealed

``tensors`` knows torch's, ``jsonable`` states; ``copying`` looks after samples that travel by reference.
"""
