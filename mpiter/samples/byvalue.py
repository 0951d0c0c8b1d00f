"""Pickling by value: for classes and functions that other processes can't import, and
objects that pickle gets wrong.

Runs in the consumer process and in workers, on top of cloudpickle.  Guarantees that a
class that comes back is the caller's own class, and is in workers what it was
(``classes``); that code keeps its file name; that a memoryview stays one; that an open
file or connection is refused, where cloudpickle would send its text or its descriptor's
number.
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
from collections.abc import Callable
from importlib.machinery import PathFinder
from multiprocessing import process
from multiprocessing.connection import Connection
from operator import attrgetter
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import cloudpickle
import numpy as np

# In which both sides know a class; private, so bounded.
from cloudpickle import cloudpickle as identifiers

from . import classes, tensors

# Names of the caller's script, the second where multiprocessing has imported it.
SCRIPT = ("__main__", "__mp_main__")
_DEEPEST = 6  # parts within parts


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle pickler whose classes come back as the caller's own, instead of as
    copies.
    """

    # The other side has the caller's script.
    knows_main = True
    # The other side first looks for its own class.
    names_classes = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known = _DECORATORS | reducers()
        main = sys.modules.get("__main__")
        # Cloudpickle would refer to it.
        if not self.knows_main and main is not None and main.__name__ != "__main__":
            cloudpickle.register_pickle_by_value(main)

    def reducer_override(self, value: Any) -> Any:
        if (reduce := self._known.get(type(value))) is not None:
            return reduce(value)
        if isinstance(value, CodeType):
            return _code_of, (
                value.co_filename,
                self.dispatch_table[CodeType](value)[1],
            )
        if isinstance(value, memoryview):
            return _view, (
                value.tobytes() if value.readonly else bytearray(value),
                value.format,
                value.shape,
            )
        if isinstance(value, io.TextIOWrapper) and value not in (
            sys.stdout,
            sys.stderr,
        ):
            raise TypeError("it is an open file")
        if isinstance(value, FunctionType) and not self._goes_by_name(value):
            registry = getattr(value, "registry", None)
            if isinstance(registry, MappingProxyType):
                return _single_dispatch, (value.__wrapped__, dict(registry))  # type: ignore[attr-defined]
        elif not isinstance(value, type) and not self.knows_main:
            return self._looked_up(value)
        is_class = isinstance(value, type) and value.__module__ != "builtins"
        if not is_class or self._goes_by_name(value):
            return super().reducer_override(value)
        is_there = self.knows_main or (
            value.__module__ not in SCRIPT and is_importable(value.__module__)
        )
        if is_there and (path := path_to(value)) is not None:
            return _at, (value.__module__, path)
        if self.names_classes:
            return _class_of, (
                identifiers._get_or_create_tracker_id(value),
                _copy_of(value),
            )
        return classes.reduced(value, self._goes_by_name)

    def _looked_up(self, value: Any) -> Any:
        """Reduce an object as pickle would; if that gives a name that the other side
        can't look up, in another way.
        """
        kind: Any = type(value)
        if (
            kind is ModuleType
            and value.__name__ == "__main__"
            and value is sys.modules.get("__main__")
        ):
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

    def _goes_by_name(self, value: Any) -> bool:
        """True if the other side can import this class or function."""
        self._find_module(value.__module__)
        return bool(identifiers._should_pickle_by_reference(value))

    def _find_module(self, name: str) -> None:
        """Have cloudpickle send the module ``name`` by reference only if the other side
        can import it.
        """
        if name not in sys.modules and str(name).partition(".")[0] in sys.modules:
            with contextlib.suppress(Exception):
                # numpy.rec, say, which is imported under another name.
                importlib.import_module(name)
        module = sys.modules.get(name)
        if (
            module is not None
            and module.__name__ in sys.modules
            and not (self.knows_main or is_importable(name))
        ):
            cloudpickle.register_pickle_by_value(module)


@functools.lru_cache(maxsize=4096)
def _may_give_a_name(kind: Any) -> bool:
    """True if objects of this class may be pickled as the name of a module's
    variable.
    """
    own = (
        kind.__reduce_ex__ is not object.__reduce_ex__
        or kind.__reduce__ is not object.__reduce__
    )
    return own or kind in cloudpickle.Pickler.dispatch_table


