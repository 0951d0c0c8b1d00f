"""Trainings that can be interrupted anywhere, and go on where they were.

::

    checkpoint   Checkpoint: a `with` block that knows where a step ends, and holds
       │   │     signals back until then
       │   ├──── passes: which passes over loaders give the steps, and which can't be
       │   │     resumed
       │   └──── agreement: what all ranks of a training decide together
       │           └──► ranks: how they talk
       │ parts: their states at the end of a step, as a snapshot
       ▼
    saver        writes snapshots one at a time, beside the training; in rank 0 only
       ▼
    file         one file, whole or not at all
       └──► kept: further names for some files, by their step
"""
