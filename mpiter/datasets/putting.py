"""The variables of the program's modules, put where a worker has imported the modules anew.

Runs in workers.  Guarantees that names which share an object share one afterwards, and others don't; that an object is
changed where it lies, whoever holds it; that it is changed as a whole or not at all, but for those that are mere
shelves: dicts, namespaces, classes and functions.  What a value is made of is imported for it.
"""

from __future__ import annotations

import array
import pickle
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from ..samples import tensors
from . import parts
from .parts import MISSING, base_of, can_be_made, class_of, kind_of, taken_apart
from .plain import GO_ON, HOLD_ANYTHING, LEAVES, Again, Made, Opaque, Raw, opaque, pickled
from .variables import held_by_code

_NOT_OPENED = {f"builtins:{name}" for name in ("function", "type", "staticmethod", "classmethod", "property", "method")}
_NOT_OPENED |= {"builtins:builtin_function_or_method"}
_NOT_OPENED |= {f"builtins:{name}" for name in ("list", "tuple", "dict", "set", "frozenset", "str", "bytes")}
_NOT_OPENED |= {"numpy:ndarray", "torch:Tensor", "builtins:bytearray", "array:array"}  # too large
_NEVER_OPENED = ("_thread:", "threading:", "logging:", *GO_ON)


class Difference(NamedTuple):
    """What stays as this worker has it."""

    where: str
    how: str


