"""A loader's state: the place where the next epoch's iterator begins, as JSON-able values, and the careful way back.

Pure.  Guarantees that whatever is loaded has been checked before anything changes, that nothing of it is unpickled,
and that a sampler which doesn't repeat itself is found out by a checksum of the batches left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from .checkpoint import VERSION, check_version, number_of, seed_of, typed
from .drawing import Drawn, Sliced
from .errors import OptionError, StateError


@dataclass(frozen=True, slots=True)
class Place:
    """Where an epoch begins, or goes on."""

    epoch: int
    batches: int = 0  # handed out before
    checksum: int = 0  # of them
    luck: dict[str, Any] | None = None  # what the sampler's draws depended on; None: as things are
    skipped: int = 0  # to be left out from there on
    stream: dict[str, Any] | None = None  # how far the shards of a stream have got

    @property
    def is_elsewhere(self) -> bool:
        """Has somebody said where the next epoch begins?"""
        return self.luck is not None or self.skipped > 0

    def with_luck(self, luck: dict[str, Any]) -> Place:
        return replace(self, luck=luck)

    def beyond(self, batches: int) -> Place:
        return replace(self, skipped=self.skipped + batches)


def save(place: Place, seed: int, agreed: dict[str, Any]) -> dict[str, Any]:
    return {
        "mpiter": VERSION,
        "epoch": place.epoch,
        "batches": place.batches,
        "checksum": place.checksum,
        "skipped": place.skipped,
        "seed": str(seed),
        "luck": place.luck or {},
        "loader": agreed,
    } | ({} if place.stream is None else {"stream": place.stream})


def load(state: Any, agreed: dict[str, Any]) -> tuple[Place, int]:
    """The place and the seed that ``state`` describes, or a StateError that says what is wrong with it."""
    check_version(state)
    saved = typed(state, "loader", dict)
    for name, mine in agreed.items():
        if name not in saved or saved[name] != mine:
            raise StateError(
                f"the state was saved with {name}={saved.get(name)!r:.40}, this loader has {name}={mine!r}."
            )
    place = Place(
        epoch=number_of(state, "epoch"),
        batches=number_of(state, "batches"),
        checksum=number_of(state, "checksum"),
        luck=typed(state, "luck", dict),
        skipped=number_of(state, "skipped"),
        stream=_stream(state) if "stream" in state else None,
    )
    if agreed["kind"] == "stream" and place.batches and place.stream is None:
        raise StateError("the state is of a stream, but doesn't say how far its shards were.")
    return place, seed_of(state)


def _stream(state: Mapping[str, Any]) -> dict[str, Any]:
    """How far the shards have got, checked."""
    stream: dict[str, Any] = typed(state, "stream", dict)
    typed(stream, "is_own", bool)
    shards = typed(stream, "shards", list)
    number_of(stream, "turn", high=max(len(shards) - 1, 0) if stream["is_own"] else 1 << 53)
    if not shards:
        raise StateError("the state is of a stream without any shard.")
    for shard in shards:
        number_of(shard, "batches")
        typed(shard, "has_ended", bool)
        if len(mark := typed(shard, "mark", list)) not in (0, 3) or [*map(type, mark[:2])] != [int, bool][: len(mark)]:
            raise StateError("the state's mark in a stream is none.")
    return stream


def verify(place: Place, plans: Sliced | Drawn) -> None:
    """Does the sampler give what it gave when the place was saved?"""
    if place.batches and plans.checksum(place.batches) != place.checksum:
        raise StateError(
            "the sampler gives other batches than before the state was saved.  Give it a generator of its own to draw "
            "from (an attribute: torch.Generator, numpy Generator or RandomState), or restore what it needs."
        )


def checked_skip(batches: Any) -> int:
    """A number of batches to leave out, as a plain number."""
    if not isinstance(batches, Integral) or isinstance(batches, bool) or batches < 0:
        raise OptionError(f"skip({batches!r:.40}): pass a whole number of batches, 0 or more.")
    return int(batches)
