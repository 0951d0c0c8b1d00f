"""Arguments under the names that they have elsewhere: the TypeError says ours.

Pure.  Programs come from torch, Chainer and tf.data, and from one of our doors to another.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

OF_ITERATORS = {
    "num_workers": "n_processes",
    "n_workers": "n_processes",
    "workers": "n_processes",
    "n_threads": "n_processes",
    "n_jobs": "n_processes",
    "prefetch_factor": "n_prefetch",
    "prefetch": "n_prefetch",
    "worker_init_fn": "worker_init",
    "timeout": "dataset_timeout",
    "generator": "seed",
    "rng": "seed",
    "random_state": "seed",
    "bs": "batch_size",
    "sampler": "order_sampler",
    "multiprocessing_context": "backend=mpiter.Process(…)",
    "start_method": "backend=mpiter.Process(…)",
    "method": "backend=mpiter.Process(…)",
    "context": "backend=mpiter.Process(…)",
    "collate_fn": "mpiter.DataLoader, which has it",
    "batch_sampler": "mpiter.DataLoader, which has it",
    "pin_memory": "mpiter.torch.DataLoader, which has it",
    "pin_memory_device": "mpiter.torch.DataLoader, which has it",
    "persistent_workers": "none: workers stay from epoch to epoch",
    "repeat": "epochs=; epochs=None is without end",
    "epochs": "mpiter.batches(), which has it",
    "drop_last": "mpiter.batches(), which has it",
    "ragged": "mpiter.batches(), which has it",
}
OF_LOADERS = {
    "n_processes": "num_workers",
    "n_workers": "num_workers",
    "n_threads": "num_workers",
    "workers": "num_workers",
    "n_jobs": "num_workers",
    "n_prefetch": "prefetch_factor",
    "prefetch": "prefetch_factor",
    "worker_init": "worker_init_fn",
    "dataset_timeout": "timeout",
    "order_sampler": "sampler",
    "start_method": "multiprocessing_context",
    "method": "multiprocessing_context",
    "context": "multiprocessing_context",
    "rng": "generator",
    "random_state": "generator",
    "bs": "batch_size",
    "epochs": "a `for` over the loader for each epoch",
    "repeat": "a `for` over the loader for each epoch",
    "pin_memory_device": "mpiter.torch.DataLoader, which has it",
}


def knows(elsewhere: Mapping[str, str]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A function that names its own argument where another name was given, or the nearest one."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        mine = inspect.signature(function).parameters

        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for name in kwargs.keys() - mine.keys():
                raise TypeError(f"there is no argument {name!r}{_hint(name, elsewhere, list(mine))}.")
            return function(*args, **kwargs)

        return called

    return decorate


def _hint(name: str, elsewhere: Mapping[str, str], mine: list[str]) -> str:
    near = next(iter(get_close_matches(name, [*mine, *elsewhere], 1)), name)
    meant = elsewhere.get(name) or elsewhere.get(near) or (near if near in mine else None)
    return f"; use {meant}" if meant else ""
