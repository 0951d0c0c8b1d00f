"""Values in JSON, instead of pickle: for the states of datasets and samplers.

Numbers, strings, None, lists and dicts with string keys stay as they are; any other
value becomes a dict with one key: ``~`` and the name of its kind.  The memory of arrays
is written as base64, or kept in a list beside the JSON.  Guarantees that values come
back with their types; that decoding unpickles and evaluates nothing, and imports at
most the library of an array's dtype, torch or ml_dtypes; and that it takes no more
memory than there is to decode.
"""

from __future__ import annotations

import importlib
import json
import re
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from ..errors import StateError
from . import tensors
from .tree import is_raw

# The largest int that every JSON reader keeps exactly.
_LARGEST = 2**53
_OF_ML_DTYPES = re.compile(r"bfloat16|u?int[124]|float[468]_\w+")
# Arrays kept beside the JSON.  If None, they are written in it.
_Memory = list[Any] | None
_Array = np.ndarray[Any, Any]


def encoded(value: Any, beside: _Memory = None) -> Any:
    """Return ``value`` in JSON's types; raise a StateError if that isn't possible.

    The error names the part that can't be written.

    The memory of arrays and tensors is appended to the list ``beside``, if given.  That
    is for models, so types are kept less strictly: parameters, GPU tensors and JAX's
    arrays become CPU arrays, named tuples become tuples.
    """
    try:
        return _encoded(value, "state", beside)
    except RecursionError:
        raise StateError("the state is nested too deeply, or holds itself.") from None


def decoded(plain: Any, beside: Sequence[Any] = ()) -> Any:
    """Return the value that ``encoded`` has turned into ``plain`` and ``beside``.

    Raise a StateError if they are damaged.
    """
    try:
        return _decoded(plain, beside)
    except Exception as error:
        raise StateError(
            f"the state holds something that is no value: {error!r:.200}."
        ) from error


def _encoded(
    value: Any,
    path: str,
    beside: _Memory,
) -> Any:
    if beside is not None:
        value = _brought_home(value)
    kind = type(value)
    if value is None or kind in (str, bool):
        return value
    if kind is int:
        if -_LARGEST <= value <= _LARGEST:
            return value
        return {"~int": hex(value)}
    if kind is float:
        if isfinite(value):
            return value
        return {"~float": repr(value)}
    if kind is bytes:
        return {"~bytes": _text(value)}
    if kind in (list, tuple, deque, set):
        parts = []
        for at, part in enumerate(value):
            parts.append(_encoded(part, f"{path}[{at}]", beside))
        if kind is list:
            return parts
        # Equal sets may come in several orders, and must give the same state.
        if kind is set:
            parts.sort(key=json.dumps)
        if kind is deque:
            return {"~deque": [parts, value.maxlen]}
        return {f"~{kind.__name__}": parts}
    if kind in (dict, OrderedDict, Counter):
        parts = []
        for key, part in value.items():
            parts.append(_encoded(part, f"{path}[{key!r:.60}]", beside))
        has_names = all(type(key) is str for key in value)
        # A dict that looks like an encoded value would be decoded to another value.
        if kind is dict and has_names and not _is_tagged(value):
            return dict(zip(value, parts, strict=True))
        keys = (_encoded(key, path, beside) for key in value)
        pairs = [[*pair] for pair in zip(keys, parts, strict=True)]
        return {f"~{kind.__name__}": pairs}
    is_scalar = isinstance(value, np.generic) and kind is value.dtype.type
    if (kind is np.ndarray or is_scalar) and _is_memory(value.dtype):
        if is_raw(value.dtype):
            name = value.dtype.str
        else:
            name = value.dtype.name
        sizes: list[int] | None = None
        if not is_scalar:
            sizes = list(value.shape)
        kept = _kept(np.asarray(value), beside)
        return {"~array": [name, sizes, kept]}
    raw = tensors.as_bytes(value)
    if raw is not None:
        memory, dtype, shape = raw
        kept = _kept(memory, beside)
        return {"~tensor": [dtype, list(shape), kept]}
    raise StateError(
        f"{path} is of type {type(value).__qualname__}, which a state cannot hold.  It "
        "can hold numbers, strings, bytes, arrays and dense CPU tensors, and lists, "
        "tuples, sets, deques and dicts of them."
    )


