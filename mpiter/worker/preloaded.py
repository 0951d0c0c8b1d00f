"""What a fork server imports last: it limits the libraries that are loaded, once for all workers to come.

They needn't wake them to tell them so.
"""

from multiprocessing import popen_forkserver  # noqa: F401  which each worker would import to become one

from .home import limit_loaded_libraries

limit_loaded_libraries()
