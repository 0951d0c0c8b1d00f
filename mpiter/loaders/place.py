"""A place in a loader's epochs, which is what its state says as JSON-able values, and the careful way back.

Pure.  Guarantees that whatever is loaded has been checked before anything changes, and that nothing of it is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import StateError
from ..order.state import LARGEST, VERSION, check_kind, number_of, of_another_kind, seed_of, typed
from .walk import check_told, savable


class Place(NamedTuple):
    """Where an epoch begins, or goes on.

    A position counts what a sampler gives, or an order: samples, of all ranks.  Where a batch sampler or a stream makes
    the batches, it counts these.
    """

    epoch: int = 0
    position: int = 0  # what was handed out before, or left out
    generators: dict[str, Any] | None = None  # what the sampler's draws depended on; None: as things are
    drawn: int = 0  # the position of a sampler or stream of which this is known:
    checksum: int = 0  # …of all that it has given before
    samples: int = 0  # …which makes so many samples
    told: Any = None  # …the sampler's own account of its place, if it gives one: what ``Walk.state()`` says
    stream: dict[str, Any] | None = None  # …how far the shards of a stream have got

    @property
    def is_elsewhere(self) -> bool:
        """Has it been said where the next epoch begins?"""
        return self.generators is not None or self.position > 0


def save(place: Place, seed: int, agreed: dict[str, Any]) -> dict[str, Any]:
    told = savable(place.told, "sampler's")
    return {
        "mpiter": VERSION,
        "epoch": place.epoch,
        "position": place.position,
        "drawn": place.drawn,
        "checksum": place.checksum,
        "seed": str(seed),
        "generators": place.generators or {},
        "loader": agreed,
        **({} if place.stream is None else {"stream": place.stream}),
        **({} if told is None else {"sampler": {"samples": place.samples, "told": told}}),
    }


def load(state: Any, agreed: dict[str, Any]) -> tuple[Place, int]:
    """The place and the seed that ``state`` describes, or a StateError that says what is wrong with it."""
    check_kind(state, "loader")
    saved = typed(state, "loader", dict)
    for name, mine in agreed.items():
        if name not in saved or saved[name] != mine:
            if ("sampler" in saved) != ("sampler" in agreed):
                raise of_another_kind(_door(saved), _door(agreed))
            raise StateError(
                f"the state was saved with {name}={saved.get(name)!r:.40}, this loader has {name}={mine!r}."
            )
    position, length = number_of(state, "position"), agreed.get("dataset_length", LARGEST)
    place = Place(
        epoch=number_of(state, "epoch"),
        position=position,
        generators=typed(state, "generators", dict),
        drawn=number_of(state, "drawn", high=position),
        checksum=number_of(state, "checksum"),
        stream=_stream(state, agreed["batch_size"] or 1) if "stream" in state else None,
    )
    if "sampler" in state:
        sampler = typed(state, "sampler", dict)
        told = check_told(typed(sampler, "told", list))
        place = place._replace(samples=number_of(sampler, "samples"), told=told)
    if agreed["kind"] == "stream" and place.drawn and place.stream is None:
        raise StateError("the state is of a stream, but doesn't say how far its shards were.")
    if position > length:
        raise StateError(f"the state's place is after {position} samples of an epoch that has {length}.")
    return place, seed_of(state)


def _door(agreed: dict[str, Any]) -> str:
    return "mpiter.torch.DataLoader" if "sampler" in agreed else "mpiter.DataLoader"


def _stream(state: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    """How far the shards have got, checked."""
    stream: dict[str, Any] = typed(state, "stream", dict)
    is_own, shards = typed(stream, "is_own", bool), typed(stream, "shards", list)
    number_of(stream, "turn", high=max(len(shards) - 1, 0) if is_own else LARGEST)
    if not shards:
        raise StateError("the state is of a stream without any shard.")
    for shard in shards:
        if not isinstance(shard, Mapping):
            raise StateError(f"the state's shard {shard!r:.40} is not of type dict.")
        batches = number_of(shard, "batches")
        batches = batches if is_own else number_of(state, "drawn")
        typed(shard, "has_ended", bool)
        if mark := typed(shard, "mark", list):
            if [*map(type, mark)] != [int, int, bool, list] or min(mark[:2]) < 0:
                raise StateError("the state's mark in a stream is none.")
            if mark[0] > batches or mark[1] > batches * batch_size:
                raise StateError(f"the state's mark in a stream is beyond its place, after {batches} batches.")
            check_told(mark[3])
    return stream
