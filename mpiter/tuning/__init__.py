"""Finds the number of workers and shows where the time goes, by hooks and ``stats()``; the core imports none of it."""

from .bracket import nwt
from .live import Live

__all__ = ["Live", "nwt"]
