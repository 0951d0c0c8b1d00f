"""Chainer's contract, and ``batches()``.

::

    options ───────────► iterator ────────────────► iterators, generate
    which all have        how epochs go on, a pump,  Chainer's names,
    in common             attributes and the state   and batches()
"""
