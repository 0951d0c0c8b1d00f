"""The file of a checkpoint: states as JSON, and the arrays beside it, in an archive
that NumPy reads.

Guarantees that a file is written completely or not at all, that what is read equals
what was written, and that reading unpickles nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
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
# With another process's writing, when five seconds are left until a kill.
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
        return len(self.plain) + sum(array.nbytes for array in self.arrays)

    def copied(self, into: Memory) -> Snapshot:
        """Return a copy whose arrays lie one behind the other in the memory
        ``into``, of at least ``nbytes``.
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
    """Return the snapshot of ``states``; raise a StateError that names the part of
    them which no file can hold.
    """
    arrays: list[Any] = []
    # By its id, ranks can tell that they see one file, and not files that are named
    # alike.
    named = states | {"id": secrets.token_hex(8)}
    plain = json.dumps(encoded(named, arrays), allow_nan=False).encode()
    return Snapshot(step, plain, arrays)


def write(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot to ``path``; a disk that is full is an OSError with the
    sizes, and leaves the file there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    named: dict[str, Any] = {str(at): array for at, array in enumerate(snapshot.arrays)}
    try:
        with _replacing(path) as file:
            np.savez(file, states=np.frombuffer(snapshot.plain, np.uint8), **named)
    except OSError as error:
        if not has_no_space(error):
            raise
        needed = snapshot.nbytes / 1e6
        free = shutil.disk_usage(path.parent).free / 1e6
        stays = "; what was saved before is there still" if path.exists() else ""
        text = (
            f"{error.strerror}: {path} takes {needed:,.1f} MB, and {free:,.1f} MB are "
            f"free there{stays}"
        )
        raise OSError(error.errno, text) from error


def has_no_space(error: OSError) -> bool:
    """True if the disk is full, or what the user may have of it."""
    return error.errno in _NO_SPACE


def read(path: Path) -> dict[str, Any]:
    """Return the states in a file; raise a StateError if it is none of ours, or
    damaged.
    """
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                if any(member.compress_type for member in arrays.zip.infolist()):
                    raise ValueError(
                        "it is compressed, as no checkpoint is: it could fill the "
                        "memory"
                    )
                memory = [arrays[str(at)] for at in range(len(arrays) - 1)]
                states: Any = decoded(json.loads(bytes(arrays["states"])), memory)
        except Exception as error:
            what = f"{path} cannot be read as a checkpoint ({type(error).__name__})"
            raise StateError(f"{what}: {_REMEDY}") from error
    try:
        for name in ("steps", "epoch"):
            number_of(states, name)
        typed(states, "id", str)
        for name in ("parts", "passes"):
            if not all(type(key) is str for key in typed(states, name, dict)):
                raise StateError(f"the state's {name!r} has other keys than names.")
        for name in states["passes"]:
            number_of(states["passes"], name)
        for name in ("ended", "ranks"):
            if not all(type(text) is str for text in typed(states, name, list)):
                raise StateError(f"the state's {name!r} has other things than texts.")
    except StateError as error:
        raise StateError(
            f"{path} cannot be read as a checkpoint ({str(error).removesuffix('.')}): "
            f"{_REMEDY}"
        ) from None
    return states  # type: ignore[no-any-return]


def mark_of(path: Path) -> str:
    """Return what tells a file from others."""
    found = _glimpse(path)
    if found is None:
        return "none"
    return f"that of step {found.get('steps')} (id {found.get('id')})"


def wait_for(path: Path, step: int) -> None:
    """Wait some seconds until another process has written the file of ``step`` to
    ``path``.
    """
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        found = _glimpse(path)
        if found is not None and found.get("steps") == step:
            return
        time.sleep(_LOOK_S)


def _glimpse(path: Path) -> dict[str, Any] | None:
    """Return the states in a file without their arrays, or None if it is missing; of
    a damaged one nothing.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            plain = json.loads(bytes(arrays["states"]))
    except FileNotFoundError:
        return None
    except Exception:  # ``read`` will say what is wrong
        return {}
    return plain if isinstance(plain, dict) else {}


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file in a ``with`` block; it replaces ``path`` once it is complete and
    on the disk.

    An error leaves the old file. So does a kill, and the unfinished file,
    ``.NAME-unfinished``, until the next.
    """
    unfinished = path.with_name(f".{path.name}-unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        with open(unfinished, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    machine.sync_folder(path.parent)
