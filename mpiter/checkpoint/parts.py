"""The parts of a checkpoint: what is saved of them, and how they are filled again.

What is the same in all ranks of a training is saved once, as rank 0 has it.  Each rank
keeps for itself its global random generators, and the places of loaders that differ
from rank 0's (those with a sampler of the rank's own).
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
        different = set(map(id, named.values()))
        if len(different) < len(named):
            raise OptionError(
                f"one object was passed twice among the parts {', '.join(named)}: pass "
                "each once."
            )
        self.by_name = named
        self.loaders = dict[str, Any]()
        for name, part in named.items():
            if hasattr(part, "is_new_epoch"):
                self.loaders[name] = part

    def places(self) -> States:
        """Return the states of the loaders."""
        states = dict[str, Any]()
        for name, loader in self.loaders.items():
            states[name] = loader.state_dict()
        return states

    def pass_of(self, name: str) -> int:
        """Return the number of a loader's pass; 0 if it doesn't count them."""
        return getattr(self.loaders[name], "passes", 0)

    def can_stay(self, ended: list[str]) -> bool:
        """Return True if the loaders, resumed at the end of their pass, stay there.

        Then what follows the pass can be done again, without a batch before it.  An
        iterator without an end goes on with the next epoch's batches.
        """
        for name in ended:
            if not getattr(self.loaders[name], "has_passes", False):
                return False
        return bool(ended)

    def of_rank(self, places: States) -> str:
        """Return what a rank keeps for itself: its generators and its loaders' places.

        Each of both is a line of JSON.
        """
        now = dict[str, Any]()
        for name, generator in _generators().items():
            now[name] = encoded(state_of(generator))
        own = dict[str, Any]()
        for name, place in places.items():
            own[name] = _apart(place, now)
        return f"{json.dumps(now)}\n{json.dumps(encoded(own))}"

    def states(self, places: States, of_ranks: Sequence[str]) -> States:
        """Return what is saved: all parts, and what each rank keeps for itself."""
        parts = dict[str, Any]()
        for name, part in self.by_name.items():
            if name in places:
                parts[name] = places[name]
            elif type(part) is dict:
                parts[name] = part
            else:
                parts[name] = part.state_dict()
        leader, same_places = of_ranks[0].split("\n")
        # Rank 0's places stand among the parts, and hold for each rank that has the
        # same: then any number of ranks can resume.
        parts |= decoded(json.loads(same_places))
        kept = [leader]
        for text in of_ranks[1:]:
            kept.append(text.removesuffix(f"\n{same_places}"))
        return {"parts": parts, "ranks": kept}

    def check(self, saved: States, path: Path, is_strict: bool) -> None:
        """Raise a StateError if the states saved in ``path`` aren't of these parts.

        Warn of parts that are new since it was saved.
        """
        for name, part in self.by_name.items():
            state = saved.get(name, {})
            if type(part) is dict and type(state) is not dict:
                raise StateError(
                    f"{path} holds {state!r:.80} as part {name}, which is a dict here."
                )
        missing = saved.keys() - self.by_name.keys()
        if is_strict and missing:
            theirs = ", ".join(saved)
            ours = ", ".join(self.by_name)
            raise StateError(
                f"{path} holds {theirs}, but was given {ours}: pass "
                f"{', '.join(sorted(missing))} too, or another path, or strict=False "
                "to go on without."
            )
        new = self.by_name.keys() - saved.keys()
        if new:
            warn(
                f"{path} doesn't hold {', '.join(sorted(new))}: taken as it is, and "
                "saved from now on."
            )

    def load(self, states: States, path: Path) -> None:
        """Fill the parts with their saved states."""
        names = [name for name in self.by_name if name in states]
        # Loaders come first, since they refuse another dataset or order: that must be
        # known before a model or a dict has changed.
        for name in sorted(names, key=lambda name: name not in self.loaders):
            part = self.by_name[name]
            state = states[name]
            if type(part) is dict:
                filled(part, state, name)
                continue
            try:
                part.load_state_dict(state)
            except StateError as error:
                text = (
                    f"part {name} of {path}: {error}  To begin anew, pass another "
                    "path, or delete this file."
                )
                raise StateError(text) from error

    def load_all_but_loaders(self, states: States, path: Path) -> None:
        """Fill all parts but the loaders, from what rank 0 had at the beginning."""
        others = dict[str, Any]()
        for name, state in states.items():
            if name not in self.loaders:
                others[name] = state
        self.load(others, path)


class OfRank:
    """What one rank has kept for itself in a file.

    It is nothing if another number of ranks has saved the file.
    """

    def __init__(
        self, of_ranks: Sequence[str], rank: int, size: int, path: Path
    ) -> None:
        self.generators: States = {}
        self.places: States = {}
        self.is_known = len(of_ranks) == size
        self._rank = rank
        self._path = path
        # Where generators begin anew, the seed comes from what was saved of all ranks,
        # so that no two trainings go on alike.
        told = "\n".join(of_ranks).encode()
        digest = hashlib.blake2b(told, digest_size=8).digest()
        self._seed = int.from_bytes(digest, "little")
        if not self.is_known and rank == 0:
            self._warn_of_own_orders(of_ranks, size)
        if self.is_known:
            generators, _, places = of_ranks[rank].partition("\n")
            self.generators = self._read(generators)
            self.places = self._read(places or "{}")

    def refuse_own_orders(self, parts: States) -> None:
        """Raise a StateError if an order sampler gave this rank an order of its own.

        ``parts`` are what rank 0 has saved.
        """
        for name, place in self.places.items():
            # There is a checksum with ``shard=`` only, where all ranks need one order.
            if "sampler_checksum" not in place:
                continue
            if place.get("indices") != parts[name].get("indices"):
                raise StateError(
                    f"{self._path} was saved by ranks whose order_sampler of {name} "
                    f"gave rank {self._rank} another order than rank 0: samples came "
                    "twice, and others never.  With shard=, it must return the same "
                    "array in every rank.  Begin anew, with another path."
                )

    def give_back_generators(self, step: int) -> None:
        """Have the global random generators go on where they were.

        If nothing is known of them, they begin anew by seed, rank and step.
        """
        here = _generators()
        if not self.is_known:
            seed_globals(self._seed, self._rank, step)
            # torch's generator of the GPU follows that of the CPU only if it is told
            # to.
            if "gpu" in here:
                here["gpu"].manual_seed(here["torch"].initial_seed())
        for name in here.keys() & self.generators.keys():
            try:
                give_back(here[name], self.generators[name])
            except Exception as error:
                # For a damaged state, each generator raises a type of its own.
                what = f"{self._path} holds no state of the random generator {name}"
                raise StateError(f"{what}: {type(error).__name__}: {error}.") from error

    def _warn_of_own_orders(self, of_ranks: Sequence[str], size: int) -> None:
        """Warn if each rank has shuffled a loader in its own way.

        Another number of ranks can only go on in rank 0's order.
        """
        names = set[str]()
        for text in of_ranks[1:]:
            _, _, own = text.partition("\n")
            places = self._read(own or "{}")
            for name, place in places.items():
                is_shuffled = place.get("order") == "shuffled"
                if place.get("shuffle") or is_shuffled:
                    names.add(name)
        if names:
            shuffled = ", ".join(sorted(names))
            warn(
                f"{self._path} was saved by {len(of_ranks)} ranks, each of which had "
                f"shuffled {shuffled} in an order of its own.  All {size} ranks go on "
                "in rank 0's now, with the same samples.  Pass shard='auto' to the "
                "loader: any number of ranks goes on with that."
            )

    def _read(self, text: str) -> States:
        try:
            states = decoded(json.loads(text))
        except ValueError as error:
            raise StateError(
                f"{self._path} holds no states of rank {self._rank}: {error}"
            ) from error
        if not isinstance(states, dict):
            raise StateError(
                f"{self._path} holds no states of rank {self._rank}: {states!r:.80}"
            )
        return states


def check_part(name: str, part: object) -> None:
    """Raise an OptionError if ``part`` has no state that could be saved."""
    if isinstance(part, type):
        raise OptionError(
            f"part {name} is the class {part.__name__}: pass an object of it."
        )
    has_state = hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
    if type(part) is not dict and not has_state:
        what = (
            f"part {name} is of type {type(part).__name__}, which has no state_dict() "
            "and load_state_dict()"
        )
        # What has a batch size is probably torch's loader; what has none, a value.
        instead = "a dict of it"
        if hasattr(part, "batch_size"):
            instead = "mpiter.torch.DataLoader for torch's loader"
        raise OptionError(f"{what}: pass {instead}; the options have other names.")


def gives_batches(part: object) -> bool:
    """Return True for a part that may be another library's loader."""
    # Some of torch's modules can be iterated as well.
    if type(part) is dict or hasattr(part, "parameters"):
        return False
    is_ours = hasattr(part, "is_new_epoch")
    return hasattr(part, "__iter__") and not is_ours


