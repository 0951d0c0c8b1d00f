"""Samples as columns and bytes: mpiter's own serialization.

::

    tree ────────────────────► writing ───────────────► batch
    what a sample consists     the loop that fetches    what the
    of, where columns lie      samples into columns     user gets
                               └── envelope, byvalue: values that fit no column, pickled

``tensors`` handles torch's tensors, ``jsonable`` writes states as JSON, ``copying`` copies samples where needed.
"""
