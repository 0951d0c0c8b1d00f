"""Manners in which a worker fails, a trap that springs them, and datasets with traps.

Every worker can import this module.  Files in a folder count how often a trap has
sprung, so that what is fatal happens once, and the next fetch of the same sample
succeeds.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Squares

from mpiter.pool import pipes
from mpiter.pool.pipes import READY, WorkerEnd

LENGTH = 24
BATCH = 4
FATAL = 7  # the index of the sample with the trap
# Setting this ends the threads of this process that wait for ever.
release = threading.Event()


class Sabotaged(Exception):
    """A plain error."""


# -- manners ---------------------------------------------------------------------------


def throw(error: Callable[[], BaseException]) -> Callable[[], None]:
    def manner() -> None:
        raise error()

    return manner


def die_by(number: signal.Signals) -> Callable[[], None]:
    def manner() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)

    return manner


def run_out_of_memory() -> None:
    bytearray(sys.maxsize)


def hold_the_gil() -> None:
    while True:
        # Unlike CDLL, PyDLL keeps the GIL during the call.
        ctypes.PyDLL(None).sleep(3600)


def wait_for_ever() -> None:
    release.wait()


ERRORS: dict[str, Callable[[], None]] = {
    "raise": throw(lambda: Sabotaged("on purpose")),
    "sys.exit": lambda: sys.exit(0),
    "MemoryError": run_out_of_memory,
}
DEADLY: dict[str, Callable[[], None]] = {
    "os._exit": lambda: os._exit(0),
    "SIGKILL": die_by(signal.SIGKILL),
    "SIGSEGV": die_by(signal.SIGSEGV),
    "SIGSTOP": die_by(signal.SIGSTOP),
    "hold the GIL": hold_the_gil,
}
# Threads can do this too, since it doesn't harm the rest of their process.
STUCK = {"wait for ever": wait_for_ever}
MANNERS = {**ERRORS, **DEADLY, **STUCK}


# -- the trap --------------------------------------------------------------------------


@dataclass(frozen=True)
class Trap:
    """Makes a worker fail that comes to it.

    It springs ``times`` times in all, or each time if that is None.
    """

    folder: Path
    manner: str
    times: int | None = None
    home: int = field(default_factory=os.getpid)

    def spring(self, first: Callable[[], Any] = lambda: None) -> None:
        if self._is_due():
            assert os.getpid() != self.home or self.manner not in DEADLY, (
                "a trap for workers, sprung at home"
            )
            first()
            MANNERS[self.manner]()

    def _is_due(self) -> bool:
        sprung = len(self.victims)
        while not self._has("removed") and (self.times is None or sprung < self.times):
            try:
                # A link is made and written in one step, so no other worker can see it
                # half done.
                (self.folder / f"sprung-{sprung}").symlink_to(str(os.getpid()))
                return True
            except FileExistsError:
                sprung += 1
        return False

    @property
    def victims(self) -> list[int]:
        """Return the processes in which the trap has sprung."""
        return [
            int(os.readlink(self.folder / name))
            for name in os.listdir(self.folder)
            if name.startswith("sprung-")
        ]

    def remove(self) -> None:
        """Remove the trap, so that from now on the dataset is safe."""
        self._note("removed")

    def lay_again(self) -> None:
        (self.folder / "removed").unlink()

    def wait_at_the_gate(self) -> None:
        self._note("waiting")
        while not self._has("gate"):
            time.sleep(0.002)

    @property
    def has_visitors(self) -> bool:
        return self._has("waiting")

    def open_the_gate(self) -> None:
        self._note("gate")

    def _note(self, what: str) -> None:
        (self.folder / what).touch()

    def _has(self, what: str) -> bool:
        return (self.folder / what).exists()


# -- datasets --------------------------------------------------------------------------


class Safe(Squares):
    """A dataset that doesn't spring its trap."""

    def __init__(self, trap: Trap | None = None) -> None:
        super().__init__(LENGTH)
        self.trap = trap


class Loaded(Safe):
    """The trap springs when a worker loads the dataset."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.trap.spring()


class Trapped(Safe):
    """The trap springs when a certain sample is fetched."""

    def __getitem__(self, index: int) -> Any:
        if index == FATAL:
            self.trap.spring()
        return super().__getitem__(index)


class Burdened(Safe):
    """The trap springs when a certain sample is packed."""

    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), Burden(
            self.trap if index == FATAL else None
        )


class Burden:
    def __init__(self, trap: Trap | None = None) -> None:
        self.trap = trap

    def __reduce__(self) -> Any:
        if self.trap is not None:
            self.trap.spring()
        return Burden, ()

    def __repr__(self) -> str:
        return "Burden()"


class Blocked(Safe):
    """A dataset whose samples after the first batch wait at a gate.

    The trap lies behind the gate.
    """

    def __getitem__(self, index: int) -> Any:
        if index >= BATCH:
            self.trap.wait_at_the_gate()
            self.trap.spring()
        return super().__getitem__(index)


# -- for worker_init -------------------------------------------------------------------


def on_arrival(trap: Trap, info: Any) -> None:
    """The trap springs at once."""
    trap.spring()


def on_sending(trap: Trap, info: Any) -> None:
    """The trap springs when the next answer is sent."""
    genuine = WorkerEnd.send

    def send(end: WorkerEnd, number: int, value: Any) -> None:
        if number != READY:
            trap.spring()
        genuine(end, number, value)

    WorkerEnd.send = send


def in_mid_message(trap: Trap, info: Any) -> None:
    """The trap springs when half of the next answer and its buffers is written."""
    genuine = os.writev
    packed = pipes._packed
    numbers: list[int] = []

    def writev(descriptor: int, parts: Any) -> int:
        def half() -> None:
            message = memoryview(b"".join(map(bytes, parts)))
            rest = message[: len(message) // 2]
            while rest:
                rest = rest[os.write(descriptor, rest) :]

        if numbers[-1] != READY:
            trap.spring(half)
        return genuine(descriptor, parts)

    def note(number: int, value: Any) -> Any:
        numbers.append(number)
        return packed(number, value)

    os.writev = writev
    pipes._packed = note
