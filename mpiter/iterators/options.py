"""The options that several constructors share: each is named here once, and has the default that ``Options`` has."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from ..engine.options import Options
from ..order.ranks import Sharding
from ..rules import Skip
from ..spelling import knows

_P = ParamSpec("_P")
_T = TypeVar("_T")
_DEFAULTS = {field.name: field.default for field in fields(Options)}


class Common(TypedDict, total=False):
    """The options of all iterators and loaders."""

    on_error: Literal["raise", "skip"] | Skip
    trace: str | os.PathLike[str] | None
    shard: Sharding
    receipts: Any


class OfIterators(Common, total=False):
    """The options of all iterators."""

    seed: int | None
    serializer: Any
    copy: bool
    worker_init: Any


class Ahead(Common, total=False):
    """The options of all that have workers."""

    in_order: bool
    sample_timeout: float | None


class OfWorkers(OfIterators, Ahead, total=False):
    """The options of iterators that have workers."""

    run_ahead: int | None


class OfLoaders(Ahead, total=False):
    """The options of both loaders."""

    seeding: Literal["sample", "worker"]
    backend: Any


def defaults(more: type, **others: Any) -> dict[str, Any]:
    """What is taken for the options of ``more`` where they aren't given."""
    return {name: _DEFAULTS.get(name) for name in more.__annotations__} | others


def takes(more: type, elsewhere: Mapping[str, str], **others: Any) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A function whose ``**options`` are those of ``more``, and that names its own argument where another was given."""
    return knows(elsewhere, defaults(more, **others))
