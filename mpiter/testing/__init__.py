"""Checks for the tests of your program.

Can workers load a dataset, and do loaders and trainings resume exactly?

::

    dataset       check_dataset: fetches samples here and in workers
    resume        check_resume: a loader from each of its states …
      └► training       … or a training, interrupted at many places
           │ runs it again and again: here, or in
           ├► processes  the processes of several ranks
           └► interrupting  counts the lines that a run comes to, and interrupts it at
                            one of them
    same          compares what came

Both raise an AssertionError that names cause and remedy; an error of a sample or of a
training is raised as it is.
"""

from .dataset import DatasetReport, check_dataset
from .resume import check_resume

__all__ = ["DatasetReport", "check_dataset", "check_resume"]