def _code_of(file: str, arguments: tuple[Any, ...]) -> CodeType:
    """Return a code object with its file name, which cloudpickle 3.1.3 loses."""
    return CodeType(*arguments).replace(co_filename=file)


def _view(data: Any, form: Any, shape: tuple[int, ...]) -> memoryview:
    if len(shape) == 1:
        return memoryview(data).cast(form)
    return memoryview(data).cast(form, shape)


# -- what a script makes of its functions and types, and pickle can't carry ------------


def _with(made: Any, **attributes: Any) -> Any:
    vars(made).update(attributes)
    return made


def _cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    return _with(functools.cached_property(function), attrname=name)


def _single_dispatch(function: Callable[..., Any], registry: dict[type, Any]) -> Any:
    made = functools.singledispatch(function)
    for kind, implementation in registry.items():
        made.register(kind, implementation)
    return made


def _single_dispatch_method(function: Any, dispatcher: Any) -> Any:
    return _with(functools.singledispatchmethod(function), dispatcher=dispatcher)


# Before Python 3.12 a cached property has a lock; a dispatcher's cache is a table of
# weak references.
_DECORATORS: dict[type, Any] = {
    functools.cached_property: lambda it: (_cached_property, (it.func, it.attrname)),
    functools.singledispatchmethod: lambda it: (
        _single_dispatch_method,
        (it.func, it.dispatcher),
    ),
}

_CACHED: Any = type(functools.lru_cache(len))
_OF_WRAPPING = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters"}


def _reduce_cached(value: Any) -> Any:
    """Reduce a function with a cache to the function and the cache's parameters; the
    other side's is empty.
    """
    attributes = {
        name: one for name, one in vars(value).items() if name not in _OF_WRAPPING
    }
    return _cached, (value.__wrapped__, value.cache_parameters()), attributes or None


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


# What pickle stores as a name in a module, and how it is made where that module isn't.
_NAMED: dict[type, Any] = {
    _CACHED: _reduce_cached,
    typing.NewType: lambda it: (typing.NewType, (it.__name__, it.__supertype__)),
    typing.ParamSpec: lambda it: (typing.ParamSpec, (it.__name__,)),
    typing.TypeVarTuple: lambda it: (typing.TypeVarTuple, (it.__name__,)),
}


def reducers() -> dict[type, Any]:
    """Return reducers for types that pickle would alter, or pickle slowly."""
    text = dict.fromkeys((np.bytes_, np.str_), _reduce_text)
    # A copy of MISSING would count as the default of a data class's field.
    missing = {type(dataclasses.MISSING): lambda it: "MISSING"}
    return (
        {np.ndarray: _reduce_array, Connection: _refuse}
        | missing
        | text
        | tensors.reducers()
    )


def _reduce_text(text: Any) -> Any:
    """Reduce NumPy's bytes and strings, from which NumPy's own reduction strips
    trailing zeros.
    """
    return type(text), (bytes(text) if isinstance(text, bytes) else str.__str__(text),)


def _reduce_array(array: Any) -> Any:
    """Reduce an array, because NumPy's own reduction changes some arrays' byte order to
    the native one.
    """
    if array.dtype.isnative or array.dtype.names is not None or array.dtype.hasobject:
        return array.__reduce_ex__(5)
    # The same bytes, under the native name.
    native = array.view(array.dtype.newbyteorder())
    return np.ndarray.view, (native, array.dtype)


def _refuse(connection: Connection) -> Any:
    """Refuse a connection, of which pickle would send the descriptor's number in this
    process.
    """
    raise TypeError("it is an open connection")


def is_importable(name: str | None) -> bool:
    """True if another process can import the module ``name``; False for a module that
    code has created.
    """
    package = str(name).partition(".")[0]
    module = sys.modules.get(package)
    return module is None or package in SCRIPT or _is_found(package, module)


@functools.lru_cache(maxsize=4096)
def _is_found(name: str, module: ModuleType) -> bool:
    # Not by getattr, which may make a lazy module load itself.
    file = getattr(module, "__dict__", {}).get("__file__")
    finders = [(finder, None) for finder in sys.meta_path]
    for finder, where in [*finders, (PathFinder, [process.ORIGINAL_DIR])]:  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            if (spec := finder.find_spec(name, where)) is not None:  # type: ignore[attr-defined]
                return (
                    not isinstance(file, str)
                    or not spec.has_location
                    or _stem(spec.origin) == _stem(file)
                )
    return False


