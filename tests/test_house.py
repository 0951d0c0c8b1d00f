"""The house rules: imports go one way, the core opens no door, every module says what it is, public names stay put."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys

import packages
import pytest
from packages import MODULES, MPITER, PACKAGES, package_of, tree_of

import mpiter

NAMES_OF_WINGS = ("images", "staging", "echo", "audit", "remote", "doctor")
WINGS = [module for module in MODULES if package_of(module) in NAMES_OF_WINGS]
CORE = [module for module in MODULES if PACKAGES.index(package_of(module)) < PACKAGES.index("doctor")]
CORE = [module for module in CORE if module not in WINGS]
# the door modules, and what each opens; those of Ray are behind the door that Ray.launch() opens
OPEN = {
    "chainer": {"chainer"},
    "device": {"torch"},
    "jax": {"jax"},
    "remote/actors": {"ray"},
    **{f"torch/{name}": {"torch"} for name in ("loader", "tensors")},
}
DOORS = {"chainer", "chainermn", "torch", "jax", "ray", "mpi4py"}
EXTRAS = {"PIL", "h5py", "lmdb", "cupy"}
ALLOWED = {"numpy", "msgpack", "cloudpickle", "threadpoolctl"}


def outsiders_of(module, top_level=False):
    """The top-level packages that ``module`` imports from elsewhere."""
    tree = tree_of(module)
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def test_imports_run_from_room_to_room_in_the_order_of_the_journey():
    back = {arrow for arrow in packages.arrows() if PACKAGES.index(arrow[0]) < PACKAGES.index(arrow[1])}
    assert not back, f"{packages.drawing()}"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_within_a_room_come_back_to_nothing(package):
    assert not packages.circles(package)


@pytest.mark.parametrize("module", CORE)
def test_the_core_depends_on_four_packages_only(module):
    opened = OPEN.get(module, set())
    foreign = set(outsiders_of(module, top_level=True)) - ALLOWED - opened - set(sys.stdlib_module_names)
    assert not foreign
    within = set(outsiders_of(module)) & (DOORS | EXTRAS) - opened
    assert within <= ({"torch"} if module == "samples/tensors" else set()), (
        "libraries are used where the user has loaded them"
    )


@pytest.mark.parametrize("module", WINGS)
def test_a_wing_is_there_without_extras(module):
    allowed = {"numpy", "msgpack", "mpiter", *OPEN.get(module, ()), *sys.stdlib_module_names}
    foreign = set(outsiders_of(module, top_level=True)) - allowed
    assert not foreign, "libraries are imported where they are used"


def test_importing_mpiter_opens_no_door_and_enters_no_wing():
    code = "import sys, mpiter; print(*set(sys.argv) & set(sys.modules))"
    wings = ("mpiter.doctor", "mpiter.images", "mpiter.staging", "mpiter.echo", "mpiter.remote", "fsspec")
    command = [sys.executable, "-c", code, *DOORS, *EXTRAS, *wings]
    ran = subprocess.run(command, cwd=MPITER.parent, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == ""


def test_the_public_names():
    assert mpiter.__all__ == [
        *("Auto", "Batch", "BatchTimeout", "Buckets", "Checkpoint", "DataLoader", "MpiterError"),
        *("MultiprocessIterator", "MultithreadIterator", "OptionError", "Packed", "Process", "SampleError"),
        *("SerialIterator", "Shard", "Skip", "StateError", "Stats", "WorkerCrashed", "WorkerInfo", "batches"),
        *("get_rng", "get_worker_info", "pad", "tune"),
    ]
    assert len(dataclasses.fields(mpiter.Stats)) <= 20
    assert all(hasattr(mpiter, name) for name in mpiter.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", mpiter.__version__)


def test_no_module_hides_a_public_name():
    assert not {module.partition("/")[0] for module in MODULES} & set(mpiter.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is_in_at_most_fifteen_lines(module):
    text = (ast.get_docstring(tree_of(module)) or "").strip()
    assert len(text) > 40
    if not module.endswith("__init__"):  # which hold the pictures
        assert len(text.splitlines()) <= 15


def test_nothing_is_left_to_do_later():
    for path in MPITER.glob("**/*.py"):
        found = re.search(r"\bTODO:|\bFIXME\b|\bXXX\b", path.read_text())
        assert found is None, f"{path.name}: {found.group()}"
