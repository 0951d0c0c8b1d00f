"""Where an iterator stands, in the words that Chainer's trainers, triggers and progress bars read.

Describes what has been handed out, never what is prefetched.
"""

from __future__ import annotations

from .cursor import Cursor


class Progress:
    """Chainer's names for the parts of a cursor."""

    _cursor: Cursor

    @property
    def epoch(self) -> int:
        return self._cursor.epoch

    @property
    def current_position(self) -> int:
        return self._cursor.position

    @property
    def is_new_epoch(self) -> bool:
        return self._cursor.is_new_epoch

    @property
    def epoch_detail(self) -> float:
        return self._cursor.epoch_detail

    @property
    def previous_epoch_detail(self) -> float | None:
        detail = self._cursor.previous_epoch_detail
        return None if detail < 0 else detail
