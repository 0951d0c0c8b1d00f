"""A dataset on its way to the workers: ``ship`` pickles it once, mapped by all, with what ``variables`` finds set.

``columns`` says whether it is columns or samples, ``access`` how its samples are read; ``packed`` holds many small
objects in one piece of memory.
"""
