"""The iterators with Chainer's interface, and ``batches()``.

::

    iterator ─────────────────────────► iterators
    how epochs go on, over a pump;      Chainer's names, and batches(),
    what may be changed; the state      and their options
"""
