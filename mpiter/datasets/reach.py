"""What a dataset's code can come upon: the modules that it leads to, and which of their variables functions name.

Pure.  Whatever a module leads to by a value or a name counts, called or not: these are the modules whose variables
travel.  Functions and the names in them say more closely what is read: by that, what differs is told.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from .. import script
from ..samples.byvalue import is_importable
from .parts import taken_apart
from .plain import LEAVES, codes_of, is_raw

_MOST = 10_000  # objects within a variable that are looked at
_NAME_ANYTHING = {"getattr", "attrgetter", "vars", "globals", "eval", "exec", "__dict__"}
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"}
_FILL = {"append", "appendleft", "add", "extend", "insert", "update"}


@dataclass
class Roots:
    """What a pickle has come upon."""

    modules: set[str] = field(default_factory=set)  # that are imported by whoever opens it
    code: dict[int, Any] = field(default_factory=dict)  # classes, functions and modules, by identity

    def note(self, value: Any) -> None:
        if isinstance(value, (type, FunctionType)):
            self.modules.add(value.__module__)
            self.code[id(value)] = value
        elif isinstance(value, ModuleType):
            self.modules.add(value.__name__)
            self.code[id(value)] = value


@dataclass(frozen=True)
class Reached:
    """Variables by module and name."""

    named: frozenset[tuple[str, str]]
    opened: frozenset[str]  # names of what functions look at and set, or fill: on first use, perhaps
    beside: frozenset[str]  # and of what such functions set beside: a position in what is open
    is_all: bool  # that can be said: nothing is named by what is only known later


def mentioned(value: Any) -> set[str]:
    """All names in the code of a class or function, and in what it wraps."""
    return {name for function in _functions(value) for name in names(function.__code__)}


@functools.lru_cache(maxsize=1 << 15)
def names(code: CodeType) -> frozenset[str]:
    """Of variables, attributes and modules; strings may be names as well."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= names(constant)
        elif isinstance(constant, tuple):
            found |= {part for part in constant if isinstance(part, str) and part.isidentifier()}
        elif isinstance(constant, str) and len(constant) < 200 and constant.replace(".", "").isidentifier():
            found.add(constant)
    return frozenset(part for name in found for part in (name, *name.split(".")))


class _Deeds(NamedTuple):
    """What a function does with variables and attributes, by their names."""

    opens: frozenset[str]  # looks at and sets, or fills
    sets: frozenset[str]  # of attributes, itself


@functools.lru_cache(maxsize=1 << 15)
def _deeds(code: CodeType) -> _Deeds:
    steps = list(dis.get_instructions(code))
    loads, sets, fills, attributes = Counter[str](), set[str](), set[str](), set[str]()
    for at, step in enumerate(steps):
        if step.opname in _LOADS:
            loads[step.argval] += 1
            if step.argval in _FILL:
                fills |= _loaded_at(steps, at - 1)
        elif step.opname in ("STORE_GLOBAL", "STORE_ATTR"):
            sets.add(step.argval)
            if step.opname == "STORE_ATTR":
                attributes.add(step.argval)
        if step.opname == "STORE_SUBSCR":
            fills |= _loaded_at(steps, _before_one_value(steps, at))
        elif step.argval == "setdefault":
            sets |= _loaded_at(steps, at - 1)
    opens = (loads.keys() & sets) | {name for name in fills if loads[name] > 1}
    inner = [_deeds(constant).opens for constant in code.co_consts if isinstance(constant, CodeType)]
    return _Deeds(frozenset(opens).union(*inner), frozenset(attributes))


def _loaded_at(steps: list[dis.Instruction], at: int) -> set[str]:
    return {steps[at].argval} if at >= 0 and steps[at].opname in _LOADS else set()


def _before_one_value(steps: list[dis.Instruction], at: int) -> int:
    """The step before those that make the topmost of what ``at`` takes: in ``held[index] = value`` the index."""
    missing = 1
    while missing and at > 0:
        at -= 1
        missing -= dis.stack_effect(steps[at].opcode, steps[at].arg, jump=False)
    return at - 1


