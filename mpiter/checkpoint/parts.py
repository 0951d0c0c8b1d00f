"""The parts of a checkpoint: what may be one, how a dict is filled, and what a loader's state tells of its place."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..errors import OptionError, StateError
from ..worker.seeding import global_generators


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


def apart(state: Any, now: dict[str, Any]) -> Any:
    """Return a loader's state without generators equal to the global ones ``now``, from which its next epoch draws."""
    own = {name: held for name, held in state.get("generators", {}).items() if held != now.get(name)}
    return {**state, "generators": own} if "generators" in state else state


def generators() -> dict[str, Any]:
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
        return sys.modules["jax"].numpy.asarray(saved)
    (now if isinstance(now, np.ndarray) else now.detach())[...] = saved
    return now
