"""A sample as columns and bytes: mpiter's own serialization.

::

    tree, leaves ───► fitting ──────► layout ────────► batch
    what a sample     a layout for    its pen writes   what the
    consists of       the first one   rows in place    user holds
                                      └── envelope, byvalue: what fits no column, sealed

``tensors`` knows torch's, ``rows`` columns, ``jsonable`` states; ``uneven`` says what becomes of what fits no column
where a batch is stacked; ``reuse`` which samples may wait for others, and ``caution`` what is done about the rest.
"""
