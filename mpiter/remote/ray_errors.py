"""What goes wrong with Ray, as errors and in words: of deaths, of full stores, of clusters without room.

Pure: texts of values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import SharedMemoryFull, WorkerStartError

_LONGEST = 600  # characters of what Ray says of a death
_NOISE = re.compile(r"\x1b\[\d+m|~*\^+~*")  # in it: colours, and what underlines code in a traceback


def why(error: BaseException) -> str:
    """What Ray says, without what it says to everybody."""
    text = " ".join(_NOISE.sub("", str(error)).split())
    at = max(text.find(begins) for begins in ("The actor is dead because", "The actor died because"))
    text = text[max(at, 0) :].partition(" Some common causes include")[0]
    if len(text) > _LONGEST:  # of a traceback the end tells most
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return (text or type(error).__name__).rstrip(".")


def full(error: BaseException) -> SharedMemoryFull:
    """For a batch that a worker could not put into the store."""
    found = SharedMemoryFull(
        "a worker's node has no room for a batch, neither in Ray's object store nor on the disk that it spills to; "
        "lower batch_size or n_prefetch, let go of what fills the store (`ray memory` lists it), or start Ray with a "
        "larger object_store_memory."
    )
    found.__cause__ = error
    return found


def no_place(
    options: Mapping[str, Any], seconds: float, has: Mapping[str, float], free: Mapping[str, float]
) -> WorkerStartError:
    """For a worker that wants what ``options`` say of a cluster that ``has`` so much and so much of it ``free``."""
    wanted = {"CPU": options["num_cpus"], **(options.get("resources") or {})}
    told = ", ".join(
        f"{count:g} {name} ({free.get(name, 0):g} of {has.get(name, 0):g} free)" for name, count in wanted.items()
    )
    return WorkerStartError(
        f"Ray has found no place for a worker in {seconds:g} s; each wants {told}. Free some of it, add "
        f"nodes, or lower cpus_per_worker or resources of mpiter.remote.Ray; start_timeout says how long to wait. "
        f"Where there is room, no process starts: the logs of that node, in /tmp/ray/session_latest/logs, say why."
    )
