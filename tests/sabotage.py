"""Ways for a worker to come to harm, and the datasets and functions that bring it about; for every worker to import."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from datasets import Squares, TwoArguments, Unpicklable

import mpiter

SPOT = 9  # the sample that the harm is in
LENGTH = 40


def _raise(error: Callable[[], BaseException]) -> None:
    raise error()


def _kill_myself(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)


def _hold_the_gil() -> None:
    while True:
        re.fullmatch("(a|aa)+$", "a" * 100 + "b")


MANNERS: dict[str, Callable[[], None]] = {
    "raise": lambda: _raise(lambda: ValueError("on purpose")),
    "unpicklable exception": lambda: _raise(Unpicklable),
    "exception that unpickles wrongly": lambda: _raise(lambda: TwoArguments(1, 2)),
    "sys.exit": lambda: sys.exit(3),
    "MemoryError": lambda: _raise(lambda: MemoryError("no room")),
    "os._exit(0)": lambda: os._exit(0),
    "SIGKILL": lambda: _kill_myself(signal.SIGKILL),
    "SIGSEGV": lambda: _kill_myself(signal.SIGSEGV),
    "SIGSTOP": lambda: _kill_myself(signal.SIGSTOP),
    "endless loop holding the GIL": _hold_the_gil,
}


class Harm:
    """Does itself the given number of times, in whichever process gets there first."""

    def __init__(self, manner: str, folder: Path, times: int = 1) -> None:
        self.manner, self.folder, self.times = manner, str(folder), times

    def __call__(self) -> None:
        for time_ in range(self.times):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{self.folder}/harm-{time_}", os.O_CREAT | os.O_EXCL))
                MANNERS[self.manner]()
                return

    @property
    def done(self) -> int:
        return len(list(Path(self.folder).glob("harm-*")))


class Bomb:
    """An integer once it has been pickled."""

    def __init__(self, harm: Harm, number: int) -> None:
        self.harm, self.number = harm, number

    def __reduce__(self) -> Any:
        self.harm()
        return int, (self.number,)


class Victim(Squares):
    """Comes to harm in one of its phases."""

    def __init__(self, harm: Harm, phase: str, flag: Path | None = None, length: int = LENGTH) -> None:
        super().__init__(length)
        self.harm, self.phase, self.flag = harm, phase, str(flag)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.phase == "loading the dataset":
            self.harm()

    def __getitem__(self, index: int) -> Any:
        array, number = super().__getitem__(index)
        if self.phase == "__getitem__" and index == SPOT:
            self.harm()
        if self.phase == "during close()" and index >= SPOT:
            wait_for(self.flag)
            self.harm()
        return array, Bomb(self.harm, number) if self.phase == "packing" and index == SPOT else number


class Start:
    """A ``worker_init`` for the phases that are no dataset's."""

    def __init__(self, harm: Harm, phase: str, flag: Path) -> None:
        self.harm, self.phase, self.flag = harm, phase, str(flag)

    def __call__(self, info: mpiter.WorkerInfo) -> None:
        if self.phase == "worker_init":
            self.harm()
        elif self.phase == "idle":
            threading.excepthook = lambda _: None  # an exception of the thread's own is none of our business
            threading.Thread(target=self._once_flagged, daemon=True).start()
        elif self.phase == "sending the result":
            before_sending(lambda connection, message: self.harm())

    def _once_flagged(self) -> None:
        wait_for(self.flag)
        self.harm()


class HalfSent:
    """A ``worker_init``: the first answer stops in the middle of its message, and its sender with it."""

    def __init__(self, harm: Harm) -> None:
        self.harm = harm

    def __call__(self, info: mpiter.WorkerInfo) -> None:
        before_sending(self._half)

    def _half(self, connection: Any, message: Any) -> None:
        if not self.harm.done:
            os.write(connection.fileno(), (10_000).to_bytes(4, "big") + bytes(message)[:10])
            self.harm()


def before_sending(action: Callable[[Any, Any], None]) -> None:
    """In a worker: do something first whenever an answer is sent, the lock of the queue in hand."""
    genuine = Connection.send_bytes

    def send_bytes(connection: Any, message: Any, *rest: Any) -> None:
        action(connection, message)
        genuine(connection, message, *rest)

    Connection.send_bytes = send_bytes  # type: ignore[method-assign]


def wait_for(flag: str) -> None:
    """Until the file is there, or nobody waits any more."""
    end = time.monotonic() + 60
    while not os.path.exists(flag) and time.monotonic() < end:
        time.sleep(0.002)
