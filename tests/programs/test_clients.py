"""Whole trainings by other people's frameworks run on our loaders.

Each has its framework's own settings.

The programs lie in `tests/programs/clients/`.  Each trains to a known result (that of
the framework's own loader where the order is the same), resumes in the midst of an
epoch to the same, and says so by ending well.  `docs/clients.md` tells more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from libraries import missing
from scripts import session

HERE = Path(__file__).resolve().parent
# What takes longer hangs: most take ten to twenty seconds of a processor.
LIMIT_S = 240
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
SMALL = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def programs() -> list:
    found = []
    for path in sorted((HERE / "clients").glob("*.py")):
        mark = pytest.mark.clients
        if path.stem.startswith("chainer_"):
            mark = pytest.mark.chainer
        found.append(pytest.param(path, id=path.stem, marks=[mark]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("program", programs())
def test_a_client_trains_and_resumes(program: Path, tmp_path: Path) -> None:
    if absent := missing(program.read_text()):
        pytest.skip(f"{', '.join(absent)} is not installed: run `python3 tests --all`")
    homes = {
        name: str(tmp_path / name.lower()) for name in ("HF_HOME", "XDG_CACHE_HOME")
    }
    ours = {
        "PYTHONPATH": str(HERE.parents[1]),
        "PYTHONFAULTHANDLER": "1",
        **OFFLINE,
        **SMALL,
        **homes,
    }
    with (tmp_path / "output").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env={**os.environ, **ours},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | str = "hangs: the stacks are in the output"
        hanging = []
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            # Launchers give ranks sessions of their own, so the ranks are found as
            # children. The signal has faulthandler write each one's stacks.
            hanging = psutil.Process(process.pid).children(recursive=True)
            for one in (process, *hanging):
                one.send_signal(signal.SIGABRT)
        finally:
            _, left_running = psutil.wait_procs(
                [*session(process.pid), *hanging], timeout=10
            )
            for other in left_running:
                other.kill()
            process.wait()
    said = (tmp_path / "output").read_text()
    assert (code, [other.pid for other in left_running]) == (0, []), said[-20000:]
    assert "Traceback" not in said, said[-20000:]
    assert "resource_tracker" not in said, said[-20000:]
