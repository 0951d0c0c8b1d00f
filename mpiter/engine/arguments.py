"""The rare options, which ``batches()``, the iterators and the loaders have in common, and hints for misspelt ones."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from difflib import get_close_matches
from itertools import chain
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
            keeps them, sends nothing, and a stream in them keeps what it notes of itself; False ends them with the
            epoch.

    >>> import mpiter
    >>> with mpiter.DataLoader([1, 2, 3], 2, num_workers=1, backend="thread") as loader:
    ...     print(*loader)
    [1 2] [3]
    """

    backend: Any
    persistent_workers: bool | None


_OF_LOADERS = {"backend": None, "persistent_workers": None, "pin_memory_device": ""}
_DEFAULTS = {field.name: field.default for field in fields(Options)} | _OF_LOADERS
_ALIKE = (  # names of the same thing in torch, in Chainer and here
    {"n_processes", "n_threads", "num_workers"},
    {"n_prefetch", "prefetch_factor"},
    {"worker_init", "worker_init_fn"},
    {"dataset_timeout", "timeout"},
    {"order_sampler", "sampler"},
)


def defaults(more: type) -> dict[str, Any]:
    """Return the default values of the options of ``more``."""
    return {name: _DEFAULTS[name] for name in more.__annotations__}


def takes(more: type) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a function whose ``**options`` are those of ``more``, so that ``help()`` and editors list them by name.

    Any other argument is refused, with the name of the one that was probably meant.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        own = inspect.signature(function)
        named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        for name, default in defaults(more).items():
            named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
        signature = own.replace(parameters=named)

        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for name in kwargs.keys() - signature.parameters.keys():
                raise TypeError(f"there is no argument {name!r}{_hint(name, signature.parameters)}.")
            return function(*args, **kwargs)

        called.__signature__ = signature  # type: ignore[attr-defined]
        return called

    return decorate


def _hint(name: str, mine: Iterable[str]) -> str:
    for near in get_close_matches(name, [*mine, *chain(*_ALIKE)], 1, 0.7):
        alike = next((names for names in _ALIKE if near in names), {near})
        for meant in alike.intersection(mine):
            return f"; use {meant}"
    return ""
