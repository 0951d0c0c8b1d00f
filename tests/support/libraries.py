"""Tells which libraries a program imports that aren't installed."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import sys


@functools.cache
def installed() -> set[str]:
    """Return the names that can be imported from distributions.

    What lies in our own path may have one of them, too.
    """
    return {
        *sys.stdlib_module_names,
        "mpiter",
        *importlib.metadata.packages_distributions(),
    }


def missing(program: str) -> set[str]:
    """Return what the text of a program imports and is not installed."""
    names = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return {name.partition(".")[0] for name in names} - installed()
