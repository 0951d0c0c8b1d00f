"""Pickling by value: for classes and functions that other processes can't import.

Also for objects that pickle gets wrong.  Runs in the consumer process and in workers,
on top of cloudpickle.  Guarantees that a class that comes back is the caller's own
class, and is in workers what it was (``classes``); that code keeps its file name; that
a memoryview stays one; that an open file or connection is refused, where cloudpickle
would send its text or its descriptor's number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
import os
import pickle
import sys
import typing
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from multiprocessing import process
from multiprocessing.connection import Connection
from operator import attrgetter
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NoReturn

import cloudpickle
import numpy as np

# Both sides know a class by the identifiers in here.  The module is private, so the
# versions of cloudpickle that we allow are bounded.
from cloudpickle import cloudpickle as identifiers

from . import classes, tensors

# Names of the caller's script, the second where multiprocessing has imported it.
SCRIPT = ("__main__", "__mp_main__")
# Parts within parts.
_DEEPEST = 6
# A function that reduces objects for a pickler.
_Reduce = Callable[[Any], Any]


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle pickler whose classes come back as the caller's own.

    cloudpickle's own pickler would make copies of them.
    """

    # True if the other side has the caller's script.
    knows_main = True
    # True if the other side first looks for its own class.
    names_classes = True

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._known = _DECORATORS | reducers()
        main = sys.modules.get("__main__")
        # A script that goes by another name would be pickled by that name, which the
        # other side can't import.
        if not self.knows_main and main is not None and main.__name__ != "__main__":
            cloudpickle.register_pickle_by_value(main)

    def reducer_override(self, value: Any) -> Any:
        reduce = self._known.get(type(value))
        if reduce is not None:
            return reduce(value)
        if isinstance(value, CodeType):
            arguments = self.dispatch_table[CodeType](value)[1]
            return _code_of, (value.co_filename, arguments)
        if isinstance(value, memoryview):
            if value.readonly:
                data: bytes | bytearray = value.tobytes()
            else:
                data = bytearray(value)
            return _view, (data, value.format, value.shape)
        if isinstance(value, io.TextIOWrapper):
            # cloudpickle refers to these two by their names.
            is_standard = value in (sys.stdout, sys.stderr)
            if not is_standard:
                raise TypeError("it is an open file")
        if isinstance(value, FunctionType) and not self._goes_by_name(value):
            # A dispatching function has a cache of weak references, which can't be
            # pickled, so it is made again of what was registered.
            registry = getattr(value, "registry", None)
            if isinstance(registry, MappingProxyType):
                return _single_dispatch, (value.__wrapped__, dict(registry))  # type: ignore[attr-defined]
        elif not isinstance(value, type) and not self.knows_main:
            return self._looked_up(value)
        is_class = isinstance(value, type) and value.__module__ != "builtins"
        if not is_class or self._goes_by_name(value):
            return super().reducer_override(value)
        # cloudpickle found no such name in the class's module.  If the other side has
        # the module, the class may be there by another path.
        is_there = self.knows_main
        if not is_there and value.__module__ not in SCRIPT:
            is_there = is_importable(value.__module__)
        if is_there:
            path = path_to(value)
            if path is not None:
                return _at, (value.__module__, path)
        # A forked worker has the class itself, and it is found by its identifier.
        if self.names_classes:
            identifier = identifiers._get_or_create_tracker_id(value)
            return _class_of, (identifier, _copy_of(value))
        return classes.reduced(value, self._goes_by_name)

    def _looked_up(self, value: Any) -> Any:
        """Reduce an object as pickle would, if the other side can read that.

        Pickle may reduce it to a name that the other side can't look up.  Then it is
        reduced in another way, or refused.
        """
        kind: type = type(value)
        is_script = kind is ModuleType and value.__name__ == "__main__"
        if is_script and value is sys.modules.get("__main__"):
            raise pickle.PicklingError("it is the script, which workers do not import")
        if not _may_give_a_name(kind):
            return NotImplemented
        reduce = self.dispatch_table.get(kind)
        if reduce is None:
            reduced = value.__reduce_ex__(5)
        else:
            reduced = reduce(value)
        if not isinstance(reduced, str):
            return reduced
        module = identifiers._whichmodule(value, reduced) or "__main__"
        if module not in SCRIPT and is_importable(module):
            return reduced
        if kind in _NAMED:
            return _NAMED[kind](value)
        raise pickle.PicklingError(
            f"it is known as {reduced} of {module}, which workers do not import"
        )

    def _goes_by_name(self, value: type | FunctionType) -> bool:
        """Return True if the other side can import this class or function."""
        self._find_module(value.__module__)
        return bool(identifiers._should_pickle_by_reference(value))

    def _find_module(self, name: str) -> None:
        """Have cloudpickle send a module by value that the other side can't import."""
        if name not in sys.modules:
            # Classes may have another module's name than that which was imported, as
            # those of numpy.rec do.
            package = str(name).partition(".")[0]
            if package in sys.modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        module = sys.modules.get(name)
        if module is None or module.__name__ not in sys.modules:
            return
        if not (self.knows_main or is_importable(name)):
            cloudpickle.register_pickle_by_value(module)


