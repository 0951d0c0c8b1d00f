"""Imported last by the fork server: limits the threads of loaded libraries once, for all workers forked from it.

So a worker needn't start the libraries' threads just to limit them.
"""

from multiprocessing import popen_forkserver  # noqa: F401  else each worker would import it

from .home import limit_loaded_libraries

limit_loaded_libraries()
