"""A loop asks one of our loaders or iterators for its next batch, and gets it: open ``Checkpoint``s are told of both.

Runs in whatever thread asks.  Guarantees that ``asked`` is told before anything of the source has changed, so that
what is raised there loses and repeats no batch.
"""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    def asked(self, source: object) -> None:
        """The next batch of ``source`` is asked for."""

    def given(self, source: object, iterator: object) -> None:
        """It is handed out, by ``iterator``, which lives as long as its loop does."""


listeners: list[Listener] = []


def asked(source: object) -> None:
    for listener in tuple(listeners):
        listener.asked(source)


def given(source: object, iterator: object) -> None:
    for listener in tuple(listeners):
        listener.given(source, iterator)
