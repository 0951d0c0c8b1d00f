"""The rare options of ``batches()``, iterators and loaders; hints for misspelt ones."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from itertools import chain
from textwrap import dedent, indent
from typing import Any, TypedDict, TypeVar, cast

from ..datasets.mistaken import refuse_mistaken
from ..hook import Hook
from .options import options_for

__all__ = ["OfLoaders", "Rare"]

_F = TypeVar("_F", bound=Callable[..., Any])
_OPTIONS = re.compile(r"^( *)options: .*\n", re.MULTILINE)


class Rare(TypedDict, total=False):
    """The rare options, the same in ``batches()``, all iterators and both loaders.

    Attributes:
        sample_timeout: seconds that one sample may take, 600 unless given; after that
            its worker is replaced and the sample is tried once more.  None sets no
            limit.
        in_order: True hands batches over in the planned order; False as they finish,
            without exact resume.
        hooks: an ``mpiter.Hook``, or a list of them, such as
            ``mpiter.receipts.Receipts("folder")``, which notes every batch that is
            handed out, or ``mpiter.tuning.Trace("run.json")``, which records what each
            worker did and when.
        serializer: how samples are sent: in "slots" of shared memory, as "packed"
            bytes, or by an object of yours with ``pack`` and ``unpack``.
        copy: True hands out private copies instead of views of shared memory.
        run_ahead: batches in flight beyond finished ones that may wait.  None: as many
            as the workers need; 0: none.
        concurrency: samples that each worker has under way at the same time, where
            these wait for a store: threads call ``dataset[key]``, or an event loop runs
            it if ``__getitem__`` is ``async def``.  None: one, or 16 of the latter.

    >>> import mpiter
    >>> stream = mpiter.batches([1, 2, 3], 2, n_processes=0, shuffle=False, copy=True)
    >>> print(*stream)
    [1 2] [3]
    """

    sample_timeout: float | None
    in_order: bool
    hooks: Hook | Sequence[Hook]
    serializer: object
    copy: bool
    run_ahead: int | None
    concurrency: int | None


class OfLoaders(Rare, total=False):
    """The rare options of ``mpiter.DataLoader`` and ``mpiter.torch.DataLoader``.

    Attributes:
        backend: what runs the workers: "thread", "ray", "mpi", or an object such as
            ``mpiter.Process("spawn")``.
        persistent_workers: None keeps the workers from epoch to epoch and sends them a
            dataset that has changed; True keeps them, sends nothing, and a stream in
            them keeps what it notes of itself; False ends them with the epoch.

    >>> import mpiter
    >>> with mpiter.DataLoader([1, 2, 3], 2, num_workers=1, backend="thread") as loader:
    ...     print(*loader)
    [1 2] [3]
    """

    backend: object
    persistent_workers: bool | None


_OF_LOADERS = {
    "backend": None,
    "persistent_workers": None,
    "pin_memory_device": "",
    "ragged": "raise",
}
_DEFAULTS = {
    name: one.default for name, one in inspect.signature(options_for).parameters.items()
} | _OF_LOADERS
# Names of the same thing in torch, in Chainer and here.
_ALIKE = (
    {"n_processes", "n_threads", "num_workers"},
    {"n_prefetch", "prefetch_factor"},
    {"worker_init", "worker_init_fn"},
    {"dataset_timeout", "timeout"},
    {"order_sampler", "sampler"},
    {"hooks", "callbacks"},
)
# What a hook does isn't an argument of its own; this is what to write in its place.
_HOOKS = {
    "trace": 'mpiter.tuning.Trace("run.json")',
    "receipts": 'mpiter.receipts.Receipts("folder")',
}


def defaults(more: type) -> dict[str, Any]:
    """Return the default values of the options of ``more``."""
    return {name: _DEFAULTS[name] for name in more.__annotations__}


def takes(more: type) -> Callable[[_F], _F]:
    """Decorate a function or a class whose ``**options`` are those of ``more``.

    ``help()`` and editors then list them by name.  In its docstring the line on
    ``options`` is replaced by what is said of each of them.  Any other argument is
    refused, with the name of the one that was probably meant.
    """

    def decorate(made: _F) -> _F:
        called: Any = made
        if isinstance(made, type):
            called.__init__ = _refusing_others(called.__init__, more)
        else:
            called = _refusing_others(made, more)
        # Under `python -OO` there are no docstrings.
        if called.__doc__ is not None:
            called.__doc__ = _OPTIONS.sub(
                lambda line: indent(_described(more), line[1]), called.__doc__
            )
        return cast(_F, called)

    return decorate


def _refusing_others(function: _F, more: type) -> _F:
    """Return ``function`` with a signature that lists the options of ``more``.

    It refuses arguments beyond these.
    """
    own = inspect.signature(function)
    named = []
    for one in own.parameters.values():
        if one.kind is not one.VAR_KEYWORD:
            named.append(one)
    for name, default in defaults(more).items():
        named.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        )
    signature = own.replace(parameters=named)
    by_place = []
    by_name = []
    for one in named:
        if one.kind is one.POSITIONAL_OR_KEYWORD:
            by_place.append(one.name)
        elif one.kind is one.KEYWORD_ONLY:
            by_name.append(one.name)
    in_order = ", ".join(name for name in by_place if name != "self")

    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> Any:
        if len(args) > len(by_place):
            # A dataset passed column by column is a mistake of its own, named first.
            passed = dict(zip(by_place, args, strict=False))
            refuse_mistaken(passed["dataset"], passed["batch_size"])
            raise TypeError(
                f"{args[len(by_place)]!r:.60} is one argument too many: pass "
                f"{in_order} in this order, and all others by name, such as "
                f"{by_name[0]}=…"
            )
        for name in kwargs.keys() - signature.parameters.keys():
            hint = _hint(name, signature.parameters)
            raise TypeError(f"there is no argument {name!r}{hint}.")
        return function(*args, **kwargs)

    called.__signature__ = signature  # type: ignore[attr-defined]
    return cast(_F, called)


def _described(more: type) -> str:
    """Return what the docstrings of ``more`` and its base types say of its options."""
    texts: dict[str, str] = {}
    for kind in (Rare, OfLoaders, more):
        doc = inspect.getdoc(kind) or ""
        said = doc.partition("Attributes:\n")[2].partition("\n\n")[0]
        for text in re.split(r"^(?=\w)", dedent(said), flags=re.MULTILINE):
            name = text.partition(":")[0]
            texts[name] = text.rstrip() + "\n"
    return "".join(texts[name] for name in more.__annotations__)


def _hint(name: str, mine: Iterable[str]) -> str:
    known = [*mine, *chain(*_ALIKE), *_HOOKS]
    for near in get_close_matches(name, known, n=1, cutoff=0.7):
        if near in _HOOKS:
            return f"; use hooks={_HOOKS[near]}"
        # The name of another interface leads to ours for the same thing.
        alike = {near}
        for names in _ALIKE:
            if near in names:
                alike = names
        for meant in alike.intersection(mine):
            return f"; use {meant}"
    return ""