@functools.lru_cache(maxsize=4096)
def _may_give_a_name(kind: Any) -> bool:
    """Return True if objects of this class may be pickled as a variable's name."""
    own = (
        kind.__reduce_ex__ is not object.__reduce_ex__
        or kind.__reduce__ is not object.__reduce__
    )
    return own or kind in cloudpickle.Pickler.dispatch_table


def _code_of(file: str, arguments: tuple[Any, ...]) -> CodeType:
    """Return a code object with its file name, which cloudpickle 3.1.3 loses."""
    return CodeType(*arguments).replace(co_filename=file)


def _view(
    data: bytes | bytearray,
    form: Any,
    shape: tuple[int, ...],
) -> memoryview:
    if len(shape) == 1:
        return memoryview(data).cast(form)
    return memoryview(data).cast(form, shape)


# -- what a script makes of its functions and types, and pickle can't carry ------------


def _with(made: object, **attributes: object) -> Any:
    vars(made).update(attributes)
    return made


def _cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    return _with(functools.cached_property(function), attrname=name)


def _single_dispatch(
    function: Callable[..., Any], registry: dict[type, Any]
) -> Callable[..., Any]:
    made = functools.singledispatch(function)
    for kind, implementation in registry.items():
        made.register(kind, implementation)
    return made


def _single_dispatch_method(function: Any, dispatcher: Any) -> Any:
    return _with(functools.singledispatchmethod(function), dispatcher=dispatcher)


# Before Python 3.12 a cached property has a lock, which can't be pickled; nor can a
# dispatcher's cache, a table of weak references.
_DECORATORS: dict[type, _Reduce] = {
    functools.cached_property: lambda it: (_cached_property, (it.func, it.attrname)),
    functools.singledispatchmethod: lambda it: (
        _single_dispatch_method,
        (it.func, it.dispatcher),
    ),
}

_CACHED: type = type(functools.lru_cache(len))
_OF_WRAPPING = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters"}


def _reduce_cached(value: Any) -> tuple[Any, ...]:
    """Reduce a function with a cache to the function and the cache's parameters.

    The cache of the other side is empty.
    """
    attributes = {}
    for name, attribute in vars(value).items():
        if name not in _OF_WRAPPING:
            attributes[name] = attribute
    parameters = value.cache_parameters()
    return _cached, (value.__wrapped__, parameters), attributes or None


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


# What pickle stores as a name in a module, and how to make it where that module isn't.
_NAMED: dict[type, _Reduce] = {
    _CACHED: _reduce_cached,
    typing.NewType: lambda it: (typing.NewType, (it.__name__, it.__supertype__)),
    typing.ParamSpec: lambda it: (typing.ParamSpec, (it.__name__,)),
    typing.TypeVarTuple: lambda it: (typing.TypeVarTuple, (it.__name__,)),
}


def reducers() -> dict[type, _Reduce]:
    """Return reducers for types that pickle would alter, or pickle slowly."""
    found: dict[type, _Reduce] = {
        np.ndarray: _reduce_array,
        Connection: _refuse,
        # A copy of MISSING would count as the default of a data class's field.
        type(dataclasses.MISSING): lambda it: "MISSING",
        np.bytes_: _reduce_text,
        np.str_: _reduce_text,
    }
    return found | tensors.reducers()


def _reduce_text(text: np.bytes_ | np.str_) -> tuple[type, tuple[bytes | str]]:
    """Reduce NumPy's bytes and strings with their trailing zeros.

    NumPy's own reduction strips these.
    """
    if isinstance(text, bytes):
        return type(text), (bytes(text),)
    return type(text), (str.__str__(text),)


def _reduce_array(array: np.ndarray[Any, Any]) -> str | tuple[Any, ...]:
    """Reduce an array such that its byte order stays.

    NumPy's own reduction changes that of some arrays to the native one.
    """
    dtype = array.dtype
    if dtype.isnative or dtype.names is not None or dtype.hasobject:
        return array.__reduce_ex__(5)
    # It is sent as the same bytes with a native dtype.
    native = array.view(dtype.newbyteorder())
    return np.ndarray.view, (native, dtype)


def _refuse(connection: Connection) -> NoReturn:
    """Refuse a connection.

    Pickle would send the descriptor's number, which means nothing in another process.
    """
    raise TypeError("it is an open connection")


def is_importable(name: str | None) -> bool:
    """Return True if another process can import the module ``name``.

    No process can import a module that code has created.
    """
    package = str(name).partition(".")[0]
    module = sys.modules.get(package)
    return module is None or package in SCRIPT or _is_found(package, module)


