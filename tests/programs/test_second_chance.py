"""`python3 tests --all` runs what failed once more, alone.

An unsteady test is reported and doesn't stop a landing.
"""

import importlib.util
import sys
import time
from pathlib import Path

import pytest

# The test starts pytest twice.
pytestmark = pytest.mark.slow

_ROOT = Path(__file__).resolve().parents[2]
_SUITE = """
import pathlib
import pytest

def test_of_a_slow_machine():
    seen = pathlib.Path("seen")
    assert seen.exists() or seen.touch()

@pytest.mark.xdist_group("together")
def test_of_a_group():
    seen = pathlib.Path("seen-too")
    assert seen.exists() or seen.touch()

def test_that_passes():
    pass

@pytest.fixture
def dirty():
    yield
    assert {}

def test_whose_end_fails(dirty):
    pass
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """tests/__main__.py, in a clone of a few tests whose environment is this one."""
    monkeypatch.syspath_prepend(str(_ROOT / ".ci"))
    spec = importlib.util.spec_from_file_location(
        "runner", _ROOT / "tests" / "__main__.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(module.bootstrap, "prepare", lambda environment: sys.executable)
    monkeypatch.setattr(
        module.bootstrap.Environment, "executable", lambda environment: sys.executable
    )
    monkeypatch.setattr(module, "IN_PARALLEL", ("-n", "1", "--dist", "loadgroup"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return module


def test_what_passes_alone_is_unsteady_and_what_fails_twice_stays_a_failure(
    runner, tmp_path: Path, capsys
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(_SUITE)
    job = runner.Job("here", runner.Environment(".venv"), ("tests",))
    deadline = time.monotonic() + runner.LIMIT_S
    row = runner.second_chance(job, runner.suite(job, [], deadline), [], deadline)
    names = {name.split("::")[1].split("@")[0] for name in row.unsteady}
    assert (row.failed, names) == (1, {"test_of_a_slow_machine", "test_of_a_group"})
    assert runner.report([row]) == 1
    assert runner.report([row._replace(failed=0)]) == 0
    said = capsys.readouterr().out
    assert all(f"passed alone: {name}" in said for name in row.unsteady)
    assert ", 1 failed" in said
