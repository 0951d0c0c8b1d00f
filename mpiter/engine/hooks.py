"""The hooks of one loop, which are told what happens to its batches.

Guarantees that a hook which raises is not called again, with one warning, and that it
stops neither the training nor the end of the workers.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

from ..hook import Hook


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
