"""A worker's part of a stream: batches by number, read one after the other from an iterable dataset.

Runs in workers.  Streams have no keys, so a row is a batch, asked for by its number, in order; a worker that is asked
for another one (since it took over from a dead one, most likely) begins again and reads up to there.

Who shards?  A stream that asks who it is (``get_worker_info``) before its first element, or whose ``worker_init_fn``
does, shards itself, and its batches are its worker's own.  Any other is sharded here: every worker reads all of it and
keeps each n-th batch, so that the batches are the same whatever the number of workers.
"""

from __future__ import annotations

import contextlib
import copy
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

from ..datasets.columns import Wrapping
from ..errors import StateError
from ..samples.jsonable import decoded, encoded
from ..worker import seeding
from ..worker.here import here, was_asked

_OWN_SHARD = 1 << 40  # elements between the places of one worker's randomness and another's
_LATE = (
    "the stream asked get_worker_info() after its first element, when it was taken for one that doesn't shard itself.  "
    "If it does, it is sharded twice and elements are lost: have it ask earlier, or say shards_itself = True in its "
    "class (False if it doesn't)."
)

Told = list[Any]  # the states of a stream and of its iterator, encoded; None for one that has none
_UNTOLD: Told = [None, None]


class Mark(NamedTuple):
    """A place that a stream can go on from by itself."""

    batches: int  # that its shard had read; where the library shards, elements say so for any number of shards
    elements: int  # that had been read, or had failed
    is_end: bool  # there are no more
    told: Any  # of the stream and of its iterator, as text; a StateError if that cannot be saved


class Wanted(NamedTuple):
    """The key of a batch."""

    run: int  # so that a reading is never taken for that of an earlier run
    number: int

    def __repr__(self) -> str:
        return f"batch {self.number} of its shard"


class Streamed(Wrapping):
    """The batches of a stream, or of one shard of it, by ``Wanted``."""

    repeatable = False  # nothing of it can be fetched a second time to find out about it
    shard, shards, is_callers = 0, 1, False

    def __init__(
        self,
        stream: Any,
        batch_size: int | None,  # None: no batches
        drop_last: bool,
        collate: Callable[[Any], Any],
        shards_itself: bool | None = None,  # None: if it asks who it is
        marks_every: int | None = 1,  # batches; None: the first only
    ) -> None:
        self.dataset, self.batch_size, self.drop_last, self._collate = stream, batch_size, drop_last, collate
        self._shards_itself, self._marks_every = shards_itself, marks_every
        self.marks: dict[int, tuple[Mark, bool]] = {}  # by run: where it goes on from, and whether the shard is its own
        self._reading: _Reading | None = None
        self._sharded_before: bool | None = None  # did worker_init ask who it is?

    def of_shard(self, shard: int, shards: int, is_callers: bool) -> Streamed:
        """One of ``shards``; ``is_callers``: the stream itself is read, which the user may ask for its place."""
        one = copy.copy(self)
        one.shard, one.shards, one.is_callers = shard, shards, is_callers
        return one

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reading": None, "_sharded_before": None}

    def __getitem__(self, key: Wanted) -> tuple[Any, ...]:
        """A batch, whether its shard is the stream's own, how many elements are in it, and its ``Mark`` if it has one.

        At the end there is no batch, and only the second is told.
        """
        if self._sharded_before is None:
            self._sharded_before = was_asked()
        if here.now.worker is not None:
            here.now.worker = replace(here.now.worker, id=self.shard, num_workers=self.shards)
        reading = self._reading
        if reading is None or reading.run != key.run or reading.batches > key.number:
            reading = self._reading = self._begun(key.run)
        batch = reading.take_number(key.number)
        if batch is None:
            return (reading.is_own,)
        collated = self._collate(batch if self.batch_size else batch[0])
        every = self._marks_every
        is_marked = reading.batches == 1 or (every is not None and reading.batches % every == 0)
        return collated, reading.is_own, len(batch), *((is_marked and reading.mark()) or ())

    def _begun(self, run: int) -> _Reading:
        mark, was_own = self.marks.get(run, (Mark(0, 0, False, "null"), None))
        is_own = self._sharded_before or was_own
        stream = self.dataset if self.is_callers else _fresh(self.dataset)
        says = getattr(stream, "shards_itself", self._shards_itself if is_own is None else is_own)
        return _Reading(self, stream, says, run, mark)


