"""A dataset that is packed for workers elsewhere, and the Pool that takes it there: the same for Ray and MPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..datasets import ship
from ..errors import MpiterError
from ..pool.backends import Launch

_REMEDY = "Open such things in worker_init or on first use, and leave them out in __getstate__."


def launched(cargo: tuple[Any, Any], hold: Any, pool: Callable[..., Any], grows: bool) -> Launch:
    """Pack the dataset, whose buffers ``hold`` keeps; one that can't travel is refused by the attribute's name."""
    try:
        return Launch(ship.Shipment(cargo, hold=hold), pool, ship.by_value, grows)
    except (MemoryError, Warning, MpiterError):
        raise
    except Exception as error:
        raise ship.explain(cargo[0], "dataset", error, _REMEDY) from error
