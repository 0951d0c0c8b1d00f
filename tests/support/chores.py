"""Functions that tests call in a Pool's workers, which can import this module.

Processes communicate by a folder: files in it say where each process is, and let it go
on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Chore(NamedTuple):
    """A block for ``do``."""

    number: int
    func: Callable[..., Any]
    args: tuple[Any, ...] = ()


def do(chore: tuple[Any, ...]) -> tuple[int, Any]:
    """Do the chore, and return its number and result.

    A Pool of processes sends the fields of a block as a plain tuple.
    """
    number, func, args = chore
    return number, func(*args)


class Sore(Exception):
    """An error that a chore raises."""


def equip(*things: Any) -> None:
    """Do nothing, as the Pool's initializer."""


def square(number: int) -> int:
    return number * number


def same(thing: Any) -> Any:
    return thing


def sore() -> None:
    raise Sore("it hurts")


def unpicklable() -> Any:
    return threading.Lock()


# -- meeting ---------------------------------------------------------------------------


def _wait_for(condition: Any) -> None:
    # A test that would hang fails after a minute.
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "no process came"
        time.sleep(0.001)


def wait_at(gate: Path) -> int:
    """Note that this process is here, and return once the gate is open."""
    gate.with_name(f"at {gate.name} {os.getpid()}").touch()
    _wait_for(gate.exists)
    return os.getpid()


def waiting_at(gate: Path) -> set[int]:
    """Return the processes that wait at the gate, or have waited there."""
    start = f"at {gate.name} "
    return {
        int(name.removeprefix(start))
        for name in os.listdir(gate.parent)
        if name.startswith(start)
    }


# -- ends ------------------------------------------------------------------------------


def end(code: int) -> None:
    os._exit(code)


def end_in_mid_answer(value: Any) -> Any:
    """Answer, but end this process when half of the answer is written."""

    def writev(descriptor: int, parts: list[Any]) -> int:
        message = b"".join(map(bytes, parts))
        written = 0
        while written < len(message) // 2:
            written += os.write(descriptor, message[written : len(message) // 2])
        os._exit(5)

    os.writev = writev
    return value


def end_with_a_child(gate: Path) -> None:
    """End this process, and leave one behind that has all its descriptors."""
    if os.fork() == 0:
        _wait_for(gate.exists)
        os._exit(0)
    os._exit(6)


class SoreWhenOpened:
    """An argument that can't be unpickled."""

    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise Sore("in the unpickling")


class Pids:
    """A dataset whose samples are the number of the process that fetched them."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        return os.getpid()
