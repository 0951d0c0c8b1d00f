"""Samples as columns and bytes: mpiter's own serialization.

``kinds`` has a class for each kind of value, ``tree`` says what a sample consists of
and where columns lie, ``writing`` fetches samples into them, ``ragged`` holds rows of
several lengths (``jagged`` hands them out), ``batch`` is what the user gets.
``envelope``, ``byvalue`` and ``classes`` pickle values that fit no column.  ``tensors``
and ``jax_arrays`` handle other libraries' arrays, ``jsonable`` writes states as JSON
(``beside`` has their memory), ``copying`` copies samples where needed.  ``leaf`` has
the kinds that a program adds.
"""