class Modules(dict[str, ModuleType]):
    """The program's, by their names, and by the last part of these."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        super().__init__(modules)
        self._by_name = defaultdict[str, list[str]](list)
        for name in modules:
            self._by_name[name.rpartition(".")[2]].append(name)

    def among(self, found: Collection[str]) -> set[str]:
        """Those that may be meant by these names."""
        return {module for name in found & self._by_name.keys() for module in self._by_name[name]}


def reached_from(roots: Roots, modules: Modules) -> Reached:
    """Which variables of ``modules`` code of these roots names, by way of what they define."""
    found, opened, seen = set[tuple[str, str]](), set[str](), dict[int, Any]()
    all_names = set[str]()
    left, held = list[Any](), set[str]()  # modules that are attributes of something

    def add(value: Any) -> None:
        for part in _within(value, seen, modules):
            if isinstance(part, ModuleType):
                held.add(part.__name__)
            else:
                found.add((script.home(str(part.__module__)), part.__qualname__.partition(".")[0]))
                left.extend(_functions(part))

    for value in roots.code.values():
        add(value)
    done, held_before = list[FunctionType](), set[str]()
    while left:
        function = left.pop()
        done.append(function)
        named = names(function.__code__)
        all_names |= named
        opened |= _deeds(function.__code__).opens
        space = function.__globals__
        theirs = {one.__name__ for name in named if isinstance(one := space.get(name), ModuleType)}
        home = script.home(str(function.__module__))
        spaces = {home: space} | {
            name: vars(modules[name]) for name in (modules.among(named) | theirs | held) & modules.keys()
        }
        for module, variables in spaces.items():
            for name in named & variables.keys():
                if (module, name) not in found:
                    found.add((module, name))
                    add(variables[name])
        if not left and held != held_before:  # all functions may know them
            held_before, left = set(held), list(done)
            done.clear()
    looking = [
        one.__code__ for one in done if one.__name__ != "__init__" and not opened.isdisjoint(names(one.__code__))
    ]
    beside = {name for code in looking for name in _deeds(code).sets}
    is_all = all_names.isdisjoint(_NAME_ANYTHING)
    return Reached(frozenset(found), frozenset(opened), frozenset(beside), is_all)


def _is_programs(code: Any, modules: Mapping[str, ModuleType]) -> bool:
    name = str(code.__module__)
    return name in modules or name in script.NAMES or name not in sys.modules or not is_importable(name)


def _functions(value: Any) -> Iterator[FunctionType]:
    """Those that a function or class consists of."""
    held = [part for base in value.__mro__[:-1] for part in vars(base).values()] if isinstance(value, type) else [value]
    for part in held:
        yield from (code for code in codes_of(part) if isinstance(code, FunctionType))


def _within(value: Any, seen: dict[int, Any], modules: Mapping[str, ModuleType]) -> Iterator[Any]:
    """The modules, and the program's classes and functions, that a value is made of, and those of what it holds."""
    left, count = deque([value]), 0
    while left and count < _MOST:
        one = left.popleft()
        if type(one) in LEAVES or id(one) in seen or is_raw(one):
            continue
        seen[id(one)], count = one, count + 1
        if isinstance(one, ModuleType):
            yield one
            continue
        for code in codes_of(one):
            if isinstance(code, (type, FunctionType)) and _is_programs(code, modules):
                yield code
                left.extend([*vars(code).values(), *getattr(code, "__bases__", ())])
            for cell in (code.__closure__ or ()) if isinstance(code, FunctionType) else ():
                with contextlib.suppress(ValueError):  # nothing is in it yet
                    left.append(cell.cell_contents)
        if not isinstance(one, (type, FunctionType)):
            left.append(type(one))
            apart = taken_apart(one)
            if apart is not None:
                left.extend(apart.attributes.values())
                left.extend(apart.items.values() if isinstance(apart.items, dict) else apart.items or ())
