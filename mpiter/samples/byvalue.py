"""Pickling by value: what no other process can import by its name, and what only seems to be picklable.

Runs in the consumer process and in workers; cloudpickle does most of it.  Guarantees that a class is the caller's own
again when it comes back, and has its ``__slots__`` until then; that code knows which file it is of; that a memoryview
stays one; that an open file or connection is refused, instead of arriving as its text or its number here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from multiprocessing import process
from multiprocessing.connection import Connection
from operator import attrgetter
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np

from .. import script
from . import tensors

_DEEPEST = 6  # parts within parts
_knows_callers_classes = False  # is this a fork of the process that it sends to?


def was_forked() -> None:
    """Note that this process was forked, so that the caller knows its classes by their addresses."""
    global _knows_callers_classes
    _knows_callers_classes = True


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with classes coming back as the caller's own."""

    knows_main = True  # does the other side have the caller's script?
    names_twins = True  # may the other side be asked for its own class first?

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known = reducers()
        main = sys.modules.get(script.NAME)
        if not self.knows_main and main is not None and main.__name__ != script.NAME:  # cloudpickle would refer to it
            cloudpickle.register_pickle_by_value(main)

    def reducer_override(self, value: Any) -> Any:
        if (reduce := self._known.get(type(value))) is not None:
            return reduce(value)
        if isinstance(value, CodeType):
            return _code_of, (value.co_filename, self.dispatch_table[CodeType](value)[1])
        if isinstance(value, memoryview):
            return _view, (value.tobytes() if value.readonly else bytearray(value), value.format, value.shape)
        if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
            raise TypeError("it is an open file")
        if isinstance(value, (type, FunctionType)):
            self._find_module(value.__module__)
        reduced = super().reducer_override(value)
        if reduced is NotImplemented or not isinstance(value, type) or value.__module__ == "builtins":
            return reduced
        is_there = self.knows_main or (value.__module__ not in script.NAMES and is_importable(value.__module__))
        if is_there and (path := path_to(value)) is not None:
            return _at, (value.__module__, path)
        if self.names_twins and _knows_callers_classes:
            return _twin, (id(value), value.__module__, value.__qualname__, _copy_of(value))
        return _with_slots(value, reduced)

    def _find_module(self, name: str) -> None:
        """Have cloudpickle refer to a module that can be imported, and to none that the other side cannot."""
        if name not in sys.modules and str(name).partition(".")[0] in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)  # numpy.rec, which a public name has hidden so far
        module = sys.modules.get(name)
        if module is not None and module.__name__ in sys.modules and not (self.knows_main or is_importable(name)):
            cloudpickle.register_pickle_by_value(module)


def _code_of(file: str, arguments: tuple[Any, ...]) -> CodeType:
    """Make code with its file name, which cloudpickle 3.1.3 loses."""
    return CodeType(*arguments).replace(co_filename=file)


def _view(data: Any, form: str, shape: tuple[int, ...]) -> memoryview:
    return memoryview(data).cast(form) if len(shape) == 1 else memoryview(data).cast(form, shape)  # type: ignore


def _with_slots(cls: type, reduced: Any) -> Any:
    """Make a class as cloudpickle does, and keep its slots."""
    make, (*head, namespace, tracker, extra), *rest = reduced
    if "__slots__" in cls.__dict__ and isinstance(namespace, dict) and not issubclass(cls, tuple):
        namespace = {**namespace, "__slots__": cls.__dict__["__slots__"]}
    return make, (*head, namespace, tracker, extra), *rest


# -- what any way of pickling must know --------------------------------------------------------------------------------


def reducers() -> dict[type, Any]:
    """Reducers for values that pickle wouldn't bring back as they were, or not cheaply."""
    text = dict.fromkeys((np.bytes_, np.str_), _reduce_text)
    return {np.ndarray: _reduce_array, Connection: _refuse} | text | tensors.reducers()


def _reduce_text(text: Any) -> Any:
    """Reduce NumPy's bytes and strings: NumPy's own way loses zeros at the end."""
    return type(text), (bytes(text) if isinstance(text, bytes) else str.__str__(text),)


def _reduce_array(array: Any) -> Any:
    """Reduce an array: NumPy's own way makes some arrays of foreign byte order native."""
    if array.dtype.isnative or array.dtype.names is not None or array.dtype.hasobject:
        return array.__reduce_ex__(5)
    native = array.view(array.dtype.newbyteorder())  # the same bytes, under the native name
    return np.ndarray.view, (native, array.dtype)


def _refuse(connection: Connection) -> Any:
    """Refuse a connection: pickle would send the number that it has in this process."""
    raise TypeError("it is an open connection")


# -- where a class is ------------------------------------------------------------------------------------------------


def is_importable(name: str | None) -> bool:
    """Could another process import this module by its name?  Not one that was made by hand."""
    package = str(name).partition(".")[0]
    module = sys.modules.get(package)
    return module is None or package in script.NAMES or _is_found(package, module)


@functools.lru_cache(maxsize=4096)
def _is_found(name: str, module: ModuleType) -> bool:
    file = getattr(module, "__dict__", {}).get("__file__")  # asked otherwise, a module may load itself
    finders = [(finder, None) for finder in sys.meta_path]
    for finder, where in [*finders, (PathFinder, [process.ORIGINAL_DIR])]:  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            if (spec := finder.find_spec(name, where)) is not None:  # type: ignore[attr-defined]
                return not isinstance(file, str) or not spec.has_location or _stem(spec.origin) == _stem(file)
    return False


def _stem(file: Any) -> str:
    """The path of a module's source and of what was compiled of it."""
    return os.path.splitext(os.path.realpath(str(file)))[0]


@functools.lru_cache(maxsize=256)
def path_to(cls: Any) -> str | None:
    """The names under which a class lies in its module, which may not include its own."""
    return _path_in(vars(sys.modules[cls.__module__]), cls) if cls.__module__ in sys.modules else None


def _path_in(space: Any, cls: type, depth: int = _DEEPEST) -> str | None:
    classes: dict[str, Any] = {name: value for name, value in space.items() if isinstance(value, type)}
    for name, value in classes.items():
        if value is cls:
            return name
    for name, value in classes.items():
        if depth and value.__module__ == cls.__module__ and (path := _path_in(vars(value), cls, depth - 1)) is not None:
            return f"{name}.{path}"
    return None


def _at(module: str, path: str) -> Any:
    return attrgetter(path)(sys.modules.get(module) or importlib.import_module(module))


@functools.lru_cache(maxsize=256)
def _copy_of(cls: Any) -> bytes:
    """A class by value, for a process that doesn't have it; empty if it can't travel."""
    out = io.BytesIO()
    pickler = ByValue(out, protocol=5)
    pickler.names_twins = False
    try:
        pickler.dump(cls)
    except Exception:
        return b""
    return out.getvalue()


@functools.lru_cache(maxsize=256)
def _twin(address: int, module: str, name: str, copy: bytes) -> Any:
    """The class that a forked worker inherited from this process; one that it has made itself comes by value."""
    key = address, module, name
    alive = (cls for cls in _all_classes() if (id(cls), cls.__module__, cls.__qualname__) == key)
    return next(alive, None) or pickle.loads(copy)


def _all_classes() -> Iterator[type]:
    seen, left = {object}, [object]
    while left:
        found = set(type.__subclasses__(left.pop())) - seen
        seen |= found
        left += found
        yield from found


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