def _kept(array: _Array, beside: _Memory) -> str | int:
    """Return an array's memory as base64, or append it to ``beside``.

    In that case return its index there.
    """
    if beside is None:
        return _text(array.tobytes())
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.nbytes:
        beside.append(flat.view(np.uint8))
    else:
        # An array without elements, or with elements of no bytes, has no such view.
        beside.append(np.zeros(0, np.uint8))
    return len(beside) - 1


def _brought_home(value: Any) -> Any:
    """Return a value of a model as a plain one in this process's memory.

    A tensor is detached and on the CPU, an array of JAX's or a memory map is one of
    NumPy's, a named tuple is a tuple.
    """
    torch = tensors.torch_with("Tensor")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type == "meta":
            return value
        home = value.detach().cpu().resolve_conj().resolve_neg()
        return home.as_subclass(torch.Tensor)
    is_of_jax = type(value).__module__.startswith("jaxlib")
    if is_of_jax and hasattr(value, "__array__"):
        return np.asarray(value)
    if type(value) is np.memmap:
        return np.asarray(value)
    if isinstance(value, tuple):
        return tuple(value)
    return value


def _is_memory(dtype: np.dtype[Any]) -> bool:
    # The dtypes of ml_dtypes, which JAX uses, are registered with NumPy: ``isbuiltin``
    # is 2 for such.
    return is_raw(dtype) or (dtype.isbuiltin == 2 and not dtype.hasobject)


def _is_tagged(value: dict[Any, Any]) -> bool:
    """Return True if a dict looks like an encoded value."""
    return len(value) == 1 and next(iter(value)).startswith("~")


def _text(memory: bytes) -> str:
    return b64encode(memory).decode("ascii")


def _memory(told: Any, beside: Sequence[Any] = ()) -> bytearray | _Array:
    """Return the memory of an array.

    The state has it as base64, or as an index into ``beside``.
    """
    if type(told) is int:
        found: _Array = beside[told]
        return found
    return bytearray(b64decode(told, validate=True))


def _decoded(plain: Any, beside: Sequence[Any]) -> Any:
    kind = type(plain)
    if plain is None or kind in (bool, int, float, str):
        return plain
    if kind is list:
        return [_decoded(part, beside) for part in plain]
    if kind is not dict:
        raise TypeError(f"{plain!r:.60} is no JSON")
    if not _is_tagged(plain):
        return {key: _decoded(part, beside) for key, part in plain.items()}
    [(tag, told)] = plain.items()
    if tag == "~array":
        name, shape, memory = told
        held = _memory(memory, beside)
        array = _array(name, shape or [], held)
        if shape is None:
            return array[()]
        return array
    if tag == "~tensor":
        dtype, shape, memory = told
        held = _memory(memory, beside)
        raw = np.frombuffer(held, np.uint8)
        return tensors.from_bytes(raw, dtype, shape)
    made_of, make = _MADE[tag]
    if type(told) is not made_of:
        raise TypeError(f"{tag} of {told!r:.60}")
    return make(_decoded(told, beside))


def _array(
    name: str,
    shape: list[int],
    memory: bytearray | _Array,
) -> _Array:
    if type(name) is not str:
        raise TypeError(f"{name!r:.60} is no dtype's name")
    # NumPy knows the names of these dtypes once the library has been imported.
    if _OF_ML_DTYPES.fullmatch(name):
        importlib.import_module("ml_dtypes")
    dtype = np.dtype(name)
    if not _is_memory(dtype):
        raise TypeError(f"an array of {dtype}")
    if not dtype.itemsize:
        # np.zeros() would give each element a byte, more memory than the state has.
        return np.ndarray(shape, dtype, bytearray())
    return np.frombuffer(memory, dtype).reshape(shape)


def _deque(told: list[Any]) -> deque[Any]:
    parts, most = told
    if type(parts) is not list:
        raise TypeError(f"~deque of {parts!r:.60}")
    return deque(parts, most)


# The type that a tag's value must have, and what makes the value of it.
_Making = tuple[type, Callable[[Any], Any]]
# The types are checked, since an array in place of a list would become far more objects
# than it has bytes.
_MADE: dict[str, _Making] = {
    "~int": (str, lambda told: int(told, 16)),
    "~float": (str, float),
    "~bytes": (str, lambda told: b64decode(told, validate=True)),
    "~tuple": (list, tuple),
    "~set": (list, set),
    "~deque": (list, _deque),
    "~dict": (list, dict),
    "~OrderedDict": (list, OrderedDict),
    "~Counter": (list, lambda pairs: Counter(dict(pairs))),
}