def place_in(state: States) -> str:
    """Return what a loader's state tells of its place."""
    # Anyone may draw from the global generators in it, while the loader stays where it
    # is.
    return repr({**state, "generators": None})


def _apart(state: States, now: States) -> States:
    """Return a loader's state without generators that are as the global ones ``now``.

    These are saved for each rank anyhow, and differ from rank to rank, which a place
    should not.
    """
    if "generators" not in state:
        return state
    own = dict[str, Any]()
    for name, held in state["generators"].items():
        if held != now.get(name):
            own[name] = held
    return {**state, "generators": own}


def _generators() -> dict[str, Any]:
    """Return the global random generators by name."""
    here = global_generators()
    # To ask for the GPU's generator would initialise CUDA in a program without it.
    if "torch" in here and here["torch"].cuda.is_initialized():
        return here | {"gpu": here["torch"].cuda}
    return here


def filled(now: Any, saved: Any, path: str) -> Any:
    """Copy the saved values into the present dicts, arrays and tensors.

    Return what to put in the place of ``now``.
    """
    if isinstance(now, dict) and isinstance(saved, dict):
        gone_keys = saved.keys() - now.keys()
        new_keys = now.keys() - saved.keys()
        gone = ", ".join(sorted(map(repr, gone_keys)))
        new = ", ".join(sorted(map(repr, new_keys)))
        # A key has probably been renamed.  The program would go on with what the new
        # one holds at its beginning.
        if gone and new:
            raise StateError(
                f"{path} had {gone:.200} when it was saved, and has {new:.200} now: "
                "rename it back."
            )
        for key, value in saved.items():
            within = f"{path}[{key!r:.60}]"
            now[key] = filled(now.get(key), value, within)
        return now
    sequences = (list, tuple)
    are_sequences = isinstance(now, sequences) and isinstance(saved, sequences)
    if are_sequences and len(now) == len(saved):
        parts = []
        pairs = zip(now, saved, strict=True)
        for at, (one, other) in enumerate(pairs):
            parts.append(filled(one, other, f"{path}[{at}]"))
        # Named tuples were saved as plain ones, without their class.
        if hasattr(now, "_fields"):
            return type(now)(*parts)
        return type(saved)(parts)
    if isinstance(now, np.generic) or not hasattr(now, "shape"):
        return saved
    has_shape = hasattr(saved, "shape")
    if not has_shape or (now.dtype, now.shape) != (saved.dtype, saved.shape):
        raise StateError(
            f"{path} was {saved!r:.80} when it was saved; it is of {now.dtype} and "
            f"shape {now.shape} now."
        )
    # JAX's arrays can't be written into, so another one takes their place.
    if type(now).__module__.startswith("jaxlib"):
        jax = sys.modules["jax"]
        if not now.committed:
            return jax.numpy.asarray(saved)
        # It must stay on its devices.  device_put() would do that too, but waits for
        # other processes if some devices are theirs.
        return jax.make_array_from_callback(now.shape, now.sharding, saved.__getitem__)
    # The model holds this very array, so it is filled and not replaced.  A tensor that
    # requires a gradient refuses that, but not its detached view.
    memory = now
    if not isinstance(now, np.ndarray):
        memory = now.detach()
    memory[...] = saved
    return now
