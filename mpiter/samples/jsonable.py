"""Values in JSON: what the states of datasets and samplers hold, written without pickle, and the careful way back.

Pure.  Numbers, strings, None, lists and dicts by strings stay as they are; any other value becomes a dict with one key,
``~`` and the name of its kind.  The memory of arrays and tensors is text among the rest, or in a list beside it.
Guarantees that values come back with their types, that whatever cannot be written is refused with its path
(``state['a'][2]``), and that nothing is unpickled, imported by name or evaluated on the way back.
"""

from __future__ import annotations

import importlib
import json
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
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


def encoded(value: Any, beside: list[Any] | None = None) -> Any:
    """``value`` in JSON's types, or a StateError that says what in it cannot be written.

    The memory of arrays and tensors is added to the list ``beside``, if there is one.  That is for models, of whose
    types less matters: parameters, tensors of a GPU and JAX's arrays are copied to the CPU, named tuples become tuples.

    >>> encoded({"seen": {3, 1}, "at": (2, b"x")})
    {'seen': {'~set': [1, 3]}, 'at': {'~tuple': [2, {'~bytes': 'eA=='}]}}
    """
    try:
        return _Encoding(beside)(value, ())
    except RecursionError:
        raise StateError("the state is nested too deeply, or holds itself.") from None


def decoded(plain: Any, beside: Sequence[Any] = ()) -> Any:
    """What ``encoded`` was given, or a StateError."""
    try:
        return _Decoding(beside)(plain)
    except Exception as error:
        raise StateError(f"the state holds something that is no value: {error!r:.200}.") from error


class _Encoding:
    def __init__(self, beside: list[Any] | None) -> None:
        self._beside = beside

    def __call__(self, value: Any, path: _Path) -> Any:
        if self._beside is not None:
            value = _brought_home(value)
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
        if (type(value) is np.ndarray or is_scalar) and _is_memory(value.dtype):
            is_named = value.dtype.isbuiltin == 2  # of ml_dtypes, as JAX has them
            descr = value.dtype.name if is_named else self(np.lib.format.dtype_to_descr(value.dtype), path)
            if is_scalar:
                return {"~scalar": [descr, _text(value.tobytes())]}
            return {"~array": [descr, list(value.shape), self._memory(value)]}
        if (raw := tensors.as_bytes(value)) is not None:
            memory, dtype, shape = raw
            return {"~tensor": [dtype, list(shape), self._memory(memory)]}
        raise StateError(
            f"{_spelled(path)} is of type {type(value).__qualname__}, which a state cannot hold.  It can hold numbers, "
            f"strings, bytes, arrays and dense CPU tensors, and lists, tuples, sets, deques and dicts of them."
        )

    def _memory(self, array: np.ndarray[Any, Any]) -> Any:
        """The text of an array's memory, or its number among those beside."""
        if self._beside is None:
            return _text(array.tobytes())
        flat = np.ascontiguousarray(array).reshape(-1)
        self._beside.append(flat.view(np.uint8) if flat.nbytes else np.zeros(0, np.uint8))
        return len(self._beside) - 1


def _brought_home(value: Any) -> Any:
    """Tensors from their device and out of their graph, JAX's arrays and memory maps as NumPy's."""
    torch = tensors.torch_with("Tensor")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type == "meta":
            return value
        return value.detach().cpu().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
    if type(value) is np.memmap or (type(value).__module__.startswith("jaxlib") and hasattr(value, "__array__")):
        return np.asarray(value)
    return tuple(value) if isinstance(value, tuple) else value


def _is_memory(dtype: np.dtype[Any]) -> bool:
    return is_raw(dtype) or (dtype.isbuiltin == 2 and not dtype.hasobject)


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
    def __init__(self, beside: Sequence[Any]) -> None:
        self._beside = beside

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
            return _KINDS[tag](told, self)
        return {key: self(part) for key, part in plain.items()}

    def memory(self, told: Any) -> Any:
        """The memory of an array: the text of it, or a number."""
        return self._beside[told] if type(told) is int else _memory(told)


def _array(descr: Any, shape: list[int], memory: Any) -> Any:
    try:
        dtype = np.lib.format.descr_to_dtype(descr)
    except TypeError:
        importlib.import_module("ml_dtypes")  # makes its names known
        dtype = np.dtype(descr)
    if not _is_memory(dtype):
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
    "~array": lambda told, of: _array(of(told[0]), told[1], of.memory(told[2])),
    "~scalar": lambda told, of: _array(of(told[0]), [], _memory(told[1]))[()],
    "~bytes_": lambda told, of: np.bytes_(_memory(told)),
    "~str_": lambda told, of: np.str_(told),
    "~tensor": lambda told, of: tensors.from_bytes(np.frombuffer(of.memory(told[2]), np.uint8), told[0], told[1]),
}
