"""What a program may have set in the process and in well-known libraries: read there, set in its workers.

Guarantees that no worker imports a library in which nothing is set.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
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
    return Setting(module, name, attrgetter(name), lambda found, value: setattr(found, name, value), default)


def _function(module: str, get: str, put: str, default: Any = None) -> Setting:
    return Setting(module, put, methodcaller(get), lambda found, value: getattr(found, put)(value), default)


def _umask(_: Any) -> int:
    """The mask, read without setting it, as ``os.umask`` would for a moment."""
    return int(Path("/proc/self/status").read_text().partition("Umask:")[2].split()[0], 8)


def _set_chainers(chainer: Any, dtype: Any) -> None:
    chainer.global_config.dtype = dtype


_ZONE = ("tzname", "timezone", "daylight", "tzset.__name__")  # the environment, which says it, is the program's already
SETTINGS = (
    _function("sys", "getrecursionlimit", "setrecursionlimit"),
    _function("sys", "get_int_max_str_digits", "set_int_max_str_digits"),
    Setting("os", "umask", _umask, lambda _, mask: os.umask(mask)),
    Setting("time", "tzset", attrgetter(*_ZONE), lambda time, _: time.tzset()),
    Setting("locale", "setlocale", lambda it: it.setlocale(it.LC_ALL), lambda it, all: it.setlocale(it.LC_ALL, all)),
    Setting("decimal", "setcontext", lambda it: it.getcontext().copy(), lambda it, value: it.setcontext(value.copy())),
    _function("csv", "field_size_limit", "field_size_limit"),
    _function("socket", "getdefaulttimeout", "setdefaulttimeout"),
    Setting("numpy", "seterr", methodcaller("geterr"), lambda numpy, errors: numpy.seterr(**errors)),
    _attribute("PIL.Image", "MAX_IMAGE_PIXELS", (1 << 30) // 4 // 3),
    _attribute("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
    _attribute("PIL.PngImagePlugin", "MAX_TEXT_CHUNK", 1 << 20),
    _attribute("PIL.PngImagePlugin", "MAX_TEXT_MEMORY", 1 << 26),
    _function("torch", "get_default_dtype", "set_default_dtype", "torch.float32"),
    _function("torch", "get_float32_matmul_precision", "set_float32_matmul_precision", "highest"),
    Setting("chainer", "dtype", attrgetter("config.dtype"), _set_chainers, np.float32),
)
Values = Mapping[tuple[str, str], Any]


def read() -> Values:
    """What is set now, by module and name."""
    found = {}
    for setting in SETTINGS:
        if (module := sys.modules.get(setting.module)) is not None:
            with contextlib.suppress(Exception):  # another version of the library, which hasn't got it
                value = setting.get(module)
                if setting.default not in (value, str(value)):  # torch's is known by its name
                    found[setting.module, setting.name] = value
    return found


def put(values: Values) -> Iterator[str]:
    """Set what was read; yields what can't be set, and why."""
    for setting in SETTINGS:
        if (setting.module, setting.name) in values:
            try:
                setting.put(importlib.import_module(setting.module), values[setting.module, setting.name])
            except Exception as problem:
                yield f"{setting.module}.{setting.name} ({problem})"
