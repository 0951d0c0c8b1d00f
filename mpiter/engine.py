"""A loader's workers: one iterator that is sent from epoch to epoch, and stays ready in between.

Runs in the consumer process.  Guarantees that a changed dataset reaches the workers by the next epoch (they are started
anew for it), and that ``timeout`` is an error with a name.
"""

from __future__ import annotations

from typing import Any

from .cursor import Cursor, Plans
from .errors import BatchTimeout
from .iterator import DatasetIterator
from .options import Options


class Engine(DatasetIterator):
    """An iterator over whatever plans it is given."""

    _passing = (BatchTimeout,)  # what is on its way may still come

    def __init__(self, options: Options, opens: Any) -> None:
        super().__init__(options)
        self._opens = opens
        self._way: Plans | None = None

    @property
    def _plans(self) -> Plans:
        assert self._way is not None
        return self._way

    def go(self, plans: Plans, cursor: Cursor, seed: int) -> None:
        """From here on, by these plans."""
        self._way, self._seed = plans, seed
        self._place(cursor)

    def refresh(self) -> None:
        """Have the workers see the dataset as it is now."""
        if self._loop is not None and not self._loop.carries(self._options.cargo):
            self.close()
            self._closed = False

    def start(self) -> None:
        """Fetch ahead from now on, not only when somebody asks."""
        with self._one_at_a_time:
            self._running_loop()

    @property
    def is_hungry(self) -> bool:
        """Would it fetch more if it knew what?"""
        return self._loop is not None and self._loop.is_hungry

    def wake(self) -> None:
        """More is known now of what comes next."""
        if self._loop is not None:
            self._loop.wake()

    @property
    def batches(self) -> int:
        """Handed out in this epoch."""
        return self._cursor.position

    def _is_at_its_end(self) -> bool:
        return False

    def _stalled(self, seconds: float) -> None:
        loop = self._loop
        if loop is not None and self._patience.ends(seconds, loop.is_starting):
            limit = self._options.dataset_timeout
            raise BatchTimeout(
                f"DataLoader timed out after {limit:g} seconds; {loop.doings() or 'the dataset may be stuck'}."
            )
