"""How far a training is, and where its loaders were after its last finished step.

That is what is saved beside the parts: a loader's present place may be a batch ahead of
the model.
"""

from __future__ import annotations

from .parts import Parts, States, place_in
from .passes import Passes


class Progress:
    """What is counted and noted of a training at the end of each step."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # Finished steps are counted through all runs of the training, so those before
        # this block began are among them.
        self.finished = 0
        # Only complete epochs of epochs() are counted.
        self.epoch = 0
        # The names of loaders whose pass has ended, while what follows it isn't done.
        self.ended: list[str] = []
        self.passes = Passes(parts)
        # The loaders' states, and the numbers of their passes.
        self.places: States = {}
        self._numbers: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a block; a file that is loaded says more."""
        self.ended = []
        self.passes = Passes(self._parts)
        self.note()

    def load(self, states: States) -> None:
        """Go on from what was saved, once the parts are loaded."""
        self.finished = states["steps"]
        self.epoch = states["epoch"]
        self.passes.first = states["passes"]
        self.ended = [name for name in states["ended"] if name in self._parts.loaders]
        # What follows the epoch's last step is done again, and the loop over steps()
        # before it must give no batches then.
        for name in self.ended:
            loader = self._parts.loaders[name]
            if hasattr(loader, "stay_at_end"):
                loader.stay_at_end()

    def note(self) -> None:
        """Note the loaders' present states."""
        self.places = self._parts.places()
        numbers = {}
        for name in self._parts.loaders:
            numbers[name] = self._parts.pass_of(name)
        self._numbers = numbers

    def moved(self, before: States | None = None) -> list[str]:
        """Return the names of the loaders that have handed out batches since then.

        ``before`` has their states of that time; without it, since they were noted.
        """
        places = self.places if before is None else before
        moved = []
        now = self._parts.places()
        for name, state in now.items():
            if place_in(state) != place_in(places[name]):
                moved.append(name)
        return moved

    def in_one_pass(self, names: list[str]) -> list[str]:
        """Return those of the loaders that are in the same pass as when noted."""
        found = []
        for name in names:
            if self._parts.pass_of(name) == self._numbers.get(name):
                found.append(name)
        return found

    def own(self) -> str:
        """Return what is saved of each rank for itself."""
        return self._parts.of_rank(self.places)

    def states(self, of_ranks: list[str]) -> States:
        """Return all that is saved, with what each rank has given as its ``own``."""
        states: States = {
            "steps": self.finished,
            "epoch": self.epoch,
            "passes": self.passes.first,
            "ended": self.ended,
        }
        return states | self._parts.states(self.places, of_ranks)
