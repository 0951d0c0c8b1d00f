"""A dataset by its name on the command line: `module:name`, found as `python -m` would find it."""

from __future__ import annotations

import importlib
import os
import sys
from difflib import get_close_matches
from typing import Any

from ..errors import OptionError


def named(name: str) -> Any:
    """What has that name, or what calling it returns."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise OptionError(
            f"{name!r} names no dataset; write module:name, of a dataset or of a function that makes one."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise OptionError(f"{name} cannot be imported: {error}") from error
    if not hasattr(found, attribute):
        nearest = get_close_matches(attribute, vars(found), 1)
        meant = f"; did you mean {module}:{nearest[0]}?" if nearest else ""
        raise OptionError(f"{name} cannot be imported: {module} has no {attribute!r}{meant}")
    made = getattr(found, attribute)
    is_maker = isinstance(made, type) or not hasattr(made, "__getitem__")
    return made() if is_maker and callable(made) else made
