"""A dataset on its way to the workers, with what the program has set.

::

    ship            pickled once, mapped by all
    ├── settings    what is set in the process and in known libraries
    └── variables   what is set in the program's own modules

``columns`` says whether it is columns or samples, ``access`` how its samples are read; ``packed`` holds many small
objects in one piece of memory.
"""
