"""A Ray cluster as this program and its workers find it: the connection, the object store, and what Ray says.

``InStore`` is opened in the workers too; the rest is for the consumer process.
"""

from __future__ import annotations

import re
import socket
from typing import Any, ClassVar

import numpy as np
import ray

from ..errors import SharedMemoryFull, WorkerStartError

_TO_ANSWER_S = 5.0  # that a cluster may take to accept a connection
_LONGEST = 600  # characters of what Ray says of a death
_NOISE = re.compile(r"\x1b\[\d+m|~*\^+~*")  # in it: colours, and what underlines code in a traceback


def connect(address: str | None) -> None:
    """Use the Ray that there is, or start one."""
    if ray.is_initialized() and address in {None, "auto", ray.get_runtime_context().gcs_address}:
        return
    host, _, port = (address or "").rpartition(":")
    try:
        if host and port.isdigit():  # Ray would try for a minute, and print what it thinks of it
            socket.create_connection((host, int(port)), _TO_ANSWER_S).close()
        ray.init(address=address)
    except (OSError, RuntimeError, ValueError) as error:
        where = "here" if address is None else f"at {address}"
        raise WorkerStartError(f"there is no Ray to be had {where}: {error}. `ray start --head` starts one.") from error


class InStore:
    """Buffers of a dataset, in the object store."""

    maps_files: ClassVar = False

    def __init__(self, buffers: list[memoryview]) -> None:
        try:
            self._there: Any = ray.put([np.frombuffer(buffer, np.uint8) for buffer in buffers])
        except ray.exceptions.RayError as error:
            size = sum(buffer.nbytes for buffer in buffers)
            raise SharedMemoryFull(
                f"the dataset ({size / 1e6:.0f} MB) does not fit into Ray's object store: {error}. Start Ray with a "
                f"larger object_store_memory, or use np.memmap and files."
            ) from error

    def buffers(self, is_own: bool) -> list[Any]:
        """Read them on whatever node this is; the first worker there waits until they have come."""
        return list(ray.get(self._there))

    def close(self) -> None:
        self._there = None


def why(error: BaseException) -> str:
    """What Ray says of this death, without what it says of all."""
    text = " ".join(_NOISE.sub("", str(error)).split()).partition(" Some common causes include")[0]
    said = text[max(text.find("The actor is dead because"), 0) :]
    return said[-_LONGEST:].rstrip(".") or type(error).__name__  # of a traceback the end tells most


def no_place(options: dict[str, Any], seconds: float) -> WorkerStartError:
    """The error for a worker that wants what ``options`` say and has not been started."""
    has, free = ray.cluster_resources(), ray.available_resources()
    wanted = {"CPU": options["num_cpus"], **(options["resources"] or {})}
    told = ", ".join(f"{wanted[one]:g} {one} ({free.get(one, 0):g} of {has.get(one, 0):g} free)" for one in wanted)
    return WorkerStartError(
        f"Ray has found no place for a worker in {seconds:g} s; each wants {told}. Free some of it, add "
        f"nodes, or lower cpus_per_worker or resources of mpiter.remote.Ray; start_timeout says how long to wait. "
        f"Where there is room, no process starts: the logs of that node, in /tmp/ray/session_latest/logs, say why."
    )
