"""A pass over something iterable that may know its place: the protocol that torchdata has set.

Runs in workers, over a stream, and in the consumer process, over a sampler.  What is iterable, its iterator, or both
may have ``state_dict`` and ``load_state_dict``.  Guarantees torchdata's order: the state of what is iterable is loaded,
``iter()`` is called, once, and the iterator's own state is loaded then; one that is its own iterator counts as that.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from ..errors import StateError, warn
from ..samples.jsonable import decoded, encoded

Told = list[Any]  # the states of what is iterable and of its iterator, encoded; None for one that has none
_UNTOLD: Told = [None, None]


class Walk:
    """One pass over ``iterable``, from where it was when ``state()`` told ``told``.

    ``begins`` says that this is an epoch's beginning, so that a place at the end of the epoch before is left behind.
    """

    def __init__(self, iterable: Any, told: Told | None = None, *, begins: bool = False) -> None:
        self._iterable, self._told, self._begins = iterable, told or _UNTOLD, begins
        self._iterator: Any = None
        self._ahead: list[Any] = []  # what has been read already

    def load(self) -> None:
        """Have what is iterable be where it was."""
        _load(self._iterable, self._told[0])

    def begin(self) -> Walk:
        self.load()
        self._iterator = iter(self._iterable)
        _load(self._iterator, self._told[1])
        if self._begins and self._told != _UNTOLD:
            for element in self:
                self._ahead.append(element)
                return self
            self._iterator = iter(self._iterable)
        return self

    def __iter__(self) -> Walk:
        return self  # and not the iterator, which would be asked for one once more

    def __next__(self) -> Any:
        return self._ahead.pop() if self._ahead else next(self._iterator)

    def elements(self) -> Iterator[Any]:
        """The same elements, given faster; it begins with the first of them, if it hasn't begun."""
        if self._iterator is None:
            self.begin()
        while True:
            try:
                element = self._ahead.pop() if self._ahead else next(self._iterator)
            except StopIteration:
                return
            yield element

    def state(self) -> Told | StateError | None:
        """The place, as JSON-able values; None if it isn't told, an error if it cannot be saved."""
        if self._ahead or (self._iterator is None and self._told != _UNTOLD):
            return self._told
        is_same = self._iterator is self._iterable
        try:
            told = [None if is_same else _asked(self._iterable), _asked(self._iterator)]
        except StateError as error:  # which concerns only those who want the state
            return error
        return None if told == _UNTOLD else told

    def foreseen(self) -> range:
        """All that it will give, where that is plain: of a range, and of torch's SequentialSampler; else nothing."""
        given, kind = self._iterable, type(self._iterable)
        if (kind.__module__, kind.__qualname__) == ("torch.utils.data.sampler", "SequentialSampler"):
            return range(len(given))
        return given if kind is range else range(0)


def savable(told: Told | StateError | None, whose: str) -> Told | None:
    """What ``state()`` has told, or a StateError that says why it cannot be saved."""
    if isinstance(told, StateError):
        raise StateError(f"what the {whose} state_dict() returns cannot be saved: {told}")
    return told


def warn_of_iterators(given: dict[str, Any], is_empty: bool = False) -> None:
    """Warn that of an iterator nothing is left after an epoch.

    That is said beforehand, unless its ``__iter__`` is written in Python and may begin anew: then once an epoch
    ``is_empty``.
    """
    for name, one in given.items():
        may_begin_anew = isinstance(getattr(type(one), "__iter__", None), FunctionType)
        if hasattr(type(one), "__next__") and may_begin_anew == is_empty and iter(one) is one:
            warn(
                f"a {type(one).__name__} can be gone through once, and "
                f"{'this epoch is' if is_empty else 'further epochs will be'} empty: as {name}, pass a list, or an "
                f"object whose __iter__ begins anew."
            )


def check_told(told: Any) -> Told:
    """Raise a StateError unless this is what ``state()`` may have told."""
    if type(told) is not list or len(decoded(told)) != 2:
        raise StateError("the state tells no place of something iterable.")
    return told


def _asked(teller: Any) -> Any:
    return encoded(teller.state_dict()) if _knows_its_place(teller) else None


def _load(teller: Any, told: Any) -> None:
    if told is None:
        return
    if not _knows_its_place(teller):
        raise StateError(f"the state is for a load_state_dict(), which {type(teller).__qualname__} doesn't have.")
    try:
        teller.load_state_dict(decoded(told))
    except StateError:
        raise
    except Exception as error:  # whatever it says of a state that is none of its own
        whose, why = type(teller).__qualname__, f"{type(error).__name__}: {error}"
        raise StateError(f"load_state_dict() of {whose} refuses its part of the state: {why}.") from error


def _knows_its_place(teller: Any) -> bool:
    return all(callable(getattr(teller, name, None)) for name in ("state_dict", "load_state_dict"))
