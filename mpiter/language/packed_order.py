"""The orders of a ``Pack``: which pieces of documents are in which row.

Rows follow from the seed, the epoch, the lengths, the capacity and the window, and not
from ranks, batches or workers.  ``Fitted`` has rows of whole documents, ``Cut`` joins
the documents and cuts them where a row ends.  *Units* are what a window is measured
in: rows with the first, tokens with the second.
"""

from __future__ import annotations

import bisect
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import StateError
from ..order.keyed import key_of, permutation
from ..order.order import Indices
from .components import Telling, told_of
from .fit import Fits
from .lengths import Counted, counted_by
from .mix_order import MixOrder
from .rows import NUMBERS, Row, sizes_of
from .windows import Fixed, Following, Lengths, Pieces

# The cost of a row, from the lengths of its pieces.
Cost = Callable[[NDArray[np.int64]], float]
# Planned windows that are kept, at least; a step of many ranks may need more.
_KEPT = 4
Numbers = NDArray[Any]
_Window = TypeVar("_Window")


@dataclass(frozen=True)
class Rule:
    """How documents become rows, in every epoch."""

    capacity: int
    # What becomes of documents longer than a row: "split", "truncate" or "drop".  With
    # "error" there are none.
    long: str
    shuffles: bool
    seed: int
    # None: the sum of the squared lengths, which is what attention costs.
    cost: Cost | None
    # Tokens that the loss counts, of each document or of pieces with some lengths.
    # None: all of them.
    counted: Lengths | Counted | None
    # What was found when windows were counted.
    fits: Fits = field(compare=False)


class Begun(NamedTuple):
    """The window in which a state was saved, as it was planned."""

    window: int
    # The places of its documents, and a state of the documents' order at the first.
    span: tuple[int, int]
    documents: Any
    # The epoch's unit with which it began.
    first: int
    pieces: Pieces


class Weights(NamedTuple):
    """What rows cost, and how many tokens they have: a number for each."""

    costs: Numbers
    tokens: Numbers


def weights_of(rows: Sequence[Row], rule: Rule) -> Weights:
    """Return what rows cost, and how many of their tokens count."""
    costs = np.empty(len(rows))
    tokens = np.empty(len(rows), np.int64)
    each = [*map(sizes_of, rows)]
    for number, sizes in enumerate(each):
        if rule.cost is None:
            costs[number] = np.square(sizes, dtype=np.float64).sum()
        else:
            costs[number] = rule.cost(sizes)
        tokens[number] = sizes.sum()
    if rule.counted is None or not rows:
        return Weights(costs, tokens)
    if callable(rule.counted):
        counts = counted_by(rule.counted, np.concatenate(each))
    else:
        keys = np.concatenate([row[::NUMBERS] for row in rows])
        counts = np.asarray(rule.counted[keys])
    row_of = np.repeat(np.arange(len(rows)), [len(sizes) for sizes in each])
    tokens = np.bincount(row_of, counts, len(rows)).astype(np.int64)
    return Weights(costs, tokens)


Windows = Fixed | Following
# Returns the number of units in each window of an epoch.
Measures = Callable[[Windows], NDArray[np.int64]]


