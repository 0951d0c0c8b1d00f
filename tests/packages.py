"""The packages of `mpiter/`, and the arrows between them: `python tests/packages.py` draws them as text.

What lies in none of them is the ground (what everybody may use), the doors (other
libraries' ways in) or the face (`mpiter` itself and its command). An arrow is an import, wherever in a file it stands.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

MPITER = Path(__file__).resolve().parents[1] / "mpiter"

# In the order of the journey; each may import from those before it.
PACKAGES = (
    *("ground", "order", "samples", "transport", "datasets", "worker", "pool", "engine", "iterators", "loaders"),
    *(
        "checkpoint",
        "images",
        "staging",
        "echo",
        "receipts",
        "audit",
        "remote",
        "doors",
        "tuning",
        "doctor",
        "testing",
        "face",
    ),
)
GROUND = {"errors", "rules", "machine", "stats", "bell", "typevars"}
DOORS = {"chainer", "chainer_compat", "device", "jax", "torch"}

MODULES = sorted(str(path.relative_to(MPITER).with_suffix("")) for path in MPITER.rglob("*.py"))


def package_of(module: str) -> str:
    """Which package a module lies in: the module as a path below `mpiter/`."""
    first, _, rest = module.partition("/")
    if first in DOORS:
        return "doors"
    return first if rest or first in PACKAGES else "ground" if first in GROUND else "face"


def tree_of(module: str) -> ast.Module:
    return ast.parse((MPITER / f"{module}.py").read_text())


def imports_of(module: str) -> set[str]:
    """The modules of mpiter that a module imports, anywhere in it; a package stands for its `__init__`."""
    found = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = Path(module).parents[node.level - 1]
            inner = folder / (node.module or "").replace(".", "/")
            names = [str(inner / alias.name) for alias in node.names]
            found |= {name if name in MODULES else _itself(str(inner)) for name in names}
    return found


def _itself(module: str) -> str:
    return module if module in MODULES else str(Path(module) / "__init__")


def arrows() -> Counter[tuple[str, str]]:
    """How many imports there are from package to package."""
    return Counter((package_of(one), package_of(other)) for one in MODULES for other in imports_of(one))


def circles(package: str) -> list[list[str]]:
    """Imports within a package that come back to where they began."""
    graph = {one: sorted(imports_of(one)) for one in MODULES if package_of(one) == package}
    found, done = [], set[str]()

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in done and module in graph:
            for other in graph[module]:
                walk(other, [*path, module])
            done.add(module)

    for module in graph:
        walk(module, [])
    return found


def lines_of(module: str) -> int:
    return len((MPITER / f"{module}.py").read_text().splitlines())


def drawing() -> str:
    """The packages, what lies in them, and where their arrows go; those that run back come last."""
    inside = defaultdict(list)
    for module in MODULES:
        inside[package_of(module)].append(module)
    count, out = arrows(), []
    for package in PACKAGES:
        names = [Path(module).name for module in inside[package] if not module.endswith("/__init__")]
        to = ", ".join(
            f"{other} {count[package, other]}" for other in PACKAGES if other != package and count[package, other]
        )
        out.append(
            f"{package:<10}{len(names):>3} files {sum(map(lines_of, inside[package])):>6} lines   {' '.join(names)}"
        )
        out.append(f"{'':<10}{'imports from: ' + to if to else 'imports nothing'}")
    back = [arrow for arrow in count if PACKAGES.index(arrow[0]) < PACKAGES.index(arrow[1])]
    return "\n".join([*out, f"arrows that run back: {back or 'none'}"])


if __name__ == "__main__":
    print(drawing())
