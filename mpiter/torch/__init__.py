"""The door for torch: its ``DataLoader``, argument for argument, and tensors on the memory that workers wrote.

``loader`` has torch's class, ``tensors`` the collating.
"""

from ..device import DevicePrefetcher
from .loader import DataLoader, StatefulDataLoader
from .tensors import tensors

__all__ = ["DataLoader", "DevicePrefetcher", "StatefulDataLoader", "tensors"]
