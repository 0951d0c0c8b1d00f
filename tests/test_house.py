"""Imports between packages go one way, and the core imports no door.

Every module says what it is, and the public names are listed.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import mpiter

MPITER = Path(__file__).resolve().parents[1] / "mpiter"
# The packages are in the order of the journey, and each may import from those before
# it.  All may import the ground.  The doors connect other libraries, and the face is
# `mpiter` itself and its command.
PACKAGES = (
    "ground",
    "order",
    "setting",
    "hook",
    "samples",
    "transport",
    "datasets",
    "worker",
    "pool",
    "engine",
    "iterators",
    "loaders",
    "checkpoint",
    "language",
    "images",
    "files",
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
)
GROUND = {"amounts", "errors", "rules", "machine", "stats", "bell", "typevars"}
MODULES = sorted(
    str(path.relative_to(MPITER).with_suffix("")) for path in MPITER.rglob("*.py")
)


def package_of(module):
    """Return the package of a module, which is a path below `mpiter/`."""
    first, _, rest = module.partition("/")
    if first in {"chainer", "chainer_compat", "torch"}:
        return "doors"
    if rest or first in PACKAGES:
        return first
    return "ground" if first in GROUND else "face"


@functools.cache
def tree_of(module):
    return ast.parse((MPITER / f"{module}.py").read_text())


def imports_of(module):
    """Yield the modules of mpiter that a module imports, anywhere in it.

    A package stands for its `__init__`.
    """
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.level:
            below = (node.module or "").replace(".", "/")
            inner = Path(module).parents[node.level - 1] / below
            for alias in node.names:
                # The name may be a module, or something that is defined in one.
                source = str(inner / alias.name)
                if source not in MODULES:
                    source = str(inner)
                yield source if source in MODULES else str(Path(source, "__init__"))


NAMES_OF_WINGS = (
    "language",
    "images",
    "files",
    "staging",
    "echo",
    "audit",
    "remote",
    "doctor",
)
WINGS = [module for module in MODULES if package_of(module) in NAMES_OF_WINGS]
CORE = [
    module
    for module in MODULES
    if PACKAGES.index(package_of(module)) < PACKAGES.index("doctor")
]
CORE = [module for module in CORE if module not in WINGS]
# These modules import other libraries.  That of Ray is imported only by Ray.launch().
OPEN = {
    "chainer": {"chainer"},
    "remote/actors": {"ray"},
    **{f"torch/{name}": {"torch"} for name in ("device", "loader", "tensors")},
}
# These modules use a library only where the user has imported it.
USED = {"samples/tensors": {"torch"}, "samples/jax_arrays": {"jax"}}
DOORS = {"chainer", "chainermn", "torch", "jax", "ray", "mpi4py"}
EXTRAS = {"PIL", "h5py", "lmdb", "cupy"}
ALLOWED = {"numpy", "msgpack", "cloudpickle", "threadpoolctl"}


def outsiders_of(module, top_level=False):
    """Yield the top-level packages that ``module`` imports from elsewhere.

    What only type checkers see isn't imported.
    """
    tree = tree_of(module)
    unseen = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            unseen.update(node.body)
    for node in tree.body if top_level else ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def test_imports_between_packages_follow_the_journey_and_never_go_in_a_circle():
    imports = {module: set(imports_of(module)) for module in MODULES}
    place = {module: PACKAGES.index(package_of(module)) for module in MODULES}
    assert [
        (one, other)
        for one in MODULES
        for other in imports[one]
        if place[one] < place[other]
    ] == []
    # This raises an error that names the circle, if there is one.
    graphlib.TopologicalSorter(imports).prepare()


def test_the_core_depends_on_four_packages_only():
    for module in CORE:
        opened = OPEN.get(module, set())
        foreign = (
            set(outsiders_of(module, top_level=True))
            - ALLOWED
            - opened
            - set(sys.stdlib_module_names)
        )
        assert not foreign, module
        within = set(outsiders_of(module)) & (DOORS | EXTRAS) - opened
        assert within <= USED.get(module, set()), (
            f"{module}: libraries are used where the user has loaded them"
        )


def test_a_wing_is_there_without_extras():
    for module in WINGS:
        allowed = {"numpy", "mpiter", *OPEN.get(module, ()), *sys.stdlib_module_names}
        foreign = set(outsiders_of(module, top_level=True)) - allowed
        assert not foreign, f"{module}: libraries are imported where they are used"


def test_importing_mpiter_opens_no_door_and_enters_no_wing():
    code = "import sys, mpiter; print(*set(sys.argv) & set(sys.modules))"
    wings = (
        "mpiter.doctor",
        "mpiter.images",
        "mpiter.staging",
        "mpiter.echo",
        "mpiter.remote",
        "fsspec",
    )
    command = [sys.executable, "-c", code, *DOORS, *EXTRAS, *wings]
    ran = subprocess.run(
        command,
        cwd=MPITER.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout.strip() == ""


def test_the_public_names():
    assert mpiter.__all__ == [
        "Backend",
        "Batch",
        "BatchTimeout",
        "Checkpoint",
        "DataLoader",
        "Hook",
        "Leaf",
        "Mix",
        "MpiterError",
        "MultiprocessIterator",
        "MultithreadIterator",
        "OptionError",
        "Order",
        "Pack",
        "Packed",
        "Process",
        "SampleError",
        "SerialIterator",
        "Shard",
        "Skip",
        "StateError",
        "Stats",
        "WorkerCrashed",
        "WorkerInfo",
        "add_leaf",
        "batches",
        "get_rng",
        "get_worker_info",
        "tune",
    ]
    public = [
        one for one in dataclasses.fields(mpiter.Stats) if not one.name.startswith("_")
    ]
    assert len(public) <= 20
    assert all(hasattr(mpiter, name) for name in mpiter.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", mpiter.__version__)


def test_no_module_hides_a_public_name():
    assert not {module.partition("/")[0] for module in MODULES} & set(mpiter.__all__)


def test_every_module_says_what_it_is_in_at_most_fifteen_lines():
    for module in MODULES:
        text = (ast.get_docstring(tree_of(module)) or "").strip()
        assert len(text) > 40, module
        # The docstring of a package may have a picture.
        if not module.endswith("__init__"):
            assert len(text.splitlines()) <= 15, module


DESIGN = (MPITER.parent / "docs" / "design.md").read_text()
PICTURES = re.findall(r"^```\n(.*?)^```", DESIGN, re.DOTALL | re.MULTILINE)
# What looks like a name of ours: a file, a private name, a name with two capitals or a
# part after a dot, a name with an underscore.
FILE = r"[a-z_]+\.py"
NAME = r"_\w+|[A-Z][a-z]+[A-Z]\w+|[A-Z]\w+\.[a-z_]+|[a-z]+_[a-z_]+"
# Names of Python, of other libraries and of Linux.
FOREIGN = {"__init_subclass__", "__main__", "oom_score_adj"}


@functools.cache
def names_of_ours():
    """Return the names that the code of the package defines or uses, and no prose."""
    names = set()
    for module in MODULES:
        names.update(module.split("/"))
        for node in ast.walk(tree_of(module)):
            for field in ("name", "id", "attr", "arg"):
                name = getattr(node, field, None)
                if isinstance(name, str):
                    names.add(name)
            # A dataset's methods are looked up by their names.
            value = getattr(node, "value", None)
            if isinstance(value, str) and value.isidentifier():
                names.add(value)
    return names


def invented(text):
    """Return the names in a text that look like ours and don't exist."""
    files = {Path(module).name + ".py" for module in MODULES}
    files |= {path.name for path in MPITER.parent.glob("tests/**/*.py")}
    found = {
        file for file in re.findall(rf"(?<![\w/.]){FILE}", text) if file not in files
    }
    for name in re.findall(rf"(?<![\w/.]){NAME}", re.sub(FILE, "", text)):
        if name not in FOREIGN and not set(name.split(".")) <= names_of_ours():
            found.add(name)
    return found


def test_the_pictures_and_the_design_name_only_what_exists():
    spans = re.findall(r"`([^`\n]+)`", DESIGN)
    assert PICTURES
    assert invented("\n".join([*PICTURES, *spans, mpiter.__doc__])) == set()
    assert invented("_fetch_runs Slots.can_lend prefetcher.py SeatLedger") == {
        "_fetch_runs",
        "Slots.can_lend",
        "prefetcher.py",
        "SeatLedger",
    }
