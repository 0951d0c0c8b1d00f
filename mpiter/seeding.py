"""Randomness that depends on the sample's place in the order and on nothing else.

Runs in workers.  Guarantees that a sample's random draws are a function of (seed, epoch, position): ``get_rng()`` on
every backend, the global generators (random, numpy.random, torch where loaded) on ``process`` and ``serial``.  Costs
nothing where it isn't used: whether a dataset draws from the globals is seen by comparing whole generator states
around a task; the first task that did is fetched again, and from then on every sample is seeded.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .order import keys

_STREAM, _GLOBALS = 0x5A3, 0x610  # what tells the two uses of one place apart


class _Place(threading.local):
    """The sample that this thread fetches right now."""

    at: Callable[[], tuple[int, int, int]] | None = None
    drawn: tuple[tuple[int, int, int], np.random.Generator] | None = None


_place = _Place()


def get_rng() -> np.random.Generator:
    """A generator for dataset code: the same draws for a sample whatever worker fetches it.

    Outside of a fetch it is an ordinary, unseeded generator.

    >>> get_rng().integers(1)
    np.int64(0)
    """
    if _place.at is None:
        return np.random.default_rng()
    key = _place.at()
    if _place.drawn is None or _place.drawn[0] != key:
        _place.drawn = key, np.random.Generator(np.random.PCG64(np.random.SeedSequence([*map(_word, key), _STREAM])))
    return _place.drawn[1]


def _word(number: int) -> int:
    return number & (1 << 128) - 1


def at(place: Callable[[], tuple[int, int, int]] | None) -> None:
    """Tell this thread how to find out (seed, epoch, position) when somebody asks."""
    _place.at = place
    _place.drawn = None


def seed_globals(seed: int, epoch: int, position: int) -> None:
    """Seed what code draws from that knows nothing of us."""
    words = keys(2, seed, epoch, position, _GLOBALS)
    random.seed(int(words[0]))
    np.random.seed(words.view(np.uint32))
    if (torch := _torch()) is not None:
        torch.default_generator.manual_seed(int(words[1] >> np.uint64(1)))


def globals_state() -> tuple[Any, ...]:
    """The global generators' states, to be compared or restored."""
    name, key, *rest = np.random.get_state(legacy=True)
    torch = _torch()
    return random.getstate(), (name, key.tobytes(), *rest), torch and torch.get_rng_state().numpy().tobytes()


def restore_globals(state: tuple[Any, ...]) -> None:
    python, (name, key, *rest), torch_state = state
    random.setstate(python)
    np.random.set_state((name, np.frombuffer(key, np.uint32), *rest))
    if torch_state is not None and (torch := _torch()) is not None:
        torch.set_rng_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))


def _torch() -> Any:
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None
