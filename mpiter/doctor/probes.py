"""What the doctor looks at: thin questions to the machine, each answered with plain values.

Runs in the process of the command.  What could crash, hang, or be spoilt by having been asked (start methods, CUDA,
decoders) is asked by a process of its own, in a group of its own, which is ended when its time is over.  Guarantees
that nothing is written, and that neither CUDA nor a framework is loaded here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .. import machine
from ..transport import memory
from ..worker import limits
from .finding import Decoder, Trial

_TRY_START = """
try:
    import time, mpiter
    began = time.perf_counter()
    with mpiter.batches([7, 7], 2, n_processes=1, backend=mpiter.Process({method!r})) as stream:
        assert list(next(stream)) == [7, 7]
    print(time.perf_counter() - began)
except Exception as error:
    raise SystemExit(f"{{type(error).__name__}}: {{error}}")
"""
_TRY_TORCH = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
_TRY_PILLOW = "from PIL import Image, features; print(features.check_feature('libjpeg_turbo'))"
_TRY_DECODERS = {
    "Pillow": _TRY_PILLOW,
    "Pillow-SIMD": _TRY_PILLOW,
    "opencv-python-headless": "import cv2",
    "opencv-python": "import cv2",
    "accimage": "import accimage",
    "PyTurboJPEG": "import turbojpeg; turbojpeg.TurboJPEG()",
    "simplejpeg": "import simplejpeg",
}


def ask(code: str, seconds: float) -> Trial:
    """Run ``code`` in another Python: the last line that it prints, or why there is none."""
    trial = run([sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"], seconds)
    return Trial((trial.answer.splitlines() or [""])[-1], trial.error)


def run(command: Sequence[str], seconds: float) -> Trial:
    """What a command prints, or in one line what went wrong."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return Trial(error=str(error))
    with process:
        try:
            out, err = (text.decode(errors="replace").strip() for text in process.communicate(timeout=seconds))
        except subprocess.TimeoutExpired:
            return Trial(error=f"no answer within {seconds:g} s")
        finally:
            _end(process)  # on Ctrl-C as well
    if process.returncode:
        said = (err or out).splitlines()
        return Trial(error=_short(said[-1] if said else f"ended with exit code {process.returncode}"))
    return Trial(answer=out)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)  # its fork server and its workers are of its group
        else:
            process.kill()


def _short(text: str) -> str:
    return textwrap.shorten(text, 160, placeholder=" …")


def try_start(method: str, seconds: float = 60.0) -> Trial:
    """The seconds until a worker started by ``method`` has brought a batch."""
    return ask(_TRY_START.format(method=method), seconds)


def version_of(*names: str) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def decoders() -> list[Decoder]:
    """The image decoders that are installed."""
    installed = {name: version for name in _TRY_DECODERS if (version := version_of(name))}
    return [Decoder(name, version, ask(_TRY_DECODERS[name], 30)) for name, version in installed.items()]


def threads_by_library() -> dict[str, int]:
    """The numerical libraries in this process, and how many threads each has."""
    controllers = limits.look_around().lib_controllers
    return {library.internal_api: library.num_threads or 1 for library in controllers}


def thread_variables() -> dict[str, str]:
    """What the environment says of threads, by the variables that our workers respect."""
    return {name: os.environ[name] for name in limits.VARIABLES if name in os.environ}


def memfd() -> Trial | None:
    """Make, size, commit, map and write a memfd; None where there is no such thing."""
    return _tried(memory.memfd) if hasattr(os, "memfd_create") else None


def unlinked_file() -> Trial:
    """The same of what takes a memfd's place."""
    return _tried(lambda: memory.unnamed_file(portable=True))


def _tried(make: Callable[[], int]) -> Trial:
    try:
        descriptor = make()
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
            with mmap.mmap(descriptor, mmap.PAGESIZE) as mapped:
                mapped[:1] = b"x"
        finally:
            os.close(descriptor)
    except OSError as error:
        return Trial(error=str(error))
    return Trial()


def dev_shm() -> tuple[int | None, int]:
    """The size of /dev/shm (None: missing or not writable) and how much of it is free."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return None, 0
    return usage.total if os.access("/dev/shm", os.W_OK) else None, usage.free


def temporary_folder() -> str | None:
    """Where temporary files go; None if nowhere."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return None


def processes_left() -> int | None:
    """How many processes and threads the control groups still allow; None: any number."""
    left = []
    for folder in machine.control_groups():
        most, now = machine.text_of(folder / "pids.max"), machine.text_of(folder / "pids.current")
        if most.isdigit() and now.isdigit():
            left.append(int(most) - int(now))
    return min(left, default=None)


def tasks_of_the_user() -> int:
    """Processes and threads of whoever runs us, which RLIMIT_NPROC counts together."""
    count = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        lines = dict(line.partition(":")[::2] for line in machine.text_of(status).splitlines())
        if lines.get("Uid", "").split()[:1] == [str(os.getuid())]:
            count += int(lines.get("Threads", "1"))
    return count


def commit_left() -> int:
    """Bytes that strict accounting still grants."""
    return max(0, machine.meminfo("CommitLimit") - machine.meminfo("Committed_AS"))


def number_in(file: str) -> int:
    """The number in a file of /proc or /sys; 0 where there is none."""
    text = machine.text_of(Path(file))
    return int(text) if text.isdigit() else 0


def words_in(file: str) -> list[str]:
    """The words in a file of /proc or /sys."""
    return machine.text_of(Path(file)).split()


def uncollected(patience: float = 5.0) -> int:
    """How many dead children process 1 leaves lying for so many seconds; some take two to collect them."""
    dead, until = set(_dead_children_of_1()), time.monotonic() + patience
    while dead and time.monotonic() < until:
        time.sleep(0.1)
        dead.intersection_update(_dead_children_of_1())
    return len(dead)


def _dead_children_of_1() -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        if machine.stat_of(folder.name)[:2] == ["Z", "1"]:
            yield int(folder.name)


def gpus() -> tuple[list[str], str]:
    """The names of the NVIDIA GPUs, and what nvidia-smi complains of although there are some."""
    devices = [str(path) for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]
    if shutil.which("nvidia-smi") is None:
        return devices, ""
    trial = run(["nvidia-smi", "-L"], 20)
    if trial.error:
        return (devices, trial.error) if devices else ([], "")
    return [
        line.partition(": ")[2].partition(" (UUID")[0] for line in trial.answer.splitlines() if line.startswith("GPU ")
    ], ""


def torch_sees() -> Trial:
    """How many GPUs torch sees: asked elsewhere, since it forbids forking afterwards."""
    return ask(_TRY_TORCH, 60)
