"""JAX's tests run in a process of their own.

Once JAX is loaded it warns of every fork, and our tests fork a lot.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


# JAX is tested in the environment that has torch.
@pytest.mark.torch
@pytest.mark.skipif(
    not importlib.util.find_spec("jax"),
    reason="jax is not installed: run `python3 tests --all`",
)
def test_batches_as_jax_arrays():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--strict-markers",
    ]
    ran = subprocess.run(
        [*command, str(ROOT / "tests" / "support" / "jax_cases.py")],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "11 passed" in ran.stdout
