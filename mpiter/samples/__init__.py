"""Samples as columns and bytes: mpiter's own serialization.

``kinds`` has a class for each kind of value, ``tree`` says what a sample consists of
and where columns lie, ``writing`` fetches samples into them, ``batch`` is what the user
gets.  ``envelope``, ``byvalue`` and
``classes`` pickle values that fit no column.  ``tensors`` handles torch's tensors,
``jsonable`` writes states as JSON, ``copying`` copies samples where needed.
"""
