"""The variables of the program's own modules: read in the program, set in its workers.

A worker imports the modules that the dataset leads to, and has then what they begin with; what the program has set
since is set in the worker too, before the dataset is opened.  Guarantees that a variable whose pickle is the same here
and there is left alone, so that ``is`` goes on holding, and that one which can't be pickled stays as the worker's
import has made it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pickle
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from .. import script
from ..samples.byvalue import is_importable, place_of

HANDLES = {"_io", "socket", "ssl", "sqlite3", "h5py", "lmdb", "zmq", "redis", "psycopg", "psycopg2", "pymysql"}
# Packages whose objects each process makes for itself: handles, locks, threads, loaders, foreign libraries, randomness.
_OF_ITS_PROCESS = HANDLES | {"_thread", "threading", "queue", "_queue", "ctypes", "_ctypes", "weakref", "_weakref"}
_OF_ITS_PROCESS |= {"random", "_random", "contextvars", "_contextvars", "concurrent", "multiprocessing", "mpiter"}
_INSTALLED = tuple(sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_CODE = (type, FunctionType, ModuleType)


class Variable(NamedTuple):
    """One variable of a module, or an attribute of a class or function there."""

    module: str
    path: tuple[str, ...]
    value: int  # equal numbers: the same object
    data: bytes


Variables = tuple[list[str], list[Variable]]  # of which modules, in the order in which the program has imported them
Dumps = Callable[[Any], tuple[bytes, Collection[str]]]  # a pickle, and the modules that it names


def read(names: Collection[str], dumps: Dumps, with_main: bool) -> tuple[Variables, list[str]]:
    """The variables of the program's modules with these names, and of what they lead to; and what can't travel."""
    found, stays, seen, places = list[Variable](), list[str](), set[str](), dict[int, int]()
    led_to = sorted(map(script.home, names))
    for name in led_to:  # which grows
        if name in seen or not (_is_own(name) or (with_main and name == script.NAME)):
            continue
        seen.add(name)
        for path, value in _variables(sys.modules[name], name):
            if isinstance(value, ModuleType):
                led_to.append(value.__name__)
            elif not _is_of_its_process(value):
                try:
                    data, more = dumps(value)
                except Exception as error:  # the object's own code may raise anything
                    made_by = script.home(type(value).__module__)  # what a library has made, each import makes anew
                    is_ours = made_by in ("builtins", script.NAME) or _is_own(made_by)
                    if len(path) == 1 and (is_ours or isinstance(error, OverflowError)):
                        stays.append(f"{name}.{path[0]} ({type(value).__name__}: {error})")
                    continue
                led_to += sorted(map(script.home, more))
                found.append(Variable(name, path, places.setdefault(id(value), len(found)), data))
    return ([name for name in list(sys.modules) if name in seen], found), stays


def put(variables: Variables, dumps: Dumps) -> Iterator[str]:
    """Import the modules and set what differs in them; yields what can't be set, and why."""
    modules, found = variables
    for name in modules:
        if name != script.NAME:
            with contextlib.suppress(Exception):  # if the dataset needs it, opening the dataset says so
                importlib.import_module(name)
    made = dict[int, Any]()
    for module, path, identity, data in found:
        for space in script.spaces(sys.modules[module]) if module == script.NAME else [_space(module)]:
            try:
                holder = functools.reduce(getattr, path[1:-1], space[path[0]]) if path[1:] else None
                held = space if holder is None else vars(holder)
                with contextlib.suppress(Exception):  # there is none here, or it can't be pickled
                    if dumps(held[path[-1]])[0] == data:
                        continue
                if identity not in made:
                    made[identity] = pickle.loads(data)
                if holder is None:
                    space[path[-1]] = made[identity]
                else:
                    setattr(holder, path[-1], made[identity])
            except Exception as error:
                yield f"{module}.{'.'.join(path)} ({type(error).__name__}: {error})"


def share(reduced: Any) -> Any:
    """A function by value, as cloudpickle has it, whose globals refer to variables of the program's modules.

    What a function of the script changes there (``worker_init``, say) the module's own functions see.
    """
    named = {} if reduced is NotImplemented else reduced[2][1]["__globals__"]
    for name, value in named.items():
        if not isinstance(value, _CODE) and (type(value).__dictoffset__ or isinstance(value, (dict, list, set))):
            holders = (one for one in list(sys.modules) if _space(one).get(name) is value and _is_own(one))
            if (module := next(holders, None)) is not None:
                named[name] = _Held(sys.modules[module], name)
    return reduced


class _Held(NamedTuple):
    """Stands for a module's variable."""

    module: ModuleType
    name: str

    def __reduce__(self) -> Any:
        return getattr, tuple(self)


def _is_own(name: str) -> bool:
    """Is it a module of the program's: from a file that comes neither with Python nor with an installed package?"""
    file = _space(name).get("__file__")
    if not isinstance(file, str) or not file.endswith(".py") or file.startswith(_INSTALLED) or "-packages/" in file:
        return False
    return name.partition(".")[0] not in ("mpiter", *script.NAMES) and is_importable(name)


def _space(name: str) -> dict[str, Any]:
    return getattr(sys.modules.get(name), "__dict__", {})  # asked otherwise, a module may load itself


def _variables(holder: Any, module: str, outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What a module holds beside its classes and functions, and what these hold beside their code."""
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        path, is_function = (*outer, name), isinstance(value, FunctionType)
        if not is_function and (name.startswith("__") or (outer and hasattr(type(value), "__get__"))):
            continue
        if not _is_defined_at(value, module, path):
            yield path, value
        elif not isinstance(value, type) or (value.__name__ == name and not issubclass(value, (Enum, tuple))):
            yield from _variables(value, module, path)


def _is_defined_at(value: Any, module: str, path: tuple[str, ...]) -> bool:
    """Is it the class or function that is known by this name, or what a decorator that says so made of it?"""
    if not isinstance(value, (type, FunctionType)):
        value = inspect.getattr_static(value, "__wrapped__", None)
    if not isinstance(value, (type, FunctionType)) or script.home(value.__module__) != module:
        return False
    place = place_of(value) if isinstance(value, type) else None
    return value.__qualname__ == ".".join(path) or (place is not None and place[1] == path)


def _is_of_its_process(value: Any) -> bool:
    """Does each process have its own: handles, locks, random generators, iterators, and what functions have defined?"""
    if isinstance(value, (type, FunctionType)):
        return "<locals>" in value.__qualname__ and value.__module__ not in script.NAMES
    kind = type(value)
    names = str(kind.__module__).split(".")
    return names[0] in _OF_ITS_PROCESS or hasattr(kind, "__next__") or kind.__name__ in ("Generator", "RandomState")
