"""A dataset that is packed for workers elsewhere, and the Pool that takes it there: the same for Ray and MPI.

Runs in the consumer process.  Guarantees that a dataset which cannot travel is refused by the name of its attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..datasets import ship
from ..errors import MpiterError

_REMEDY = "Open such things in worker_init or on first use, and leave them out in __getstate__."


class Launched:
    """Workers about to start; ``hold`` says where the dataset's buffers lie, ``pool`` makes the workers."""

    def __init__(self, cargo: tuple[Any, Any], hold: Any, pool: Callable[..., Any], grows: bool) -> None:
        try:
            self.cargo = ship.Shipment(cargo, hold=hold)
        except (MemoryError, Warning, MpiterError):
            raise
        except Exception as error:
            raise ship.explain(cargo[0], "dataset", error, _REMEDY) from error
        self.pool, self.grows = pool, grows
        self.dumps, self.carries, self.close = ship.by_value, self.cargo.holds, self.cargo.close
