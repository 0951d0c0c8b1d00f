"""A folder of checkpoints: each file is there whole or not at all, and nothing of it is ever unpickled.

Runs in the consumer process.  A file is a line that says what it is, the length of a header, the header (JSON, as
states of loaders are), the memory of its arrays and tensors one after the other, and a checksum.  Guarantees that
values come back with their types, that a file which is damaged is told and the one before it read, and that whoever
is killed while he writes loses nothing that was there.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import StateError, warn
from ..samples import tensors
from ..samples.jsonable import decoded, encoded
from ..samples.leaves import is_raw

_FIRST = b"mpiter checkpoint 1\n"
_NAME = re.compile(r"step-(\d+)")
_MEMORY = "~mpiter.memory"  # stands for an array or a tensor, whose memory lies beside the header


def write(folder: Path, step: int, states: dict[str, Any], keep: int) -> Path:
    """Save ``states`` as those of a step, and let go of all but the last ``keep`` files."""
    memory: list[Any] = []
    header = json.dumps(encoded(_apart(states, memory)), allow_nan=False).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:09d}"
    unfinished = folder / f".unfinished-{os.getpid()}"
    try:
        with open(unfinished, "wb") as file:
            checksum = 0
            for part in (_FIRST, len(header).to_bytes(8, "little"), header, *memory):
                file.write(part)
                checksum = zlib.crc32(part, checksum)
            file.write(checksum.to_bytes(4, "little"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync(folder)
    for _, old in _saved(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The last file of the folder that can be read, and the states in it; None where there is none."""
    for _, path in reversed(_saved(folder)):
        try:
            return path, read(path)
        except StateError as error:
            warn(f"{path} cannot be read ({error}); the checkpoint before it is taken, if there is one.")
    return None


def read(path: Path) -> dict[str, Any]:
    """The states in a file."""
    with open(path, "rb") as file:
        taken = _Taking(file)
        if bytes(taken(len(_FIRST))) != _FIRST:
            raise StateError("it is no checkpoint of this version of mpiter")
        header = bytes(taken(int.from_bytes(bytes(taken(8)), "little")))
        try:
            states: dict[str, Any] = _together(decoded(json.loads(header)), taken)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StateError(f"it is damaged: {error!r:.200}") from error
        checksum = taken.checksum
        if bytes(taken(4)) != checksum.to_bytes(4, "little"):
            raise StateError("it is damaged: its checksum differs")
        return states


def _saved(folder: Path) -> list[tuple[int, Path]]:
    """The files of a folder, the oldest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("step-*")]
    return sorted((int(name[1]), path) for name, path in found if name)


def _sync(folder: Path) -> None:
    """Have the system write down the names too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


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


def _apart(value: Any, memory: list[Any]) -> Any:
    """``value`` with a mark in the place of each array and tensor, whose memory is added to the list."""
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _apart(part, memory)) for key, part in value.items())
    if type(value) is list:
        return [_apart(part, memory) for part in value]
    if isinstance(value, tuple):  # of named ones, their order tells which part is which
        return tuple(_apart(part, memory) for part in value)
    value = _brought_home(value)
    if type(value) is np.ndarray and is_raw(value.dtype) and value.dtype.itemsize:
        memory.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return {_MEMORY: ["array", np.lib.format.dtype_to_descr(value.dtype), list(value.shape), len(memory[-1])]}
    if (raw := tensors.as_bytes(value)) is not None:
        memory.append(raw[0].data)
        return {_MEMORY: ["tensor", raw[1], list(raw[2]), len(memory[-1])]}
    return value


def _brought_home(value: Any) -> Any:
    """Tensors from their device, JAX's arrays as NumPy's."""
    torch = tensors.torch_with("Tensor")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu().as_subclass(torch.Tensor)
    return np.asarray(value) if is_jaxs(value) else value


def is_jaxs(value: Any) -> bool:
    """Is it an array of JAX?"""
    return type(value).__module__.partition(".")[0] == "jaxlib" and hasattr(value, "__array__")


def _together(value: Any, taken: Callable[[int], Any]) -> Any:
    """What ``_apart`` was given; named tuples are tuples."""
    if type(value) is dict and value.keys() == {_MEMORY}:
        return _as_told(value[_MEMORY], taken)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _together(part, taken)) for key, part in value.items())
    if type(value) in (list, tuple):
        return type(value)([_together(part, taken) for part in value])
    return value


def _as_told(told: list[Any], taken: Callable[[int], Any]) -> Any:
    kind, dtype, shape, size = told
    memory = taken(size)
    if kind == "tensor":
        return tensors.from_bytes(memory, dtype, shape)
    plain = np.lib.format.descr_to_dtype(dtype)
    return memory.view(plain).reshape(shape) if size else np.zeros(shape, plain)
