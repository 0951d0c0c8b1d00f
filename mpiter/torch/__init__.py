"""mpiter for torch: its ``DataLoader``, argument for argument, and tensors in the
memory that workers wrote.
"""

from .device import DevicePrefetcher
from .loader import DataLoader

__all__ = ["DataLoader", "DevicePrefetcher"]
