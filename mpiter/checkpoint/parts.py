"""The parts of a checkpoint: what may be one, what is saved of them, and how they are filled again.

What is the same in all ranks of a training is saved once, as rank 0 has it.  Each rank keeps for itself its global
random generators, and the places of loaders that differ from rank 0's (those with a sampler of the rank's own).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OptionError, StateError, warn
from ..samples.jsonable import decoded, encoded
from ..worker.seeding import give_back, global_generators, seed_globals, state_of

States = dict[str, Any]  # by the names of parts


class Parts:
    """The parts of one checkpoint by their names."""

    def __init__(self, named: dict[str, Any]) -> None:
        for name, part in named.items():
            check_part(name, part)
        if len(set(map(id, named.values()))) < len(named):
            raise OptionError(f"one object was passed twice among the parts {', '.join(named)}: pass each once.")
        self.by_name = named
        self.loaders = {name: part for name, part in named.items() if hasattr(part, "is_new_epoch")}

    def places(self) -> States:
        """Return the states of the loaders."""
        return {name: loader.state_dict() for name, loader in self.loaders.items()}

    def pass_of(self, name: str) -> int:
        """Return the number of a loader's pass; 0 for what has none."""
        return getattr(self.loaders[name], "passes", 0)

    def of_rank(self, places: States) -> str:
        """Return what a rank keeps for itself, as two lines of JSON: its generators, and its loaders' places."""
        states = {name: state_of(generator) for name, generator in _generators().items()}
        now = {name: encoded(state) for name, state in states.items()}
        own = {name: _apart(place, now) for name, place in places.items()}
        return f"{json.dumps(now)}\n{json.dumps(encoded(own))}"

    def states(self, places: States, of_ranks: Sequence[str]) -> States:
        """Return what is to be saved: all parts, and what each rank keeps for itself."""
        parts = dict[str, Any]()
        for name, part in self.by_name.items():
            if name in places:
                parts[name] = places[name]
            else:
                parts[name] = part if type(part) is dict else part.state_dict()
        leader, same_places = of_ranks[0].split("\n")
        # Rank 0's are those of all that have no others.
        parts |= decoded(json.loads(same_places))
        kept = [leader]
        for text in of_ranks[1:]:
            kept.append(text.removesuffix(f"\n{same_places}"))
        return {"parts": parts, "ranks": kept}

    def check(self, saved: States, path: Path, is_strict: bool) -> None:
        """Raise a StateError if the states in the file at ``path`` are not of these parts; warn of new parts."""
        for name, part in self.by_name.items():
            state = saved.get(name, {})
            if type(part) is dict and type(state) is not dict:
                raise StateError(f"{path} holds {state!r:.80} as part {name}, which is a dict here.")
        missing = saved.keys() - self.by_name.keys()
        if is_strict and missing:
            theirs, ours = ", ".join(saved), ", ".join(self.by_name)
            raise StateError(
                f"{path} holds {theirs}, but was given {ours}: pass {', '.join(sorted(missing))} too, or "
                f"another path, or strict=False to go on without."
            )
        if new := self.by_name.keys() - saved.keys():
            warn(f"{path} doesn't hold {', '.join(sorted(new))}: taken as it is, and saved from now on.")

    def load(self, states: States, path: Path) -> None:
        """Fill the parts with their saved states."""
        names = self.by_name.keys() & states.keys()
        # Loaders first: they raise before anything changes.
        for name in sorted(names, key=lambda name: name not in self.loaders):
            part, state = self.by_name[name], states[name]
            if type(part) is dict:
                filled(part, state, name)
                continue
            try:
                part.load_state_dict(state)
            except StateError as error:
                text = f"part {name} of {path}: {error}  To begin anew, pass another path, or delete this file."
                raise StateError(text) from error

    def load_all_but_loaders(self, states: States, path: Path) -> None:
        """Fill the other parts: at the beginning of a training all ranks have what rank 0 has."""
        self.load({name: state for name, state in states.items() if name not in self.loaders}, path)


