"""Values in JSON: what the states of datasets and samplers hold, written without pickle, and the careful way back.

Pure.  Numbers, strings, None, lists and dicts by strings stay as they are; any other value becomes a dict with one key,
``~`` and the name of its kind.  What is large may be laid aside, by who keeps it elsewhere.  Guarantees that values
come back with their types, that whatever cannot be written is refused with its path (``state['a'][2]``), and that
nothing is unpickled, imported by name or evaluated on the way back.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from ..errors import StateError
from . import tensors
from .leaves import is_raw

_LARGEST = 2**53  # what every JSON reader keeps exactly
_SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
_MAPPINGS: dict[type, str] = {OrderedDict: "OrderedDict", Counter: "Counter"}
_Path = tuple[Any, ...]  # (the path of what holds it, its key there); () at the top
_Aside = Callable[[Any], Any]


def encoded(value: Any, aside: _Aside | None = None) -> Any:
    """``value`` in JSON's types, or a StateError that says what in it cannot be written.

    ``aside`` is given every value, and returns what to write in its place if it keeps it, else None.  Where much is
    laid aside, types matter less: named tuples become tuples.

    >>> encoded({"seen": {3, 1}, "at": (2, b"x")})
    {'seen': {'~set': [1, 3]}, 'at': {'~tuple': [2, {'~bytes': 'eA=='}]}}
    """
    try:
        return _Encoding(aside)(value, ())
    except RecursionError:
        raise StateError("the state is nested too deeply, or holds itself.") from None


def decoded(plain: Any, aside: _Aside | None = None) -> Any:
    """What ``encoded`` was given, or a StateError; ``aside`` returns what was laid aside."""
    try:
        return _Decoding(aside)(plain)
    except Exception as error:
        raise StateError(f"the state holds something that is no value: {error!r:.200}.") from error


class _Encoding:
    def __init__(self, aside: _Aside | None) -> None:
        self._aside = aside

    def __call__(self, value: Any, path: _Path) -> Any:
        if self._aside is not None:
            if (told := self._aside(value)) is not None:
                return {"~aside": told}
            value = tuple(value) if isinstance(value, tuple) else value
        kind = type(value)
        if value is None or kind is str or kind is bool:
            return value
        if kind is int:
            return value if -_LARGEST <= value <= _LARGEST else {"~int": hex(value)}
        if kind is float:
            return value if isfinite(value) else {"~float": repr(value)}
        if kind is list:
            return self._parts(value, path)
        if kind is dict:
            if all(type(key) is str for key in value) and not _is_tagged(value):
                return {key: self(part, (path, key)) for key, part in value.items()}
            return {"~dict": self._pairs(value, path)}
        if kind in _MAPPINGS:
            return {f"~{_MAPPINGS[kind]}": self._pairs(value, path)}
        if kind is deque:
            return {"~deque": [self._parts(value, path), value.maxlen]}
        if kind is tuple:
            return {"~tuple": self._parts(value, path)}
        if kind in _SETS:
            return {f"~{_SETS[kind]}": sorted([self(part, path) for part in value], key=json.dumps)}
        if kind is complex:
            return {"~complex": [self(value.real, path), self(value.imag, path)]}
        if kind in (bytes, bytearray):
            return {f"~{kind.__name__}": _text(value)}
        return self._array(value, path)

    def _parts(self, value: Any, path: _Path) -> list[Any]:
        return [self(part, (path, at)) for at, part in enumerate(value)]

    def _pairs(self, value: dict[Any, Any], path: _Path) -> list[Any]:
        return [[self(key, path), self(part, (path, key))] for key, part in value.items()]

    def _array(self, value: Any, path: _Path) -> Any:
        if type(value) in (np.bytes_, np.str_):  # an array's elements, and dtypes, have no zeros at the end
            is_text = isinstance(value, str)
            return {"~str_": str.__str__(value)} if is_text else {"~bytes_": _text(bytes(value))}
        is_scalar = isinstance(value, np.generic) and type(value) is value.dtype.type
        if (type(value) is np.ndarray or is_scalar) and is_raw(value.dtype):
            descr = self(np.lib.format.dtype_to_descr(value.dtype), path)
            text = _text(value.tobytes())
            return {"~scalar": [descr, text]} if is_scalar else {"~array": [descr, list(value.shape), text]}
        if (raw := tensors.as_bytes(value)) is not None:
            memory, dtype, shape = raw
            return {"~tensor": [dtype, list(shape), _text(memory)]}
        raise StateError(
            f"{_spelled(path)} is of type {type(value).__qualname__}, which a state cannot hold.  It can hold numbers, "
            f"strings, bytes, arrays and dense CPU tensors, and lists, tuples, sets, deques and dicts of them."
        )


def _is_tagged(value: dict[Any, Any]) -> bool:
    """Does it look like one of ours?"""
    return len(value) == 1 and next(iter(value)).startswith("~")


def _spelled(path: _Path) -> str:
    return f"{_spelled(path[0])}[{path[1]!r:.60}]" if path else "state"


def _text(memory: Any) -> str:
    return b64encode(memory).decode("ascii")


def _memory(text: str) -> bytearray:
    return bytearray(b64decode(text, validate=True))


class _Decoding:
    def __init__(self, aside: _Aside | None) -> None:
        self._aside = aside

    def __call__(self, plain: Any) -> Any:
        kind = type(plain)
        if plain is None or kind in (bool, int, float, str):
            return plain
        if kind is list:
            return [self(part) for part in plain]
        if kind is not dict:
            raise TypeError(f"{plain!r:.60} is no JSON")
        if _is_tagged(plain):
            [(tag, told)] = plain.items()
            if tag == "~aside" and self._aside is not None:
                return self._aside(told)
            return _KINDS[tag](told, self)
        return {key: self(part) for key, part in plain.items()}


def _array(descr: Any, shape: list[int], memory: Any) -> Any:
    dtype = np.lib.format.descr_to_dtype(descr)
    if not is_raw(dtype):
        raise TypeError(f"an array of {dtype}")
    if not dtype.itemsize:
        return np.zeros(shape, dtype)
    return np.frombuffer(memory, dtype).reshape(shape)


_KINDS: dict[str, Callable[[Any, _Decoding], Any]] = {
    "~int": lambda told, of: int(told, 16),
    "~float": lambda told, of: float(told),
    "~complex": lambda told, of: complex(*map(of, told)),
    "~bytes": lambda told, of: bytes(_memory(told)),
    "~bytearray": lambda told, of: _memory(told),
    "~tuple": lambda told, of: tuple(map(of, told)),
    "~set": lambda told, of: set(map(of, told)),
    "~frozenset": lambda told, of: frozenset(map(of, told)),
    "~deque": lambda told, of: deque(map(of, told[0]), told[1]),
    "~dict": lambda told, of: {of(key): of(part) for key, part in told},
    "~OrderedDict": lambda told, of: OrderedDict((of(key), of(part)) for key, part in told),
    "~Counter": lambda told, of: Counter({of(key): of(part) for key, part in told}),
    "~array": lambda told, of: _array(of(told[0]), told[1], _memory(told[2])),
    "~scalar": lambda told, of: _array(of(told[0]), [], _memory(told[1]))[()],
    "~bytes_": lambda told, of: np.bytes_(_memory(told)),
    "~str_": lambda told, of: np.str_(told),
    "~tensor": lambda told, of: tensors.from_bytes(np.frombuffer(_memory(told[2]), np.uint8), told[0], told[1]),
}
