"""The passes over loaders that give the steps of a training.

What is saved says where a pass is, and how many epochs of ``c.epochs()`` are complete.
A program that counts its passes in another way would make too many of them after it is
resumed, so it is warned, once, as soon as that shows.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import OptionError, warn
from .parts import Parts, gives_batches


class Passes:
    """The passes within the present epoch of ``c.epochs()``.

    Without such epochs they are those of the whole program.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # The number of the first pass in which a loader has given steps, by the
        # loader's name.  It is saved.
        self.first: dict[str, int] = {}
        self._has_warned = False

    def check_source(self, batches: Iterable[object], givers: list[str]) -> None:
        """Raise an OptionError if no part has given the first batch of ``batches``."""
        if givers:
            return
        # A part may be another library's loader, of whose place we know nothing.
        for part in self._parts.by_name.values():
            if part is batches or gives_batches(part):
                return
        raise OptionError(
            "no part of this checkpoint has given the batch of "
            f"c.steps({type(batches).__name__}), so its place would not be saved: make "
            "a loader of mpiter (mpiter.torch.DataLoader for torch's), pass it to "
            "Checkpoint, and write  for x in c.steps(loader): …  If no loader is "
            "needed, call c.step() after each step instead."
        )

    def note(self, givers: list[str], within_epoch: bool) -> None:
        """Note the passes of the loaders that have given a step, by their names.

        Warn if all of these passes are later than the loaders' first ones.
        """
        later = []
        for name in givers:
            number = self._parts.pass_of(name)
            if self.first.setdefault(name, number) != number:
                later.append(name)
        # A short loader may well go round several times within the pass of a long one.
        if later and later == givers:
            within = "outside of c.epochs()"
            if within_epoch:
                within = "within one epoch of c.epochs()"
            self._warn(
                f"another pass over a loader has begun {within}, so nothing saved says "
                "how many are left, and a program that is resumed would make too "
                "many.  Write  for epoch in c.epochs(n):  around  for x in "
                "c.steps(loader): …; to train for a number of steps, write  for x in "
                "c.steps(loader, until=n): …"
            )

    def end(self, are_more: bool) -> None:
        """End an epoch: loaders that have given their last batch have ended their pass.

        A program that is resumed begins a new pass over these, as the present one does.
        Over a loader that was left before its end, the present one begins a new pass
        and a resumed one goes on: that is warned of if it has given steps in its first
        pass of this epoch, and there ``are_more`` epochs.
        """
        unfinished = []
        for name, loader in self._parts.loaders.items():
            has_ended = not hasattr(loader, "end_pass") or loader.end_pass()
            is_first = self.first.get(name) == self._parts.pass_of(name)
            if is_first and not has_ended:
                unfinished.append(name)
        if unfinished and are_more:
            self._warn(
                "a loop over c.steps(loader) was left before its end, so the next "
                "epoch begins another pass over the loader, where a program that is "
                "resumed goes on in this one.  Let the loop come to its end; to do "
                "something after each 100 steps, say, look at c.finished within one "
                "loop over an iterator without end."
            )
        self.first.clear()

    def warn_without_steps(self) -> None:
        """Warn of batches that were handed out though no step was ever finished."""
        self._warn(
            "no step has been finished, so nothing can be saved within an epoch: "
            "write  for x in c.steps(loader): …  in place of  for x in loader: …, or "
            "call c.step() after each step."
        )

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(text)
