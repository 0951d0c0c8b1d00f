"""The house rules: imports go one way, the core opens no door, every module says what it is, public names stay put."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpiter

PACKAGE = Path(mpiter.__file__).parent
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))
WINGS = sorted(str(path.relative_to(PACKAGE).with_suffix("")) for path in PACKAGE.glob("*/**/*.py"))

# Each line may import from the lines above it only, and from nothing of its own line.
LAYERS = """
errors awake stats info board task tensors limits heap machine mail lifeline starting pipes bell calls
envelope preloaded member
pool
leaves order faults watch communicator rows cutting anypool
tree cursor seeding access luck
shards
layout checkpoint transport progress horizon bundles drawing
course memory planner batch ledger fetch resuming
slots ship blackbox
worker transports endings
backends
options outcome ragged
adjustable
crew
recovery runahead
prefetch
lifetime
iterator
iterators generate engine
streams
epochs
loading
loader
__init__
chainer chainer_compat device jax
torch
__main__
"""
# The same for what stands in folders; a wing may use all of the core.
LAYERS_OF_WINGS = """
doctor/finding
doctor/probes doctor/software_checks doctor/system_checks
doctor/examine
doctor/command
doctor/__init__
lab/views lab/spreads lab/clocks lab/surroundings lab/bar lab/asked lab/historical lab/cases lab/payloads lab/watched
lab/capacity
lab/text
lab/report/markup lab/report/scales
lab/report/plots
lab/report/bars lab/report/curves lab/report/timelines
lab/report/page
lab/report/__init__
lab/turns lab/carriers lab/loaders
lab/series lab/pictures lab/limit
lab/results lab/subjects
lab/overhead lab/speedup lab/workers lab/hide lab/peers lab/compare
lab/experiments
lab/measured lab/laboratory
lab/command
lab/__init__
"""
# the door modules, and what each opens
OPEN = {"chainer": {"chainer"}, "device": {"torch"}, "jax": {"jax"}, "torch": {"torch"}}
DOORS = {"chainer", "chainermn", "torch", "jax", "ray", "mpi4py"}
EXTRAS = {"PIL", "h5py", "lmdb", "cv2", "cupy"}
ALLOWED = {"numpy", "msgpack", "cloudpickle", "threadpoolctl"}


def tree_of(module):
    return ast.parse((PACKAGE / f"{module}.py").read_text())


def siblings_of(module):
    """The modules of the package that ``module`` imports, anywhere in it, by their paths."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = Path(module).parents[node.level - 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (str(folder / name.replace(".", "/")) for name in names)


def outsiders_of(module, top_level=False):
    """The top-level packages that ``module`` imports from elsewhere."""
    tree = tree_of(module)
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def level_of(layers=LAYERS):
    return {name: at for at, line in enumerate(layers.split("\n")) for name in line.split()}


def test_every_module_has_its_place():
    assert sorted(level_of()) == MODULES
    assert sorted(level_of(LAYERS_OF_WINGS)) == WINGS


@pytest.mark.parametrize("module", [*MODULES, *WINGS])
def test_imports_go_one_way(module):
    level = level_of(LAYERS if module in MODULES else LAYERS_OF_WINGS)
    upward = {name for name in siblings_of(module) if name in level and level[name] >= level[module]}
    assert not upward, f"{module} imports {', '.join(sorted(upward))}, which stand on its own line of LAYERS or below"


@pytest.mark.parametrize("module", MODULES)
def test_the_core_depends_on_four_packages_only(module):
    opened = OPEN.get(module, set())
    foreign = set(outsiders_of(module, top_level=True)) - ALLOWED - opened - set(sys.stdlib_module_names)
    assert not foreign
    within = set(outsiders_of(module)) & (DOORS | EXTRAS) - opened
    assert within <= ({"torch"} if module == "tensors" else set()), "libraries are used where the user has loaded them"


@pytest.mark.parametrize("module", sorted({*MODULES} - {"__main__"}))
def test_the_core_enters_no_wing(module):
    assert not [name for name in siblings_of(module) if "/" in name or name in ("lab", "doctor")]


@pytest.mark.parametrize("module", WINGS)
def test_a_wing_is_there_without_extras(module):
    foreign = set(outsiders_of(module, top_level=True)) - {"numpy", "mpiter", *sys.stdlib_module_names}
    assert not foreign, "libraries are imported where they are used"


def test_importing_mpiter_opens_no_door_and_enters_no_wing():
    code = "import sys, mpiter; print(*set(sys.argv) & set(sys.modules))"
    command = [sys.executable, "-c", code, *DOORS, *EXTRAS, "mpiter.lab", "mpiter.doctor"]
    ran = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == ""


def test_the_public_names():
    assert mpiter.__all__ == [
        "Batch",
        "BatchTimeout",
        "Buckets",
        "DataLoader",
        "DatasetNotPicklable",
        "IteratorClosed",
        "MpiterError",
        "MultiprocessIterator",
        "MultithreadIterator",
        "OptionError",
        "Process",
        "SampleError",
        "SampleNotSendable",
        "Serial",
        "SerialIterator",
        "SharedMemoryFull",
        "StateError",
        "Stats",
        "Thread",
        "WorkerCrashed",
        "WorkerInfo",
        "WorkerStartError",
        "batches",
        "get_rng",
        "get_worker_info",
        "pad",
    ]
    assert all(hasattr(mpiter, name) for name in mpiter.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", mpiter.__version__)


def test_no_module_hides_a_public_name():
    assert not set(MODULES) & set(mpiter.__all__)


@pytest.mark.parametrize("module", [*MODULES, *WINGS])
def test_every_module_says_what_it_is_in_at_most_fifteen_lines(module):
    text = (ast.get_docstring(tree_of(module)) or "").strip()
    assert len(text) > 40
    if not module.endswith("__init__"):  # which hold the pictures
        assert len(text.splitlines()) <= 15


@pytest.mark.parametrize("module", [*MODULES, *WINGS])
def test_no_module_is_too_long_to_read(module):
    assert len((PACKAGE / f"{module}.py").read_text().splitlines()) <= 350


@pytest.mark.parametrize("name", mpiter.__all__)
def test_every_public_name_is_documented(name):
    assert (getattr(mpiter, name).__doc__ or "").strip()


def test_nothing_is_left_to_do_later():
    for path in PACKAGE.glob("**/*.py"):
        found = re.search(r"\bTODO:|\bFIXME\b|\bXXX\b", path.read_text())
        assert found is None, f"{path.name}: {found.group()}"


@pytest.mark.parametrize("module", ["seeding", "info", "generate", "iterators"])
def test_the_examples_in_the_docstrings_run(module):
    result = doctest.testmod(importlib.import_module(f"mpiter.{module}"), optionflags=doctest.ELLIPSIS)
    assert result.attempted
    assert not result.failed
