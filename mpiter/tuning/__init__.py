"""How many workers, and where the time goes: on the engine's hooks and ``stats()``; the core imports nothing of it."""

from .bracket import nwt
from .live import Live

__all__ = ["Live", "nwt"]
