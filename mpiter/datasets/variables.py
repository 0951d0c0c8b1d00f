"""The variables of the program's own modules, as workers are to have them.

Guarantees that a module is looked at without making it do anything, and that what can't be read is left alone.
"""

from __future__ import annotations

import enum
import functools
import sys
import sysconfig
from collections.abc import Collection, Mapping
from io import BytesIO
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from .. import script
from ..samples.byvalue import is_importable
from ..samples.envelope import by_reference
from .parts import kind_of
from .plain import CODE, LEAVES, Made, Raw, Reader, codes_of, opaque, said_of_what_it_holds

_OF_SLOTS = (MemberDescriptorType, GetSetDescriptorType)
_EVERY_MODULES = {"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__file__", "__cached__", "__path__"}
_EVERY_MODULES |= {"__builtins__", "__annotations__", "__warningregistry__", "__conditional_annotations__"}
BASES, HELD, WRITTEN = "__bases__", "__defaults__", "__code__"  # what is said of classes and functions beside


def own_modules() -> dict[str, ModuleType]:
    """The program's modules but for its script: those that come neither with Python nor from an installed package."""
    installed, found = _installed(), {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # asked otherwise, a module may load itself
        if not isinstance(file, str) or not file.endswith(".py") or file.startswith(installed):
            continue
        if "/site-packages/" in file or "/dist-packages/" in file:
            continue
        if name.partition(".")[0] not in ("mpiter", *script.NAMES) and is_importable(name):
            found[name] = module
    return found


@functools.cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def holders_of(parts: Collection[int]) -> list[tuple[str, str, Any]]:
    """Module, name and value of the program's variables that hold one of these objects, by identity, and may change."""
    return [
        (module, name, value)
        for module, held in own_modules().items()
        for name, value in list(vars(held).items())
        if id(value) in parts and type(value) not in LEAVES and not isinstance(value, (*CODE, ModuleType, tuple, str))
    ]


def packed(variables: Mapping[str, Any]) -> dict[str, bytes]:
    """Each by itself, to be opened where the module has been imported."""
    found = {}
    for name, value in variables.items():
        try:
            found[name] = _dumps(value)
        except Exception:  # some of it only looks as if it could travel
            found[name] = _dumps(_without_what_stays(value))
    return found


def _without_what_stays(value: Any) -> Any:
    if isinstance(value, Made):
        items: Any = value.items
        if isinstance(items, dict):
            items = {key: _without_what_stays(part) for key, part in items.items()}
        elif items is not None:
            items = [_without_what_stays(part) for part in items]
        held = {name: _without_what_stays(part) for name, part in value.attributes.items()}
        return Made(value.kind, items, held, value.identity)
    try:
        _dumps(value)
    except Exception:
        return opaque(value.value if isinstance(value, Raw) else value)
    return value


def _dumps(value: Any) -> bytes:
    out = BytesIO()
    by_reference(out, protocol=5).dump(value)
    return out.getvalue()


def read(module: ModuleType, reader: Reader) -> dict[str, Any]:
    """Every variable of a module, and those of its classes and functions: plain, or what can be said of it."""
    found = {}
    for name, value in list(vars(module).items()):
        if isinstance(value, ModuleType):
            reader.modules.add(value.__name__)
        elif name not in _EVERY_MODULES:
            try:
                if _is_defined_at(value, module.__name__, name) and isinstance(value, (type, FunctionType)):
                    if (parts := _of_code(value, reader)).attributes:
                        found[name] = parts
                else:
                    found[name] = _of_value(value, reader, module.__name__, name)
            except Exception:  # an object may do anything when it is looked at, and another thread change it meanwhile
                continue
    return found


def _of_value(value: Any, reader: Reader, module: str, name: str) -> Any:
    """What bears the name of a function that was written there may be another: a decorator made it, perhaps later."""
    if isinstance(value, FunctionType) and (value.__module__, value.__qualname__) == (module, name):
        parts = _of_code(value, reader)
        return Made(parts.kind, None, {**parts.attributes, WRITTEN: opaque(value.__code__)}, parts.identity)
    return reader.described(value)


def _is_defined_at(value: Any, module: str, name: str) -> bool:
    """Was a class or function, or what is called of one, written there?"""
    codes = codes_of(value)
    return bool(codes) and all(
        isinstance(code, (type, FunctionType))
        and code.__module__ == module
        and (code.__code__.co_qualname if isinstance(code, FunctionType) else code.__qualname__) == name
        for code in codes
    )


def _of_code(code: type | FunctionType, reader: Reader) -> Made:
    """The attributes of a class, and of those within it, or of a function."""
    found = dict[str, Any]()
    for key, value in ({} if isinstance(code, enum.EnumMeta) else held_by_code(code)).items():
        name = f"{code.__qualname__}.{key}"
        if key in (BASES, HELD):
            found[key] = opaque(value)
        elif key == WRITTEN or isinstance(value, _OF_SLOTS) or (key.startswith("__") and not _is_called(value)):
            continue
        elif not _is_defined_at(value, code.__module__, name):
            found[key] = _of_value(value, reader, code.__module__, name)
        elif isinstance(value, (type, FunctionType)) and (parts := _of_code(value, reader)).attributes:
            found[key] = parts
    return Made(kind_of(code), None, found, id(code))


def _is_called(value: Any) -> bool:
    return any(isinstance(code, FunctionType) for code in codes_of(value))


def held_by_code(code: type | FunctionType) -> dict[str, Any]:
    """The attributes of a class or function, and what is to be said of it beside."""
    held = dict(vars(code))
    if isinstance(code, type):
        bases = [f"{script.home(base.__module__)}.{base.__qualname__}" for base in code.__bases__]
        return {**held, BASES: tuple(bases)} if code.__bases__ != (object,) else held
    said = said_of_what_it_holds(code)
    return {**held, WRITTEN: code.__code__} | ({HELD: (repr(said),)} if said else {})