class Putting:
    """What of the caller's is where in this worker."""

    def __init__(
        self,
        opened: Collection[str] = (),
        beside: Collection[str] = (),
        files: Collection[int] = (),
    ) -> None:
        """Names that the dataset's code sets itself, on first use and beside; numbers of files that the caller has."""
        self._opened, self._files = opened, files
        self._stay = {*opened, *beside}  # of an object with something open
        self._mine: dict[int, Any] = {}  # what the caller's object is here
        self._taken: dict[int, Any] = {}  # our objects that are the caller's by now
        self._differing: list[Difference] = []

    def into(self, space: dict[str, Any], variables: Mapping[str, bytes]) -> list[tuple[str, Difference]]:
        """Give a module's variables the caller's values; which have another value all the same, and how it differs."""
        told = []
        for name, data in variables.items():
            self._differing = []
            try:
                held = space.get(name, MISSING)
                found = self._settled(held, pickle.loads(data), _Place(name, name))
                if found is not held:
                    space[name] = found
            except Exception:  # what is to be imported for it may do anything, and so may the program's own classes
                self._differing.append(Difference(name, "of what workers cannot make"))
            told += [(name, difference) for difference in self._differing]
        return told

    def _settled(self, mine: Any, theirs: Any, place: _Place) -> Any:
        """The value that ``theirs`` describes; ``mine``, or what of it lies on shelves by itself, if that can't be."""
        if _is_the_same_code(mine, theirs):
            return mine
        differing = list(self._differences(mine, theirs, place, {}))
        if not differing:
            return self._put(mine, theirs)
        base: Any = self._base(mine, theirs) if isinstance(theirs, Made) else MISSING
        is_open = all(one.is_opened for one in differing) and isinstance(theirs, Made) and theirs.items is None
        if base is MISSING or not (is_open or _is_shelf(base)):
            self._differing += [Difference(*difference[:2]) for difference in differing if not difference.is_opened]
            return mine
        self._take(base, theirs)
        held = _apart(base)
        items = held.items or {}
        for key, part in (theirs.items or {}).items():
            found = self._settled(items.get(key, MISSING), part, place.item(key))
            if found is not items.get(key, MISSING):
                base_of(type(base)).__setitem__(base, key, found)
        for key in items.keys() - (theirs.items or {}).keys():
            base_of(type(base)).__delitem__(base, key)
        self._take_off(base, theirs)
        for name, part in theirs.attributes.items():
            if is_open and not _is_shelf(base) and name in self._stay:
                self._tell_of_what_stays(held.attributes.get(name, MISSING), part, place.attribute(name))
                continue
            found = self._settled(held.attributes.get(name, MISSING), part, place.attribute(name))
            if found is not held.attributes.get(name, MISSING):
                parts.give(base, name, found)
        return base

    def _tell_of_what_stays(self, mine: Any, theirs: Any, place: _Place) -> None:
        """What stays beside something open may be a position in it, or a setting."""
        if not isinstance(theirs, (Opaque, Made, Raw, Again)) and not _are_same(mine, theirs):
            self._differing.append(
                Difference(place.path, f"{theirs!r:.40} in the program, {mine!r:.40} in its workers")
            )

    def _base(self, mine: Any, theirs: Made | Raw, planned: Collection[int] = ()) -> Any:
        """What is to be changed: ``mine``, if that isn't somebody else's here and is of the same kind."""
        if theirs.identity in self._mine:
            return self._mine[theirs.identity]
        is_taken = mine is MISSING or id(mine) in self._taken or id(mine) in planned
        return mine if not is_taken and kind_of(mine) == theirs.kind else MISSING

    def _take_off(self, here: Any, theirs: Made) -> None:
        """Of classes and functions what is gone isn't looked for."""
        if not isinstance(here, (type, FunctionType)):
            for name in _apart(here).attributes.keys() - theirs.attributes.keys():
                parts.take(here, name)

    def _take(self, here: Any, theirs: Made | Raw) -> None:
        self._mine[theirs.identity] = self._taken[id(here)] = here

    # -- looking -----------------------------------------------------------------------------------------------------

    def _differences(self, mine: Any, theirs: Any, place: _Place, seen: dict[int, int]) -> Iterator[_Found]:
        """Why ``mine`` can't be made what ``theirs`` describes; ``seen`` says what of ours will be what of theirs."""
        if isinstance(theirs, Opaque):
            if opaque(mine) != theirs:
                yield self._found(mine, theirs, place)
        elif isinstance(theirs, Again):
            if theirs.identity not in seen and theirs.identity not in self._mine:
                yield _Found(place.path, "part of what differs", False)
        elif isinstance(theirs, Raw):
            seen[theirs.identity] = 0
        elif isinstance(theirs, Made):
            if theirs.identity in self._mine or theirs.identity in seen:
                return
            base = self._base(mine, theirs, seen.values())
            seen[theirs.identity] = id(base)
            if base is MISSING and not _is_makeable(theirs):
                yield self._found(mine, theirs, place)
                return
            held = _apart(base)
            for key, part, found in _pairs(theirs.items, held.items):
                yield from self._differences(found, part, place.item(key), seen)
            for name, part in theirs.attributes.items():
                found, inner = held.attributes.get(name, MISSING), place.attribute(name)
                if base is MISSING:  # a new object is the program's own with all its numbers
                    inner = inner._replace(name="")
                yield from self._differences(found, part, inner, seen)
        elif type(theirs) is int and theirs in self._files and place.name in self._opened and _is_nothing(mine):
            yield _Found(
                place.path, f"{theirs} in the program, which may be an open file; not set in its workers", False
            )

    def _found(self, mine: Any, theirs: Opaque | Made, place: _Place) -> _Found:
        """What is opened on first use is none: nothing is there yet, and the dataset's code will set it itself."""
        is_opened = place.name in self._opened and _is_nothing(mine) and not _is_set_by_others(theirs)
        here = "nothing" if mine is MISSING else _name(kind_of(mine))
        another = "another " if mine is not MISSING and theirs.kind == kind_of(mine) else ""
        return _Found(place.path, f"{_name(theirs.kind)} in the program, {another}{here} in its workers", is_opened)

    # -- putting -----------------------------------------------------------------------------------------------------

    def _put(self, mine: Any, theirs: Any) -> Any:
        """The value that ``theirs`` describes, where nothing differs."""
        if isinstance(theirs, Opaque):
            if mine is MISSING:
                raise LookupError(theirs.kind)  # nobody has looked at it here
            return mine
        if isinstance(theirs, Again):
            return self._mine[theirs.identity]
        if not isinstance(theirs, (Made, Raw)):
            return mine if _are_same(mine, theirs) else theirs
        if theirs.identity in self._mine:
            return self._mine[theirs.identity]
        base = self._base(mine, theirs)
        if isinstance(theirs, Raw):
            here = base if base is not MISSING and _are_equal(base, theirs.value) else theirs.value
            self._take(here, theirs)
            return here
        return self._filled(base, theirs)

    def _filled(self, base: Any, theirs: Made) -> Any:
        kind: Any = class_of(theirs.kind) if base is MISSING else type(base)
        held = _apart(base)
        if parts.is_filled(kind):
            here = parts.made(kind) if base is MISSING else base
            self._take(here, theirs)
            items = self._items(theirs, held)
            if theirs.items is not None and not _are_identical(items, held.items):
                parts.fill(here, items)
        else:
            items = self._items(theirs, held)
            here = base if _are_identical(items, held.items) else parts.made(kind, items)
            self._take(here, theirs)
        self._take_off(here, theirs)
        for name, part in theirs.attributes.items():
            mine = held.attributes.get(name, MISSING)
            if (found := self._put(mine, part)) is not mine or here is not base:
                parts.give(here, name, found)
        return here

    def _items(self, theirs: Made, held: parts.Apart) -> Any:
        found = [(key, self._put(mine, part)) for key, part, mine in _pairs(theirs.items, held.items)]
        return dict(found) if isinstance(theirs.items, dict) else [part for _, part in found]


class _Found(NamedTuple):
    where: str
    how: str
    is_opened: bool  # on first use: nothing to be told


