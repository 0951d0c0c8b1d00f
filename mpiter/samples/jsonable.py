"""Values in JSON: what the states of datasets and samplers hold, written without pickle, and the careful way back.

Pure.  Numbers, strings, None, lists and dicts by strings stay as they are; any other value becomes a dict with one key,
``~`` and the name of its kind.  Guarantees that values come back with their types, that whatever cannot be written is
refused with its path (``state['a'][2]``), and that nothing is unpickled, imported by name or evaluated on the way back.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import OrderedDict, deque
from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from ..errors import StateError
from . import tensors
from .leaves import is_raw

_LARGEST = 2**53  # what every JSON reader keeps exactly
_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_Path = tuple[Any, ...]  # (the path of what holds it, its key there); () at the top


def encoded(value: Any) -> Any:
    """``value`` in JSON's types, or a StateError that says what in it cannot be written.

    >>> encoded({"seen": {3, 1}, "at": (2, b"x")})
    {'seen': {'~set': [1, 3]}, 'at': {'~tuple': [2, {'~bytes': 'eA=='}]}}
    """
    try:
        return _encoded(value, ())
    except RecursionError:
        raise StateError("the state is nested too deeply, or holds itself.") from None


def decoded(plain: Any) -> Any:
    """What ``encoded`` was given, or a StateError."""
    try:
        return _decoded(plain)
    except Exception as error:
        raise StateError(f"the state holds something that is no value: {error!r:.200}.") from error


def _encoded(value: Any, path: _Path) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if kind is int:
        return value if -_LARGEST <= value <= _LARGEST else {"~int": hex(value)}
    if kind is float:
        return value if isfinite(value) else {"~float": repr(value)}
    if kind is list:
        return [_encoded(part, (path, at)) for at, part in enumerate(value)]
    if kind is dict:
        if all(type(key) is str for key in value) and not _is_tagged(value):
            return {key: _encoded(part, (path, key)) for key, part in value.items()}
        return {"~dict": _pairs(value, path)}
    if kind is OrderedDict:
        return {"~OrderedDict": _pairs(value, path)}
    if kind is deque:
        return {"~deque": [[_encoded(part, (path, at)) for at, part in enumerate(value)], value.maxlen]}
    if kind in _SEQUENCES:
        parts = [_encoded(part, (path, at) if kind is tuple else path) for at, part in enumerate(value)]
        return {f"~{_SEQUENCES[kind]}": parts if kind is tuple else sorted(parts, key=json.dumps)}
    if kind is complex:
        return {"~complex": [_encoded(value.real, path), _encoded(value.imag, path)]}
    if kind in (bytes, bytearray):
        return {f"~{kind.__name__}": _text(value)}
    return _encoded_array(value, path)


def _encoded_array(value: Any, path: _Path) -> Any:
    is_scalar = isinstance(value, np.generic) and type(value) is value.dtype.type
    if (type(value) is np.ndarray or is_scalar) and is_raw(value.dtype):
        descr = _encoded(np.lib.format.dtype_to_descr(value.dtype), path)
        text = _text(value.tobytes())
        return {"~scalar": [descr, text]} if is_scalar else {"~array": [descr, list(value.shape), text]}
    if (raw := tensors.as_bytes(value)) is not None:
        memory, dtype, shape = raw
        return {"~tensor": [dtype, list(shape), _text(memory)]}
    raise StateError(
        f"{_spelled(path)} is of type {type(value).__qualname__}, which a state cannot hold.  It can hold numbers, "
        f"strings, bytes, arrays and dense CPU tensors, and lists, tuples, sets, deques and dicts of them."
    )


def _pairs(value: dict[Any, Any], path: _Path) -> list[Any]:
    return [[_encoded(key, path), _encoded(part, (path, key))] for key, part in value.items()]


def _is_tagged(value: dict[Any, Any]) -> bool:
    """Does it look like one of ours?"""
    return len(value) == 1 and next(iter(value)).startswith("~")


def _spelled(path: _Path) -> str:
    return f"{_spelled(path[0])}[{path[1]!r:.60}]" if path else "state"


def _text(memory: Any) -> str:
    return b64encode(memory).decode("ascii")


def _memory(text: str) -> bytearray:
    return bytearray(b64decode(text, validate=True))


def _decoded(plain: Any) -> Any:
    kind = type(plain)
    if plain is None or kind in (bool, int, float, str):
        return plain
    if kind is list:
        return [_decoded(part) for part in plain]
    if kind is not dict:
        raise TypeError(f"{plain!r:.60} is no JSON")
    if _is_tagged(plain):
        [(tag, told)] = plain.items()
        return _KINDS[tag](told)
    return {key: _decoded(part) for key, part in plain.items()}


def _array(descr: Any, shape: list[int], text: str) -> Any:
    dtype = np.lib.format.descr_to_dtype(_decoded(descr))
    if not is_raw(dtype):
        raise TypeError(f"an array of {dtype}")
    if not dtype.itemsize:
        return np.zeros(shape, dtype)
    return np.frombuffer(_memory(text), dtype).reshape(shape)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "~int": lambda told: int(told, 16),
    "~float": float,
    "~complex": lambda told: complex(*map(_decoded, told)),
    "~bytes": lambda told: bytes(_memory(told)),
    "~bytearray": _memory,
    "~tuple": lambda told: tuple(map(_decoded, told)),
    "~set": lambda told: set(map(_decoded, told)),
    "~frozenset": lambda told: frozenset(map(_decoded, told)),
    "~deque": lambda told: deque(map(_decoded, told[0]), told[1]),
    "~dict": lambda told: {_decoded(key): _decoded(part) for key, part in told},
    "~OrderedDict": lambda told: OrderedDict((_decoded(key), _decoded(part)) for key, part in told),
    "~array": lambda told: _array(*told),
    "~scalar": lambda told: _array(told[0], [], told[1])[()],
    "~tensor": lambda told: tensors.from_bytes(np.frombuffer(_memory(told[2]), np.uint8), told[0], told[1]),
}
