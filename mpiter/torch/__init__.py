"""mpiter for torch: its ``DataLoader``, argument for argument.

Batches are tensors in the memory that workers wrote.
"""

from .device import DevicePrefetcher
from .loader import DataLoader

__all__ = ["DataLoader", "DevicePrefetcher"]
