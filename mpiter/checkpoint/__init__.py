"""Trainings that can be interrupted anywhere, and go on where they were.

::

    checkpoint   Checkpoint: a `with` block that knows where a step ends
       │   │
       │   ├──── ending: holds signals back until then, and delivers them
       │   └──── agreement: what all ranks of a training decide together
       │           └──► ranks: how they talk
       │ progress: how far the training is, and where its loaders are
       │   ├──── passes: which passes over loaders give the steps, and which can't be
       │   │     resumed
       │   └──── parts: the states of all that is saved
       ▼
    saving       when and how a step is saved, as the plan says; and who is told if it
       │         can't be
       ▼
    saver        writes snapshots one at a time, beside the training; in rank 0 only
       ▼
    file         one file, whole or not at all
       └──► kept: further names for some files, by their step
"""
