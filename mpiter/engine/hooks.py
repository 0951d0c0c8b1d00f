"""The hooks of one loop, which are told what happens to its batches.

Guarantees that a hook which raises is not called again, with one warning, and that it
stops neither the training nor the end of the workers; and that hooks are told the same
of a batch whoever fetches it, and whether a row is one of its samples or all of them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from ..hook import Hook
from ..order.cursor import Cursor, Plan, Stretch
from ..samples.sizes import nbytes_of
from ..worker.block import Fault
from .delivery import Delivery

_row = attrgetter("row", "position")


@dataclass(frozen=True, slots=True)
class ToldPlan:
    """What hooks are told of a plan: a ``Planned``."""

    _plan: Plan

    @property
    def number(self) -> int:
        return self._plan.number

    @property
    def rows(self) -> int:
        return self._plan.rows

    @property
    def samples(self) -> int | None:
        plan = self._plan
        if not plan.has_keys:
            return None
        if plan.samples is None:
            return plan.rows
        return plan.samples

    @property
    def fills(self) -> int:
        return self._plan.fills

    @property
    def stretches(self) -> Iterable[Stretch]:
        plan = self._plan
        if not plan.has_keys:
            return ()
        if plan.samples is None:
            return plan.stretches
        # One worker makes the batch, and the key of this row is a list of them.
        [row] = plan.stretches
        [keys] = row.indices
        return (row._replace(indices=tuple(keys)),)

    @property
    def before(self) -> Cursor:
        return self._plan.before

    @property
    def after(self) -> Cursor:
        return self._plan.after


@dataclass(frozen=True, slots=True)
class ToldDelivery:
    """What hooks are told as a delivery is handed out: a ``HandedOut``."""

    _delivery: Delivery
    # What the user gets; None if that is no batch.
    _batch: Any
    error: BaseException | None

    @property
    def plan(self) -> ToldPlan:
        return ToldPlan(self._delivery.plan)

    @property
    def faults(self) -> Sequence[Fault]:
        # They came in the sequence in which workers answered.
        return sorted(self._delivery.faults, key=_row)

    @property
    def nbytes(self) -> int:
        return nbytes_of(self._batch)

    @property
    def is_empty(self) -> bool:
        return self._delivery.is_empty

    @property
    def is_end(self) -> bool:
        return self._delivery.is_end


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
