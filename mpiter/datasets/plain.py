"""What of a value can travel, described so that a worker can make the same: all of it that is plain, down to its parts.

Pure.  Plain are numbers, strings, arrays, classes and functions known by their names, containers of them, and objects
written in Python.  Guarantees that a megabyte of a variable is looked at at most, and that an object is asked for
nothing but what it holds.
"""

from __future__ import annotations

import array
import datetime
import decimal
import dis
import enum
import fractions
import functools
import io
import itertools
import pathlib
import re
import sys
import uuid
import zlib
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Collection
from contextvars import ContextVar
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple

import numpy as np

from .. import script
from ..samples import tensors
from ..samples.byvalue import is_importable
from ..samples.envelope import by_reference
from .parts import base_of, kind_of, taken_apart

LEAVES = {bool, int, float, complex, str, bytes, type(None), range, slice, decimal.Decimal, fractions.Fraction}
LEAVES |= {datetime.date, datetime.datetime, datetime.time, datetime.timedelta, re.Pattern, uuid.UUID}
_KINDS_OF_LEAF = (np.generic, np.dtype, pathlib.PurePath, enum.Enum)
_LEAVES_OF_TORCH = {"dtype", "device", "Size", "layout", "memory_format"}
CODE = (FunctionType, BuiltinFunctionType, type)
HOLD_ANYTHING = {"types:SimpleNamespace", "argparse:Namespace"}  # made for others to keep things in
_OF_THE_PROCESS = {
    "asyncio",
    "concurrent",
    "logging",
    "mpiter",
    "multiprocessing",
    "subprocess",
    "threading",
    "weakref",
}
GO_ON = ("random:", "numpy.random.", "torch._C:Generator")
_CONTAINERS = {list, tuple, set, frozenset, deque, dict, OrderedDict, defaultdict, functools.partial, MethodType}
_CHANGES = {list, set, dict, bytearray, deque, OrderedDict}
_MOST_PARTS = 10_000  # of one variable…
_MOST_BYTES = 1 << 20  # …how much there may be in them…
_MOST_BYTES_OF_ALL = 16 << 20  # …and in all variables
_NUMBERS_IN_C = tuple("bBhHiIlLqQfd?")  # as ctypes has them
_SKETCHED = 1_000  # parts of what stays at home
DEEPEST = 30


class Opaque(NamedTuple):
    """A value that stays at home."""

    kind: str
    sketch: int = 0  # of what can be said of it


class Raw(NamedTuple):
    """An array or what else C code has made, which travels as it is."""

    kind: str
    value: Any
    identity: int  # of the object in the caller


class Made(NamedTuple):
    """An object that is made of others."""

    kind: str
    items: Any
    attributes: dict[str, Any]
    identity: int


class Again(NamedTuple):
    """An object that has occurred in the same variable already."""

    identity: int


class _TooLarge(Exception):
    """Not all of it can be looked at."""


