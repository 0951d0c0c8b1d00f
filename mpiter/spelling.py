"""A TypeError for an argument under the name that it has in torch, in Chainer or at another of our doors says ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

OF_ITERATORS = {
    "num_workers": "n_processes",
    "prefetch_factor": "n_prefetch",
    "worker_init_fn": "worker_init",
    "timeout": "dataset_timeout",
    "generator": "seed",
    "sampler": "order_sampler",
    "multiprocessing_context": "backend=mpiter.Process(…)",
    "pin_memory": "mpiter.torch.DataLoader, which has it",
    "persistent_workers": "none: workers stay from epoch to epoch",
    "repeat": "epochs=; epochs=None is without end",
    **dict.fromkeys(("collate_fn", "batch_sampler"), "mpiter.DataLoader, which has it"),
    **dict.fromkeys(("epochs", "drop_last", "ragged"), "mpiter.batches(), which has it"),
}
OF_LOADERS = {
    "n_processes": "num_workers",
    "n_threads": "num_workers",
    "n_prefetch": "prefetch_factor",
    "worker_init": "worker_init_fn",
    "dataset_timeout": "timeout",
    "order_sampler": "sampler",
    **dict.fromkeys(("epochs", "repeat"), "a `for` over the loader for each epoch"),
}


def knows(elsewhere: Mapping[str, str], more: Mapping[str, Any]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A function that names its own argument where another name was given, or the nearest one.

    Its ``**options`` are those of ``more``, each with its default.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        own = inspect.signature(function)
        named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        named += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=more[name]) for name in more]
        mine = [one.name for one in named]

        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for name in kwargs.keys() - set(mine):
                raise TypeError(f"there is no argument {name!r}{_hint(name, elsewhere, mine)}.")
            return function(*args, **kwargs)

        called.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
        return called

    return decorate


def _hint(name: str, elsewhere: Mapping[str, str], mine: list[str]) -> str:
    near = next(iter(get_close_matches(name, [*mine, *elsewhere], 1, 0.7)), name)
    meant = elsewhere.get(name) or (near if near in mine else elsewhere.get(near))
    return f"; use {meant}" if meant else ""
