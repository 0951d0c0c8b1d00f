"""Trainings that can be interrupted anywhere, and go on where they were.

::

    checkpoint     Checkpoint: a `with` block that knows where a step ends, and holds signals back until then
       │ a snapshot: the states of all parts at the end of a step
       ▼
    saver          writes snapshots one at a time, beside the training
       ▼
    file           one file, whole or not at all ──► kept: further names for some of them, by their step
"""