@functools.lru_cache(maxsize=4096)
def _is_found(name: str, module: ModuleType) -> bool:
    # Not by getattr on the module itself, which may make a lazy module load itself.
    file = getattr(module, "__dict__", {}).get("__file__")
    finders = [(finder, None) for finder in sys.meta_path]
    for finder, where in [*finders, (PathFinder, [process.ORIGINAL_DIR])]:  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            spec = finder.find_spec(name, where)  # type: ignore[attr-defined]
            if spec is None:
                continue
            if not isinstance(file, str) or not spec.has_location:
                return True
            return _stem(spec.origin) == _stem(file)
    return False


def _stem(file: str | None) -> str:
    """Return a module file's real path without its extension.

    The module's source and its .pyc have the same one.
    """
    path = os.path.realpath(str(file))
    return os.path.splitext(path)[0]


@functools.lru_cache(maxsize=256)
def path_to(cls: type) -> str | None:
    """Return the dotted path of a class in its module; None if it isn't there.

    The path may differ from the class's name.
    """
    if cls.__module__ in sys.modules:
        return _path_in(vars(sys.modules[cls.__module__]), cls)
    return None


def _path_in(
    space: Mapping[str, Any],
    cls: type,
    depth: int = _DEEPEST,
) -> str | None:
    classes: dict[str, Any] = {
        name: value for name, value in space.items() if isinstance(value, type)
    }
    for name, value in classes.items():
        if value is cls:
            return name
    if not depth:
        return None
    for name, value in classes.items():
        if value.__module__ == cls.__module__:
            path = _path_in(vars(value), cls, depth - 1)
            if path is not None:
                return f"{name}.{path}"
    return None


def _at(module: str, path: str) -> Any:
    found = sys.modules.get(module) or importlib.import_module(module)
    return attrgetter(path)(found)


@functools.lru_cache(maxsize=256)
def _copy_of(cls: type) -> bytes:
    """Return a class pickled by value, for a process that doesn't have it.

    Return no bytes if that fails.
    """
    out = io.BytesIO()
    pickler = ByValue(out, protocol=5)
    pickler.names_classes = False
    try:
        pickler.dump(cls)
    except Exception:
        return b""
    return out.getvalue()


def _class_of(identifier: str, copy: bytes) -> type:
    """Return the class that has cloudpickle's identifier in this process.

    If there is none, return the class pickled in ``copy``.
    """
    known = identifiers._DYNAMIC_CLASS_TRACKER_BY_ID.get(identifier)
    found: type = known or pickle.loads(copy)
    return found


def name_classes() -> None:
    """Give classes that are in no module an identifier, for workers to be forked."""
    classes = [object]
    seen = set[int]()
    # The list grows meanwhile.
    for cls in classes:
        found = [one for one in type.__subclasses__(cls) if id(one) not in seen]
        seen.update(map(id, found))
        classes += found
        # A class may refuse to be hashed, and then has no identifier.
        with contextlib.suppress(Exception):
            module = sys.modules.get(cls.__module__, cls)
            if vars(module).get(cls.__qualname__) is not cls:
                identifiers._get_or_create_tracker_id(cls)


def culprit(
    value: object,
    path: str,
    error: BaseException,
    dumps: Callable[[Any], object],
    *wholes: object,
) -> tuple[str, Any, str]:
    """Return the path of the part of ``value`` that ``dumps`` can't pickle.

    Return also the part, and the reason.
    """
    wholes = *wholes, value
    parts = list[tuple[str, Any]]()
    if len(wholes) <= _DEEPEST:
        parts = _parts(value, path)
    for name, part in parts:
        # A part may refer to the whole again, as a class's method to the class.
        if not any(part is whole for whole in wholes):
            try:
                dumps(part)
            except Exception as inner:
                return culprit(part, name, inner, dumps, *wholes)
    reason = str(error).strip().rstrip(".")
    return path, value, reason or type(error).__name__


def _parts(value: object, path: str) -> list[tuple[str, Any]]:
    # The script is refused as a whole.
    if isinstance(value, ModuleType) and value.__name__ in SCRIPT:
        return []
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{at}]", part) for at, part in enumerate(value)]
    if isinstance(value, FunctionType):
        # A variable of an outer function may have no value yet.
        with contextlib.suppress(ValueError):
            used = inspect.getclosurevars(value)
            named = {**used.nonlocals, **used.globals}
            return [(f"{path}:{name}", part) for name, part in named.items()]
    if isinstance(value, type):
        parts = []
        for cls in value.__mro__:
            if cls.__module__ != value.__module__:
                continue
            for name, attribute in list(vars(cls).items()):
                # Of a property or a method, what can't be pickled is in its function.
                # Other descriptors, such as a slot, hold nothing.
                held = getattr(attribute, "__func__", attribute)
                held = getattr(attribute, "fget", held)
                if not inspect.isdatadescriptor(held):
                    parts.append((f"{path}.{name}", held))
        return parts
    attributes = getattr(value, "__dict__", {})
    parts = [(f"{path}.{name}", part) for name, part in attributes.items()]
    return [*parts, (type(value).__qualname__, type(value))]
