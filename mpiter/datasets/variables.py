"""Variables of the program's own modules, and settings of libraries.

They are read in the program and set in its workers.  A worker imports the modules that
the dataset refers to, which sets their variables to initial values.  Those that the
program has changed since are set in the worker too, before the dataset is opened.  A
variable whose pickle is the same in the worker isn't touched, so that its identity is
kept; one that can't be pickled keeps its initial value.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from operator import attrgetter, methodcaller
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..samples.byvalue import SCRIPT, is_importable, path_to

# Packages whose objects are open files, connections or databases.
HANDLES = {
    "_io",
    "socket",
    "ssl",
    "sqlite3",
    "h5py",
    "lmdb",
    "_duckdb",
    "zmq",
    "redis",
    "psycopg",
    "psycopg2",
    "pymysql",
}
# Packages whose objects belong to one process: handles, locks, threads, loaders,
# foreign libraries, random generators.
_OF_ITS_PROCESS = HANDLES | {
    "_thread",
    "threading",
    "queue",
    "_queue",
    "ctypes",
    "_ctypes",
    "weakref",
    "_weakref",
    "random",
    "_random",
    "contextvars",
    "_contextvars",
    "concurrent",
    "multiprocessing",
    "mpiter",
}
# The folders of Python and of installed packages.
_INSTALLED = tuple(
    sysconfig.get_path(name) + "/"
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class Variable(NamedTuple):
    """A variable of a module, as it is sent to the workers.

    It may also be an attribute of one of the module's classes or functions.
    """

    module: str
    path: tuple[str, ...]
    # Variables with equal numbers are the same object.
    value: int
    data: bytes


class Held(NamedTuple):
    """The settings and variables of a program, as they are sent to its workers."""

    # In the order in which the program has imported them.
    modules: list[str]
    variables: list[Variable]
    settings: Mapping[tuple[str, str], Any]


# Returns a pickle, and the modules that it refers to.
Dumps = Callable[[Any], tuple[bytes, Collection[str]]]


def read(names: Collection[str], dumps: Dumps) -> tuple[Held, list[str]]:
    """Return the variables of the modules ``names`` and of all that these refer to.

    Return also a list of what can't be sent.
    """
    found = list[Variable]()
    stays = list[str]()
    seen = set[str]()
    places = dict[int, int]()
    led_to = sorted(names)
    # The list grows meanwhile.
    for name in led_to:
        if name in seen or not _is_own(name):
            continue
        seen.add(name)
        for path, value in _variables(sys.modules[name], name):
            if isinstance(value, ModuleType):
                led_to.append(value.__name__)
                continue
            if _is_of_its_process(value):
                continue
            try:
                data, more = dumps(value)
            except Exception as error:
                # The object's own code may raise anything.  Objects of libraries are
                # made again by each import, so only others are worth a warning.
                made_by = type(value).__module__
                is_ours = made_by in ("builtins", *SCRIPT) or _is_own(made_by)
                if len(path) == 1 and (is_ours or isinstance(error, OverflowError)):
                    reason = f"{type(value).__name__}: {error}"
                    stays.append(f"{name}.{path[0]} ({reason})")
                continue
            led_to += sorted(more)
            identity = places.setdefault(id(value), len(found))
            found.append(Variable(name, path, identity, data))
    modules = [name for name in list(sys.modules) if name in seen]
    return Held(modules, found, settings()), stays


def put(held: Held, dumps: Dumps) -> Iterator[str]:
    """Import the modules, set the variables that differ, then the settings.

    Yield what can't be set, and why.
    """
    for name in held.modules:
        # If the dataset needs it, opening the dataset raises the error.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    made = dict[int, Any]()
    for module, path, identity, data in held.variables:
        if module not in sys.modules:
            continue
        try:
            holder = functools.reduce(getattr, path[:-1], sys.modules[module])
            # The variable may not exist here, or what it is here can't be pickled.
            with contextlib.suppress(Exception):
                known, _ = dumps(vars(holder)[path[-1]])
                if known == data:
                    continue
            if identity not in made:
                made[identity] = pickle.loads(data)
            setattr(holder, path[-1], made[identity])
        except Exception as error:
            yield f"{module}.{'.'.join(path)} ({type(error).__name__}: {error})"
    for module, name, _, set_, _ in _SETTINGS:
        try:
            if (module, name) in held.settings:
                library = importlib.import_module(module)
                set_(library, held.settings[module, name])
        except Exception as problem:
            yield f"{module}.{name} ({problem})"


def is_installed(file: str) -> bool:
    """Return True if a module's file belongs to Python or to an installed package."""
    return file.startswith(_INSTALLED) or "-packages/" in file


def _is_own(name: str) -> bool:
    """Return True if a module is the program's own.

    Its file belongs neither to Python nor to an installed package.
    """
    # A lazy module mustn't load itself.
    space = getattr(sys.modules.get(name), "__dict__", {})
    file = space.get("__file__")
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    if is_installed(file) or name.partition(".")[0] in ("mpiter", *SCRIPT):
        return False
    return is_importable(name)


