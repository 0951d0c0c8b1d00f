"""The order of a ``Mix``: which sample of which component comes at each place.

With "repeat" places count the samples of all epochs, otherwise those of one.  The n-th
sample of a component lies in its own order of one of its passes, and doesn't depend on
what the other components are.  A state has the counts of all components by name, so
that other weights and other components can go on from it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ..errors import StateError
from ..order.keyed import key_of
from ..order.order import Indices
from .components import Components, Telling
from .shares import Course, endless, until_all_end, until_one_ends

_log = logging.getLogger("mpiter")

# Dropped components that a state knows, at most.
_GONE = 100

# Weights, by the place from which they hold.
Stages = tuple[tuple[int, Mapping[str, Fraction]], ...]
# See ``MixOrder._parts``.
_Part = tuple[Indices, str, int, int, int]


@dataclass(frozen=True)
class Terms:
    """What the places of a mixture follow from, beside seed and epoch."""

    # The number of samples of each component.
    lengths: Mapping[str, int]
    stages: Stages
    # What happens when a component has had all its samples: "repeat", "renormalise" or
    # "stop".
    short: str
    # Places in an epoch with "repeat".
    length: int
    # What the orders follow from that components bring.
    told_by: Mapping[str, Any]

    def told(self) -> dict[str, Any]:
        """Return the terms as values for JSON."""
        stages = list[Any]()
        for place, weights in self.stages:
            exact = {name: _written(weight) for name, weight in weights.items()}
            stages.append([place, exact])
        return {
            "lengths": dict(self.lengths),
            "weights": stages,
            "short": self.short,
            "length": self.length,
            "components": dict(self.told_by),
        }

    @staticmethod
    def read(told: Mapping[str, Any]) -> Terms:
        """Return the terms that ``told`` has returned."""
        stages = list[tuple[int, Mapping[str, Fraction]]]()
        for place, weights in told["weights"]:
            exact = {name: Fraction(weight) for name, weight in weights.items()}
            stages.append((int(place), exact))
        lengths = {name: int(length) for name, length in told["lengths"].items()}
        return Terms(
            lengths,
            tuple(stages),
            str(told["short"]),
            int(told["length"]),
            dict(told["components"]),
        )

    def in_words(self, place: int, of: str) -> str:
        """Return the weights that hold from a place on, as they were written."""
        found = list[str]()
        for number, (begin, weights) in enumerate(self.stages):
            rest = self.stages[number + 1 :]
            if rest and rest[0][0] <= place:
                continue
            each = [f"{name} {_written(weight)}" for name, weight in weights.items()]
            found.append(f"{', '.join(each)} from {of} {max(begin, place):,} on")
        return "; ".join(found)


def _written(weight: Fraction) -> str:
    """Return a weight exactly: as a decimal number if it was one."""
    with contextlib.suppress(OverflowError):
        decimal = repr(float(weight)).removesuffix(".0")
        if Fraction(decimal) == weight:
            return decimal
    return str(weight)


class Had(NamedTuple):
    """What a state knows of a component."""

    length: int
    # How many of its samples have come.
    came: int
    # What the order follows from that it brings.
    told: Any


@dataclass(frozen=True)
class Since:
    """Where the present terms began to hold."""

    epoch: int
    # The place where that epoch begins: 0, but with "repeat" after the first epoch.
    first: int
    place: int
    # How many samples of each component came before the place.
    counts: Mapping[str, int]
    # The components that were dropped: if one is added again it goes on.
    gone: Mapping[str, Had]


class Laid:
    """The components of all places since some terms hold.

    They are those of one epoch, with "repeat" also of the later ones.
    """

    def __init__(self, terms: Terms, since: Since, key: np.uint64 | None) -> None:
        self.terms = terms
        self.since = since
        # By their names, as JSON may have sorted them, or ranks have them in any order.
        self.names = tuple(sorted(terms.lengths))
        stages = [
            (place, [weights[name] for name in self.names])
            for place, weights in terms.stages
        ]
        counts = [since.counts[name] for name in self.names]
        lengths = [terms.lengths[name] for name in self.names]
        # Where the epoch ends.
        if terms.short == "renormalise":
            segments, self.end = until_all_end(stages, since.place, counts, lengths)
        else:
            segments = endless(stages, since.place, counts)
            self.end = max(since.place, since.first + terms.length)
        if terms.short == "stop":
            self.end = until_one_ends(segments, lengths)
        end = None if terms.short == "repeat" else self.end
        self.course = Course(segments, end, key)

    def counts(self, place: int) -> dict[str, int]:
        return dict(zip(self.names, self.course.counts(place), strict=True))


class MixOrder(Telling):
    """The order of one epoch of a mixture."""

    def __init__(
        self,
        components: Components,
        # The mixture's own terms.  ``laid`` has those of a saved state while that is
        # read, in ``_before``.
        terms: Terms,
        seed: int,
        shuffles: bool,
        laid: Laid,
        epoch: int,
        first: int,
    ) -> None:
        self._components = components
        self._terms = terms
        self._seed = seed
        self._shuffles = shuffles
        self._laid = laid
        self._epoch = epoch
        # The place of the epoch's first sample.
        self._first = first
        if epoch == laid.since.epoch:
            self._length = laid.end - first
        else:
            self._length = laid.terms.length
        # The last places that were asked for, and their parts: keys, tokens and costs
        # of a step are asked for one after the other.
        self._last: tuple[int, int, list[_Part]] = (0, 0, [])

    @classmethod
    def begin(
        cls,
        components: Components,
        terms: Terms,
        seed: int,
        shuffles: bool,
        epoch: int = 0,
    ) -> MixOrder:
        """Return the order of an epoch before which nothing was changed."""
        first = 0
        begun = 0
        if terms.short == "repeat":
            first = epoch * terms.length
        else:
            # Each epoch begins anew.
            begun = epoch
        since = Since(begun, 0, 0, dict.fromkeys(terms.lengths, 0), {})
        laid = cls._lay(terms, since, seed, shuffles)
        return cls(components, terms, seed, shuffles, laid, epoch, first)

    @staticmethod
    def _lay(terms: Terms, since: Since, seed: int, shuffles: bool) -> Laid:
        key: np.uint64 | None = None
        if shuffles:
            key = key_of(seed, "places", since.epoch)
        return Laid(terms, since, key)

    def __len__(self) -> int:
        return self._length

    def later(self, epochs: int) -> MixOrder:
        if not epochs:
            return self
        epoch = self._epoch + epochs
        if self._terms.short != "repeat":
            return self.begin(
                self._components, self._terms, self._seed, self._shuffles, epoch
            )
        terms = self._laid.terms
        first = self._first + self._length + (epochs - 1) * terms.length
        return self._with(self._laid, epoch, first)

    def _with(self, laid: Laid, epoch: int, first: int) -> MixOrder:
        """Return the order of an epoch that begins at the place ``first``."""
        return MixOrder(
            self._components,
            self._terms,
            self._seed,
            self._shuffles,
            laid,
            epoch,
            first,
        )

    # -- what comes at a place ---------------------------------------------------------

    def _parts(self, start: int, stop: int) -> list[_Part]:
        """Return the samples at positions ``start`` to ``stop``, by component and pass.

        Each part has the numbers of its places, the component, the pass, and where in
        the pass its samples begin and stop.
        """
        begin, end, parts = self._last
        if (begin, end) != (start, stop):
            parts = self._found(start, stop)
            self._last = (start, stop, parts)
        return parts

    def _found(self, start: int, stop: int) -> list[_Part]:
        laid = self._laid
        which, before = laid.course.at(self._first + start, self._first + stop)
        found = list[_Part]()
        for component, name in enumerate(laid.names):
            mine = np.flatnonzero(which == component)
            if not len(mine):
                continue
            begin = int(before[mine[0]])
            end = begin + len(mine)
            if laid.terms.short != "repeat":
                found.append((mine, name, self._epoch, begin, end))
                continue
            length = laid.terms.lengths[name]
            done = 0
            while begin < end:
                number, at = divmod(begin, length)
                rows = min(end - begin, length - at)
                found.append((mine[done : done + rows], name, number, at, at + rows))
                begin += rows
                done += rows
        return found

    def take(self, start: int, stop: int) -> Sequence[Any] | Indices:
        its = self._components
        if its.is_plain:
            keys = np.empty(stop - start, np.int64)
            for places, name, number, begin, end in self._parts(start, stop):
                order = its.order_of(name, number, self._seed, self._shuffles)
                keys[places] = order.take(begin, end)
                keys[places] += its.begins[its.names.index(name)]
            return keys
        found: list[Any] = [None] * (stop - start)
        for places, name, number, begin, end in self._parts(start, stop):
            order = its.order_of(name, number, self._seed, self._shuffles)
            component = its.names.index(name)
            taken = order.take(begin, end)
            if isinstance(taken, np.ndarray):
                taken = taken.tolist()
            for place, key in zip(places.tolist(), taken, strict=True):
                found[place] = (component, key)
        return found

    def costs(self, start: int, stop: int) -> list[float] | None:
        # Only orders that components bring tell costs.
        if self._components.is_plain:
            return None
        return self._told_by_components("costs", start, stop)

    def tokens(self, start: int, stop: int) -> list[int] | None:
        its = self._components
        if its.is_plain:
            lengths = its.lengths
            if lengths is None:
                return None
            found: list[int] = lengths[self.take(start, stop)].tolist()
            return found
        return self._told_by_components("tokens", start, stop)

    def _told_by_components(self, what: str, start: int, stop: int) -> list[Any] | None:
        """Return the costs or tokens that the components' own orders tell.

        None if one of them tells none.
        """
        found: list[Any] = [0] * (stop - start)
        for places, name, number, begin, end in self._parts(start, stop):
            order = self._components.order_of(name, number, self._seed, self._shuffles)
            told = getattr(order, what)(begin, end)
            if told is None:
                return None
            for place, one in zip(places.tolist(), told, strict=True):
                found[place] = one
        return found

    # -- states ------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        return self._terms.told()

    def state(self, position: int) -> dict[str, Any]:
        laid = self._laid
        since = laid.since
        return {
            "first": self._first,
            "counts": laid.counts(self._first + position),
            "terms": laid.terms.told(),
            "since": {
                "epoch": since.epoch,
                "first": since.first,
                "place": since.place,
                "counts": dict(since.counts),
                # In a list, which keeps its order.
                "gone": [[name, *had] for name, had in since.gone.items()],
            },
        }

    def restored(self, state: Any, position: int) -> MixOrder:
        before = self._before(state)
        if before._laid.terms == self._terms:
            return before
        return before._changed(position)

    def resumed_behind(
        self, state: Any, start: int, stop: int
    ) -> tuple[MixOrder, Indices]:
        """Return the order that goes on behind ``stop``, and the keys up to there.

        ``state`` was saved at ``start``; up to ``stop`` its mixture still holds.
        """
        before = self._before(state)
        for _, name, *_ in before._parts(start, stop):
            if name not in self._components.datasets:
                raise StateError(
                    f"component {name!r} was dropped in the midst of a window of "
                    "documents that Pack has planned: keep it for a while, with the "
                    "weight 0."
                )
        order = before
        if before._laid.terms != self._terms:
            # This refuses components that have become others.
            order = before._changed(stop)
        return order, np.asarray(before.take(start, stop))

    def _before(self, state: Any) -> MixOrder:
        """Return this epoch's order in the mixture that a state was saved from."""
        told = state["since"]
        since = Since(
            int(told["epoch"]),
            int(told["first"]),
            int(told["place"]),
            {name: int(count) for name, count in told["counts"].items()},
            {name: Had(*had) for name, *had in told["gone"]},
        )
        terms = Terms.read(state["terms"])
        laid = self._lay(terms, since, self._seed, self._shuffles)
        first = int(state["first"])
        return self._with(laid, self._epoch, first)

    def _changed(self, position: int) -> MixOrder:
        """Return the order that goes on from a position with the mixture's own terms.

        This order has those of a state.
        """
        terms = self._terms
        saved = self._laid.terms
        counts = self._laid.counts(self._first + position)
        if terms.short != saved.short:
            raise StateError(
                f"the state was saved with short={saved.short!r}, and this mixture has "
                f"short={terms.short!r}, by which places are counted otherwise."
            )
        known = {**self._laid.since.gone}
        for name, count in counts.items():
            known[name] = Had(saved.lengths[name], count, saved.told_by.get(name))
        for name, length in terms.lengths.items():
            if name in known:
                _check_same(name, known[name], length, terms.told_by.get(name))
        for name in counts:
            if name not in terms.lengths:
                _tell_dropped(name, known[name])
        kept = dict[str, int]()
        for name in terms.lengths:
            had = known.pop(name, None)
            kept[name] = 0
            if had is not None:
                kept[name] = had.came
            if had is not None and name not in counts:
                _log.info(
                    "mix: component %r is back, and goes on behind the %s samples that "
                    "had come",
                    name,
                    f"{had.came:,}",
                )
        of = "document" if self._components.is_plain else "sample"
        place = self._first + position
        _log.info("mix: %s", terms.in_words(place, of))
        gone = {name: had for name, had in known.items() if had.came}
        gone = dict([*gone.items()][-_GONE:])
        since = Since(self._epoch, self._first, place, kept, gone)
        laid = self._lay(terms, since, self._seed, self._shuffles)
        return self._with(laid, self._epoch, self._first)


def _check_same(name: str, had: Had, length: int, told: Any) -> None:
    """Raise a StateError if a component isn't what it was."""
    remedy = (
        "so it can't go on where it was: give it another name to have it begin anew."
    )
    if had.told != told:
        then = had.told or {}
        now = told or {}
        differs = list[str]()
        for what in sorted({*then, *now}):
            if then.get(what) != now.get(what):
                differs.append(
                    f"{what} {then.get(what)!r:.100}, and {now.get(what)!r:.100} now"
                )
        raise StateError(
            f"component {name!r} brings its order, and had {'; '.join(differs)}, "
            + remedy
        )
    if had.length != length:
        raise StateError(
            f"component {name!r} had {had.length} samples when the state was saved, "
            f"and has {length} now, {remedy}"
        )


def _tell_dropped(name: str, component: Had) -> None:
    passes, had = divmod(component.came, component.length)
    if had:
        _log.warning(
            "mix: component %r was dropped in its pass %d, of which %d of %d samples "
            "had come",
            name,
            passes + 1,
            had,
            component.length,
        )
    elif not passes:
        _log.warning("mix: component %r was dropped before it had begun", name)
