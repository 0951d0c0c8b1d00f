"""What a sampler's draws depend on: the random generators that it may use, saved as plain values and put back.

Pure but for the generators themselves.  A sampler is opaque: it may draw from a generator that it holds, from one that
the loader was given, or from the global ones.  One that is told of epochs draws by their number, and one of several
processes gives that process's share.  Guarantees JSON-able values, and that nothing of them is unpickled.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import StateError
from ..samples.jsonable import decoded, encoded
from ..samples.tensors import torch_with
from ..worker.seeding import give_back, global_generators, state_of


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


class Aside:
    """A ``with`` block in which the global generators are as a sampler left them; others find them undisturbed."""

    def __init__(self, generators: Generators, states: dict[str, Any]) -> None:
        self._generators, self._states = generators, states

    def __enter__(self) -> None:
        self._others = self._generators.globals_now()
        self._generators.put_back(self._states)

    def __exit__(self, *_: object) -> None:
        self._states = self._generators.globals_now()
        self._generators.put_back(self._others)


def _held_by(holders: Sequence[Any]) -> Iterator[Any]:
    """The generators among these objects and their attributes, each once."""
    seen: set[int] = set()
    for holder in holders:
        for value in [holder, *getattr(holder, "__dict__", {}).values()]:
            if _is_generator(value) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _share_of(holder: Any) -> list[int] | None:
    """Which of how many processes a sampler is for, as torch's and Accelerate's say it."""
    for names in (("rank", "num_replicas"), ("process_index", "num_processes")):
        found = [value for name in names if type(value := getattr(holder, name, None)) is int]
        if len(found) == len(names):
            return found
    return None


def _is_generator(value: Any) -> bool:
    torch = torch_with("Generator")
    kinds = (np.random.Generator, np.random.RandomState, random.Random)
    return isinstance(value, kinds) or (torch is not None and isinstance(value, torch.Generator))


def samplers_in(sampler: Any) -> list[Any]:
    """A sampler, the one that it draws from, and so on."""
    found: list[Any] = []
    while sampler is not None and not any(sampler is one for one in found):
        found.append(sampler)
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner
    return found
