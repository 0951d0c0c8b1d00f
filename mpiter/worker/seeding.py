"""Randomness that depends on the sample's place in the order and on nothing else.

Runs in workers.  Guarantees that a sample's random draws are a function of (seed, epoch, position): ``get_rng()`` on
every backend, the global generators (random, numpy.random, torch where loaded) on ``process`` and ``serial``.  Costs
nothing where it isn't used: whether a dataset draws from the globals is seen by comparing their marks
around a task; the first task that did is fetched again, and from then on every sample's generator is seeded - the
one that is drawn from, not all three, since seeding costs as much as a small sample.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.random  # which NumPy would load at the first draw, in the midst of a start

from ..samples.tensors import torch_with
from .here import NONE, here

GLOBALS = frozenset({"random", "numpy", "torch"})  # the generators that code draws from which knows nothing of us
_MERSENNE_WORDS = 624
_PHILOX_WORDS = 4
_STREAM = 0x5A3


def get_rng() -> np.random.Generator:
    """A generator for dataset code: the same draws for a sample whatever worker fetches it.

    Outside of a fetch it is an ordinary, unseeded generator.

    >>> from mpiter import batches
    >>> class Noise:
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return get_rng().random()
    >>> alone = next(batches(Noise(), 4, n_processes=0, seed=0))
    >>> all(next(batches(Noise(), 4, n_processes=2, seed=0)) == alone)
    True
    """
    now = here.now
    if now.at is None:
        return np.random.default_rng()
    key = _place(now.at)
    if now.drawn is None or now.drawn[0] != key:
        words = [number & (1 << 128) - 1 for number in key]
        now.drawn = key, np.random.Generator(np.random.PCG64(np.random.SeedSequence([*words, _STREAM])))
    return now.drawn[1]  # type: ignore[no-any-return]


def begin_anew() -> bool:
    """Forget the generator of the last place; return whether it was used."""
    now = here.now
    before, now.drawn = now.drawn, None
    return before is not None


def seed_for(draws: bool) -> int:
    """A seed from NumPy's global generator: drawn from it, or computed from its state without a draw."""
    if draws:
        return int(np.random.randint(0, 1 << 63, dtype=np.int64))
    state = np.random.get_state(legacy=False)["state"]
    told = repr([np.asarray(value).tolist() for value in state.values()])
    return int.from_bytes(hashlib.blake2b(told.encode(), digest_size=8).digest(), "little") >> 1


def step_to(beyond: int, seeds: bool = True) -> None:
    """Go to the place of a sample of the row, the first or a later one."""
    now = here.now
    now.beyond = beyond
    if seeds and now.seeds and now.at is not None:
        seed_globals(*_place(now.at), now.seeds)


def go_to(position: int, seeds: bool = True) -> None:
    """Go to a position that the row itself names."""
    if (at := here.now.at) is not None:
        step_to(position - at()[2], seeds)


def _place(at: Callable[[], tuple[int, int, int]]) -> tuple[int, int, int]:
    seed, epoch, position = at()
    return seed, epoch, position + here.now.beyond


def seed_globals(seed: int, epoch: int, position: int, which: frozenset[str] = GLOBALS) -> None:
    """Seed the global generators."""
    told = hashlib.blake2b(f"{seed} {epoch} {position}".encode(), digest_size=32).digest()
    if "random" in which:
        random.seed(int.from_bytes(told[:8], "little"))
    if "numpy" in which:
        np.random.seed(np.frombuffer(told, np.uint32, 4, 8))
    if "torch" in which and (torch := torch_with("default_generator")) is not None:
        torch.default_generator.manual_seed(int.from_bytes(told[24:], "little") >> 1)


def seed_worker(seed: int, worker: int) -> None:
    """Seed them as torch does, once for a worker: by ``seed`` and the worker's number."""
    seed &= (1 << 63) - 1
    random.seed(seed + worker)
    np.random.seed(np.random.SeedSequence([worker, seed & 0xFFFFFFFF, seed >> 32, 0]).generate_state(4))
    if (torch := torch_with("default_generator")) is not None:
        torch.default_generator.manual_seed(seed + worker)


