"""What a program may have set in the process and in well-known libraries: read in the caller, put in force in workers.

Pure but for that.  A setting belongs to a module: it is read where the caller has imported it, and set in a worker once
that has, if it differs there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One thing that can be set in a module: how it is read there, and how set."""

    name: str
    get: Callable[[Any], Any]
    set: Callable[[Any, Any], object]


def _attribute(name: str) -> Setting:
    return Setting(name, lambda module: getattr(module, name), lambda module, value: setattr(module, name, value))


def _function(get: str, put: str) -> Setting:
    return Setting(put, lambda module: getattr(module, get)(), lambda module, value: getattr(module, put)(value))


def _option(name: str) -> Setting:
    """Of JAX's configuration."""
    return Setting(name, lambda jax: getattr(jax.config, name), lambda jax, value: jax.config.update(name, value))


# -- those that take more than a name --------------------------------------------------------------------------------


def _umask(_: Any) -> int | None:
    """Without setting it, as ``os.umask`` would for a moment."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return None


def _set_umask(_: Any, mask: int | None) -> None:
    if mask is not None:
        os.umask(mask)


def _zone(_: Any) -> Any:
    return time.tzname, time.timezone, time.daylight


def _set_zone(_: Any, zone: Any) -> None:
    """The environment, which says it, is the caller's already."""
    if hasattr(time, "tzset"):
        time.tzset()


def _locale(locale: Any) -> dict[str, str]:
    found = {}
    for name in ("LC_CTYPE", "LC_COLLATE", "LC_TIME", "LC_MONETARY", "LC_NUMERIC", "LC_MESSAGES"):
        found[name] = locale.setlocale(getattr(locale, name))
    return found


def _set_locale(locale: Any, chosen: dict[str, str]) -> None:
    for name, value in chosen.items():
        locale.setlocale(getattr(locale, name), value)


def _print_options(numpy: Any) -> dict[str, Any]:
    return {name: value for name, value in numpy.get_printoptions().items() if name != "override_repr"}


def _determinism(torch: Any) -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_determinism(torch: Any, chosen: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(chosen[0], warn_only=chosen[1])


def _chainer_config(chainer: Any) -> dict[str, Any]:
    """As this thread has it."""
    names = [name for name in vars(chainer.global_config) if hasattr(chainer.config, name)]
    values = {name: getattr(chainer.config, name) for name in names}
    plain = (bool, int, float, str, type, type(None))
    return {name: value for name, value in values.items() if isinstance(value, plain)}


def _set_chainer_config(chainer: Any, config: dict[str, Any]) -> None:
    for name, value in config.items():
        setattr(chainer.global_config, name, value)


SETTINGS: Mapping[str, tuple[Setting, ...]] = {
    "sys": (
        _function("getrecursionlimit", "setrecursionlimit"),
        _function("get_int_max_str_digits", "set_int_max_str_digits"),
        Setting("umask", _umask, _set_umask),
        Setting("time zone", _zone, _set_zone),
    ),
    "locale": (Setting("setlocale", _locale, _set_locale),),
    "decimal": (Setting("setcontext", lambda d: d.getcontext().copy(), lambda d, value: d.setcontext(value.copy())),),
    "csv": (_function("field_size_limit", "field_size_limit"),),
    "socket": (_function("getdefaulttimeout", "setdefaulttimeout"),),
    "numpy": (
        Setting("seterr", lambda numpy: numpy.geterr(), lambda numpy, errors: numpy.seterr(**errors)),
        Setting("set_printoptions", _print_options, lambda numpy, options: numpy.set_printoptions(**options)),
    ),
    "PIL.Image": (_attribute("MAX_IMAGE_PIXELS"),),
    "PIL.ImageFile": (_attribute("LOAD_TRUNCATED_IMAGES"), _attribute("MAXBLOCK")),
    "PIL.PngImagePlugin": (_attribute("MAX_TEXT_CHUNK"), _attribute("MAX_TEXT_MEMORY")),
    "PIL.GifImagePlugin": (_attribute("LOADING_STRATEGY"),),
    "torch": (
        _function("get_default_dtype", "set_default_dtype"),
        _function("is_grad_enabled", "set_grad_enabled"),
        _function("get_float32_matmul_precision", "set_float32_matmul_precision"),
        Setting("use_deterministic_algorithms", _determinism, _set_determinism),
    ),
    "jax": (
        *map(_option, ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion")),
        _option("jax_numpy_rank_promotion"),
    ),
    "chainer": (Setting("config", _chainer_config, _set_chainer_config),),
}
IN_FORCE_ANYWAY = ("sys", "locale")  # whether anybody has imported these modules or not


def read(name: str) -> dict[str, Any]:
    """What is set in the module ``name``, if it has been imported."""
    module, found = sys.modules.get(name), dict[str, Any]()
    for setting in SETTINGS[name] if module is not None else ():
        with contextlib.suppress(Exception):  # another version of the library, which hasn't got it
            found[setting.name] = setting.get(module)
    return found


def put(name: str, module: ModuleType, values: Mapping[str, Any]) -> Iterator[tuple[str, Exception]]:
    """Put in force what was read of a module; what could not be, and why."""
    for setting in SETTINGS[name]:
        if setting.name in values:
            try:
                if setting.get(module) != values[setting.name]:  # torch imports a great deal to be deterministic
                    setting.set(module, values[setting.name])
            except Exception as problem:
                yield setting.name, problem