class PackedOrder(Telling, Generic[_Window]):
    """The order of one epoch's rows."""

    # The value of ``how`` that makes it.
    how: str

    def __init__(
        self,
        rule: Rule,
        windows: Windows,
        measures: Measures,
        epoch: int,
        begun: Begun | None = None,
    ) -> None:
        self._rule = rule
        self._windows = windows
        self._measures = measures
        self._epoch = epoch
        self._begun = begun
        self._kept: OrderedDict[int, _Window] = OrderedDict()
        self._keeps = _KEPT
        # The window of the last state, and its checksum.
        self._summed = (-1, 0)
        # The positions that were weighed last, and their weights.
        self._weighed: tuple[tuple[int, int], Weights] | None = None

    @cached_property
    def _starts(self) -> list[int]:
        """The first unit of each window, and of what comes after the last."""
        # Found when it is asked for: around a mixture this looks at each document.
        units = self._measures(self._windows)
        begun = self._begun
        first = 0
        if begun is not None:
            # Nothing is asked of the windows before.
            units[: begun.window] = 0
            units[begun.window] = self._units(self._window(begun.window))
            first = begun.first
        starts: list[int] = (first + np.concatenate(([0], np.cumsum(units)))).tolist()
        return starts

    @abstractmethod
    def _planned(self, pieces: Pieces, window: int) -> _Window:
        """Return a window as it is planned."""

    @abstractmethod
    def _units(self, planned: _Window) -> int:
        """Return the units of a planned window."""

    @abstractmethod
    def _rule_of_rows(self) -> dict[str, Any]:
        """Return the options that rows of the same documents follow from."""

    @abstractmethod
    def _unit_at(self, position: int) -> int:
        """Return the unit at a position, if the epoch had no end."""

    def _first_unit(self, position: int) -> int:
        """Return the unit with which the row at a position begins."""
        return min(self._unit_at(position), self._starts[-1])

    @abstractmethod
    def take(self, start: int, stop: int) -> list[Row]: ...

    def _window(self, window: int) -> _Window:
        kept = self._kept
        if window in kept:
            kept.move_to_end(window)
            return kept[window]
        planned = self._planned(self._pieces(window), window)
        kept[window] = planned
        if len(kept) > self._keeps:
            kept.popitem(last=False)
        return planned

    def _pieces(self, window: int) -> Pieces:
        begun = self._begun
        if begun is not None and begun.window == window:
            return begun.pieces
        return self._windows.documents(window)

    def _keep(self, start: int, stop: int) -> None:
        """Keep as many windows as the rows at these positions need."""
        first = self._find(self._first_unit(start))
        last = self._find(self._first_unit(stop))
        self._keeps = max(self._keeps, last - first + 2)

    def _find(self, unit: int) -> int:
        """Return the window in which a unit of the epoch is."""
        found = bisect.bisect_right(self._starts, unit) - 1
        # The epoch's end belongs to the last window.
        return min(found, self._windows.count - 1)

    def later(self, epochs: int) -> Self:
        if not epochs:
            return self
        windows = self._windows.later(epochs)
        return type(self)(self._rule, windows, self._measures, self._epoch + epochs)

    def costs(self, start: int, stop: int) -> Numbers:
        return self._weights(start, stop).costs

    def tokens(self, start: int, stop: int) -> Numbers:
        return self._weights(start, stop).tokens

    def _weights(self, start: int, stop: int) -> Weights:
        # Costs and tokens of a step are asked for one after the other.
        asked = (start, stop)
        if self._weighed is None or self._weighed[0] != asked:
            self._weighed = (asked, self._weigh(start, stop))
        return self._weighed[1]

    @abstractmethod
    def _weigh(self, start: int, stop: int) -> Weights:
        """Return what the rows at these positions cost, and their tokens."""

    # -- states ------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        windows = self._windows
        found = {
            "how": self.how,
            "capacity": self._rule.capacity,
            "window": windows.size,
            **self._rule_of_rows(),
        }
        if isinstance(windows, Following):
            found["documents"] = told_of(windows.order)
        return found

    @property
    def packs_mix(self) -> bool:
        windows = self._windows
        return isinstance(windows, Following) and isinstance(windows.order, MixOrder)

    def state(self, position: int) -> Any:
        windows = self._windows
        # The checksum that states have otherwise is enough for a plain dataset.
        if isinstance(windows, Fixed):
            return None
        unit = self._first_unit(position)
        window = self._find(unit)
        begun = self._begun
        if begun is not None and begun.window == window:
            span = begun.span
            documents = begun.documents
        else:
            span = windows.span(window)
            documents = windows.order.state(span[0])
        # Then the state has none either, and goes on with the same keys only.
        if documents is None:
            return None
        had = unit - self._starts[window]
        checksum: int | None = None
        if had:
            if self._summed[0] != window:
                self._summed = (window, self._checksum(self._pieces(window)))
            checksum = self._summed[1]
        return {
            "window": window,
            "span": [*span],
            "had": had,
            "documents": documents,
            "rows": self._rule_of_rows(),
            "checksum": checksum,
        }

    def _checksum(self, pieces: Pieces) -> int:
        """Return a checksum of a window's documents."""
        windows = self._windows
        # A mixture itself gives the same documents again, and may name them by other
        # keys: its components may be in another order.
        of_mix = isinstance(windows, Following) and isinstance(windows.order, MixOrder)
        return pieces.checksum(with_keys=not of_mix)

    def _check_rows(self, then: Mapping[str, Any], pieces: Pieces) -> None:
        """Raise a StateError if the window that has begun would have other rows."""
        has_long = bool((pieces.sizes > self._rule.capacity).any())
        for name, now in self._rule_of_rows().items():
            # What becomes of long documents is all one where there are none.
            if then[name] != now and (name != "long" or has_long):
                raise StateError(
                    f"the state was saved with {name}={then[name]!r:.60}, and this "
                    f"Pack has {name}={now!r}, by which the documents that are packed "
                    f"already would be in other rows: pass {name}={then[name]!r:.60} "
                    "to go on, or begin anew without the state."
                )

    def restored(self, state: Any, position: int) -> Self:
        windows = self._windows
        if isinstance(windows, Fixed):
            raise StateError("the state is of a Pack around a dataset with an order.")
        window = int(state["window"])
        begin, stop = map(int, state["span"])
        had = int(state["had"])
        documents = state["documents"]
        order = windows.order
        keys: Any
        if had and isinstance(order, MixOrder):
            # What was planned of a window that has begun stays as it is, and another
            # mixture holds from the next one on.
            order, keys = order.resumed_behind(documents, begin, stop)
        else:
            order = order.restored(documents, begin)
            stop = max(begin, min(stop, len(order)))
            keys = order.take(begin, stop)
            documents = order.state(begin)
        pieces = windows.named(keys)
        if had:
            self._check_rows(state["rows"], pieces)
        if had and self._checksum(pieces) != state["checksum"]:
            raise StateError(
                "the documents that the state's window has, or their lengths, are "
                "others now, so the rest of its rows can't be found: go on with the "
                "same documents and lengths, or begin anew without the state."
            )
        begun = Begun(
            window,
            (begin, stop),
            documents,
            # The row at ``position`` begins with a new token even if the epoch ended in
            # a padded row: the units that the padding took weren't handed out.
            self._unit_at(position) - had,
            pieces,
        )
        following = windows.instead(order, window + 1, stop)
        return type(self)(self._rule, following, self._measures, self._epoch, begun)


