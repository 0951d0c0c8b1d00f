"""Hooks: objects whose methods are called when something happens to a loop's batches.

A trace, receipts, and the copying ahead of a staged dataset are hooks.  Guarantees that
a hook which raises is not called again, with one warning, and that it stops neither the
training nor the end of the workers.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..order.cursor import Cursor, Plan, Plans
    from ..worker.block import Done
    from .delivery import Delivery


class Hook:
    """The base class of all hooks; each method does nothing unless it is overridden.

    A method must return quickly.  Each loop has hooks of its own.  ``waited`` comes
    before the ``handed_out`` of its batch, perhaps several times.  A dataset must not
    keep the hook that its ``mpiter_hook()`` returns, since workers get a copy of the
    dataset.
    """

    # -- in the prefetch thread; without workers only the first two, in the consumer's -

    def planned(self, plan: Plan, plans: Plans, began: float, ended: float) -> None:
        """A batch was planned, which took from ``began`` to ``ended``.

        ``plans`` plans the batches after it.
        """

    def answered(self, done: Done) -> None:
        """A worker has fetched a block (rows of one batch)."""

    def in_flight(self, batches: int, ready: int) -> None:
        """``batches`` batches are in flight, and ``ready`` of them are finished."""

    def lost(self, worker: int) -> None:
        """A worker has died, and is replaced."""

    # -- in the consumer's thread ------------------------------------------------------

    def begun(self, cursor: Cursor, plans: Plans) -> None:
        """A run (the batches from one position on) begins at ``cursor``."""

    def waited(self, began: float, ended: float) -> None:
        """``next()`` has waited for a batch between these times."""

    def handed_out(
        self,
        delivery: Delivery,
        samples: int | None,
        began: float,
        ended: float,
    ) -> None:
        """The user is about to get a batch of ``samples`` samples.

        It was opened between the times ``began`` and ``ended``.  ``samples`` is None
        for an error, an empty batch or the end.
        """

    def close(self) -> None:
        """The loop has ended, or its iterator was collected.

        May be called several times, later, from any thread.
        """


# Makes the object for trace= or receipts= from a path.
BY_OPTION: dict[str, Callable[[str], Any]] = {}


class Hooks:
    """The hooks of one loop, which sets ``warn``, a function that warns the user."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks = list(hooks)
        self.warn: Callable[[str], None] = lambda text: None

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def tell(self, event: Callable[..., None], *what: object) -> None:
        """Call a method of every hook: ``tell(Hook.answered, done)``."""
        for hook in self._hooks:
            try:
                getattr(hook, event.__name__)(*what)
            except Exception:
                # A new list, since the other thread may be going through the old one,
                # and may drop a hook of its own at the same time.
                self._hooks = [one for one in self._hooks if one is not hook]
                name = f"{type(hook).__name__}.{event.__name__}()"
                why = traceback.format_exc()
                self.warn(f"{name} has failed; this hook is called no more:\n{why}")
                # What it holds, a file say, it can still give back.
                if event is not Hook.close:
                    Hooks([hook]).tell(Hook.close)