class Reader:
    """Describes variables, within bounds for each of them and for all."""

    def __init__(self, own: Collection[str] = ()) -> None:
        """Objects of classes of these modules may hold what isn't plain as well."""
        self._own, self._bytes_of_all = own, _MOST_BYTES_OF_ALL
        self.modules = set[str]()  # that there has been something of

    def described(self, value: Any) -> Any:
        """A plain value itself, or what it is made of."""
        self._parts, self._bytes = _MOST_PARTS, min(_MOST_BYTES, self._bytes_of_all)
        self._known, self._opaque, self._going_on, before = dict[int, Any](), 0, 0, self._bytes
        found = self._part(value, DEEPEST)
        self._bytes_of_all -= before - self._bytes
        return found

    def _spend(self, parts: int, size: int) -> None:
        if parts > self._parts or size > self._bytes:
            raise _TooLarge
        self._parts, self._bytes = self._parts - parts, self._bytes - size

    def _part(self, value: Any, depth: int) -> Any:
        """An attribute, say: if it is too large, it alone stays at home."""
        known = len(self._known)
        try:
            return self._described(value, depth)
        except _TooLarge:
            return self._left(value, known)

    def _left(self, value: Any, known: int) -> Opaque:
        """Leave a value at home, and what of it was described already."""
        self._forget(known)
        self._opaque += 1
        return opaque(value)

    def _in_one(self, value: Any, known: int) -> Raw | Opaque:
        """What can't be taken apart, if pickle knows how to make it again."""
        self._forget(known)
        may_be = _may_be_pickled(value)
        self._going_on += not may_be
        data = pickled(value, self._bytes) if may_be else None
        if data is None:
            return self._left(value, known)
        self._spend(1, len(data))
        self._known[id(value)] = value
        return Raw(kind_of(value), value, id(value))

    def _forget(self, known: int) -> None:
        while len(self._known) > known:
            self._known.popitem()

    def _described(self, value: Any, depth: int) -> Any:
        kind, known = type(value), len(self._known)
        if kind in LEAVES or (kind.__module__ == "torch" and kind.__name__ in _LEAVES_OF_TORCH):
            self._spend(0, len(value) if kind in (str, bytes) else 0)
            return value
        self.modules.add(value.__module__ if isinstance(value, CODE) else kind.__module__)
        if isinstance(value, CODE):
            return value if _is_known_by_name(value) else self._left(value, known)
        if isinstance(value, _KINDS_OF_LEAF) or (isinstance(value, (str, bytes, int, float)) and _is_bare(value)):
            return self._left(value, known) if kind.__module__ in script.NAMES else value
        if id(value) in self._known:
            return Again(id(value))
        self._known[id(value)] = value
        if is_raw(value):
            self._spend(1, memoryview(value).nbytes if kind in (bytearray, array.array) else value.nbytes)
            return Raw(kind_of(value), value, id(value))
        apart = taken_apart(value) if depth else None
        if kind.__module__.partition(".")[0] in _OF_THE_PROCESS:
            apart = None
        if apart is None or not (isinstance(apart.items, list) or all(map(_is_key, apart.items or ()))):
            return self._in_one(value, known) if depth else self._left(value, known)
        self._spend(1 + len(apart.items or ()) + len(apart.attributes), 0)
        return self._of(value, apart, depth - 1, known)

    def _of(self, value: Any, apart: Any, depth: int, known: int) -> Any:
        opaque_before, going_before, kind = self._opaque, self._going_on, type(value)
        items: Any = apart.items
        if isinstance(items, list):
            items = [self._described(part, depth) for part in items]
        elif items is not None:
            items = {key: self._part(part, depth) for key, part in items.items()}
        found = {name: self._part(part, depth) for name, part in apart.attributes.items()}
        may_hold_more = kind in _CONTAINERS or kind.__module__ in self._own or kind_of(value) in HOLD_ANYTHING
        is_set = base_of(kind) in (set, frozenset)  # whose parts can't be told apart
        if self._opaque > opaque_before and (is_set or not may_hold_more):  # no logger, say, and all it hangs on
            return self._in_one(value, known) if self._going_on == going_before else self._left(value, known)
        if kind in (tuple, frozenset) and not any(isinstance(part, (Opaque, Raw, Made, Again)) for part in items):
            del self._known[id(value)]
            return value
        return Made(kind_of(value), items, found, id(value))


def pickled(value: Any, most: int = _MOST_BYTES) -> bytes | None:
    """A value in plain pickle, unless it is larger or would be another's here and there."""
    out = _Bounded(most)
    try:
        by_reference(out, protocol=5).dump(value)
    except Exception:  # the value's own code may raise anything
        return None
    data = out.getvalue()
    return None if any(name.encode() in data for name in script.NAMES) else data


class _Bounded(io.BytesIO):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most:
            raise _TooLarge
        return super().write(data)


def _may_be_pickled(value: Any) -> bool:
    """Is there nothing to it that goes on by itself: no place in a sequence of items or random numbers?"""
    kind: Any = type(value)
    if hasattr(kind, "__next__") or codes_of(value) or kind_of(value).startswith(GO_ON):
        return False
    return kind.__module__.partition(".")[0] not in _OF_THE_PROCESS and tensors.device_of(value) in ("cpu", "meta")


def is_raw(value: Any) -> bool:
    """Is it numbers in one piece?"""
    if type(value) in (np.ndarray, np.recarray):
        return not value.dtype.hasobject
    return type(value) in (bytearray, array.array) or tensors.is_plain(value)


def _is_key(key: Any) -> bool:
    if type(key) is frozenset or (isinstance(key, tuple) and (type(key) is tuple or _is_known_by_name(type(key)))):
        return all(map(_is_key, key))
    if type(key) in LEAVES or (isinstance(key, _KINDS_OF_LEAF) and not isinstance(key, enum.Enum)):
        return True
    return (
        isinstance(key, (enum.Enum, *CODE))
        and _is_known_by_name(key if isinstance(key, CODE) else type(key))  # and pickled by it
    )


