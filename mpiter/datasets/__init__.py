"""A dataset on its way to the workers, with what the program has set.

::

    ship ◄───────── program ◄──────────────── settings
    pickled once,   what is set, taken down   of the process and
    mapped by all   here and put there        of known libraries
                    ├── variables, plain, putting: those of the program's modules
                    └── reach: which of them the dataset's code can come upon

``columns`` says whether it is columns or samples, ``access`` how its samples are read; ``packed`` holds many small
objects in one piece of memory.
"""
