"""The names that the reference must describe, door by door, and their examples."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

from mpiter.samples import leaf

ROOT = Path(__file__).resolve().parents[1]
# The names in ``__all__`` of these modules are public.
PUBLIC = (
    "mpiter",
    "mpiter.errors",
    "mpiter.engine.arguments",
    "mpiter.testing",
    "mpiter.language",
    "mpiter.files",
    "mpiter.images",
    "mpiter.staging",
    "mpiter.echo",
    "mpiter.remote",
    "mpiter.receipts",
    "mpiter.tuning",
    "mpiter.audit",
    "mpiter.torch",
    "mpiter.chainer",
)
# Public functions take and return these, or they have no name in a public module.
BESIDE = (
    "mpiter.tuning.tune.Tuned",
    "mpiter.audit.Verdict",
    "mpiter.torch.loader.OfTorch",
    "mpiter.images.pack.pack",
    "mpiter.images.pack.Report",
    "mpiter.iterators.iterators.Batches",
    "mpiter.samples.jagged.Jagged",
    "mpiter.setting.Setting",
    "mpiter.hook.Position",
    "mpiter.hook.Keys",
    "mpiter.hook.Planned",
    "mpiter.hook.Coming",
    "mpiter.hook.Fetched",
    "mpiter.hook.Failed",
    "mpiter.hook.HandedOut",
    "mpiter.pool.anypool.StockPool",
)
# These modules have no names for users.  They only have to be imported.
WHOLE = ("mpiter.chainer_compat",)


def entries() -> list[str]:
    """Return every name that the reference's pages describe."""
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    return [
        name
        for page in pages
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]


def public(module: str) -> list[str]:
    """Return the public names of a module, or its own if it is used as a whole.

    The source is read instead of imported, since what a door needs may be missing.
    """
    if module in WHOLE:
        return [module]
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [f"{module}.{name}" for name in ast.literal_eval(node.value)]
    raise AssertionError(f"{module} has no __all__")


def example(name: str) -> doctest.DocTest:
    """Return the example of a public name.

    It knows only the name, as after ``from module import name``.
    """
    module, _, last = name.rpartition(".")
    text = ""
    known = {"__name__": "__main__"}
    if name in WHOLE:
        text = importlib.import_module(name).__doc__ or ""
    else:
        thing = known[last] = getattr(importlib.import_module(module), last)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            text = thing.__doc__ or ""
        else:
            text = _said_below(module, last)
    return doctest.DocTestParser().get_doctest(text, known, name, None, None)


def _said_below(module: str, name: str) -> str:
    """Return the docstring of an attribute, a string after its assignment."""
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    for node, after in itertools.pairwise(body):
        is_its = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
        if (
            is_its
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            return inspect.cleandoc(str(after.value.value))
    return ""


def run(name: str) -> None:
    """Check that the example exists and gives what it says."""
    found: Any = example(name)
    assert found.examples, f"{name} has no example in its docstring"
    said: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    # The leaves that an example adds are known in this process from then on.
    leaves = dict(leaf.added)
    result = doctest.DocTestRunner(optionflags=flags).run(found, out=said.append)
    leaf.added.clear()
    leaf.added.update(leaves)
    assert not result.failed, "".join(said)
