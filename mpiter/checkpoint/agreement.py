"""What the ranks of a training agree on at the end of each step.

They agree whether to save, and whether a signal ends them.  A step costs no waiting:
each rank tells its wish after one step, and looks at the answer after the next, when it
has come.  Where steps take long, that would be too late after a signal, so ranks wait
for the answer there, which takes a thousandth of such a step.  Guarantees that all
ranks learn the same after the same step; and that ranks which aren't at the same place
of the program get an error, and don't wait for each other without end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from ..errors import RankError
from .ranks import Numbers, Ranks

# Steps that take longer than this wait for the answer at once.
_LONG_S = 0.25


class Moment(IntEnum):
    """When ranks agree."""

    STEP = 0
    PASS = 1
    EPOCH = 2
    SAVE = 3
    EXIT = 4


_TELLS = {
    Moment.STEP: "has finished step {step:,}",
    Moment.PASS: "has come to the end of its loader's epoch after {step:,} steps",
    Moment.EPOCH: (
        "has come to the end of the loop over c.epochs() after {step:,} steps"
    ),
    Moment.SAVE: "has called c.save() after {step:,} steps",
    Moment.EXIT: "has left the block after {step:,} steps",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a rank wishes, or all have agreed on."""

    signal: int = 0  # the number of the one that ends all ranks; 0 for none
    saves: bool = False
    # Rank 0 can't save, and all are to learn why.
    fails: bool = False

    def __or__(self, other: Wish) -> Wish:
        signal = max(self.signal, other.signal)
        saves = self.saves or other.saves
        fails = self.fails or other.fails
        return Wish(signal, saves, fails)


class Agreement:
    """The ranks of a training, agreeing."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        # What waits for the answer to the wish of the last step, until it is looked at.
        self._answer: Callable[[], Numbers] | None = None
        # All ranks must treat a step alike, so each believes what rank 0 has measured.
        self._takes_long = False
        self._at = time.monotonic()

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def size(self) -> int:
        return self._ranks.size

    @property
    def is_leader(self) -> bool:
        """True in the rank that writes, and speaks for all."""
        return self._ranks.rank == 0

    @property
    def are_several(self) -> bool:
        return self._ranks.size > 1

    def after_step(self, step: int, wish: Wish) -> Wish:
        """Tell this rank's wish; return what was agreed on after the step before.

        Where steps take long, return what all agree on now.
        """
        if not self.are_several:
            return wish
        agreed = self._look(step)
        # All ranks save or end now.  If they told this step's wishes as well, they
        # might save once more after the next one.
        if agreed != Wish():
            return agreed
        self._tell(Moment.STEP, step, wish)
        if self._takes_long:
            return self._look(step)
        return agreed

    def at_once(self, moment: Moment, step: int, wish: Wish) -> Wish:
        """Tell this rank's wish, and wait for what all agree on."""
        agreed = self._look(step)
        self._tell(moment, step, wish)
        return agreed | self._look(step)

    def gathered(self, text: str) -> list[str]:
        """Return what each rank has given, once all have."""
        with _lost_ranks_named():
            return self._ranks.gathered(text)

    def check(self, problem: Exception | None) -> None:
        """Wait for all ranks, and raise this one's problem, or the first of another's.

        That of another rank comes as a RankError with its text.
        """
        told = ""
        if problem is not None:
            told = f"{type(problem).__name__}: {problem}"
        problems = self.gathered(told)
        if problem is not None:
            raise problem
        for rank, other in enumerate(problems):
            if other:
                raise RankError(f"rank {rank} can't go on, so no rank does: {other}")

    def check_same(self, what: str, mine: str) -> None:
        """Raise a RankError if a rank has another one than rank 0; it names both."""
        texts = self.gathered(mine)
        for rank, other in enumerate(texts):
            if other != texts[0]:
                raise RankError(
                    f"the ranks of a training share one checkpoint, but their {what}: "
                    f"rank 0 has {texts[0]}, rank {rank} has {other}."
                )

    def close(self) -> None:
        """Give back what was taken for messages, if none is under way."""
        # A rank that has ended will never answer, and giving back might wait for it.
        if self._answer is None:
            self._ranks.close()

    def _tell(self, moment: Moment, step: int, wish: Wish) -> None:
        now = time.monotonic()
        took_s = now - self._at
        takes_long = moment is Moment.STEP and self.is_leader and took_s > _LONG_S
        self._at = now
        here = step * len(Moment) + moment
        mine = [
            # Ranks can only find the highest of their numbers.  The highest of all
            # -here gives the lowest of all, so these two tell whether all ranks are at
            # the same moment of the same step.
            here,
            -here,
            wish.signal,
            int(wish.saves),
            int(wish.fails),
            int(takes_long),
        ]
        with _lost_ranks_named():
            self._answer = self._ranks.begin_highest(mine)

    def _look(self, step: int) -> Wish:
        """Return what all ranks have agreed on by their last wishes, once it has come.

        Return the empty wish if no answer is outstanding.
        """
        if self._answer is None:
            return Wish()
        # It is no longer outstanding even if waiting for it fails: a second look would
        # fail too, or wait without end.
        answer = self._answer
        self._answer = None
        with _lost_ranks_named():
            last, first, number, saves, fails, takes_long = answer()
        # Waiting on would be without end: a rank that has left the loop sends no wish
        # after the next step.
        if last != -first:
            raise RankError(
                "the ranks of this training no longer go together: one "
                f"{_told(-first)}, another one {_told(last)} (this is rank "
                f"{self.rank}, after {step:,} steps).  All of them must take as many "
                "batches, and call c.step() and c.save() alike."
            )
        # Only after a step has rank 0 said how long it took.
        if last % len(Moment) == Moment.STEP:
            self._takes_long = bool(takes_long)
        return Wish(number, bool(saves), bool(fails))


@contextmanager
def _lost_ranks_named() -> Iterator[None]:
    """Have a message that fails say why it probably does."""
    try:
        yield
    except Exception as error:
        raise RankError(
            "another rank of this training can't be reached any more, so it has "
            "probably ended: look for its own error.  What was saved last is whole; "
            "start all ranks again to go on from there."
        ) from error


def _told(here: int) -> str:
    step, moment = divmod(here, len(Moment))
    return _TELLS[Moment(moment)].format(step=step)
