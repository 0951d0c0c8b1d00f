"""A folder of checkpoints: each file is there whole or not at all, and nothing of it is ever unpickled.

Runs in the consumer process.  A file is a line that says what it is, the length of a header, the header (JSON, as
states of loaders are), the memory of its arrays and tensors one after the other, and a checksum.  Guarantees that
values come back with their types, that a file which is damaged is told and the one before it read, and that a kill
while a file is written leaves the earlier ones as they are.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import zlib
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .. import machine
from ..errors import StateError, warn
from ..samples import tensors
from ..samples.jsonable import decoded, encoded
from ..samples.leaves import is_raw

_FIRST = b"mpiter checkpoint 2\n"
_NAME = re.compile(r"step-(\d+)")
_UNFINISHED = ".unfinished-"


def write(folder: Path, step: int, states: dict[str, Any], keep: int) -> Path:
    """Save ``states`` as those of a step, and let go of all but the last ``keep`` files up to it."""
    memory: list[Any] = []
    header = _header(states, memory)
    path = folder / f"step-{step:09d}"
    unfinished = machine.new_name(folder / _UNFINISHED)
    try:
        with open(unfinished, "xb") as file:
            checksum = 0
            for part in (_FIRST, len(header).to_bytes(8, "little"), header, *memory):
                file.write(part)
                checksum = zlib.crc32(part, checksum)
            file.write(checksum.to_bytes(4, "little"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:  # a full disk says no more than that
            error.filename = str(path)
        raise
    machine.write_names(folder)
    for _, old in [found for found in _saved(folder) if found[0] <= step][:-keep]:
        old.unlink(missing_ok=True)
    return path


def _header(states: dict[str, Any], memory: list[Any]) -> bytes:
    """The states without their arrays and tensors, whose memory is added to the list."""
    plain = encoded(states, partial(_lay_aside, memory))
    return json.dumps({"sizes": [len(part) for part in memory], "states": plain}, allow_nan=False).encode()


def prepare(folder: Path, states: dict[str, Any]) -> None:
    """See now whether ``states`` can be written and the folder be written to; clear away what was never finished."""
    _header(states, [])
    folder.mkdir(parents=True, exist_ok=True)
    machine.new_name(folder / _UNFINISHED).touch(exist_ok=False)
    for left in folder.glob(f"{_UNFINISHED}*"):  # by who was killed, too
        left.unlink(missing_ok=True)


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The last file of the folder that can be read, and the states in it; None where there is none at all."""
    unread: list[str] = []
    for _, path in reversed(_saved(folder)):
        try:
            found = path, read(path)
        except StateError as error:
            unread.append(f"{path} cannot be read: {error}")
            continue
        for told in unread:
            warn(f"{told}; the checkpoint before it, {path.name}, is taken.")
        return found
    if unread:
        raise StateError(f"{unread[0]}.  Move it away to begin anew, or take another folder.")
    return None


def read(path: Path) -> dict[str, Any]:
    """The states in a file."""
    with open(path, "rb") as file:
        taken = _Taking(file)
        if bytes(taken(len(_FIRST))) != _FIRST:
            raise StateError("it is no checkpoint of this version of mpiter")
        header = bytes(taken(int.from_bytes(bytes(taken(8)), "little")))
        try:
            told = json.loads(header)
            memory = [taken(size) for size in told["sizes"]]
            checksum = taken.checksum
            if bytes(taken(4)) != checksum.to_bytes(4, "little"):
                raise StateError("it is damaged: its checksum differs")
            states: dict[str, Any] = decoded(told["states"], partial(_taken_up, memory))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StateError(f"it is damaged: {error!r:.200}") from error
        return states


def _saved(folder: Path) -> list[tuple[int, Path]]:
    """The files of a folder, the oldest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("step-*") if path.is_file()]
    return sorted((int(name[1]), path) for name, path in found if name)


class _Taking:
    """Reads a file piece by piece, with a checksum of what has been read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.checksum = file, 0
        self._left = os.fstat(file.fileno()).st_size

    def __call__(self, size: int) -> np.ndarray[Any, Any]:
        self._left -= size
        if self._left < 0:
            raise StateError("it is damaged: it ends too early")
        memory = np.empty(size, np.uint8)
        self._file.readinto(memory.data)  # type: ignore[attr-defined]
        self.checksum = zlib.crc32(memory.data, self.checksum)
        return memory


# -- arrays and tensors apart from the rest --------------------------------------------------------------------------


def _lay_aside(memory: list[Any], value: Any) -> list[Any] | None:
    """Add the memory of an array or a tensor to the list; where it is there, and what it was."""
    value = _brought_home(value)
    if isinstance(value, np.ndarray) and type(value) in (np.ndarray, np.memmap):
        if (dtype := _told(value.dtype)) is None:
            return None
        memory.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return [len(memory) - 1, "array", dtype, list(value.shape)]
    if (raw := tensors.as_bytes(value)) is not None:
        memory.append(raw[0].data)
        return [len(memory) - 1, "tensor", raw[1], list(raw[2])]
    return None


def _told(dtype: np.dtype[Any]) -> Any:
    """A dtype in JSON; None where its bytes aren't all there is to it."""
    if dtype.isbuiltin == 2:  # of ml_dtypes, as JAX has them: known by its name
        return dtype.name
    return encoded(np.lib.format.dtype_to_descr(dtype)) if is_raw(dtype) and dtype.itemsize else None


def _dtype(told: Any) -> np.dtype[Any]:
    try:
        plain: np.dtype[Any] = np.lib.format.descr_to_dtype(decoded(told))
    except TypeError:
        importlib.import_module("ml_dtypes")  # makes its names known
        plain = np.dtype(told)
    return plain


def _brought_home(value: Any) -> Any:
    """Dense tensors from their device, JAX's arrays as NumPy's."""
    torch = tensors.torch_with("Tensor")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type == "meta":
            return value
        return value.detach().cpu().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
    return np.asarray(value) if is_jaxs(value) else value


def is_jaxs(value: Any) -> bool:
    """Is it an array of JAX?"""
    return type(value).__module__.partition(".")[0] == "jaxlib" and hasattr(value, "__array__")


def _taken_up(memory: list[Any], told: list[Any]) -> Any:
    at, kind, dtype, shape = told
    if kind == "tensor":
        return tensors.from_bytes(memory[at], dtype, shape)
    plain = _dtype(dtype)
    return memory[at].view(plain).reshape(shape) if len(memory[at]) else np.zeros(shape, plain)
