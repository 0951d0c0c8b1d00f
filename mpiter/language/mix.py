"""``Mix``: several datasets as one, in exact proportions."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from numbers import Integral, Rational, Real
from typing import Any, Literal, NamedTuple, get_args

from ..datasets.columns import Reader, in_words
from ..errors import OptionError, add_note
from ..order.order import Order
from ..worker.here import WorkerInfo
from .components import Components, Joined, Source
from .mix_order import Laid, MixOrder, Since, Stages, Terms

__all__ = ["Ending", "Mix"]

_log = logging.getLogger("mpiter")
Short = Literal["repeat", "renormalise", "stop"]
# Weights by the components' names, or such from some places on.
Weights = Mapping[str, Any] | Sequence[tuple[int, Mapping[str, Any]]]


class Ending(NamedTuple):
    """A pass of a component ends: all its samples have come once more.

    >>> import mpiter
    >>> mix = mpiter.Mix({"web": range(100), "code": range(10)}, {"web": 1, "code": 1})
    >>> next(mix.forecast())
    Ending(place=19, name='code', number=1)
    """

    # The number of samples of the mixture before it ends.
    place: int
    name: str
    # 1 for the first one.
    number: int


class Mix:
    """A dataset of several datasets, whose samples come in exact proportions.

    Each component has ``[]`` and ``len``, or brings its order, as a ``Pack`` does.  At
    every 256th place each has come as often as its weight says, to within 2 samples,
    however far the place is; between these they are shuffled.  Each pass of a component
    is shuffled anew, and doesn't depend on the other components.

    A state has the counts of the components by their names: a mixture with other
    weights, or with components added or dropped, goes on from it exactly.

    Args:
        datasets: the components by their names.
        weights: how often they come, in any unit, exactly as written: 0.7 and 0.3, or 7
            and 3.  A list of ``(place, weights)`` changes them at these places, which
            count samples; the first place is 0.
        short: what happens when a component has had all its samples: "repeat" begins
            its next pass; "renormalise" has the others share its weight until all have
            ended, so that an epoch has each sample once; "stop" ends the epoch.
        length: samples in an epoch, with "repeat"; None for as many as the components
            have together.
        field: the name of a field to add to each sample, which must be a dict, for the
            name of its component.

    >>> import mpiter
    >>> web = [f"web {at}" for at in range(100)]
    >>> code = [f"code {at}" for at in range(10)]
    >>> mix = mpiter.Mix({"web": web, "code": code}, {"web": 0.75, "code": 0.25})
    >>> mix.share(80)
    {'web': 60, 'code': 20}
    >>> stream = mpiter.batches(mix, 4, n_processes=0, shuffle=False)
    >>> next(stream)
    ['web 0', 'code 0', 'web 1', 'web 2']
    """

    def __init__(
        self,
        datasets: Mapping[str, Any],
        weights: Weights,
        short: Short = "repeat",
        length: int | None = None,
        *,
        field: str | None = None,
    ) -> None:
        self._components = Components(_checked_datasets(datasets))
        if field is not None and not isinstance(field, str):
            raise OptionError(
                f"field={field!r:.60} must be text: the name of the field that gets "
                "the component's name, such as 'source'."
            )
        self.field = field
        if short not in get_args(Short):
            known = ", ".join(map(repr, get_args(Short)))
            raise OptionError(f"short={short!r:.60} is unknown; it may be {known}.")
        if length is not None and short != "repeat":
            raise OptionError(
                f"length={length!r:.60} goes with short='repeat': with {short!r} the "
                "components end the epoch."
            )
        if length is not None and not (_is_number(length) and length > 0):
            raise OptionError(f"length={length!r:.60} must be a number above 0.")
        stages = _checked_weights(weights, self._components.names)
        counts = self._components.counts
        places = int(length or sum(counts.values()))
        self._terms = Terms(counts, stages, short, places, self._components.told)
        if _log.isEnabledFor(logging.INFO):
            for line in self._forecast_lines():
                _log.info("mix: %s", line)

    # -- as a dataset ------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of samples of all components."""
        return len(self._components)

    def __getitem__(self, key: Any) -> Any:
        its = self._components
        number, inner = its.find(key)
        try:
            sample = its.by_number[number][inner]
        except Exception as error:
            name = its.names[number]
            add_note(error, f"mpiter: sample {inner!r:.60} of component {name!r}.")
            raise
        if self.field is None:
            return sample
        name = its.names[number]
        if not isinstance(sample, dict):
            raise OptionError(
                f"field={self.field!r} adds a field to samples that are dicts, and "
                f"component {name!r} has {type(sample).__name__}."
            )
        if self.field in sample:
            raise OptionError(
                f"field={self.field!r} would replace a field that samples of component "
                f"{name!r} have: pass a name that none has, such as 'source'."
            )
        return {**sample, self.field: name}

    def mpiter_reader(self) -> Reader | None:
        """Return a function that reads many samples at once, if all components can."""
        if self.field is not None:
            return None
        return self._components.reader()

    def worker_init(self, info: WorkerInfo) -> None:
        """Call the ``worker_init`` of each component that has one, in a worker."""
        self._components.worker_init(info)

    def __repr__(self) -> str:
        """Say in one line what it mixes."""
        weights = self._terms.stages[0][1]
        parts = [f"{name} {float(weights[name]):g}" for name in weights]
        return f"Mix({', '.join(parts)}: {len(self):,} samples)"

    def source(self, key: Any) -> Source:
        """Return where the sample ``mix[key]`` is from."""
        return self._components.source(key)

    def mpiter_words(self, key: Any) -> str:
        """Return in words which sample has this key, for errors and warnings."""
        number, inner = self._components.find(key)
        its = in_words(self._components.by_number[number], inner)
        return f"{its} of component {self._components.names[number]!r}"

    def components_of(self, keys: Sequence[Any]) -> dict[str, int]:
        """Return how many of the samples with these keys are from each component.

        Receipts ask it, for ``mpiter audit``.
        """
        found = Counter[str]()
        for key in keys:
            found[self.source(key).name] += 1
        return dict(found)

    @property
    def lengths(self) -> Joined | None:
        """The lengths of all samples, if each component has ``lengths``."""
        return self._components.lengths

    # -- its order ---------------------------------------------------------------------

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Order:
        """Return the order of epoch 0; unless ``shuffle`` is False it is shuffled."""
        return MixOrder.begin(self._components, self._terms, seed, shuffle is not False)

    # -- what will come ----------------------------------------------------------------

    def share(self, place: int) -> dict[str, int]:
        """Return how many samples of each component come before ``place``.

        It counts all epochs with "repeat", and otherwise the places of one; to within a
        block of 256 places, in which components are shuffled.
        """
        laid = self._laid()
        if not _is_number(place):
            raise OptionError(f"place={place!r:.60} must be a whole number.")
        if place < 0:
            raise OptionError(f"place={place} must be at least 0.")
        if self._terms.short != "repeat":
            place = min(place, laid.end)
        return self._in_order(laid.counts(int(place)))

    def forecast(self, places: int | None = None) -> Iterator[Ending]:
        """Yield the ends of the components' passes, in the order of their places.

        Those within ``places`` places from the beginning, or else within an epoch.
        """
        laid = self._laid()
        until = laid.end if places is None else places
        coming = list[Ending]()
        for name in self._components.names:
            coming += self._ending(laid, name, 1, until)
        while coming:
            coming.sort()
            first = coming.pop(0)
            yield first
            if self._terms.short == "repeat":
                coming += self._ending(laid, first.name, first.number + 1, until)

    def _ending(self, laid: Laid, name: str, number: int, until: int) -> list[Ending]:
        samples = number * self._terms.lengths[name]
        place = laid.course.reaches(laid.names.index(name), samples)
        if place is None or place > until:
            return []
        return [Ending(place, name, number)]

    def _forecast_lines(self) -> Iterator[str]:
        """Yield what is logged: where each component ends, in words."""
        laid = self._laid()
        counts = self._in_order(laid.counts(laid.end))
        yield f"an epoch has {laid.end:,} places"
        for name, count in counts.items():
            length = self._terms.lengths[name]
            line = f"{name}: {count:,} of them, {count / length:.2f} passes"
            for ending in self._ending(laid, name, 1, laid.end):
                line += f"; the first ends at place {ending.place:,}"
            yield line

    def _in_order(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return counts in the order in which the user named the components."""
        return {name: counts[name] for name in self._components.names}

    def _laid(self) -> Laid:
        """Return what comes at the places of the first epoch, unshuffled."""
        since = Since(0, 0, 0, dict.fromkeys(self._components.names, 0), {})
        return Laid(self._terms, since, None)


# -- checks ----------------------------------------------------------------------------


def _is_number(given: Any) -> bool:
    return isinstance(given, Integral) and not isinstance(given, bool)


def _checked_datasets(datasets: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(datasets, Mapping) or not datasets:
        raise OptionError(
            f"Mix needs a dict of datasets by their names, not {datasets!r:.60}."
        )
    for name in datasets:
        if not isinstance(name, str):
            raise OptionError(f"the component's name {name!r:.60} must be text.")
    return dict(datasets)


def _checked_weights(weights: Weights, names: Sequence[str]) -> Stages:
    if isinstance(weights, Mapping):
        weights = [(0, weights)]
    if isinstance(weights, (str, bytes)) or not isinstance(weights, Sequence):
        raise OptionError(
            "weights must be a dict by name, or a list of (place, dict), not "
            f"{weights!r:.60}."
        )
    stages = list[tuple[int, Mapping[str, Fraction]]]()
    for at, stage in enumerate(weights):
        try:
            place, its = stage
        except (TypeError, ValueError):
            raise OptionError(
                f"weights has {stage!r:.80}, where (place, {{name: weight}}) belongs."
            ) from None
        if (
            not _is_number(place)
            or (stages and place <= stages[-1][0])
            or (not at and place)
        ):
            raise OptionError(
                f"the places of weights must begin with 0 and rise; {place!r:.60} "
                "doesn't."
            )
        stages.append((int(place), _checked_stage(its, names)))
    if not stages:
        raise OptionError("weights is empty; give each component one.")
    return tuple(stages)


def _checked_stage(weights: Any, names: Sequence[str]) -> Mapping[str, Fraction]:
    if not isinstance(weights, Mapping):
        raise OptionError(f"weights must be a dict by name, not {weights!r:.60}.")
    for name in weights:
        if name not in names:
            known = ", ".join(map(repr, names))
            raise OptionError(
                f"weights has {name!r:.60}, which is no component; there are {known}."
            )
    found = dict[str, Fraction]()
    for name in names:
        if name not in weights:
            raise OptionError(
                f"weights has nothing for component {name!r}; 0 leaves it out."
            )
        found[name] = _exact(name, weights[name])
    if not any(found.values()):
        raise OptionError("all weights are 0; give one component a weight above 0.")
    return found


def _exact(name: str, weight: Any) -> Fraction:
    """Return a weight exactly as it is written."""
    exact: Fraction | None = None
    if isinstance(weight, Rational) and not isinstance(weight, bool):
        # NumPy's numbers would stay in the fraction, and overflow.
        exact = Fraction(int(weight.numerator), int(weight.denominator))
    elif isinstance(weight, (Real, str)) and not isinstance(weight, bool):
        with contextlib.suppress(ValueError, ZeroDivisionError):
            if isinstance(weight, str) or isfinite(weight):
                exact = Fraction(str(weight))
    if exact is None or exact < 0:
        raise OptionError(
            f"the weight of component {name!r} is {weight!r:.60}; it must be a number "
            "of at least 0."
        )
    return exact