def split_at(pieces: Pieces, capacity: int, long: str) -> Pieces:
    """Return pieces of which none is longer than a row."""
    is_long = pieces.sizes > capacity
    if not is_long.any():
        return pieces
    if long == "drop":
        return pieces.where(~is_long)
    if long == "truncate":
        stops = np.minimum(pieces.stops, pieces.begins + capacity)
        return pieces._replace(stops=stops)
    parts = -(-pieces.sizes // capacity)
    found = pieces.where(np.repeat(np.arange(pieces.rows), parts))
    # The number of each part within its document.
    firsts = np.repeat(np.cumsum(parts) - parts, parts)
    number = np.arange(found.rows) - firsts
    begins = found.begins + number * capacity
    stops = np.minimum(begins + capacity, found.stops)
    return found._replace(begins=begins, stops=stops)


class FittedWindow(NamedTuple):
    """The rows of a window."""

    rows: list[Row]
    weights: Weights


class Fitted(PackedOrder[FittedWindow]):
    """Rows of whole documents."""

    how = "fit"

    def _rule_of_rows(self) -> dict[str, Any]:
        return {"capacity": self._rule.capacity, "long": self._rule.long}

    def __len__(self) -> int:
        return self._starts[-1]

    def _planned(self, pieces: Pieces, window: int) -> FittedWindow:
        rule = self._rule
        pieces = split_at(pieces, rule.capacity, rule.long)
        row_of, rows = rule.fits.take(pieces.sizes, rule.capacity)
        if rule.shuffles:
            # Best fit makes the rows of long documents first.
            key = key_of(rule.seed, self._epoch, "rows", window)
            row_of = permutation(rows, key)[row_of]
        # Within a row the documents come in the window's order, which is random.
        by_row = np.argsort(row_of, kind="stable")
        ends = np.cumsum(np.bincount(row_of, minlength=rows)) * NUMBERS
        numbers = np.stack(pieces, axis=1)[by_row].ravel().tolist()
        found = list[Row]()
        begin = 0
        for end in ends.tolist():
            found.append(tuple(numbers[begin:end]))
            begin = end
        if rule.cost is not None or rule.counted is not None:
            return FittedWindow(found, weights_of(found, rule))
        sizes = pieces.sizes
        costs = np.bincount(row_of, np.square(sizes, dtype=np.float64), rows)
        tokens = np.bincount(row_of, sizes, rows).astype(np.int64)
        return FittedWindow(found, Weights(costs, tokens))

    def _units(self, planned: FittedWindow) -> int:
        return len(planned.rows)

    def _unit_at(self, position: int) -> int:
        return position

    def _parts(self, start: int, stop: int) -> Iterator[tuple[FittedWindow, slice]]:
        """Yield the windows of these positions, and which of their rows."""
        self._keep(start, stop)
        while start < stop:
            window = self._find(start)
            planned = self._window(window)
            first = start - self._starts[window]
            rows = min(len(planned.rows) - first, stop - start)
            yield planned, slice(first, first + rows)
            start += rows

    def take(self, start: int, stop: int) -> list[Row]:
        found = list[Row]()
        for planned, rows in self._parts(start, stop):
            found += planned.rows[rows]
        return found

    def _weigh(self, start: int, stop: int) -> Weights:
        costs: list[Numbers] = [np.empty(0)]
        tokens: list[Numbers] = [np.empty(0, np.int64)]
        for planned, rows in self._parts(start, stop):
            costs.append(planned.weights.costs[rows])
            tokens.append(planned.weights.tokens[rows])
        return Weights(np.concatenate(costs), np.concatenate(tokens))


class Joined(NamedTuple):
    """The pieces of a window, one after the other."""

    pieces: list[list[int]]
    # The token of the window with which each begins, and the end of the last.
    begins: list[int]


class Cut(PackedOrder[Joined]):
    """Rows of documents that are joined, and cut where a row ends."""

    how = "cut"

    def _rule_of_rows(self) -> dict[str, Any]:
        # What is left of a window is tokens, which rows of any length go on with.
        return {}

    def __len__(self) -> int:
        return -(-self._starts[-1] // self._rule.capacity)

    def _planned(self, pieces: Pieces, window: int) -> Joined:
        begins: Indices = np.concatenate(([0], np.cumsum(pieces.sizes)))
        return Joined(np.stack(pieces, axis=1).tolist(), begins.tolist())

    def _units(self, planned: Joined) -> int:
        return planned.begins[-1]

    def _unit_at(self, position: int) -> int:
        return position * self._rule.capacity

    def take(self, start: int, stop: int) -> list[Row]:
        self._keep(start, stop)
        found = list[Row]()
        for position in range(start, stop):
            token = self._first_unit(position)
            end = self._first_unit(position + 1)
            row = list[int]()
            while token < end:
                window = self._find(token)
                first = self._starts[window]
                planned = self._window(window)
                row += _between(planned, token - first, end - first)
                token = min(end, self._starts[window + 1])
            found.append(tuple(row))
        return found

    def _weigh(self, start: int, stop: int) -> Weights:
        return weights_of(self.take(start, stop), self._rule)


def _between(planned: Joined, begin: int, end: int) -> list[int]:
    """Return the pieces of a window between two of its tokens."""
    begins = planned.begins
    at = bisect.bisect_right(begins, begin) - 1
    found = list[int]()
    while at < len(planned.pieces) and begins[at] < end:
        key, first, _, length = planned.pieces[at]
        skipped = max(0, begin - begins[at])
        until = min(end, begins[at + 1]) - begins[at]
        found += (key, first + skipped, first + until, length)
        at += 1
    return found