def _stem(file: Any) -> str:
    """Return a module file's real path without extension, which its source and its .pyc
    share.
    """
    return os.path.splitext(os.path.realpath(str(file)))[0]


@functools.lru_cache(maxsize=256)
def path_to(cls: Any) -> str | None:
    """Return the dotted path of a class in its module, which may differ from its name;
    None if it isn't there.
    """
    if cls.__module__ in sys.modules:
        return _path_in(vars(sys.modules[cls.__module__]), cls)
    return None


def _path_in(space: Any, cls: type, depth: int = _DEEPEST) -> str | None:
    classes: dict[str, Any] = {
        name: value for name, value in space.items() if isinstance(value, type)
    }
    for name, value in classes.items():
        if value is cls:
            return name
    for name, value in classes.items():
        if (
            depth
            and value.__module__ == cls.__module__
            and (path := _path_in(vars(value), cls, depth - 1)) is not None
        ):
            return f"{name}.{path}"
    return None


def _at(module: str, path: str) -> Any:
    return attrgetter(path)(sys.modules.get(module) or importlib.import_module(module))


@functools.lru_cache(maxsize=256)
def _copy_of(cls: Any) -> bytes:
    """Return a class pickled by value, for a process that doesn't have it; empty if
    that fails.
    """
    out = io.BytesIO()
    pickler = ByValue(out, protocol=5)
    pickler.names_classes = False
    try:
        pickler.dump(cls)
    except Exception:
        return b""
    return out.getvalue()


def _class_of(identifier: str, copy: bytes) -> Any:
    """Return the class that has cloudpickle's identifier here, as it is, else the class
    pickled in ``copy``.
    """
    return identifiers._DYNAMIC_CLASS_TRACKER_BY_ID.get(identifier) or pickle.loads(
        copy
    )


def name_classes() -> None:
    """Give classes that are in no module an identifier, which forked workers
    inherit.
    """
    classes = [object]
    seen = set[int]()
    for cls in classes:  # grows meanwhile
        found = [one for one in type.__subclasses__(cls) if id(one) not in seen]
        seen.update(map(id, found))
        classes += found
        with contextlib.suppress(Exception):  # a class that can't be hashed
            if (
                vars(sys.modules.get(cls.__module__, cls)).get(cls.__qualname__)
                is not cls
            ):
                identifiers._get_or_create_tracker_id(cls)


def culprit(
    value: Any,
    path: str,
    error: BaseException,
    dumps: Callable[[Any], Any],
    *wholes: Any,
) -> tuple[str, Any, str]:
    """Return the path of the part of ``value`` that ``dumps`` can't pickle, the part,
    and the reason.
    """
    wholes = *wholes, value
    for name, part in _parts(value, path) if len(wholes) <= _DEEPEST else []:
        # A class's method may refer to the class.
        if not any(part is whole for whole in wholes):
            try:
                dumps(part)
            except Exception as inner:
                return culprit(part, name, inner, dumps, *wholes)
    return path, value, str(error).strip().rstrip(".") or type(error).__name__


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, ModuleType) and value.__name__ in SCRIPT:
        return []  # it is refused as a whole
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{at}]", part) for at, part in enumerate(value)]
    if isinstance(value, FunctionType):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            used = inspect.getclosurevars(value)
            return [
                (f"{path}:{name}", part)
                for name, part in {**used.nonlocals, **used.globals}.items()
            ]
    if isinstance(value, type):
        held = [
            part
            for cls in value.__mro__
            if cls.__module__ == value.__module__
            for part in vars(cls).items()
        ]
        code = [
            (f"{path}.{name}", getattr(part, "fget", getattr(part, "__func__", part)))
            for name, part in held
        ]
        # Such as a slot.
        return [
            (name, part) for name, part in code if not inspect.isdatadescriptor(part)
        ]
    parts = [
        (f"{path}.{key}", part) for key, part in getattr(value, "__dict__", {}).items()
    ]
    return [*parts, (type(value).__qualname__, type(value))]
