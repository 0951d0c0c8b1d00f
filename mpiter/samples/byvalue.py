"""Pickling by value: what nobody can import by its name, and what only seems to be picklable.

Runs in the consumer process and in workers; cloudpickle does most of it.  Guarantees that a class is the caller's own
again when it comes back, and has its ``__slots__`` until then; that code knows which file it is of, for warnings and
tracebacks; that a memoryview stays one; that an open file or connection is refused, instead of arriving as the text
that was in it, or as the number that it has here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import operator
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from multiprocessing import process
from multiprocessing.connection import Connection
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from .. import script

_DEEPEST = 6  # classes within classes, and parts within parts
_knows_callers_classes = False  # is this a fork of whom it sends to?


def was_forked() -> None:
    """From now on classes may be known to the caller by where they lie in memory."""
    global _knows_callers_classes
    _knows_callers_classes = True


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, corrected."""

    knows_main = True  # does the other side have the caller's script?
    names_twins = True  # may the other side be asked for its own class first?

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        main = sys.modules.get(script.NAME)
        if not self.knows_main and main is not None and main.__name__ != script.NAME:  # cloudpickle would refer to it
            cloudpickle.register_pickle_by_value(main)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return _code_of, (value.co_filename, self.dispatch_table[CodeType](value)[1])
        if isinstance(value, memoryview):
            return _view, (value.tobytes() if value.readonly else bytearray(value), value.format, value.shape)
        if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
            raise TypeError("it is an open file")
        if isinstance(value, Connection):
            refuse(value)
        if isinstance(value, (type, FunctionType)) and not self.knows_main and not is_importable(value.__module__):
            _go_by_value(value.__module__)
        reduced = super().reducer_override(value)
        if reduced is NotImplemented or not isinstance(value, type) or value.__module__ == "builtins":
            return reduced
        if (self.knows_main or _is_known(value.__module__)) and (place := place_of(value)) is not None:
            return _at, place
        if type(value).__qualname__ == "PyCArrayType":  # of ctypes, which makes one for each length
            made: Any = value
            return operator.mul, (made._type_, made._length_)
        if self.names_twins and _knows_callers_classes:
            return _twin, (id(value), value.__module__, value.__qualname__, _copy_of(value))
        return _with_slots(value, reduced)


def refuse(connection: Connection) -> Any:
    """Pickle would take it for the number that it has in this process."""
    raise TypeError("it is an open connection")


def _code_of(file: str, arguments: tuple[Any, ...]) -> CodeType:
    """cloudpickle 3.1.3 says ``<dynamic-code>`` of all files."""
    return CodeType(*arguments).replace(co_filename=file)


def _view(data: Any, form: str, shape: tuple[int, ...]) -> memoryview:
    return memoryview(data).cast(form) if len(shape) == 1 else memoryview(data).cast(form, shape)  # type: ignore


def _with_slots(cls: type, reduced: Any) -> Any:
    """cloudpickle's way of making a class, which would forget its slots; named tuples make theirs."""
    make, (*head, namespace, tracker, extra), *rest = reduced
    if rest and isinstance(rest[0], tuple):
        rest[0][0].update(_shadowing(cls, rest[0][0]))
    if "__slots__" in cls.__dict__ and isinstance(namespace, dict) and not issubclass(cls, tuple):
        namespace = {**namespace, "__slots__": cls.__dict__["__slots__"]}
    return make, (*head, namespace, tracker, extra), *rest


def _shadowing(cls: type, kept: dict[str, Any]) -> dict[str, Any]:
    """What cloudpickle leaves out as inherited, although another base comes first: ``__iter__ = B.__iter__``."""
    left_out = {name: value for name, value in vars(cls).items() if name not in kept}
    bases = cls.__mro__[1:]
    return {
        name: value
        for name, value in left_out.items()
        if any(vars(base).get(name, cls) is value for base in cls.__bases__)
        and next(vars(base)[name] for base in bases if name in vars(base)) is not value
    }


# -- where a class is ------------------------------------------------------------------------------------------------


def _is_known(module: str) -> bool:
    """Can a worker that hasn't got the script come upon it?"""
    return module not in script.NAMES and is_importable(module)


def is_importable(name: str | None) -> bool:
    """Would another process find, by its name, what this one has there?  Not what was loaded or made by hand."""
    module = sys.modules.get(name or "")
    return module is None or name in script.NAMES or _is_found(name, module)


