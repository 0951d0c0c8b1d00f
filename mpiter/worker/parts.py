"""Where a row is made of several samples: those that fail are left out of it, each with a fault of its own.

Runs in workers: whoever makes such rows says here what has failed, and ``fetch`` hears of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Hear = Callable[[BaseException, Any, int], None]  # the error, the sample's key, and which of the row's samples it is


class AllLeftOut(Exception):
    """Nothing is left of a row; each of its samples has been told of."""


class NotOfASample(Exception):
    """It is no sample that has failed, but what was to be made of them; the cause says how."""


class _Here(threading.local):
    hear: Hear | None = None


_here = _Here()


def tell(hear: Hear | None) -> None:
    """From now on, in this thread, to whom."""
    _here.hear = hear


def leave_out(error: BaseException, key: Any, at: int) -> None:
    """This sample has failed."""
    if _here.hear is None:
        raise error
    _here.hear(error, key, at)
