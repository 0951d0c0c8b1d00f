"""Where a row is made of several samples: those that fail are left out of it, each with a fault of its own.

Runs in workers: whoever makes such rows says here what has failed, and ``fetch`` hears of it.
"""

from __future__ import annotations

from typing import Any, Protocol

from .here import here as _here


class Hearer(Protocol):
    """Whoever fetches the row."""

    def part(self, error: BaseException, key: Any, at: int) -> None:
        """The sample with this key, number ``at`` of the row's, has failed."""

    def let_pass(self, error: BaseException) -> None:
        """Raise again what is not the dataset's."""


class AllLeftOut(Exception):
    """Nothing is left of a row, of which a sample has been told of."""


class NotOfASample(Exception):
    """It is no sample that has failed, but what was to be made of them; the cause says how."""


def tell(hearer: Hearer | None) -> Hearer | None:
    """Set who hears of this thread's failures; returns who did before."""
    before: Hearer | None = _here.now.hearer
    _here.now.hearer = hearer
    return before


def leave_out(error: BaseException, key: Any, at: int) -> None:
    """This sample has failed, which is number ``at`` of the row's."""
    if _here.now.hearer is None:
        raise error
    _here.now.hearer.part(error, key, at)


def let_pass(error: BaseException) -> None:
    """Raise again what must not be taken for a sample's failure: Ctrl-C in the caller's own thread."""
    if _here.now.hearer is None:
        raise error
    _here.now.hearer.let_pass(error)