class _Reading:
    """One pass over a stream, from a mark on."""

    def __init__(self, of: Streamed, stream: Any, says: bool | None, run: int, mark: Mark) -> None:
        self._size, self._drop_last = of.batch_size or 1, of.drop_last
        self._shard, self._shards = shard, shards = of.shard, of.shards
        self.run, self.batches, self._elements, self._is_at_end = run, *mark[:3]
        self._ends_early = False  # before the place that it was to be read up to
        was_asked()  # by others, in an earlier epoch
        seeding.go_to(shard * _OWN_SHARD)  # where the first element stands
        self._walk = Walk(stream, json.loads(mark.told))
        self._rest: Iterator[Any] = iter(()) if self._is_at_end else self._walk.begin()
        self._has_first = says is None  # read already, to see who shards; an error is raised when it is asked for
        if self._has_first:
            try:
                first = iter(list(islice(self._rest, 1)))
            except Exception as error:
                first = _raising(error)
            self._rest = chain(first, self._rest)
        self.is_own = was_asked() if says is None else bool(says)
        self._may_ask_late = self._has_first and not self.is_own and shard == 1  # one alone loses nothing
        if not self.is_own:  # those that begin before its place
            self.batches = len(range(shard * self._size, self._elements, shards * self._size))

    def take_number(self, number: int) -> list[Any] | None:
        """The elements of the shard's batch with this number, which is read up to; None at the end."""
        while self.batches < number and not self._ends_early:
            with contextlib.suppress(Exception):  # it was told in its time
                self._take()
                self._ends_early = self._is_at_end and self.batches < number
            if self._ends_early:
                raise StateError(
                    f"the stream ends after {self.batches - 1} batches of its shard, before the place that it is to go "
                    f"on from, after {number}: it is another one than before, or can be read only once."
                )
        return None if self._ends_early else self._take()

    def _take(self) -> list[Any] | None:
        batch: list[Any] = []
        was_asked()  # by a collate_fn, say
        try:
            if not self.is_own:
                self._skip_to((self.batches * self._shards + self._shard) * self._size)
            for at in range(0 if self._is_at_end else self._size):  # some go on when they are asked once more
                place = self._elements + (self._shard * _OWN_SHARD if self.is_own else 0)
                seeding.go_to(place, seeds=at == 0 and not (self._has_first and not self._elements))
                self._elements += 1  # one that fails has its place too, for all shards alike
                batch += islice(self._rest, 1)
                if len(batch) <= at:
                    self._is_at_end = True
                    self._elements -= 1
                    break
        finally:
            self.batches += 1
            if self._may_ask_late and was_asked():
                self._may_ask_late = False
                warnings.warn(_LATE, RuntimeWarning, stacklevel=1)  # which comes out at the user's line
        return None if not batch or (len(batch) < self._size and self._drop_last) else batch

    def _skip_to(self, element: int) -> None:
        """Read what belongs to others; so do its errors."""
        while self._elements < element and not self._is_at_end:
            try:
                for _ in islice(self._rest, element - self._elements):
                    self._elements += 1
                self._is_at_end = self._elements < element
            except Exception:
                self._elements += 1

    def mark(self) -> Mark | None:
        """The stream's present place; None if it has no state."""
        told = self._walk.state()
        text = json.dumps(told) if isinstance(told, list) else told
        return None if text is None else Mark(self.batches, self._elements, self._is_at_end, text)


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


def _fresh(stream: Any) -> Any:
    """A stream of which nothing has been read, whatever it notes of its place as it is read."""
    try:
        return copy.copy(stream)
    except Exception:  # a generator, say, which can be read only once anyway
        return stream


class Walk:
    """One pass over a stream or a sampler, from where it was when ``state()`` told ``told``.

    By torchdata's protocol what is iterable, its iterator, or both may have ``state_dict`` and ``load_state_dict``.
    The state of what is iterable is loaded, ``iter()`` is called, once, and the iterator's own state is loaded then;
    one that is its own iterator counts as that.
    """

    def __init__(self, stream: Any, told: Told | None = None) -> None:
        self._stream, self._told = stream, told or _UNTOLD
        self._iterator: Any = None
        self._ahead: list[Any] = []  # what has been read already
        _load(stream, self._told[0])  # at its end too: for the next epoch, if it is the user's own

    def begin(self) -> Iterator[Any]:
        """The elements; the iterator is not asked for one once more."""
        self._iterator = iter(self._stream)
        _load(self._iterator, self._told[1])
        return map(next, repeat(self._iterator))

    def elements(self, begins: bool) -> Iterator[Any]:
        """The same; where an epoch ``begins``, a place at the end of one is left behind."""
        rest = self.begin()
        if begins and self._told != _UNTOLD:
            self._ahead += islice(rest, 1)
            if not self._ahead:
                self._iterator = iter(self._stream)
                rest = map(next, repeat(self._iterator))
        return chain(self._read_ahead(), rest)

    def _read_ahead(self) -> Iterator[Any]:
        if self._ahead:
            yield self._ahead.pop()

    def state(self) -> Told | StateError | None:
        """The place, as JSON-able values; None if it isn't told, an error if it cannot be saved."""
        if self._ahead or (self._iterator is None and self._told != _UNTOLD):
            return self._told
        is_same = self._iterator is self._stream
        try:
            told = [None if is_same else _asked(self._stream), _asked(self._iterator)]
        except StateError as error:  # which matters only if the state is asked for
            return error
        return None if told == _UNTOLD else told


def savable(told: Any, whose: str) -> Any:
    """The state that ``state()`` has returned; a StateError if it can't be saved."""
    if isinstance(told, StateError):
        raise StateError(f"what the {whose} state_dict() returns cannot be saved: {told}")
    return told


def check_told(told: Any) -> Told:
    """Raise a StateError unless this is what ``state()`` may have told, perhaps as text."""
    with contextlib.suppress(ValueError):
        told = json.loads(told) if type(told) is str else told
    if type(told) is not list or len(decoded(told)) != 2:
        raise StateError("the state tells no place of a stream or a sampler.")
    return told


def _asked(teller: Any) -> Any:
    return encoded(teller.state_dict()) if _knows_its_place(teller) else None


def _load(teller: Any, told: Any) -> None:
    if told is None:
        return
    if not _knows_its_place(teller):
        raise StateError(f"the state is for a load_state_dict(), which {type(teller).__qualname__} doesn't have.")
    try:
        teller.load_state_dict(decoded(told))
    except StateError:
        raise
    except Exception as error:  # whatever it says of a state that is none of its own
        whose, why = type(teller).__qualname__, f"{type(error).__name__}: {error}"
        raise StateError(f"load_state_dict() of {whose} refuses its part of the state: {why}.") from error


def _knows_its_place(teller: Any) -> bool:
    return all(callable(getattr(teller, name, None)) for name in ("state_dict", "load_state_dict"))
