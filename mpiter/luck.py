"""What a sampler's draws depend on: the random generators that it may use, saved as plain values and put back.

Pure but for the generators themselves.  A sampler is opaque: it may draw from a generator that it holds, from one that
the loader was given, or from the global ones.  Guarantees JSON-able values, and that nothing of them is unpickled.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .errors import StateError


class Luck:
    """The generators that ``holders`` are or hold, and the global ones of these names: random, numpy, torch."""

    def __init__(self, holders: Sequence[Any] = (), global_ones: Sequence[str] = ()) -> None:
        self._held = list(_held_by(holders))
        self._globals = {name: known for name, known in _known_globals().items() if name in global_ones}

    def save(self) -> dict[str, Any]:
        """Their states, as JSON-able values."""
        held = {"held": [_state(generator) for generator in self._held]} if self._held else {}
        return self.globals_now() | held

    def restore(self, saved: dict[str, Any]) -> None:
        """Put the states back, or raise a StateError."""
        held = saved.get("held", [])
        try:
            if len(held) != len(self._held):
                raise ValueError(
                    f"they were {len(held)} in the sampler that was saved, and are {len(self._held)} in this"
                )
            for generator, state in zip(self._held, held, strict=True):
                _set(generator, state)
            self.put_back({name: state for name, state in saved.items() if name != "held"})
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise StateError(f"the state's random generators don't fit: {error}.") from error

    def globals_now(self) -> dict[str, Any]:
        """The states of the global ones alone."""
        return {name: _state(generator) for name, generator in self._globals.items()}

    def put_back(self, states: dict[str, Any]) -> None:
        """Give the global ones the states that they had."""
        for name, state in states.items():
            if name in self._globals:
                _set(self._globals[name], state)


class Aside:
    """A ``with`` block in which the global generators are as a sampler left them; others find them undisturbed."""

    def __init__(self, luck: Luck, states: dict[str, Any]) -> None:
        self._luck, self._states = luck, states

    def __enter__(self) -> None:
        self._others = self._luck.globals_now()
        self._luck.put_back(self._states)

    def __exit__(self, *_: object) -> None:
        self._states = self._luck.globals_now()
        self._luck.put_back(self._others)


def _held_by(holders: Sequence[Any]) -> Iterator[Any]:
    """The generators among these objects and their attributes, each once."""
    seen: set[int] = set()
    for holder in holders:
        for value in [holder, *getattr(holder, "__dict__", {}).values()]:
            if _is_generator(value) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _known_globals() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    found = {"random": random, "numpy": np.random}
    return found | ({"torch": torch} if hasattr(torch, "get_rng_state") else {})


def _is_generator(value: Any) -> bool:
    torch = sys.modules.get("torch")
    kinds = (np.random.Generator, np.random.RandomState, random.Random)
    theirs = getattr(torch, "Generator", None)
    return isinstance(value, kinds) or (theirs is not None and isinstance(value, theirs))


def _state(generator: Any) -> Any:
    if generator is random or isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return [version, np.array(words, "<u8").tobytes().hex(), gauss]
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    if generator is np.random or isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    state = generator.get_rng_state() if hasattr(generator, "get_rng_state") else generator.get_state()
    return state.numpy().tobytes().hex()


def _set(generator: Any, state: Any) -> None:
    if generator is random or isinstance(generator, random.Random):
        version, words, gauss = state
        generator.setstate((version, tuple(np.frombuffer(bytes.fromhex(words), "<u8").tolist()), gauss))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _original(state)
    elif generator is np.random or isinstance(generator, np.random.RandomState):
        generator.set_state(_original(state))
    else:
        torch = sys.modules["torch"]
        memory = torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
        (generator.set_rng_state if hasattr(generator, "set_rng_state") else generator.set_state)(memory)


def _plain(state: Any) -> Any:
    """NumPy's states in JSON's types; whole numbers as text, since they may exceed what JSON readers keep."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"array": state.astype("<u8").tobytes().hex(), "dtype": state.dtype.str}
    if isinstance(state, (int, np.integer)) and not isinstance(state, bool):
        return {"int": str(int(state))}
    return state


def _original(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    if set(state) == {"int"}:
        return int(state["int"])
    if set(state) == {"array", "dtype"}:
        return np.frombuffer(bytes.fromhex(state["array"]), "<u8").astype(np.dtype(state["dtype"]))
    return {name: _original(value) for name, value in state.items()}
