"""Values in JSON, instead of pickle: for the states of datasets and samplers.

Numbers, strings, None, lists and dicts with string keys stay as they are; any other
value becomes a dict with one key: ``~`` and the name of its kind.  The memory of arrays
is written as base64, or kept in a list beside the JSON.  Guarantees that values come
back with their types; that decoding unpickles and evaluates nothing, and imports at
most the library of an array's dtype, torch or ml_dtypes; and that it takes no more
memory than there is to decode.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import StateError
from .beside import Beside
from .kinds import BY_TAG, kind_of
from .leaf import added, name_of, named

# The key of a value of a kind that the program has added.
_LEAF = "~leaf"
# Arrays kept beside the JSON.  If None, they are written in it.
_Memory = list[Any] | None


def encoded(value: object, beside: _Memory = None) -> Any:
    """Return ``value`` in JSON's types; raise a StateError if that isn't possible.

    The error names the part that can't be written.

    The memory of arrays and tensors is appended to the list ``beside``, if given.  That
    is for models, so types are kept less strictly: parameters, GPU tensors and JAX's
    arrays become CPU arrays, named tuples become tuples.
    """
    try:
        return _encoded(value, "state", Beside(beside))
    except RecursionError:
        raise StateError("the state is nested too deeply, or holds itself.") from None


def decoded(plain: object, beside: Sequence[Any] = ()) -> Any:
    """Return the value that ``encoded`` has turned into ``plain`` and ``beside``.

    Raise a StateError if they are damaged.
    """
    try:
        return _decoded(plain, Beside(beside))
    except Exception as error:
        raise StateError(
            f"the state holds something that is no value: {error!r:.200}."
        ) from error


def _encoded(
    value: Any,
    path: str,
    beside: Beside,
) -> Any:
    # In the state of a model named tuples become tuples.
    if beside.is_of_model and isinstance(value, tuple):
        value = tuple(value)
    kind = type(value)
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
    if kind in added:
        one = added[kind]
        told = _encoded([*one.split(value)], path, beside)
        return {_LEAF: [name_of(one), told]}
    leaf = kind_of(kind)
    if leaf is not None:
        plain = leaf.encoded(value, beside)
        if plain is not NotImplemented:
            return plain
    raise StateError(
        f"{path} is of type {type(value).__qualname__}, which a state cannot hold.  It "
        "can hold numbers, strings, bytes, arrays and dense CPU tensors, and lists, "
        "tuples, sets, deques and dicts of them."
    )


def _is_tagged(value: dict[Any, Any]) -> bool:
    """Return True if a dict looks like an encoded value."""
    return len(value) == 1 and next(iter(value)).startswith("~")


def _decoded(plain: Any, beside: Beside) -> Any:
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
    if tag in BY_TAG:
        return BY_TAG[tag].decoded(told, beside)
    if tag == _LEAF:
        name, parts = told
        return named(name).join(_decoded(parts, beside))
    make = _MADE[tag]
    if type(told) is not list:
        raise TypeError(f"{tag} of {told!r:.60}")
    return make(_decoded(told, beside))


def _deque(told: list[Any]) -> deque[Any]:
    parts, most = told
    if type(parts) is not list:
        raise TypeError(f"~deque of {parts!r:.60}")
    return deque(parts, most)


# What makes the container of a tag from its list of parts.  That it is a list is
# checked, since an array in place of one would become far more objects than it has
# bytes.
_MADE: dict[str, Callable[[Any], Any]] = {
    "~tuple": tuple,
    "~set": set,
    "~deque": _deque,
    "~dict": dict,
    "~OrderedDict": OrderedDict,
    "~Counter": lambda pairs: Counter(dict(pairs)),
}
