"""JAX's tests in a process of their own: once it is loaded it complains of every fork, and ours fork a lot."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.torch  # they share an environment
@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed: run `python3 tests --all`")
def test_batches_as_jax_arrays():
    files = [str(HERE / "jax_cases.py"), str(HERE.parent / "mpiter" / "jax.py")]
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--doctest-modules --strict-markers"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files], capture_output=True, text=True, timeout=100, cwd=HERE.parent
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "18 passed" in ran.stdout
