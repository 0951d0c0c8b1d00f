"""A sample as columns and bytes: mpiter's own serialization.

::

    tree, leaves ───► layout ────────► writing ───────────────► batch
    what a sample     where columns    the loop that fetches    what the
    consists of       lie              samples into columns     user holds
                                       └── envelope, byvalue: what fits no column, sealed

``tensors`` knows torch's, ``rows`` columns, ``jsonable`` states; ``uneven`` says what becomes of what fits no column
where a batch is stacked; ``copying`` looks after samples that travel by reference.
"""
