"""Datasets: how their samples are read, and how they are sent to the workers.

``columns`` finds out whether data is columns or samples, and how samples are read.
``ship`` pickles a dataset once for all workers, ``variables`` sends what the program
has set, ``packed`` keeps many small objects in shared memory.
"""
