"""Who is told of each batch as it is planned: a dataset that has its samples copied ahead, for instance.

A seam, of the prefetch thread.  A dataset may have a method ``plan_observer()``, which makes an observer for each
iterator over it.  Guarantees that observers are closed with their loop, and that one that fails is told nothing more,
which is said once, and stops nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..errors import told
from ..order.cursor import Plan, Plans


class Observer(Protocol):
    """Comes back soon, whatever it is told."""

    def planned(self, plan: Plan, plans: Plans) -> None:
        """One more batch is on its way; ``plans`` says what comes after it."""

    def close(self) -> None:
        """Nothing more will be planned; may be called again, from any thread."""


class Observing:
    """A loop's observer, or nobody."""

    def __init__(self, make: Callable[[], Observer] | None, warn: Callable[[str], None]) -> None:
        self._make, self._warn = make, warn
        self._observer: Observer | None = None

    def planned(self, plan: Plan, plans: Plans) -> None:
        if self._make is None:
            return
        try:
            if self._observer is None:
                self._observer = self._make()
            self._observer.planned(plan, plans)
        except Exception as error:
            self.close()
            self._warn(f"the dataset's plan_observer has failed and is told nothing more: {told(error)}")

    def close(self) -> None:
        observer, self._observer, self._make = self._observer, None, None
        if observer is not None:
            observer.close()