class OfRank:
    """What one rank has kept for itself in a file; nothing, where another number of ranks has saved."""

    def __init__(self, of_ranks: Sequence[str], rank: int, size: int, path: Path) -> None:
        self.generators, self.places = dict[str, Any](), dict[str, Any]()
        self.is_known = len(of_ranks) == size
        self._rank, self._path = rank, path
        # Of all ranks, so that no two trainings go on alike
        told = "\n".join(of_ranks).encode()
        self._seed = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little")
        if not self.is_known and rank == 0:
            self._warn_of_own_orders(of_ranks, size)
        if self.is_known:
            generators, _, places = of_ranks[rank].partition("\n")
            self.generators = self._read(generators)
            self.places = self._read(places or "{}")

    def give_back_generators(self, step: int) -> None:
        """Have the global random generators go on where they were, or begin anew by seed, rank and step."""
        here = _generators()
        if not self.is_known:
            seed_globals(self._seed, self._rank, step)
            if "gpu" in here:
                here["gpu"].manual_seed(here["torch"].initial_seed())
        for name in here.keys() & self.generators.keys():
            try:
                give_back(here[name], self.generators[name])
            except Exception as error:  # generators raise any type for a wrong state
                what = f"{self._path} holds no state of the random generator {name}"
                raise StateError(f"{what}: {type(error).__name__}: {error}.") from error

    def _warn_of_own_orders(self, of_ranks: Sequence[str], size: int) -> None:
        """Warn if ranks have shuffled a loader each in its own way: others can only go on as rank 0."""
        names = set[str]()
        for text in of_ranks[1:]:
            places = self._read(text.partition("\n")[2] or "{}")
            for name, place in places.items():
                if place.get("shuffle") or place.get("order") == "shuffled":
                    names.add(name)
        if names:
            shuffled = ", ".join(sorted(names))
            warn(
                f"{self._path} was saved by {len(of_ranks)} ranks, each of which had shuffled {shuffled} in an order "
                f"of its own.  All {size} ranks go on in rank 0's now, with the same samples.  Pass shard='auto' to "
                f"the loader: any number of ranks goes on with that."
            )

    def _read(self, text: str) -> States:
        try:
            states = decoded(json.loads(text))
        except ValueError as error:
            raise StateError(f"{self._path} holds no states of rank {self._rank}: {error}") from error
        if not isinstance(states, dict):
            raise StateError(f"{self._path} holds no states of rank {self._rank}: {states!r:.80}")
        return states


def check_part(name: str, part: Any) -> None:
    """Raise an OptionError if ``part`` has no state that could be saved."""
    if isinstance(part, type):
        raise OptionError(f"part {name} is the class {part.__name__}: pass an object of it.")
    has_state = hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
    if type(part) is not dict and not has_state:
        what = f"part {name} is of type {type(part).__name__}, which has no state_dict() and load_state_dict()"
        # Values and arrays are kept in a dict; what can be iterated over is a loader of torch's, say.
        instead = "mpiter.torch.DataLoader for torch's loader" if hasattr(part, "batch_size") else "a dict of it"
        raise OptionError(f"{what}: pass {instead}; the options have other names.")


def gives_batches(part: Any) -> bool:
    """True for a part that may be another library's loader; torch's modules, of which some can be iterated, are not."""
    is_ours_or_model = hasattr(part, "is_new_epoch") or hasattr(part, "parameters")
    return type(part) is not dict and hasattr(part, "__iter__") and not is_ours_or_model


def place_in(state: Any) -> str:
    """Return what a loader's state tells of its place; the global generators in it may be drawn from by anyone."""
    return repr({**state, "generators": None})


def _apart(state: Any, now: dict[str, Any]) -> Any:
    """Return a loader's state without generators equal to the global ones ``now``, from which its next epoch draws."""
    own = {name: held for name, held in state.get("generators", {}).items() if held != now.get(name)}
    return {**state, "generators": own} if "generators" in state else state


def _generators() -> dict[str, Any]:
    """Return the global random generators by name, torch's of the GPU among them once CUDA is initialised."""
    here = global_generators()
    has_gpu = "torch" in here and here["torch"].cuda.is_initialized()
    return here | ({"gpu": here["torch"].cuda} if has_gpu else {})


def filled(now: Any, saved: Any, path: str) -> Any:
    """Copy the saved values into the present dicts, arrays and tensors; return what to put in the place of ``now``."""
    if isinstance(now, dict) and isinstance(saved, dict):
        gone, new = (
            ", ".join(sorted(map(repr, one))) for one in (saved.keys() - now.keys(), now.keys() - saved.keys())
        )
        if gone and new:  # renamed: it would stay unfilled
            raise StateError(f"{path} had {gone:.200} when it was saved, and has {new:.200} now: rename it back.")
        for key, value in saved.items():
            now[key] = filled(now.get(key), value, f"{path}[{key!r:.60}]")
        return now
    if isinstance(now, (list, tuple)) and isinstance(saved, (list, tuple)) and len(now) == len(saved):
        parts = [filled(one, other, f"{path}[{at}]") for at, (one, other) in enumerate(zip(now, saved, strict=True))]
        return type(now)(*parts) if hasattr(now, "_fields") else type(saved)(parts)
    if isinstance(now, np.generic) or not hasattr(now, "shape"):
        return saved
    if not hasattr(saved, "shape") or (now.dtype, now.shape) != (saved.dtype, saved.shape):
        raise StateError(f"{path} was {saved!r:.80} when it was saved; it is of {now.dtype} and shape {now.shape} now.")
    if type(now).__module__.startswith("jaxlib"):
        jax = sys.modules["jax"]
        if not now.committed:
            return jax.numpy.asarray(saved)
        # It stays on its devices, also on those of other processes, for which device_put would wait.
        return jax.make_array_from_callback(now.shape, now.sharding, saved.__getitem__)
    (now if isinstance(now, np.ndarray) else now.detach())[...] = saved
    return now
