"""What a fork server imports last: it limits the libraries that are loaded, once for all workers to come."""

from .limits import limit_fork_server

limit_fork_server()
