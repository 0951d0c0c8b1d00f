"""``Checkpoint``: a training loop that can be interrupted, and goes on after its last finished step.

::

    held               checkpoint ─────────────► files
    Ctrl-C waits       what is saved, and when   a folder of them, each whole, none unpickled
"""
