"""The rare options, which ``batches()``, the iterators and the loaders have in common, and hints for misspelt options.

Pure.  ``takes`` adds these options by name to a function's signature, so that ``help()`` and editors list them, and
refuses any other argument with the name of the one that was probably meant.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from ..order.ranks import Sharding
from ..rules import Skip
from .options import Options

__all__ = ["OfLoaders", "Rare"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Rare(TypedDict, total=False):
    """The rare options, which are the same in ``batches()``, all iterators and both loaders.

    Attributes:
        seed: seed of the order and of the samples' randomness.  None draws one from NumPy's global generator, once.
        on_error: "raise" raises the dataset's error in place of the batch, "skip" leaves the sample out;
            ``Skip(most=100)`` leaves out at most 100 samples.
        sample_timeout: seconds that one sample may take, 600 unless given; after that its worker is replaced and the
            sample is tried once more.  None sets no limit.
        in_order: True hands batches over in the planned order; False as they finish, without exact resume.
        shard: this process's part, where several train together: "auto", ``(rank, size)`` or ``mpiter.Shard``.
        trace: the name of a file to record which worker did what and when, for ui.perfetto.dev or chrome://tracing.
        receipts: a folder in which every batch that is handed out is noted, for `mpiter audit`; or a ``Receipts``.
        serializer: how samples are sent: in "slots" of shared memory, as "packed" bytes, or by an object of yours with
            ``pack`` and ``unpack``.
        copy: True hands out private copies instead of views of shared memory.
        run_ahead: batches in flight beyond finished ones that may wait.  None: as many as the workers need; 0: none.

    >>> import mpiter
    >>> with mpiter.batches([1, 2, 3], 2, n_processes=0, seed=0, on_error="skip") as stream:
    ...     stream.seed
    0
    """

    seed: int | None
    on_error: Literal["raise", "skip"] | Skip
    sample_timeout: float | None
    in_order: bool
    shard: Sharding
    trace: str | os.PathLike[str] | None
    receipts: Any
    serializer: Any
    copy: bool
    run_ahead: int | None


class OfLoaders(Rare, total=False):
    """The rare options that only loaders have: those of ``mpiter.DataLoader`` and ``mpiter.torch.DataLoader``.

    Attributes:
        backend: what runs the workers: "thread", "ray", "mpi", or an object such as ``mpiter.Process("spawn")``.
        persistent_workers: None keeps the workers from epoch to epoch and sends them a dataset that has changed; True
            keeps them and sends nothing; False ends them with the epoch.

    >>> import mpiter
    >>> with mpiter.DataLoader([1, 2, 3], 2, num_workers=1, backend="thread") as loader:
    ...     print(*loader)
    [1 2] [3]
    """

    backend: Any
    persistent_workers: bool | None


_DEFAULTS = {field.name: field.default for field in fields(Options)}
_OF_LOADERS = {"backend": None, "persistent_workers": None, "pin_memory_device": "", "ragged": "raise"}


def defaults(more: type) -> dict[str, Any]:
    """Return the default values of the options of ``more``."""
    mine = _DEFAULTS | _OF_LOADERS
    return {name: mine[name] for name in more.__annotations__}


# Names of arguments in torch, in Chainer or at another of our doors, and what to use here
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
OF_THREADS = {**OF_ITERATORS, **dict.fromkeys(("n_processes", "num_workers"), "n_threads")}
OF_NONE = {**OF_ITERATORS, **dict.fromkeys(("n_processes", "num_workers"), "MultiprocessIterator, which has workers")}
OF_LOADERS = {
    "n_processes": "num_workers",
    "n_threads": "num_workers",
    "n_prefetch": "prefetch_factor",
    "worker_init": "worker_init_fn",
    "dataset_timeout": "timeout",
    "order_sampler": "sampler",
    "ragged": "mpiter.DataLoader, which has it",
    **dict.fromkeys(("epochs", "repeat"), "a `for` over the loader for each epoch"),
}


def takes(more: type, elsewhere: Mapping[str, str]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a function whose ``**options`` are those of ``more``; ``elsewhere`` says what other names stand for."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        own = inspect.signature(function)
        named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        for name, default in defaults(more).items():
            named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
        mine = [one.name for one in named]

        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for name in kwargs.keys() - set(mine):
                raise TypeError(f"there is no argument {name!r}{_hint(name, elsewhere, mine)}.")
            return function(*args, **kwargs)

        called.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
        called.__doc__ = "\n\n    ".join(filter(None, (function.__doc__ and function.__doc__.rstrip(), *_docs(more))))
        return called

    return decorate


def _docs(more: type) -> list[str]:
    """Return the descriptions of these options, for ``help()``."""
    kinds = [one for one in (Rare, OfLoaders, more) if set(one.__annotations__) <= set(more.__annotations__)]
    return [(kind.__doc__ or "").partition(">>>")[0].strip() for kind in dict.fromkeys(kinds)]


def _hint(name: str, elsewhere: Mapping[str, str], mine: list[str]) -> str:
    near = next(iter(get_close_matches(name, [*mine, *elsewhere], 1, 0.7)), name)
    meant = elsewhere.get(name) or (near if near in mine else elsewhere.get(near))
    return f"; use {meant}" if meant else ""