def _is_bare(value: Any) -> bool:
    """Is a string or number of the program's own class known to whoever opens it, with all its attributes?"""
    held = getattr(value, "__dict__", {})
    return _is_known_by_name(type(value)) and all(type(part) in LEAVES for part in held.values())


def _is_known_by_name(code: Any) -> bool:
    module = sys.modules.get(getattr(code, "__module__", None) or "")
    found: Any = None if module is None or module.__name__ in script.NAMES else module
    for part in code.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found is code and is_importable(code.__module__)


# -- what can be said of what stays at home ---------------------------------------------------------------------------


def opaque(value: Any) -> Opaque:
    """Enough to notice, most of the time, that a worker has another."""
    return Opaque(kind_of(value), zlib.crc32(repr(_said(value)).encode(errors="replace")))


def _said(value: Any) -> Any:
    numbers = np.asarray(value) if isinstance(value, np.ndarray) else tensors.as_array(value)
    if numbers is not None and not numbers.dtype.hasobject:
        some: Any = zlib.crc32(numbers.flat[:: numbers.size // _SKETCHED + 1].tobytes())
        return numbers.dtype.str, numbers.shape, some
    if type(value) in (str, bytes, list, tuple):
        some = value[:: len(value) // _SKETCHED + 1]
        if isinstance(some, (list, tuple)):
            return len(value), [_said_of_part(tuple(part) if type(part) is list else part, 2) for part in some]
        return len(value), some
    if isinstance(value, (dict, UserDict, MappingProxyType)):
        held: Any = dict.items(value) if isinstance(value, dict) else getattr(value, "data", value).items()
        some = itertools.islice(held, _SKETCHED)
        return len(held), [(_said_of_part(key, 1), _said_of_part(part, 1)) for key, part in some]
    if type(value) in (set, frozenset, deque, np.ndarray):
        return len(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, CodeType):
        return _written(value)
    if isinstance(value, ContextVar):
        return _said_of_part(value.get(None), 1)
    if type(value).__mro__[-2:][0].__name__ == "_CData" and getattr(type(value), "_type_", "") in _NUMBERS_IN_C:
        return bytes(value)
    return [_said_of_code(code, 3) for code in codes_of(value)]


def codes_of(value: Any) -> tuple[Any, ...]:
    """Itself, what a method or property is made of, and what it is wrapped around."""
    if type(value) in LEAVES:
        return ()
    if isinstance(value, property):
        return tuple(code for code in (value.fget, value.fset, value.fdel) if isinstance(code, FunctionType))
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return codes_of(value.__func__)
    found = (value,) if isinstance(value, CODE) else ()
    held = {} if isinstance(value, type) else _dict_of(value)
    if "__wrapped__" in held:  # what functools.lru_cache makes of a function, and decorators do
        return found + codes_of(held["__wrapped__"])
    return found


def _dict_of(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return found if type(found) is dict else dict(found)


def _said_of_code(code: Any, depth: int) -> Any:
    """What tells a class or function from others; the name that it bears may be another's."""
    place = script.home(str(code.__module__)), code.__qualname__
    if not isinstance(code, FunctionType):
        return place
    return place, _written(code.__code__), said_of_what_it_holds(code, depth)


def _written(code: CodeType) -> Any:
    constants = [part for part in code.co_consts if type(part) in LEAVES]
    return code.co_name, code.co_firstlineno, code.co_code, code.co_names, constants


def said_of_what_it_holds(function: FunctionType, depth: int = 3) -> Any:
    """Of a function's defaults, and of what it has closed over but does not change itself."""
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name not in _set_outside(function.__code__):
            try:
                held.append(cell.cell_contents)
            except ValueError:  # nothing is in it yet
                held.append(None)
    return [_said_of_part(part, depth) for part in held]


@functools.lru_cache(maxsize=4096)
def _set_outside(code: CodeType) -> frozenset[str]:
    """The variables of outer functions that a function sets."""
    return frozenset(step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF")


def _said_of_part(value: Any, depth: int) -> Any:
    if type(value) in LEAVES:
        return repr(value)
    if type(value) is tuple and depth:
        return [_said_of_part(part, depth - 1) for part in value]
    if isinstance(value, FunctionType):
        return _said_of_code(value, depth - 1) if depth else None
    return kind_of(value) if type(value) in _CHANGES else (kind_of(value), _said(value))