class _Place(NamedTuple):
    """Where in a module something is."""

    path: str
    name: str  # of the variable or attribute

    def item(self, key: Any) -> _Place:
        return _Place(f"{self.path}[{key!r:.40}]", self.name)

    def attribute(self, name: str) -> _Place:
        return _Place(f"{self.path}.{name}", name)


def _apart(value: Any) -> parts.Apart:
    if isinstance(value, (type, FunctionType)):
        return parts.Apart(None, held_by_code(value))
    held = None if value is MISSING else taken_apart(value)
    if held is None or isinstance(value, (set, frozenset)):  # whose parts can't be told apart
        return parts.Apart(None, {} if held is None else held.attributes)
    return held


def _is_the_same_code(mine: Any, theirs: Any) -> bool:
    """Most classes and functions are here what they are there; others may be all the same."""
    if not (isinstance(mine, (type, FunctionType)) and isinstance(theirs, Made) and kind_of(mine) == theirs.kind):
        return False
    held = held_by_code(mine)
    return all(_is_as_there(held.get(name, MISSING), part) for name, part in theirs.attributes.items())


def _is_as_there(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, Opaque):
        return mine is not MISSING and opaque(mine) == theirs
    return _is_the_same_code(mine, theirs) if isinstance(theirs, Made) else _are_same(mine, theirs)


def _pairs(theirs: Any, mine: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Key, their part and ours, as far as there are such parts."""
    if isinstance(theirs, dict):
        mine = mine if isinstance(mine, dict) else {}
        yield from ((key, part, mine.get(key, MISSING)) for key, part in theirs.items())
    else:
        mine = mine if isinstance(mine, list) else []
        yield from ((at, part, mine[at] if at < len(mine) else MISSING) for at, part in enumerate(theirs or ()))


def _is_shelf(base: Any) -> bool:
    return isinstance(base, (dict, type, FunctionType)) or kind_of(base) in HOLD_ANYTHING


def _is_makeable(theirs: Any) -> bool:
    """Is another such object made of what it holds?"""
    if isinstance(theirs, Opaque):
        return False
    if not isinstance(theirs, Made):
        return True
    kind = class_of(theirs.kind)
    held = theirs.items.values() if isinstance(theirs.items, dict) else theirs.items or ()
    return kind is not None and can_be_made(kind) and all(map(_is_makeable, [*held, *theirs.attributes.values()]))


def _is_nothing(mine: Any) -> bool:
    """Is this what stands where something is opened later?"""
    if mine is MISSING or mine is None or (type(mine) is int and mine == -1):
        return True
    return type(mine) in (list, dict, set) and not mine


def _is_set_by_others(theirs: Any) -> bool:
    """Code, what the script has made, what is merely too large, what has only locks and the like isn't opened."""
    kinds = list(_kinds_at_home(theirs))
    if any(kind in _NOT_OPENED or kind.startswith("__main__:") for kind in kinds):
        return True
    return bool(kinds) and all(kind.startswith(_NEVER_OPENED) for kind in kinds)


def _kinds_at_home(theirs: Any) -> Iterator[str]:
    """Of what stays with the caller, and of what its script has made."""
    if isinstance(theirs, Opaque) or (isinstance(theirs, Made) and theirs.kind.startswith("__main__:")):
        yield theirs.kind
    elif isinstance(theirs, Made):
        held = theirs.items.values() if isinstance(theirs.items, dict) else theirs.items or ()
        for part in (*held, *theirs.attributes.values()):
            yield from _kinds_at_home(part)


def _name(kind: str) -> str:
    module, _, name = kind.partition(":")
    return {"NoneType": "None"}.get(name, name) if module == "builtins" else f"{module}.{name}"


def _are_identical(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, dict):
        return isinstance(theirs, dict) and list(mine) == list(theirs) and all(mine[key] is theirs[key] for key in mine)
    return (
        isinstance(theirs, list) and len(mine) == len(theirs) and all(a is b for a, b in zip(mine, theirs, strict=True))
    )


def _are_same(mine: Any, theirs: Any) -> bool:
    """Is there nothing to set?"""
    if type(mine) is tuple and type(theirs) is tuple:
        return len(mine) == len(theirs) and all(map(_are_same, mine, theirs))
    if type(mine) not in LEAVES or type(mine) is not type(theirs):
        return mine is theirs
    return bool(mine == theirs) and repr(mine) == repr(theirs)  # 0.0 and -0.0, 0.1 and 0.10


def _are_equal(mine: Any, theirs: Any) -> bool:
    return type(mine) is type(theirs) and _content(mine) == _content(theirs)


def _content(value: Any) -> Any:
    numbers = value if isinstance(value, np.ndarray) else tensors.as_array(value)
    if numbers is not None:
        return numbers.dtype, numbers.shape, numbers.tobytes()
    if isinstance(value, array.array):
        return value.typecode, value.tobytes()
    return bytes(value) if isinstance(value, bytearray) else pickled(value)
