"""What a fork server imports last: it limits the libraries that are loaded, once for all workers to come."""

from multiprocessing import popen_forkserver  # noqa: F401  which each worker would import to become one

from .limits import limit_fork_server

limit_fork_server()
