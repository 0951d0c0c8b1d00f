"""Finds the number of workers, and records where the time goes.

The core imports nothing of it.
"""

from .trace import Trace

__all__ = ["Trace"]
