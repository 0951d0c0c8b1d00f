"""Chainer's contract, and ``batches()``.

::

    sampling ────────► iterator ────────────────────────► iterators, generate
    how epochs go on   over a pump; with adjustable:      Chainer's names,
                       what is read of it, and set        and batches()
"""
