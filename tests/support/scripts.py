"""Runs whole programs, for tests of exits, signals and standard error.

A script runs in a session and a folder of its own, so that tests find the processes and
the files that it leaves.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

import mpiter

# A script that hangs is killed.  On a busy machine the longest one, which imports torch
# and JAX twice, may take most of this time.
LIMIT_S = 60
METHODS = ("fork", "forkserver", "spawn")
_PACKAGE = os.path.dirname(mpiter.__file__) + os.sep
# Python 3.12 warns when a process with threads forks.
_FLAGS = ("-W", "ignore:This process:DeprecationWarning")


@dataclass(frozen=True)
class Outcome:
    """The output of a script, and how it ended."""

    code: int
    out: str
    err: str
    left_running: list

    @property
    def lines(self) -> list:
        return self.out.splitlines()

    def ended_well(self) -> "Outcome":
        assert (self.code, self.err, self.left_running) == (0, "", []), self
        return self


class Script:
    """A program that is running."""

    limit_s = LIMIT_S

    def __init__(
        self, folder: Path, text: str, *arguments: object, **environment: str
    ) -> None:
        path = folder / "script.py"
        path.write_text(textwrap.dedent(text))
        root = str(Path(mpiter.__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, *_FLAGS, str(path), *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": root, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def reads(self, line: str) -> None:
        """Wait until the script has printed ``line``."""
        while self.says() != line:
            pass

    def says(self) -> str:
        """Return the next line that the script prints."""
        too_late = threading.Timer(self.limit_s, self._kill)
        too_late.start()
        try:
            said = self.process.stdout.readline()
        finally:
            too_late.cancel()
            too_late.join()
        if not said:
            raise AssertionError(
                f"the script ended without another word: {self.ends()}"
            )
        return said.rstrip("\n")

    def ctrl_c(self) -> None:
        """Send SIGINT to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ends(self) -> Outcome:
        try:
            out, err = self.process.communicate(timeout=self.limit_s)
            return Outcome(self.process.returncode, out, err, self._left_running())
        finally:
            self._kill()
            self.process.communicate()

    def _kill(self) -> None:
        for process in session(self.process.pid):
            process.kill()

    def _left_running(self) -> list:
        """Return the processes of the script's session that don't end soon after it."""
        _, alive = psutil.wait_procs(session(self.process.pid), timeout=10)
        return [
            process.cmdline()
            for process in alive
            if process.status() != psutil.STATUS_ZOMBIE
        ]


def session(leader: int) -> list:
    found = []
    for process in psutil.process_iter():
        try:
            if (
                os.getsid(process.pid) == leader
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
    return found


def run(folder: Path, text: str, *arguments: object, **environment: str) -> Outcome:
    """Run a script to its end."""
    return Script(folder, text, *arguments, **environment).ends()


def wait_until(condition, what: str) -> None:
    """Wait for something that another process or thread does."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.002)


def once_waiting(action) -> threading.Thread:
    """Call ``action`` in another thread once this thread is within ``next()``."""
    waiter = threading.get_ident()

    def is_waiting() -> bool:
        frame = sys._current_frames().get(waiter)
        depth = 0
        while frame is not None:
            if (
                frame.f_code.co_name == "__next__"
                and frame.f_code.co_filename.startswith(_PACKAGE)
                and depth > 1
            ):
                return True
            frame = frame.f_back
            depth = depth + 1
        return False

    def act() -> None:
        wait_until(is_waiting, "next() waits")
        action()

    thread = threading.Thread(target=act, name="once-waiting")
    thread.start()
    return thread


def interrupt_once_waiting() -> threading.Thread:
    """Raise KeyboardInterrupt in this thread once it waits in ``next()``.

    It must be the main thread.
    """
    waiter = threading.get_ident()
    return once_waiting(lambda: signal.pthread_kill(waiter, signal.SIGINT))


def lives(process) -> bool:
    """Return whether this psutil process runs.  It may end meanwhile."""
    try:
        return process.is_running() and process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def lives_still(pid: int) -> bool:
    """Return whether the process of this number runs.

    There is no look beforehand whether it exists, since it may end after that.
    """
    try:
        return lives(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
