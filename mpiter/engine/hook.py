"""The engine's one seam: a hook is told what happens to the batches of one iterator.

A trace, a pilot, receipts, and a dataset that has its samples copied ahead are hooks.  ``Options.hooks`` makes them
anew for each loop, which closes them when it ends.  Guarantees that a hook which raises is told nothing more, which is
said once, and that it stops neither the training nor the end of the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..errors import told

if TYPE_CHECKING:
    from ..order.cursor import Cursor, Plan, Plans
    from ..worker.block import Done
    from .run import Delivery


class Hook:
    """Every method does nothing: a hook has those that it wants, and they come back at once."""

    loop: Any = None  # what fetches, once it has begun

    def __getstate__(self) -> dict[str, Any]:
        """A dataset may travel to workers with its hook, but not with what fetches."""
        return {name: value for name, value in vars(self).items() if name != "loop"}

    # -- in the prefetch thread; without workers only the first two, in the consumer's ---------------------------

    def planned(self, plan: Plan, plans: Plans, began: float, ended: float) -> None:
        """One more batch is on its way; ``plans`` says what comes after it."""

    def answered(self, done: Done) -> None:
        """A worker has fetched a block."""

    def queued(self, began: float, ended: float) -> None:
        """Finished batches wait for the consumer."""

    def in_flight(self, batches: int, ready: int) -> None:
        """So many batches are on their way, and so many of them are ready."""

    def lost(self, worker: int, was_asked: bool) -> None:
        """A worker is no more: it had been asked to end, or it died."""

    def resized(self, workers: int, n_prefetch: int) -> None:
        """From now on there are so many workers, and batches that may wait."""

    # -- in the consumer's thread --------------------------------------------------------------------------------

    def begun(self, cursor: Cursor, plans: Plans) -> None:
        """Batches come from here on."""

    def waited(self, began: float, ended: float) -> None:
        """``next()`` has waited for a batch."""

    def handed_out(self, delivery: Delivery, samples: int | None, began: float, ended: float) -> None:
        """The user is about to get a batch of so many samples; None: an error in its place, nothing of it, or the end.

        ``began`` and ``ended`` say when it was made ready.
        """

    def close(self) -> None:
        """Nothing more will happen; may be called again, from any thread."""


class Hooks:
    """The hooks of one loop."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks = list(hooks)
        self._warn: Callable[[str], None] = lambda text: None

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def begin(self, loop: Any) -> None:
        """``loop`` is what fetches, and what tells the user something."""
        self._warn = loop.mail.warn
        for hook in self._hooks:
            hook.loop = loop

    def tell(self, event: Callable[..., None], *what: Any) -> None:
        """Call the method that ``Hook`` has for it: ``tell(Hook.lost, worker, was_asked)``."""
        for hook in self._hooks:
            try:
                getattr(hook, event.__name__)(*what)
            except Exception as error:
                self._hooks = [one for one in self._hooks if one is not hook]  # the other thread may do the same
                self._warn(
                    f"{type(hook).__name__}.{event.__name__}() has failed and is told nothing more: {told(error)}"
                )
                if event is not Hook.close:
                    Hooks([hook]).tell(Hook.close)
