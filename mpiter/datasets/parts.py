"""How a value is taken apart, and how another of its kind is put together.

Pure.  Guarantees that an object is asked for nothing: what it holds is read and written past its own methods.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict, defaultdict, deque
from importlib import import_module
from inspect import getattr_static
from types import (
    FunctionType,
    MemberDescriptorType,
    MethodType,
    SimpleNamespace,
)
from typing import Any, NamedTuple

from .. import script
from ..samples.classes import is_written_in_c, slots_in


class _Missing: ...


MISSING = _Missing()
_BASES: tuple[Any, ...] = (tuple, list, set, frozenset, OrderedDict, defaultdict, dict)


class Apart(NamedTuple):
    """What a value consists of."""

    items: Any  # a list, a dict or None
    attributes: dict[str, Any]


def taken_apart(value: Any) -> Apart | None:
    """None for what C code has made: it may keep more than it shows."""
    kind = type(value)
    if kind is functools.partial:
        return Apart([value.func, value.args, value.keywords], vars(value))
    if kind is MethodType:
        return Apart([value.__func__, value.__self__], {})
    if kind is deque:
        return Apart([*value, value.maxlen], {})
    if isinstance(value, (type, FunctionType)):
        return Apart(None, dict(vars(value)))
    base = base_of(kind)
    if base is object:
        found = attributes(value)
        return None if found is None else Apart(None, found)
    items = dict(base.items(value)) if issubclass(base, dict) else list(base.__iter__(value))
    held = {"default_factory": value.default_factory} if base is defaultdict else {}
    with contextlib.suppress(AttributeError):
        held |= object.__getattribute__(value, "__dict__")
    return Apart(items, held)


def base_of(kind: Any) -> Any:
    """The built-in container that a class is made of, or ``object``."""
    return next((base for base in _BASES if issubclass(kind, base)), object)


def is_filled(kind: Any) -> bool:
    """Can an object of this class be changed where it lies?"""
    return kind not in (functools.partial, MethodType, deque) and base_of(kind) not in (tuple, frozenset)


def can_be_made(kind: Any) -> bool:
    """Is there nothing to it but its items and attributes?"""
    if kind in (functools.partial, MethodType, deque, *_BASES, SimpleNamespace):
        return True
    base = base_of(kind)
    if base is object:
        return slots_of(kind) is not None
    between = kind.__mro__[: kind.__mro__.index(base)]
    return not any(map(is_written_in_c, between))


def made(kind: Any, items: Any = ()) -> Any:
    """A new object of a class that can be made: with its items, or still empty if it can be filled."""
    if kind is functools.partial:
        return functools.partial(items[0], *items[1], **items[2])
    if kind is MethodType:
        return MethodType(*items)
    if kind is deque:
        return deque(items[:-1], items[-1])
    base = base_of(kind)
    if base in (tuple, frozenset):
        return base.__new__(kind, items)
    return (SimpleNamespace if issubclass(kind, SimpleNamespace) else base).__new__(kind)


def fill(mine: Any, items: Any) -> None:
    """Give a container these items."""
    base = base_of(type(mine))
    base.clear(mine)
    base.extend(mine, items) if base is list else base.update(mine, items)


def give(mine: Any, name: str, value: Any) -> None:
    """Set an attribute."""
    if isinstance(mine, type):
        type.__setattr__(mine, name, value)
    elif isinstance(slot := getattr_static(type(mine), name, None), MemberDescriptorType):
        slot.__set__(mine, value)
    else:
        object.__getattribute__(mine, "__dict__")[name] = value


def take(mine: Any, name: str) -> None:
    """Delete an attribute."""
    if isinstance(slot := getattr_static(type(mine), name, None), MemberDescriptorType):
        slot.__delete__(mine)
    else:
        del object.__getattribute__(mine, "__dict__")[name]


def attributes(value: Any) -> dict[str, Any] | None:
    """Those of an object that has nothing else."""
    kind: Any = type(value)
    slots = slots_of(kind)
    if slots is None:
        return None
    found = dict[str, Any]()
    for name, slot in slots:
        with contextlib.suppress(AttributeError):  # nothing is there yet
            found[name] = slot.__get__(value)
    try:
        return dict(object.__getattribute__(value, "__dict__"), **found)
    except AttributeError:
        return found or None


@functools.lru_cache(maxsize=1024)
def slots_of(cls: Any) -> list[tuple[str, Any]] | None:
    """Where objects of a class have attributes beside their ``__dict__``; None if C code may have given them more."""
    slots = []
    for base in cls.__mro__[:-1]:
        if base is SimpleNamespace:
            continue
        if is_written_in_c(base) or not isinstance(vars(base).get("__new__"), (staticmethod, type(None))):
            return None
        slots += slots_in(base)
    return slots


def kind_of(value: Any) -> str:
    """The name of its class, with the module's."""
    return f"{script.home(type(value).__module__)}:{type(value).__qualname__}"


def class_of(kind: str) -> Any:
    """The class of that name; None if a worker hasn't got it."""
    module, _, name = kind.partition(":")
    if kind == "builtins:method":
        return MethodType
    found: Any = None
    if module not in script.NAMES:
        with contextlib.suppress(Exception):  # whatever a module does when it is imported
            found = import_module(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) else None
