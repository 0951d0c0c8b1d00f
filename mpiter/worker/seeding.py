"""Makes a sample's random draws depend only on its *place*.

A place is seed, epoch and the sample's position.  This holds for ``get_rng()``, and,
but for threads, for the global generators (random, numpy.random, torch if loaded).
Whether a dataset draws from these is seen by comparing their *marks* (a cheap part of
their state) before and after a block.  The first block that drew is fetched again, and
from then on the generator is seeded for every sample.
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

# NumPy would load this at the first draw, while workers start.
import numpy.random

from ..samples.tensors import torch_with
from . import twister
from .here import NONE, SeedWords, here

# The generators that code draws from which doesn't call ``get_rng``.
GLOBALS = frozenset({"random", "numpy", "torch"})
_MERSENNE_WORDS = 624
_PHILOX_WORDS = 4
# A cheap part of the states of Python's generator, NumPy's and torch's.
Mark = tuple[object, ...]
_STREAM = 0x5A3
_WORD = (1 << 64) - 1  # torch takes no longer seeds


def get_rng() -> np.random.Generator:
    """Return a generator for dataset code.

    What it draws for a sample doesn't depend on the worker that fetches it.  Outside
    of a fetch, return an ordinary, unseeded generator.

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
        seeds = np.random.SeedSequence([*words, _STREAM])
        generator = np.random.Generator(np.random.PCG64(seeds))
        now.drawn = (key, generator)
    return now.drawn[1]


def begin_anew() -> bool:
    """Forget the generator that ``get_rng`` has made; return True if there was one."""
    now = here.now
    before = now.drawn
    now.drawn = None
    return before is not None


def seed_for(draws: bool) -> int:
    """Return a seed drawn from NumPy's global generator, or computed from its state."""
    if draws:
        drawn = np.random.randint(0, 1 << 63, dtype=np.int64)
        return int(drawn)
    state = np.random.get_state(legacy=False)["state"]
    numbers = [np.asarray(value).tolist() for value in state.values()]
    text = repr(numbers).encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def step_to(
    beyond: int,
    seeds: bool = True,
) -> None:
    """Use the place of sample number ``beyond`` of the row.

    With ``seeds``, seed the global generators for it.
    """
    now = here.now
    now.beyond = beyond
    if seeds and now.seeds and now.at is not None:
        seed_globals(*_place(now.at), now.seeds)


def go_to(
    position: int,
    seeds: bool = True,
) -> None:
    """Use ``position`` in place of the row's own.

    With ``seeds``, seed the global generators for it.
    """
    at = here.now.at
    if at is not None:
        _, _, of_row = at()
        step_to(position - of_row, seeds)


def _place(at: Callable[[], SeedWords]) -> SeedWords:
    seed, epoch, position = at()
    return seed, epoch, position + here.now.beyond


def seed_globals(
    seed: int,
    epoch: int,
    position: int,
    which: frozenset[str] = GLOBALS,
) -> None:
    """Seed the global generators in ``which`` for a place."""
    place = f"{seed} {epoch} {position}".encode()
    digest = hashlib.blake2b(place, digest_size=32).digest()
    if "random" in which:
        for_random = int.from_bytes(digest[:8], "little")
        random.seed(for_random)
    if "numpy" in which:
        # A longer seed, in an array, takes seven times as long.
        for_numpy = int.from_bytes(digest[8:12], "little")
        np.random.seed(for_numpy)
    if "torch" in which:
        torch = torch_with("default_generator")
        if torch is not None:
            for_torch = int.from_bytes(digest[24:], "little") >> 1
            torch.default_generator.manual_seed(for_torch)


def begin_with(seed: int, number: int) -> None:
    """Seed the global generators as torch seeds those of its worker ``number``.

    Most datasets never see this: the place of a sample replaces it once they draw.  But
    ``worker_init`` draws from it, and a dataset may make a generator of its own from
    ``torch.initial_seed()``.
    """
    base = seed & _WORD
    of_worker = base + number & _WORD
    random.seed(of_worker)
    # torch derives its worker's seeds for NumPy from these same words.
    seeds = np.random.SeedSequence([number, base & 0xFFFFFFFF, base >> 32, 0])
    np.random.seed(seeds.generate_state(4))
    torch = torch_with("default_generator")
    if torch is not None:
        torch.default_generator.manual_seed(of_worker)


def globals_mark() -> Mark:
    """Return a mark that changes when global generators are drawn from.

    It is cheap, as every block compares two.  Of a Mersenne twister it has the index,
    and one word, which changes after 624 draws.  It lacks the normal number that NumPy
    may keep in reserve: ``seed_globals`` clears that, and ``Kept`` checks it
    separately.
    """
    # A thread may be importing torch, which then lacks its generator.
    torch = sys.modules.get("torch")
    torchs_own = getattr(torch, "default_generator", None)
    torchs: object = None
    if torchs_own is not None:
        torchs = twister.mark_of(torchs_own)
    mine: object
    if _own_words is None:
        mine = random.getstate()
    else:
        mine = (_own_words[0], _own_words[1], _own.gauss_next)
    generator = np.random.mtrand._rand._bit_generator
    words = _numpys_words(generator)
    numpys: object
    if words is None:
        numpys = str(generator.state)
    else:
        numpys = (words[_MERSENNE_WORDS], words[0])
    return mine, numpys, torchs


