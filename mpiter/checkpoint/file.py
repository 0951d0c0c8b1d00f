"""The file of a checkpoint: states as JSON, with the arrays beside it.

It is an archive that NumPy reads.  Runs in the thread that saves or loads.  Guarantees
that a file is written completely or not at all, that what is read equals what was
written, and that reading unpickles nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .. import machine
from ..errors import StateError
from ..order.state import number_of, typed
from ..samples.jsonable import decoded, encoded

_REMEDY = "pass another path, or delete the file if it is a damaged one."
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# How long to wait until another process has written: launchers leave five seconds until
# they kill.
_PATIENCE_S = 4.0
_LOOK_S = 0.02
Memory = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The states of all parts at the end of a step.

    The arrays are in the parts' own memory, which the next step may change, until they
    are ``copied``.
    """

    step: int
    # The states as JSON, which refers to the arrays by their numbers.
    plain: bytes
    arrays: Sequence[Memory]

    @property
    def nbytes(self) -> int:
        of_arrays = sum(array.nbytes for array in self.arrays)
        return len(self.plain) + of_arrays

    def copied(self, into: Memory) -> Snapshot:
        """Return a copy whose arrays lie one behind the other in ``into``.

        That memory must have at least ``nbytes``.
        """
        arrays = list[Memory]()
        at = 0
        for array in self.arrays:
            own = into[at : at + array.nbytes]
            np.copyto(own, array)
            arrays.append(own)
            at += array.nbytes
        return Snapshot(self.step, self.plain, arrays)


def snapshot_of(step: int, states: dict[str, Any]) -> Snapshot:
    """Return the snapshot of ``states``.

    Raise a StateError that names the part of them which no file can hold, if there is
    one.
    """
    arrays: list[Any] = []
    # The id tells ranks whether they all see one file: files of the same name on
    # several machines may hold the same step.
    named = states | {"id": secrets.token_hex(8)}
    json_able = encoded(named, arrays)
    plain = json.dumps(json_able, allow_nan=False).encode()
    return Snapshot(step, plain, arrays)


def write(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot to ``path``.

    A full disk is an OSError that names the sizes; the file that was there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    states = np.frombuffer(snapshot.plain, np.uint8)
    named = dict[str, Any]()
    for at, array in enumerate(snapshot.arrays):
        named[str(at)] = array
    try:
        with machine.replacing(path, f".{path.name}-unfinished") as file:
            np.savez(file, states=states, **named)
    except OSError as error:
        if not has_no_space(error):
            raise
        needed = snapshot.nbytes / 1e6
        free = shutil.disk_usage(path.parent).free / 1e6
        stays = ""
        if path.exists():
            stays = "; what was saved before is there still"
        text = (
            f"{error.strerror}: {path} takes {needed:,.1f} MB, and {free:,.1f} MB are "
            f"free there{stays}"
        )
        raise OSError(error.errno, text) from error


def has_no_space(error: OSError) -> bool:
    """True if the disk is full, or what the user may have of it."""
    return error.errno in _NO_SPACE


def read(path: Path) -> dict[str, Any]:
    """Return the states in a file; raise a StateError for a damaged or foreign one."""
    with open(path, "rb") as file:
        try:
            with _arrays_in(file) as arrays:
                memory = []
                for at in range(len(arrays) - 1):
                    memory.append(arrays[str(at)])
                plain = json.loads(bytes(arrays["states"]))
                states: Any = decoded(plain, memory)
        except Exception as error:
            what = f"{path} cannot be read as a checkpoint ({type(error).__name__})"
            raise StateError(f"{what}: {_REMEDY}") from error
    # What is wrong in the states must be noticed here, before a part is loaded.
    try:
        for name in ("steps", "epoch"):
            number_of(states, name)
        typed(states, "id", str)
        for name in ("parts", "passes"):
            named = typed(states, name, dict)
            if not all(type(key) is str for key in named):
                raise StateError(f"the state's {name!r} has other keys than names.")
        for name in states["passes"]:
            number_of(states["passes"], name)
        for name in ("ended", "ranks"):
            texts = typed(states, name, list)
            if not all(type(text) is str for text in texts):
                raise StateError(f"the state's {name!r} has other things than texts.")
    except StateError as error:
        why = str(error).removesuffix(".")
        what = f"{path} cannot be read as a checkpoint ({why})"
        raise StateError(f"{what}: {_REMEDY}") from None
    return states  # type: ignore[no-any-return]


def mark_of(path: Path) -> str:
    """Return in words what tells a file from others: its step and its id."""
    found = _glimpse(path)
    if found is None:
        return "none"
    return f"that of step {found.get('steps')} (id {found.get('id')})"


def wait_for(path: Path, step: int) -> None:
    """Wait some seconds until another process has written the file of ``step``."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        found = _glimpse(path)
        if found is not None and found.get("steps") == step:
            return
        time.sleep(_LOOK_S)


def _glimpse(path: Path) -> dict[str, Any] | None:
    """Return the states in a file without their arrays, or None if it is missing.

    A damaged file has no states.
    """
    try:
        with open(path, "rb") as file, _arrays_in(file) as arrays:
            plain = json.loads(bytes(arrays["states"]))
    except FileNotFoundError:
        return None
    except Exception:
        # Reading the whole file raises the error that says what is wrong with it.
        return {}
    if isinstance(plain, dict):
        return plain
    return {}


@contextlib.contextmanager
def _arrays_in(file: BinaryIO) -> Iterator[Any]:
    """Open the arrays in a file; each is read when it is asked for."""
    with np.load(file, allow_pickle=False) as arrays:
        # Some kilobytes that unpack to more than the memory holds would end the process
        # without an error.
        members = arrays.zip.infolist()
        if any(member.compress_type for member in members):
            raise ValueError(
                "it is compressed, as no checkpoint is: it could fill the memory"
            )
        yield arrays
