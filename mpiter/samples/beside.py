"""The memory of arrays in a state: base64 within the JSON, or kept in a list beside it.

Pure.  ``jsonable`` makes one of these for each state, and hands it to the kinds of
leaves whose values are memory.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]


class Beside:
    """Takes the memory of arrays, and gives it back.

    Without a list ``held`` the memory is text in the JSON.
    """

    def __init__(self, held: Any = None) -> None:
        self._held = held

    @property
    def is_of_model(self) -> bool:
        """True for the state of a model, where types are kept less strictly."""
        return self._held is not None

    def keep(self, array: _Array) -> str | int:
        """Return an array's memory as base64, or append it to the list.

        In that case return its index there.
        """
        if self._held is None:
            return text_of(array.tobytes())
        flat = np.ascontiguousarray(array).reshape(-1)
        if flat.nbytes:
            self._held.append(flat.view(np.uint8))
        else:
            # An array without elements, or with elements of no bytes, has no such view.
            self._held.append(np.zeros(0, np.uint8))
        return len(self._held) - 1

    def memory(self, told: object) -> bytearray | _Array:
        """Return the memory that ``keep`` was given."""
        if type(told) is int:
            held: Sequence[_Array] = self._held or ()
            return held[told]
        return bytearray(bytes_of(told))


def text_of(memory: bytes) -> str:
    return b64encode(memory).decode("ascii")


def bytes_of(told: Any) -> bytes:
    return b64decode(told, validate=True)
