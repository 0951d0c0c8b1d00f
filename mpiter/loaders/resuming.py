"""A loader's state: the place where the next epoch's iterator begins, as JSON-able values, and the careful way back.

Pure.  Guarantees that whatever is loaded has been checked before anything changes, that nothing of it is unpickled,
and that a sampler which doesn't repeat itself is found out by a checksum of the batches left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from ..errors import OptionError, StateError
from ..order.state import LARGEST, VERSION, check_kind, number_of, of_another_kind, seed_of, typed
from .drawing import Drawn, Since, Sliced
from .walk import Told, check_told


@dataclass(frozen=True, slots=True)
class Place:
    """Where an epoch begins, or goes on."""

    epoch: int
    batches: int = 0  # handed out before
    checksum: int = 0  # of them
    generators: dict[str, Any] | None = None  # what the sampler's draws depended on; None: as things are
    skipped: int = 0  # to be left out from there on
    samples: int = 0  # that came before the first of these batches: by other ranks, or in batches of another size
    stream: dict[str, Any] | None = None  # how far the shards of a stream have got
    since: Since | None = None  # where a sampler that tells its place goes on

    @property
    def is_elsewhere(self) -> bool:
        """Has somebody said where the next epoch begins?"""
        return self.generators is not None or self.skipped > 0

    def as_now(self, generators: dict[str, Any], told: Told | None) -> Place:
        """With the sampler as it is now."""
        return replace(self, generators=generators, since=None if told is None else Since(told=told))

    def of_ranks(self, step: int, length: int) -> Place:
        """Of all ranks, which others may be when it is loaded: what is left out is counted in samples."""
        samples = self.samples + self.skipped * step
        return replace(self, skipped=0, samples=min(samples, length))

    def beyond(self, batches: int) -> Place:
        return replace(self, skipped=self.skipped + batches)


def save(place: Place, seed: int, agreed: dict[str, Any]) -> dict[str, Any]:
    since, stream = place.since, place.stream
    return {
        "mpiter": VERSION,
        "epoch": place.epoch,
        "batches": place.batches,
        "checksum": place.checksum,
        "skipped": place.skipped,
        "seed": str(seed),
        "generators": place.generators or {},
        "loader": agreed,
        **({"samples": place.samples} if place.samples else {}),
        **({} if stream is None else {"stream": stream}),
        **({} if since is None else {"sampler": _saved(since)}),
    }


def load(state: Any, agreed: dict[str, Any]) -> tuple[Place, int]:
    """The place and the seed that ``state`` describes, or a StateError that says what is wrong with it."""
    check_kind(state, "loader")
    saved = typed(state, "loader", dict)
    counts_samples = agreed["kind"] == "dataset"
    for name, mine in agreed.items():
        if name == "batch_size" and (name not in saved or counts_samples):
            continue  # where there is no sampler of the user's, a place is a number of samples
        if name not in saved or saved[name] != mine:
            if ("sampler" in saved) != ("sampler" in agreed):
                raise of_another_kind(_door(saved), _door(agreed))
            raise StateError(
                f"the state was saved with {name}={saved.get(name)!r:.40}, this loader has {name}={mine!r}."
            )
    place = Place(
        epoch=number_of(state, "epoch"),
        batches=number_of(state, "batches"),
        checksum=number_of(state, "checksum"),
        generators=typed(state, "generators", dict),
        skipped=number_of(state, "skipped"),
        samples=number_of(state, "samples") if "samples" in state else 0,
        stream=_stream(state, agreed["batch_size"] or 1) if "stream" in state else None,
    )
    if "sampler" in state:
        place = replace(place, since=_since(typed(state, "sampler", dict), place))
    if agreed["kind"] == "stream" and place.batches and place.stream is None:
        raise StateError("the state is of a stream, but doesn't say how far its shards were.")
    length = agreed.get("dataset_length", LARGEST)
    if "batch_size" in saved and saved["batch_size"] != agreed.get("batch_size", 0):  # or these are ranks
        each = 1 if saved["batch_size"] is None else number_of(saved, "batch_size", 1)
        samples = place.samples + (place.batches + place.skipped) * each
        is_short = 0 < samples - length < each  # the last of these batches
        is_over = bool(saved.get("drop_last")) and length - samples < each  # what is left of the epoch is left out
        place = replace(place, batches=0, skipped=0, samples=length if is_short or is_over else samples)
    most = -(-length // (agreed.get("batch_size") or 1))
    if place.batches > most:
        raise StateError(f"the state's place is after {place.batches} batches of an epoch that has {most}.")
    if place.samples > length:
        raise StateError(f"the state's place is after {place.samples} samples of an epoch that has {length}.")
    return place, seed_of(state)


def _door(agreed: dict[str, Any]) -> str:
    return "mpiter.torch.DataLoader" if "sampler" in agreed else "mpiter.DataLoader"


def _saved(since: Since) -> dict[str, Any]:
    return {"samples": since.samples, "told": since.told}


def _since(sampler: dict[str, Any], place: Place) -> Since:
    """Where the sampler was, checked."""
    told = check_told(typed(sampler, "told", list))
    return Since(place.batches, number_of(sampler, "samples"), place.checksum, told)


def _stream(state: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    """How far the shards have got, checked."""
    stream: dict[str, Any] = typed(state, "stream", dict)
    typed(stream, "is_own", bool)
    shards = typed(stream, "shards", list)
    number_of(stream, "turn", high=max(len(shards) - 1, 0) if stream["is_own"] else 1 << 53)
    if not shards:
        raise StateError("the state is of a stream without any shard.")
    for shard in shards:
        if not isinstance(shard, Mapping):
            raise StateError(f"the state's shard {shard!r:.40} is not of type dict.")
        number_of(shard, "batches")
        typed(shard, "has_ended", bool)
        if mark := typed(shard, "mark", list):
            if [*map(type, mark)] != [int, int, bool, list] or min(mark[:2]) < 0:
                raise StateError("the state's mark in a stream is none.")
            batches = shard["batches"] if stream["is_own"] else number_of(state, "batches")
            if mark[0] > batches or mark[1] > batches * batch_size:
                raise StateError(f"the state's mark in a stream is beyond its place, after {batches} batches.")
            check_told(mark[3])
    return stream


def verify(place: Place, plans: Sliced | Drawn, generators: dict[str, Any]) -> None:
    """Does the sampler, whose generators these are, give what it gave when the place was saved?"""
    if not place.batches:
        return
    saved, mine = (place.generators or {}).get("share"), generators.get("share")
    if isinstance(saved, list) and len(saved) == 2 and mine and saved != mine:
        if saved[1:] != mine[1:]:
            raise StateError(f"the state was saved by one of {saved[-1]} processes, this is one of {mine[-1]}.")
        return  # saved by another of them, which is as far in its own share
    if plans.checksum(place.batches) != place.checksum:
        raise StateError(
            "the sampler gives other batches than before the state was saved.  Give it a generator of its own to draw "
            "from (an attribute: torch.Generator, numpy Generator or RandomState), or restore what it needs."
        )


def checked_skip(batches: Any) -> int:
    """A number of batches to leave out, as a plain number."""
    if not isinstance(batches, Integral) or isinstance(batches, bool) or batches < 0:
        raise OptionError(f"skip({batches!r:.40}): pass a whole number of batches, 0 or more.")
    return int(batches)
