"""Starts programs of several ranks by ``mpiexec`` or by torch's launcher.

Their ranks have sessions of their own.  All processes that they start run in a folder
of the test, and are found by that.  What MPI leaves in /dev/shm when its ranks are
killed is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

import mpiter

# A program that hangs is killed.  The limit is high because eight processes that import
# torch on two cores are slow.
LIMIT_S = 110
_SHM = Path("/dev/shm")
_BESIDE_PYTHON = str(Path(sys.executable).parent)
_PLACES = os.pathsep.join([_BESIDE_PYTHON, os.environ.get("PATH", os.defpath)])
MPIEXEC = shutil.which("mpiexec", path=_PLACES) or ""

# Each of these programs takes all cores.
_one_by_one = pytest.mark.xdist_group("ranks")
with_mpiexec = [
    _one_by_one,
    pytest.mark.mpi,
    pytest.mark.skipif(
        not MPIEXEC,
        reason="mpiexec is not installed: `pip install mpich`, "
        "or `python3 tests --all`",
    ),
]
with_mpi4py = [
    *with_mpiexec,
    pytest.mark.skipif(
        not find_spec("mpi4py"),
        reason="mpi4py is not installed: run `python3 tests --all`",
    ),
]
with_torch = [
    _one_by_one,
    pytest.mark.torch,
    pytest.mark.skipif(
        not find_spec("torch"),
        reason="torch is not installed: run `python3 tests --all`",
    ),
]


def by_mpiexec(ranks: int) -> list[str]:
    return [MPIEXEC, "-n", str(ranks), sys.executable]


def by_futures(ranks: int) -> list[str]:
    """Return the command by which one rank trains and the others load."""
    return [*by_mpiexec(ranks), "-m", "mpi4py.futures"]


def by_torch(ranks: int) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone"]
    return [sys.executable, *launcher, "--nproc-per-node", str(ranks)]


class Launched:
    """A program of several ranks that is running."""

    def __init__(
        self,
        folder: Path,
        by: list[str],
        text: str,
        *arguments: object,
        **environment: str,
    ) -> None:
        self.folder = folder
        self._segments = segments()
        path = folder / "program.py"
        path.write_text(textwrap.dedent(text))
        root = str(Path(mpiter.__file__).parents[1])
        # A program under the variables of another launcher would join its ranks.
        known = dict(os.environ)
        for name in os.environ:
            if name.startswith(("PMI", "COV_")):
                del known[name]
        self.process = subprocess.Popen(
            [*by, str(path), *map(str, arguments)],
            cwd=folder,
            env={**known, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ends(self) -> tuple[int, str, str]:
        """Return exit code and output, once no process of the program is left."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        finally:
            _, left = psutil.wait_procs(running_in(self.folder), timeout=20)
            for process in left:
                process.kill()
            if self.process.poll() is None:
                self.process.kill()
            self.left_in_shm = clear_away(self._segments)
        assert not left, f"still running: {left}"
        return self.process.returncode, out, err


def launch(
    folder: Path, by: list[str], text: str, *arguments: object, **environment: str
) -> tuple[int, str, str]:
    """Run a program to its end."""
    return Launched(folder, by, text, *arguments, **environment).ends()


def told(folder: Path, name: str, ranks: int) -> list[Any]:
    """Return what each rank has written into its file by ``tell`` of the prelude."""
    files = [folder / f"{name} {rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()) for file in files]


TELL = """
import json
from pathlib import Path

def tell(name, rank, **facts):
    Path(f"{name} {rank}.json").write_text(json.dumps(facts))

def segments():  # what MPI shares among these ranks, as names in /dev/shm
    maps = Path("/proc/self/maps").read_text().split()
    return sorted({Path(word).name for word in maps if "/dev/shm/mpich_shm_" in word})
"""


def running_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:
            # The process has ended, or belongs to another user.
            pass
    return found


def segments() -> set[str]:
    """Return the names in /dev/shm of what MPI shares among ranks."""
    return {path.name for path in _SHM.glob("mpich_shm_*")}


def clear_away(before: set[str]) -> set[str]:
    """Remove the segments that killed ranks have left since ``before``.

    Processes that have mapped them keep them.
    """
    left = segments() - before
    for name in left:
        (_SHM / name).unlink(missing_ok=True)
    return left
