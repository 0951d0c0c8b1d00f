"""Start programs of several ranks by ``mpiexec`` or torch's launcher.

Their ranks have sessions of their own.

All that they start runs in a folder of the test's, by which it is found.  What MPI
leaves in /dev/shm when its ranks are killed is cleared away.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

import mpiter

# What takes longer hangs: eight processes that import torch on two cores take a while.
LIMIT_S = 110
_SHM = Path("/dev/shm")
_PLACES = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
)
MPIEXEC = shutil.which("mpiexec", path=_PLACES) or ""

_one_by_one = pytest.mark.xdist_group("ranks")  # each takes all cores
_NO_MPIEXEC = "mpiexec is not installed: `pip install mpich`, or `python3 tests --all`"
with_mpiexec = [
    _one_by_one,
    pytest.mark.mpi,
    pytest.mark.skipif(not MPIEXEC, reason=_NO_MPIEXEC),
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
    """One trainer, the other ranks load."""
    return [*by_mpiexec(ranks), "-m", "mpi4py.futures"]


def by_torch(ranks: int) -> list[str]:
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
    ]
    return [sys.executable, *launcher]


class Launched:
    """A program of several ranks on its way."""

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
        program = textwrap.dedent(text)
        # Another rank may be about to read it, and would find it empty while it is
        # written again.
        if not path.exists() or path.read_text() != program:
            path.write_text(program)
        root = str(Path(mpiter.__file__).parents[1])
        # With the variables of a launcher that started the tests, ranks would take
        # themselves for ranks of that one.
        known = {}
        for name, value in os.environ.items():
            if not name.startswith(("PMI", "COV_")):
                known[name] = value
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
        """Return how the program ended and what it printed.

        Nothing of it may be left running.
        """
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        finally:
            _, left = psutil.wait_procs(running_in(self.folder), timeout=20)
            for process in left:
                process.kill()
            if self.process.poll() is None:
                self.process.kill()
            psutil.wait_procs(left, timeout=20)
            self.left_in_shm = clear_away(self._segments)
        assert not left, f"still running: {left}"
        return self.process.returncode, out, err


def launch(
    folder: Path, by: list[str], text: str, *arguments: object, **environment: str
) -> tuple[int, str, str]:
    """Run a program to its end."""
    return Launched(folder, by, text, *arguments, **environment).ends()


def launch_each(
    folder: Path, text: str, *arguments: list[object], **environment: str
) -> list[tuple[int, str, str]]:
    """Run a program once for each list of arguments, side by side, to the ends.

    Ranks wait for each other, so if one has failed or hangs, all others are killed once
    the time is up, and what they have printed is returned as well.
    """
    by = [sys.executable]
    until = time.monotonic() + LIMIT_S
    started = [Launched(folder, by, text, *one, **environment) for one in arguments]
    for program in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.process.wait(max(0, until - time.monotonic()))
    for program in started:
        program.process.kill()
    return [program.ends() for program in started]


@contextlib.contextmanager
def port_for_jax() -> Iterator[int]:
    """Return a port for JAX's coordinator, which no other program is given meanwhile.

    Importing JAX takes seconds, in which the system would give a port that is merely
    free to the next one that asks for any; then the first rank crashes, and the others
    wait for it for minutes.  JAX can take it though it is bound here, since its server
    sets the same option.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("", 0))
        yield bound.getsockname()[1]


def told(folder: Path, name: str, ranks: int) -> list[Any]:
    """What each rank has written into its file, by ``tell`` of the prelude."""
    return [
        json.loads((folder / f"{name} {rank}.json").read_text())
        for rank in range(ranks)
    ]


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
            # The process has ended, or is another user's: neither is one of ours.
            pass
    return found


def segments() -> set[str]:
    """Return the names in /dev/shm of what MPI shares among ranks."""
    return {path.name for path in _SHM.glob("mpich_shm_*")}


def clear_away(before: set[str]) -> set[str]:
    """Remove the segments that killed ranks have left since ``before``.

    Another program may be starting, by another process of pytest's for example.  If its
    segment were removed before all of its ranks have found it, each would make one of
    its own, and they would wait for each other for ever.
    """
    new = segments() - before
    left = new - _in_use(new)
    for name in left:
        (_SHM / name).unlink(missing_ok=True)
    return left


def _in_use(names: set[str]) -> set[str]:
    """Return those of the segments that any process has opened or mapped."""
    found: set[str] = set()
    if not names:
        return found
    for folder in Path("/proc").glob("[0-9]*"):
        # A segment is opened first, and closed once it is mapped, so these are looked
        # at in this order.
        shown = ""
        # What has ended, or is another user's, can't be looked at.
        with contextlib.suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    shown += f"{os.readlink(descriptor)}\n"
            shown += (folder / "maps").read_text()
        found |= {name for name in names if name in shown}
    return found