def _variables(
    holder: object,
    module: str,
    outer: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield path and value of each variable of a module.

    Yield also those of the attributes of its classes and functions.
    """
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        path = (*outer, name)
        if not isinstance(value, FunctionType):
            if name.startswith("__"):
                continue
            # A descriptor is a part of its class, not a value that the program has set.
            if outer and hasattr(type(value), "__get__"):
                continue
        if not _is_defined_at(value, module, path):
            yield path, value
        elif isinstance(value, type):
            # The attributes of an Enum or a named tuple are what its definition gives.
            if not issubclass(value, (Enum, tuple)):
                yield from _variables(value, module, path)
        else:
            yield from _variables(value, module, path)


def _is_defined_at(
    value: object,
    module: str,
    path: tuple[str, ...],
) -> bool:
    """Return True if ``value`` was defined at ``path`` in ``module``.

    Only classes and functions are defined there.  A class may have another name than
    that which it is bound to.
    """
    if not isinstance(value, (type, FunctionType)):
        return False
    if value.__module__ != module:
        return False
    dotted = ".".join(path)
    if value.__qualname__ == dotted:
        return True
    return isinstance(value, type) and path_to(value) == dotted


def is_handle(kind: type) -> bool:
    """Return True if objects of ``kind`` are open files, connections or databases."""
    module = str(kind.__module__)
    if module != "builtins":
        return module.partition(".")[0] in HANDLES
    # Types written in C may leave out their module, as lmdb's do.
    for name in HANDLES:
        if getattr(sys.modules.get(name), kind.__name__, None) is kind:
            return True
    return False


def _is_of_its_process(value: object) -> bool:
    """Return True if ``value`` belongs to one process.

    So do a handle, a lock, a random generator, an iterator and the like.
    """
    if isinstance(value, (type, FunctionType)):
        return "<locals>" in value.__qualname__ and value.__module__ not in SCRIPT
    kind = type(value)
    names = str(kind.__module__).split(".")
    if names[0] in _OF_ITS_PROCESS or is_handle(kind) or hasattr(kind, "__next__"):
        return True
    return kind.__name__ in ("Generator", "RandomState")


class Setting(NamedTuple):
    """A setting of a library, with the functions that read and set it."""

    module: str
    name: str
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], object]
    # The library's default.  It isn't sent.
    default: object = None


def _attribute(
    module: str,
    name: str,
    default: object,
) -> Setting:
    return Setting(
        module,
        name,
        attrgetter(name),
        lambda found, value: setattr(found, name, value),
        default,
    )


def _function(
    module: str,
    get: str,
    put: str,
    default: object = None,
) -> Setting:
    return Setting(
        module,
        put,
        methodcaller(get),
        lambda found, value: getattr(found, put)(value),
        default,
    )


def _umask(_: object) -> int:
    """Return the umask without changing it for a moment, as ``os.umask`` does."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


# This is sent only to have ``tzset`` called.
_ZONE = ("tzname", "timezone", "daylight", "tzset.__name__")
_SETTINGS = (
    _function("sys", "getrecursionlimit", "setrecursionlimit"),
    Setting("os", "umask", _umask, lambda _, mask: os.umask(mask)),
    Setting("time", "tzset", attrgetter(*_ZONE), lambda time, _: time.tzset()),
    Setting(
        "locale",
        "setlocale",
        lambda it: it.setlocale(it.LC_ALL),
        lambda it, all: it.setlocale(it.LC_ALL, all),
    ),
    Setting(
        "decimal",
        "setcontext",
        lambda it: it.getcontext().copy(),
        lambda it, value: it.setcontext(value.copy()),
    ),
    Setting(
        "logging",
        "level",
        attrgetter("root.level"),
        lambda logging, level: logging.root.setLevel(level),
        30,
    ),
    Setting(
        "numpy",
        "seterr",
        methodcaller("geterr"),
        lambda numpy, errors: numpy.seterr(**errors),
    ),
    _attribute("PIL.Image", "MAX_IMAGE_PIXELS", (1 << 30) // 4 // 3),
    _attribute("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
    _function("torch", "get_default_dtype", "set_default_dtype", "torch.float32"),
    Setting(
        "chainer",
        "dtype",
        attrgetter("config.dtype"),
        lambda chainer, dtype: setattr(chainer.global_config, "dtype", dtype),
        np.float32,
    ),
)


def settings() -> dict[tuple[str, str], Any]:
    """Return the settings of libraries that aren't the default, by module and name."""
    found = {}
    for module, name, get, _, default in _SETTINGS:
        if module not in sys.modules:
            continue
        # This version of the library may not have the setting.
        with contextlib.suppress(Exception):
            value = get(sys.modules[module])
            # The default of torch's dtype is given by its name.
            if default not in (value, str(value)):
                found[module, name] = value
    return found
