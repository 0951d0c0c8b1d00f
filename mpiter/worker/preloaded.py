"""Imported last by the fork server: limits the threads of loaded libraries once, for all workers forked from it."""

from .home import limit_loaded_libraries

limit_loaded_libraries()