def drawn_between(
    before: Mark,
    after: Mark,
) -> frozenset[str]:
    """Return the names of the generators that were drawn from between two marks."""
    if before == after:
        return NONE
    drawn = set()
    names = ("random", "numpy", "torch")
    for name, was, now in zip(names, before, after, strict=True):
        if was != now:
            drawn.add(name)
    return frozenset(drawn)


def _words_at(address: int) -> memoryview:
    kind = ctypes.c_uint32 * (_MERSENNE_WORDS + 1)
    words = kind.from_address(address)
    return memoryview(words).cast("B").cast("I")


@functools.lru_cache(maxsize=1)
def _numpys_words(generator: object) -> memoryview | None:
    """Return a view of a Mersenne twister of NumPy's, its 624 words and its index.

    For other generators return None.
    """
    if type(generator) is np.random.MT19937:
        return _words_at(generator.ctypes.state_address)
    return None


_own = random.getstate.__self__  # type: ignore[attr-defined]
_in_memory = _words_at(id(_own) + object.__basicsize__)
*_words, _index = _own.getstate()[1]
# In some Pythons the words may lie elsewhere, and then the generator is asked.
_own_words: memoryview | None = None
if _in_memory.tolist() == [_index, *_words]:
    _own_words = _in_memory


def global_generators() -> dict[str, Any]:
    """Return the modules that have a global generator and are loaded, by name."""
    loaded: dict[str, Any] = {"random": random, "numpy": np.random}
    torch = torch_with("get_rng_state")
    if torch is not None:
        loaded["torch"] = torch
    return loaded


def state_of(generator: Any) -> Any:
    """Return the state of a generator, or of a module's global generator."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if generator is np.random or isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if hasattr(generator, "getstate"):
        return generator.getstate()
    if hasattr(generator, "get_rng_state"):
        return generator.get_rng_state()
    return generator.get_state()


def give_back(generator: Any, state: Any) -> None:
    """Set the state of a generator, or of a module's.

    Raise an error if ``state`` is damaged.
    """
    if hasattr(generator, "setstate"):
        # Python itself would fail only when the number is drawn.
        reserve = state[2]
        if reserve is not None and not isinstance(reserve, float):
            raise ValueError("the number in reserve is none")
        generator.setstate(state)
    elif hasattr(generator, "set_rng_state"):
        generator.set_rng_state(state)
    else:
        of_numpy = (np.random.RandomState, np.random.Generator)
        if generator is np.random or isinstance(generator, of_numpy):
            # A larger position would have NumPy read behind a Mersenne twister's words,
            # or behind Philox's buffer.
            places = (
                (state["state"].get("pos", 0), _MERSENNE_WORDS),
                (state.get("buffer_pos", 0), _PHILOX_WORDS),
            )
            for position, most in places:
                if not 0 <= position <= most:
                    raise ValueError(f"position {position} is not within 0 … {most}")
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)


class Kept:
    """The states of the caller's global generators, to be restored after a fetch."""

    def __init__(self) -> None:
        self._mark: Mark = ()
        self._states: dict[str, Any] = {}
        # NumPy keeps a normal number in reserve, and taking it changes no mark.
        self._has_reserve = False

    def keep(self) -> None:
        """Remember the present states.

        They are read only if a generator was drawn from since the last call.
        """
        mark = globals_mark()
        if mark != self._mark or self._has_reserve:
            self._mark = mark
            self._states = {
                name: state_of(generator)
                for name, generator in global_generators().items()
            }
            numpys = self._states["numpy"]
            self._has_reserve = bool(numpys.get("has_gauss", 0))

    def drawn(self) -> frozenset[str]:
        """Return the names of the generators that were drawn from since ``keep``."""
        drawn = drawn_between(self._mark, globals_mark())
        if self._has_reserve:
            numpys = np.random.get_state(legacy=False)
            if not numpys["has_gauss"]:
                drawn |= {"numpy"}
        return drawn

    def restore(self) -> None:
        """Restore the states if a generator was drawn from."""
        if self.drawn():
            generators = global_generators()
            for name, state in self._states.items():
                if name != "numpy" or not _gave_back_words(state):
                    give_back(generators[name], state)


def _gave_back_words(state: dict[str, Any]) -> bool:
    """Set NumPy's global Mersenne twister in memory, in a tenth of the time.

    Return False if that can't be done.
    """
    generator = np.random.mtrand._rand._bit_generator
    words = _numpys_words(generator)
    if words is None or state.get("has_gauss"):
        return False
    if state["bit_generator"] != "MT19937":
        return False
    # This drops a normal number in reserve.
    np.random.seed(0)
    with generator.lock:
        saved = state["state"]
        words[:_MERSENNE_WORDS] = memoryview(saved["key"])
        words[_MERSENNE_WORDS] = saved["pos"]
    return True