@functools.lru_cache(maxsize=4096)
def _is_found(name: str, module: ModuleType) -> bool:
    parent = name.rpartition(".")[0]
    if parent and not is_importable(parent):
        return False
    if parent in sys.stdlib_module_names:  # from Python 3.13 on collections.abc has no file of that name
        return True
    file = getattr(module, "__dict__", {}).get("__file__")  # asked otherwise, a module may load itself
    path = getattr(sys.modules.get(parent), "__path__", None)
    if parent and (path is None or module.__name__ != name or not isinstance(file, str)):
        return True  # a package may make such modules and names, and will there as well
    places = [(finder, path) for finder in sys.meta_path] + [(PathFinder, [process.ORIGINAL_DIR])] * ("" in sys.path)  # type: ignore[attr-defined]
    for finder, where in places:
        try:
            spec = finder.find_spec(name, where)
        except Exception:  # it is not for us to say
            return True
        if spec is not None:
            return not isinstance(file, str) or not spec.has_location or _stem(spec.origin) == _stem(file)
    return False


def _stem(file: Any) -> str:
    """Of a module's source and of what was compiled of it."""
    return os.path.splitext(os.path.realpath(str(file)))[0]


def _go_by_value(name: str) -> None:
    module = sys.modules.get(name)
    if module is not None and module.__name__ in sys.modules:
        cloudpickle.register_pickle_by_value(module)


def _module_of(cls: Any) -> ModuleType | None:
    """A public name that nobody has imported so far may be meant: ``numpy.rec``."""
    name = str(cls.__module__)
    if name not in sys.modules and name.partition(".")[0] in sys.modules:
        with contextlib.suppress(Exception):
            return importlib.import_module(name)
    return sys.modules.get(name)


@functools.lru_cache(maxsize=256)
def place_of(cls: Any) -> tuple[str, tuple[str, ...], tuple[Any, ...]] | None:
    """Its module, the names that lead to it there (its own need not be among them), and what to know it by."""
    module = _module_of(cls)
    path = None if module is None else _path_to(cls, module, _DEEPEST)
    return None if path is None else (cls.__module__, path, _likeness(cls))


def _path_to(cls: type, holder: ModuleType | type, depth: int) -> tuple[str, ...] | None:
    held = {name: value for name, value in vars(holder).items() if isinstance(value, type)}
    for name, value in held.items():
        if value is cls:
            return (name,)
    for name, value in held.items():
        inside = depth and value.__module__ == cls.__module__ and value is not holder
        if inside and (path := _path_to(cls, value, depth - 1)) is not None:
            return (name, *path)
    return None


def _at(module: str, path: tuple[str, ...], likeness: tuple[Any, ...]) -> Any:
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for name in path:
        found = getattr(found, name, None)
    if not isinstance(found, type) or _likeness(found) != likeness:
        raise pickle.PicklingError(
            f"the class {likeness[0]} lies at {module}.{'.'.join(path)} in one process, where another one lies in "
            f"this one: give it a variable of its own, and leave that alone"
        )
    return found


def _likeness(cls: type) -> tuple[Any, ...]:
    slots = vars(cls).get("__slots__")
    return cls.__qualname__, getattr(cls, "_fields", None), slots if isinstance(slots, (str, tuple)) else None


@functools.lru_cache(maxsize=256)
def _copy_of(cls: Any) -> bytes:
    """A class by value, for whoever turns out not to have it; nothing if that can't be."""
    out = io.BytesIO()
    pickler = ByValue(out, protocol=5)
    pickler.names_twins = False
    try:
        pickler.dump(cls)
    except Exception:
        return b""
    return out.getvalue()


_twins: weakref.WeakValueDictionary[tuple[int, str, str], Any] = weakref.WeakValueDictionary()


def _twin(address: int, module: str, name: str, copy: bytes) -> Any:
    """The class that a fork of this process had from it; one that it has made by itself comes by value."""
    key = address, module, name
    if key not in _twins:
        alive = (cls for cls in _all_classes() if (id(cls), cls.__module__, cls.__qualname__) == key)
        _twins[key] = next(alive, None) or pickle.loads(copy)
    return _twins[key]


def _all_classes() -> Iterator[type]:
    seen, left = {object}, [object]
    while left:
        for cls in type.__subclasses__(left.pop()):
            if cls not in seen:
                seen.add(cls)
                left.append(cls)
                yield cls


# -- what is to blame ------------------------------------------------------------------------------------------------


def culprit(
    value: Any, path: str, error: BaseException, dumps: Callable[[Any], Any], depth: int = _DEEPEST
) -> tuple[str, Any, str]:
    """The part of ``value`` that ``dumps`` refuses: its path, itself, and why."""
    for name, part in _parts(value, path) if depth else []:
        try:
            dumps(part)
        except Exception as inner:
            return culprit(part, name, inner, dumps, depth - 1)
    return path, value, str(error).strip().rstrip(".") or type(error).__name__


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{at}]", part) for at, part in enumerate(value)]
    parts = [(f"{path}.{key}", part) for key, part in getattr(value, "__dict__", {}).items()]
    with contextlib.suppress(AttributeError, ValueError):  # what a function has closed over
        names = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        parts += [(f"{path}:{name}", cell.cell_contents) for name, cell in names]
    return parts
