"""What a program may have set in the process and in well-known libraries: read there, set in its workers.

Guarantees that no worker imports a library in which nothing is set.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Setting(NamedTuple):
    """One thing that can be set: how it is read from its module, and how it is set there."""

    module: str
    name: str
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], object]
    default: Any = None  # the library's own, which isn't sent


def _attribute(module: str, name: str, default: Any) -> Setting:
    get, (*outer, last) = attrgetter(name), name.split(".")
    return Setting(module, name, get, lambda found, value: setattr(reduce(getattr, outer, found), last, value), default)


def _function(module: str, get: str, put: str, default: Any = None) -> Setting:
    return Setting(module, put, methodcaller(get), lambda found, value: getattr(found, put)(value), default)


def _umask(_: Any) -> int | None:
    """The mask, read without setting it, as ``os.umask`` would for a moment."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return None


def _set_zone(_: Any, zone: Any) -> None:
    """Read the zone from the environment, which is the program's already."""
    if hasattr(time, "tzset"):
        time.tzset()


def _print_options(numpy: Any) -> dict[str, Any]:
    return {name: value for name, value in numpy.get_printoptions().items() if name != "override_repr"}


def _determinism(torch: Any) -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_determinism(torch: Any, chosen: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(chosen[0], warn_only=chosen[1])


_X64 = "jax_enable_x64"
SETTINGS = (
    _function("sys", "getrecursionlimit", "setrecursionlimit"),
    _function("sys", "get_int_max_str_digits", "set_int_max_str_digits"),
    Setting("os", "umask", _umask, lambda _, mask: os.umask(mask)),
    Setting("time", "tzset", lambda _: (time.tzname, time.timezone, time.daylight), _set_zone),
    Setting("locale", "setlocale", lambda it: it.setlocale(it.LC_ALL), lambda it, all: it.setlocale(it.LC_ALL, all)),
    Setting("decimal", "setcontext", lambda it: it.getcontext().copy(), lambda it, value: it.setcontext(value.copy())),
    _function("csv", "field_size_limit", "field_size_limit"),
    _function("socket", "getdefaulttimeout", "setdefaulttimeout"),
    Setting("numpy", "seterr", methodcaller("geterr"), lambda numpy, errors: numpy.seterr(**errors)),
    Setting("numpy", "set_printoptions", _print_options, lambda numpy, options: numpy.set_printoptions(**options)),
    _attribute("PIL.Image", "MAX_IMAGE_PIXELS", (1 << 30) // 4 // 3),
    _attribute("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
    _attribute("PIL.ImageFile", "MAXBLOCK", 1 << 16),
    _attribute("PIL.PngImagePlugin", "MAX_TEXT_CHUNK", 1 << 20),
    _attribute("PIL.PngImagePlugin", "MAX_TEXT_MEMORY", 1 << 26),
    _function("torch", "get_default_dtype", "set_default_dtype", "torch.float32"),
    _function("torch", "get_float32_matmul_precision", "set_float32_matmul_precision", "highest"),
    Setting("torch", "use_deterministic_algorithms", _determinism, _set_determinism, (False, False)),
    Setting("jax", "x64", attrgetter("config.jax_enable_x64"), lambda jax, x64: jax.config.update(_X64, x64), False),
    _attribute("chainer", "global_config.dtype", np.float32),
)
Values = Mapping[tuple[str, str], Any]


def read() -> Values:
    """What is set now, by module and name."""
    found = {}
    for setting in SETTINGS:
        if (module := sys.modules.get(setting.module)) is not None:
            with contextlib.suppress(Exception):  # another version of the library, which hasn't got it
                value = setting.get(module)
                if value != setting.default and str(value) != setting.default:
                    found[setting.module, setting.name] = value
    return found


def put(values: Values) -> Iterator[str]:
    """Set what was read; yields what can't be set, and why."""
    for setting in SETTINGS:
        if (setting.module, setting.name) in values:
            value = values[setting.module, setting.name]
            try:
                module = importlib.import_module(setting.module)
                if setting.get(module) != value:  # torch imports a great deal to be deterministic
                    setting.put(module, value)
            except Exception as problem:
                yield f"{setting.module}.{setting.name} ({problem})"