def globals_mark() -> tuple[Any, ...]:
    """A mark that changes when the global generators are drawn from; compared around every block, so it is cheap.

    Of a Mersenne twister the index, and a word, which another 624 draws change.  The one thing left out is the normal
    number that numpy keeps in reserve: ``seed_globals`` clears it, the loop without workers looks at it separately.
    """
    torch = torch_with("default_generator") if "torch" in sys.modules else None
    mine = random.getstate() if _own_words is None else (_own_words[0], _own_words[1], _own.gauss_next)
    generator = np.random.mtrand._rand._bit_generator
    words = _numpys_words(generator)
    numpys = str(generator.state) if words is None else (words[_MERSENNE_WORDS], words[0])
    return mine, numpys, torch and torch.get_rng_state().numpy().tobytes()


def drawn_between(before: tuple[Any, ...], after: tuple[Any, ...]) -> frozenset[str]:
    """The generators whose marks differ."""
    if before == after:
        return NONE
    names = ("random", "numpy", "torch")
    return frozenset(name for name, was, now in zip(names, before, after, strict=True) if was != now)


def _words_at(address: int) -> memoryview:
    return memoryview((ctypes.c_uint32 * (_MERSENNE_WORDS + 1)).from_address(address)).cast("B").cast("I")


@functools.lru_cache(maxsize=1)
def _numpys_words(generator: Any) -> memoryview | None:
    """The words and the index in the memory of numpy's generator; None if it is no Mersenne twister."""
    return _words_at(generator.ctypes.state_address) if type(generator) is np.random.MT19937 else None


def _words_of(generator: random.Random) -> memoryview | None:
    """The addresses of the index and the words of CPython's generator; None if they aren't where they are expected."""
    if sys.implementation.name != "cpython" or type(generator) is not random.Random:
        return None
    found = _words_at(id(generator) + object.__basicsize__)
    *words, index = generator.getstate()[1]
    return found if found.tolist() == [index, *words] else None


_own = random.getstate.__self__  # type: ignore[attr-defined]
_own_words = _words_of(_own)


def global_generators() -> dict[str, Any]:
    """The global generators of loaded modules, by name."""
    torch = torch_with("get_rng_state")
    return {"random": random, "numpy": np.random} | ({} if torch is None else {"torch": torch})


def state_of(generator: Any) -> Any:
    """The state of a generator, or of a module that has one."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if generator is np.random or isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if hasattr(generator, "getstate"):
        return generator.getstate()
    return generator.get_rng_state() if hasattr(generator, "get_rng_state") else generator.get_state()


def give_back(generator: Any, state: Any) -> None:
    """Set a generator's state; a damaged one is an error."""
    if hasattr(generator, "setstate"):
        if not isinstance(state[2], (float, type(None))):
            raise ValueError("the number in reserve is none")  # which Python finds out when it is drawn
        generator.setstate(state)
    elif hasattr(generator, "set_rng_state"):
        generator.set_rng_state(state)
    elif generator is np.random or isinstance(generator, (np.random.RandomState, np.random.Generator)):
        # beyond these NumPy would read: of a Mersenne twister's words, and of Philox's buffer
        places = (state["state"].get("pos", 0), _MERSENNE_WORDS), (state.get("buffer_pos", 0), _PHILOX_WORDS)
        for position, most in places:
            if not 0 <= position <= most:
                raise ValueError(f"position {position} is not within 0 … {most}")
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)
    else:
        generator.set_state(state)


class Kept:
    """The states of the caller's generators, to be restored; read anew only after a draw."""

    def __init__(self) -> None:
        self._mark: tuple[Any, ...] = ()
        self._states: dict[str, Any] = {}
        self._has_reserve = False  # does numpy keep a normal number, which may be taken without another trace?

    def keep(self) -> None:
        """Note the present states."""
        mark = globals_mark()
        if mark != self._mark or self._has_reserve:
            self._mark = mark
            self._states = {name: state_of(generator) for name, generator in global_generators().items()}
            self._has_reserve = bool(self._states["numpy"].get("has_gauss", 0))

    def drawn(self) -> frozenset[str]:
        """The generators that were drawn from since."""
        drawn = drawn_between(self._mark, globals_mark())
        if self._has_reserve and not np.random.get_state(legacy=False)["has_gauss"]:
            drawn |= {"numpy"}
        return drawn

    def restore(self) -> None:
        """Restore the generators that were drawn from."""
        if self.drawn():
            generators = global_generators()
            for name, state in self._states.items():
                give_back(generators[name], state)
