"""The caller's script, which has two names: its own, and the one that multiprocessing gives it where it imports it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

NAME = "__main__"
_IMPORTED = "__mp_main__"
NAMES = (NAME, _IMPORTED)


def home(module: str) -> str:
    """The name of a module, which for the script is always the same."""
    return NAME if module == _IMPORTED else module


def spaces(main: ModuleType) -> list[dict[str, Any]]:
    """The modules that hold the script's variables."""
    code = [part for value in vars(main).values() for part in (value, *getattr(value, "__dict__", {}).values())]
    spaces = [part.__globals__ for part in code if isinstance(part, FunctionType) and part.__module__ == _IMPORTED]
    return [vars(main), *{id(space): space for space in spaces if space is not vars(main)}.values()]


def is_guarded() -> bool:
    """May a worker import the script?  One without `if __name__ == "__main__":` would do all of its work again."""
    file = getattr(sys.modules.get(NAME), "__file__", None)
    if file is None:
        return True  # nothing is run
    try:
        body = ast.parse(Path(file).read_text()).body
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [part for step in body if isinstance(step, ast.If) for part in ast.walk(step.test)]
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in tests)
