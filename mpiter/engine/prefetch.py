"""The prefetch loop: a thread that takes one turn after the other, and what the consumer has of it.

Guarantees that it ends its workers itself, so that it can be stopped from any thread, the garbage collector's included.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from ..errors import could_not_start
from ..pool.crew import Callbacks
from ..pool.starting import never_interrupted
from ..worker.board import COUNTED, Line
from .communicator import Terminated
from .ledger import Ledger
from .loop import _Loop
from .recovery import doings
from .run import Delivery, Run

_CLOSE_S = 4.5  # how long an end may take
_counted = attrgetter(*COUNTED)


class _PrefetchLoop(_Loop):
    """One iterator's."""

    def launch(self, run: Run) -> None:
        """Start the workers, in the caller's thread, then the loop."""
        self._staff(run)
        thread = threading.Thread(target=self._work, name="mpiter-prefetch", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise could_not_start(error) from error
        self._thread = thread

    def _staff(self, run: Run) -> None:
        self._crew = self._make_crew(
            Callbacks(self._bell, self.mail.warn, self._lose_worker, self._ledger.destinations)
        )
        self._communicator.reset(run.number)
        self._begin(run)

    def go(self, run: Run) -> None:
        """Drop all that is on its way and go on from another place."""
        self._communicator.reset(run.number)
        self._runs.append(run)
        self.wake()

    def get(self, stalled: Callable[[float], None], glance_s: float) -> Delivery:
        """The next delivery, waiting for it; ``stalled`` is told from time to time how long."""
        return self._communicator.get(self._is_alive, stalled, glance_s)

    def show_wait(self, lasts: bool) -> None:
        """Have the notice board say that ``next()`` waits and waits, or no longer."""
        if lasts != self._wait_lasts:
            self._wait_lasts = lasts
            self.wake()

    def _is_alive(self) -> bool:
        return self._thread is None or self._thread.is_alive()

    def stop(self) -> None:
        """Ask for the end; from any thread, at any time."""
        self._stopping = True
        self._communicator.terminate()
        self.wake()
        if self._thread is None:
            self._dispose()

    def join(self, timeout: float = _CLOSE_S) -> None:
        """Wait until everything is gone; ``stop`` comes before."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout + 0.3)
            if not self._thread.is_alive():
                self._dispose()

    def carries(self, cargo: Any) -> bool:
        """Would the workers see the same if ``cargo`` were sent to them now?"""
        return self._crew is not None and self._crew.carries(cargo)

    def was_hungry(self) -> bool:
        was, self._is_hungry = self._is_hungry, False
        return was

    @property
    def lines(self) -> list[Line]:
        """What each worker does right now."""
        return self._crew.board() if self._crew else []

    def doings(self) -> str:
        """What the workers are at, for a consumer who has to wait."""
        return doings(self._crew, self._ledger) if self._crew else ""

    # -- its thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        never_interrupted()
        try:
            while not self._stopping:
                self._turn()
                self._publish()
        except Terminated:
            pass
        finally:
            self._dispose()

    def _publish(self) -> None:
        """What has been counted, for whoever looks from another process."""
        crew, tally = self._crew, self.tally
        if crew is not None and crew.is_staffed:
            now = len(self._communicator), self._in_flight, self._transport.room_bytes
            waits = time.monotonic() if self._wait_lasts else 0.0
            crew.publish(tally.began or 0.0, waits, (*_counted(tally), self._recovery.restarts, crew.width, *now))

    def _dispose(self) -> None:
        self._communicator.terminate()
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.dispose(_CLOSE_S)
        self._bell.close()
        self._observing.close()
        self._ledger = Ledger()
        self.tally.close()
