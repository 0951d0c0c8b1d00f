"""What a sampler's draws depend on, as plain values: the place that it knows, and the random generators that it uses.

Runs in the consumer process, over a sampler, and in workers, over a stream.  A *walk* is a pass over something iterable
that may know its place, by torchdata's protocol: what is iterable, its iterator, or both may have ``state_dict`` and
``load_state_dict``.  Guarantees torchdata's order: the state of what is iterable is loaded, ``iter()`` is called, once,
and the iterator's own state is loaded then; one that is its own iterator counts as that.

A sampler is opaque: it may draw from a generator that it holds, from the loader's, or from the global ones.  One that
is told of epochs draws by their number, and one of several processes gives that process's share.  Guarantees JSON-able
values, and that nothing of them is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import operator
import random
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from ..errors import StateError, warn
from ..samples.jsonable import decoded, encoded
from ..samples.tensors import torch_with
from ..worker.seeding import give_back, global_generators, state_of

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
    """Raise a StateError unless this is what ``state()`` may have told, perhaps as text."""
    with contextlib.suppress(ValueError):
        told = json.loads(told) if type(told) is str else told
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


class Generators:
    """The generators that ``holders`` are or hold, and the global ones of these names: random, numpy, torch."""

    def __init__(self, holders: Sequence[Any] = (), global_ones: Sequence[str] = ()) -> None:
        self._held = list(_held_by(holders))
        self._told = [one for one in holders if hasattr(one, "set_epoch") and type(getattr(one, "epoch", None)) is int]
        self._share = next(filter(None, map(_share_of, holders)), None)
        self._globals = {name: known for name, known in global_generators().items() if name in global_ones}

    def save(self) -> dict[str, Any]:
        """Their states, as JSON-able values."""
        held = {"held": [encoded(state_of(generator)) for generator in self._held]} if self._held else {}
        told = {"told": [one.epoch for one in self._told]} if self._told else {}
        share = {"share": self._share} if self._share else {}
        return self.globals_now() | held | told | share

    def restore(self, saved: dict[str, Any], within_epoch: bool = False) -> None:
        """Put the states back, or raise a StateError; between epochs it is for others to say which one comes."""
        held = saved.get("held", [])
        before = [(one, state_of(one)) for one in (*self._held, *self._globals.values())]
        epochs = [one.epoch for one in self._told]
        try:
            if len(held) != len(self._held):
                raise ValueError(
                    f"they were {len(held)} in the sampler that was saved, and are {len(self._held)} in this"
                )
            for generator, state in zip(self._held, held, strict=True):
                give_back(generator, decoded(state))
            self.put_back({name: state for name, state in saved.items() if name != "held"})
            if within_epoch and "told" in saved:
                for one, epoch in zip(self._told, map(operator.index, saved["told"]), strict=True):
                    one.set_epoch(epoch)
        except Exception as error:  # whatever a generator says of a state that is none
            for generator, state in before:
                give_back(generator, state)
            for one, epoch in zip(self._told, epochs, strict=True):
                one.set_epoch(epoch)
            raise StateError(f"the state's random generators don't fit: {type(error).__name__}: {error}.") from error

    def globals_now(self) -> dict[str, Any]:
        """The states of the global ones alone."""
        return {name: encoded(state_of(generator)) for name, generator in self._globals.items()}

    def put_back(self, states: dict[str, Any]) -> None:
        """Give the global ones the states that they had."""
        for name, state in states.items():
            if name in self._globals:
                give_back(self._globals[name], decoded(state))

    @contextlib.contextmanager
    def aside(self, states: dict[str, Any]) -> Iterator[None]:
        """The global ones as a sampler left them, which keeps these ``states``; others find them undisturbed."""
        others = self.globals_now()
        self.put_back(states)
        try:
            yield
        finally:
            states.update(self.globals_now())
            self.put_back(others)


def _held_by(holders: Sequence[Any]) -> Iterator[Any]:
    """The generators among these objects and their attributes, each once."""
    torch = torch_with("Generator")
    kinds = (np.random.Generator, np.random.RandomState, random.Random, *([torch.Generator] if torch else ()))
    seen: set[int] = set()
    for holder in holders:
        for value in [holder, *getattr(holder, "__dict__", {}).values()]:
            if isinstance(value, kinds) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _share_of(holder: Any) -> list[int] | None:
    """Which of how many processes a sampler is for, as torch's and Accelerate's say it."""
    for names in (("rank", "num_replicas"), ("process_index", "num_processes")):
        found = [value for name in names if type(value := getattr(holder, name, None)) is int]
        if len(found) == len(names):
            return found
    return None


def samplers_in(sampler: Any) -> list[Any]:
    """A sampler, the one that it draws from, and so on."""
    found: list[Any] = []
    while sampler is not None and not any(sampler is one for one in found):
        found.append(sampler)
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner
    return found
