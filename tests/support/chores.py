"""What tests have a Pool's workers do, in a module that every worker can import.

Processes meet in a folder: what lies there says who is where, and that somebody may go on.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from datasets import TwoArguments, Unpicklable

from mpiter.pool import pipes

_equipment: list[Any] = []


class Sore(Exception):
    """An error of the task's own."""


def equip(*things: Any) -> None:
    """An initializer."""
    _equipment.append(things)


def equipment(_: object = None) -> tuple[int, list[Any]]:
    """Whose, and what it was equipped with."""
    return os.getpid(), _equipment


def square(number: int) -> int:
    return number * number


def same(thing: Any) -> Any:
    return thing


def described(*args: Any, **kwds: Any) -> Any:
    return args, kwds


def pid(_: object = None) -> int:
    return os.getpid()


def sore_at_seven(number: int) -> int:
    if number == 7:
        raise Sore(f"{number} hurts")
    return number


def unpicklable(_: object) -> Any:
    return threading.Lock()


def raises_unpicklable(_: object) -> Any:
    raise Unpicklable


def raises_unopenable(_: object) -> Any:
    raise TwoArguments(1, 2)


# -- meeting -----------------------------------------------------------------------------------------------------


def _wait_for(condition: Any) -> None:
    end = time.monotonic() + 60  # against hanging
    while not condition():
        assert time.monotonic() < end, "nobody came"
        time.sleep(0.001)


def meet(folder: Path, company: int) -> tuple[int, list[Any]]:
    """Come back once so many workers are here."""
    (folder / str(os.getpid())).touch()
    _wait_for(lambda: len(os.listdir(folder)) >= company)
    return equipment()


def wait_at(gate: Path) -> int:
    """Say that we are here, and come back once the gate is open."""
    gate.with_name(f"at {gate.name} {os.getpid()}").touch()
    _wait_for(gate.exists)
    return os.getpid()


def waiting_at(gate: Path) -> set[int]:
    """Who waits there, or has."""
    start = f"at {gate.name} "
    return {int(name.removeprefix(start)) for name in os.listdir(gate.parent) if name.startswith(start)}


# -- ends --------------------------------------------------------------------------------------------------------


def end(code: int) -> None:
    os._exit(code)


def end_unless(marker: Path) -> None:
    """An initializer that ends its process, unless there is a marker; each time it leaves a trace."""
    (marker.parent / f"begun-{os.getpid()}").touch()
    if not marker.exists():
        os._exit(3)


def raise_at_once(folder: Path) -> None:
    """An initializer that fails."""
    (folder / f"begun-{os.getpid()}").touch()
    raise Sore("at the start")


def begun_in(folder: Path) -> int:
    return sum(name.startswith("begun-") for name in os.listdir(folder))


def end_in_mid_answer(value: Any) -> Any:
    """Answer, but end when half of it is written."""

    def write(descriptor: int, parts: list[Any]) -> None:
        message = b"".join(map(bytes, parts))
        written = 0
        while written < len(message) // 2:
            written += os.write(descriptor, message[written : len(message) // 2])
        os._exit(5)

    pipes._write = write
    return value


def close_everything() -> None:
    """As daemons do, our pipes included."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def end_with_a_child(gate: Path) -> None:
    """End, and leave behind a process that has all our descriptors."""
    if os.fork() == 0:
        _wait_for(gate.exists)
        os._exit(0)
    os._exit(6)


class EndsWhenOpened:
    """An argument that a worker doesn't survive."""

    def __reduce__(self) -> Any:
        return os._exit, (7,)


class SoreWhenOpened:
    """An argument that can't be unpickled."""

    def __reduce__(self) -> Any:
        return _raise, ()


class RaisesWhenOpened:
    """An answer: opening it raises as long as the file is there, which is removed the first time if that is asked."""

    def __init__(self, error: type[BaseException], file: Path, once: bool) -> None:
        self._content = error, file, once

    def __reduce__(self) -> Any:
        return _open, self._content


def _open(error: type[BaseException], file: Path, once: bool) -> str:
    if not file.exists():
        return "opened"
    if once:
        file.unlink()
    raise error


def raises_when_opened(error: type[BaseException], file: Path, once: bool) -> RaisesWhenOpened:
    return RaisesWhenOpened(error, file, once)


def _raise() -> None:
    raise Sore("in the unpickling")


class Pids:
    """A dataset: each sample is the number of the process that fetched it."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        return os.getpid()
