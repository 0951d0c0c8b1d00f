"""A worker's part of a stream, its *shard*: batches by number, one after the other.

A stream is an iterable dataset.  Streams have no keys, so a row is a batch, requested
by its number; a worker that is asked for a number out of order, since it replaces a
dead worker, begins again and reads up to that batch.

A stream that calls ``get_worker_info`` before its first element, or whose
``worker_init_fn`` does, shards itself: its batches are its worker's own.  Any other
stream is sharded here: every worker reads all of it and keeps each n-th batch, so that
the batches are the same for any number of workers.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

from ..datasets.columns import InBatches
from ..errors import OptionError, StateError
from ..samples.jsonable import decoded, encoded
from ..worker import seeding
from ..worker.here import here, was_asked

# Where a stream shards itself, random numbers of different workers are this many
# positions apart.
_OWN_SHARD = 1 << 40
# Stands in place of an element when none is left.
_END = object()
_LATE = (
    "the stream asked get_worker_info() after its first element, when it was taken "
    "for one that doesn't shard itself.  If it does, it is sharded twice and elements "
    "are lost: have it ask earlier, or say shards_itself = True in its class (False "
    "if it doesn't)."
)
_ANEW = (
    "a worker was replaced, and what its stream had noted of itself since the first "
    "epoch ended with the worker: the new worker reads this epoch from the stream as "
    "it was sent.  Have a stream that counts its epochs be told the epoch by "
    "set_epoch() before iter(), and leave persistent_workers unset."
)


class Mark(NamedTuple):
    """A position from which a stream can resume without reading what came before."""

    # The batches that the shard had read.  If the library shards, ``elements`` is what
    # counts.
    batches: int
    # The elements that had been read, or had failed.
    elements: int
    is_end: bool  # no elements are left
    # The states of the stream and of its iterator as JSON text, with null for one that
    # has no state_dict().
    told: str


class Wanted(NamedTuple):
    """The key of a batch of a shard."""

    # The pump's run is part of the key, so that reading begins again with each run.
    run: int
    number: int

    @property
    def is_batch(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"batch {self.number} of its shard"


class Streamed(InBatches):
    """A dataset of the batches of a stream, or of one shard of it.

    Its keys are ``Wanted``.
    """

    # Workers fetch a batch again if random numbers were drawn in it unexpectedly.  A
    # stream can't give its elements twice.
    repeatable = False
    # It seeds for the elements of each batch, which have positions of their own.
    seeds_itself = True
    shard = 0
    shards = 1
    is_callers = False
    stays = False

    def __init__(
        self,
        stream: object,
        # None makes no batches: each element comes by itself.
        batch_size: int | None,
        drop_last: bool,
        collate: Callable[[Any], Any],
        # None: the stream shards itself if it calls get_worker_info().
        shards_itself: bool | None = None,
    ) -> None:
        self.dataset = stream
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._collate = collate
        self._shards_itself = shards_itself
        # Where each run resumes, and whether the stream shards itself, by run.
        self.marks: dict[int, tuple[Mark, bool]] = {}
        self._reading: _Reading | None = None
        # With ``stays``, the copy that has been read since this worker began.
        self._kept: Any = None
        # Whether worker_init called get_worker_info(); None as long as it isn't known.
        self._sharded_before: bool | None = None

    @property
    def samples_each(self) -> int:
        return self.batch_size or 1

    def of_shard(
        self,
        shard: int,
        shards: int,
        is_callers: bool,
        stays: bool,
    ) -> Streamed:
        """Return a shard.

        With ``is_callers`` it reads the user's own object, which then knows its place.
        Otherwise it reads a copy, a fresh one in each epoch; with ``stays`` the same
        one, which keeps what it notes of itself.
        """
        one = copy.copy(self)
        one.shard = shard
        one.shards = shards
        one.is_callers = is_callers
        one.stays = stays
        return one

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_reading": None,
            "_kept": None,
            "_sharded_before": None,
        }

    def __getitem__(self, key: Wanted) -> tuple[Any, ...]:
        """Return a batch, and what the consumer must know of the stream beside it.

        This is whether the stream shards itself, the number of elements read for the
        batch, and the fields of a ``Mark`` if the stream has a state.  The end of the
        stream is a batch of no elements; if the same object is read in the next epoch,
        what it tells of itself follows in place of a mark.
        """
        if self._sharded_before is None:
            self._sharded_before = was_asked()
        info = here.now.worker
        if info is not None and (info.id, info.num_workers) != (
            self.shard,
            self.shards,
        ):
            # The shard's pump has one worker, number 0, but the stream is to see which
            # of all shards it reads.
            here.now.worker = replace(info, id=self.shard, num_workers=self.shards)
        reading = self._reading
        if reading is None or reading.run != key.run or reading.batches > key.number:
            reading = self._begun(key.run)
            self._reading = reading
        try:
            batch = reading.take_number(key.number)
        except Exception:
            raise
        except BaseException:
            # Ctrl-C has ended the stream's generator.  Without this it would look as if
            # the stream itself were at its end.
            self._reading = None
            raise
        if batch is None:
            told = None
            if self.is_callers or self.stays:
                told = reading.told()
            if told is None:
                return None, reading.is_own, 0
            return None, reading.is_own, 0, told
        if self.batch_size:
            collated = self._collate(batch)
        else:
            collated = self._collate(batch[0])
        return collated, reading.is_own, len(batch), *(reading.mark() or ())

    def _begun(self, run: int) -> _Reading:
        beginning = Mark(0, 0, False, "[null, null]")
        mark, was_own = self.marks.get(run, (beginning, None))
        is_own = self._sharded_before or was_own
        stream = self._stream(run)
        unless_it_says = self._shards_itself
        if is_own is not None:
            unless_it_says = is_own
        says = getattr(stream, "shards_itself", unless_it_says)
        return _Reading(self, stream, says, run, mark)

    def _stream(self, run: int) -> Any:
        """Return the object to read in this run."""
        if self.is_callers:
            return self.dataset
        if not self.stays:
            return _fresh(self.dataset)
        if self._kept is None:
            self._kept = _fresh(self.dataset)
            # Runs are counted from 1 on, so another worker has read the epochs before.
            # It is gone, and with it the copy that noted something of itself.
            if run > 1 and run not in self.marks:
                here.now.notices.append(_ANEW)
        return self._kept


class _Reading:
    """One pass over a stream, from a ``Mark`` on; gives the batches of one shard."""

    def __init__(
        self,
        of: Streamed,
        stream: object,
        says: bool | None,
        run: int,
        mark: Mark,
    ) -> None:
        shard = of.shard
        shards = of.shards
        self._size = of.batch_size or 1
        self._drop_last = of.drop_last
        self._shard = shard
        self._shards = shards
        self.run = run
        self.batches = mark.batches
        self._elements = mark.elements
        self._is_at_end = mark.is_end
        # It ended before the batch that was to be read up to.
        self._ends_early = False
        # Calls of get_worker_info() in an earlier epoch must not count as this one's.
        was_asked()
        # The stream may draw while it opens, as it may for its first element, so it
        # finds the randomness of that element.
        seeding.go_to(shard * _OWN_SHARD)
        self._rest: Iterator[Any] = iter(())
        # The stream and its iterator; None in place of one that can't tell its place.
        self._tellers: list[Any] = []
        self._ended_with: str | None = None
        if self._is_at_end:
            self._ended_with = mark.told
        iterator = _went_to(stream, mark)
        if iterator is not None:
            self._rest = map(next, repeat(iterator))
            of_stream = None
            if iterator is not stream:
                of_stream = _teller(stream)
            self._tellers = [of_stream, _teller(iterator)]
        # The first element is read now, since only then does a stream show whether it
        # shards itself.  An error of it is raised with the first batch.
        self._has_first = says is None
        if self._has_first:
            try:
                first = iter(list(islice(self._rest, 1)))
            except Exception as error:
                first = _raising(error)
            self._rest = chain(first, self._rest)
        if says is None:
            self.is_own = was_asked()
        else:
            self.is_own = bool(says)
        # A stream that asks later is sharded twice, and elements are lost.  One shard
        # says so for all: number 1, which there is only where there are several.
        self._may_ask_late = self._has_first and not self.is_own and shard == 1
        # The batches of this shard that begin before the mark, which another number of
        # shards may have read.
        if not self.is_own:
            self.batches = len(
                range(shard * self._size, self._elements, shards * self._size)
            )

    def take_number(self, number: int) -> list[Any] | None:
        """Read up to the shard's batch ``number`` and return its elements.

        None at the end of the stream.
        """
        while self.batches < number and not self._ends_early:
            # An error was raised to the user already, when this batch was first read.
            with contextlib.suppress(Exception):
                self._take()
                self._ends_early = self._is_at_end and self.batches < number
            if self._ends_early:
                raise StateError(
                    f"the stream ends after {self.batches - 1} batches of its shard, "
                    f"before the place that it is to go on from, after {number}: it is "
                    "another one than before, or can be read only once."
                )
        if self._ends_early:
            return None
        return self._take()

    def _take(self) -> list[Any] | None:
        batch: list[Any] = []
        # Calls of get_worker_info() elsewhere, such as in a collate_fn, must not count
        # as the stream's.
        was_asked()
        try:
            offset = 0
            if self.is_own:
                offset = self._shard * _OWN_SHARD
            else:
                self._skip_to((self.batches * self._shards + self._shard) * self._size)
            # The first element was read when the stream was opened, and its randomness
            # was seeded there.
            is_seeded = self._has_first and not self._elements
            seeding.go_to(offset + self._elements, seeds=not is_seeded)
            frame = here.now
            before = frame.beyond - self._elements
            size = self._size
            # Some iterators go on after their StopIteration, so none is asked again.
            if self._is_at_end:
                size = 0
            for _ in range(size):
                frame.beyond = before + self._elements
                # An element that raises is counted too, by all shards alike.
                self._elements += 1
                element = next(self._rest, _END)
                if element is _END:
                    self._is_at_end = True
                    self._elements -= 1
                    break
                batch.append(element)
        finally:
            self.batches += 1
            if self._may_ask_late and was_asked():
                self._may_ask_late = False
                here.now.notices.append(_LATE)
        if not batch or (len(batch) < self._size and self._drop_last):
            return None
        return batch

    def _skip_to(self, element: int) -> None:
        """Read the elements before number ``element``.

        They belong to other shards, and so do their errors.
        """
        if self._elements < element:
            seeding.go_to(self._elements)
        while self._elements < element and not self._is_at_end:
            try:
                for _ in islice(self._rest, element - self._elements):
                    self._elements += 1
                self._is_at_end = self._elements < element
            except Exception:
                self._elements += 1

    def mark(self) -> Mark | None:
        """Return the stream's present position.

        None if it has no state, or one that can't be saved.
        """
        told = self.told()
        if told is None:
            return None
        return Mark(self.batches, self._elements, self._is_at_end, told)

    def told(self) -> str | None:
        """Return what the stream and its iterator tell; None if it can't be saved."""
        if self._ended_with is not None:
            return self._ended_with
        if all(one is None for one in self._tellers):
            return None
        states = []
        try:
            for one in self._tellers:
                state = None
                if one is not None:
                    state = encoded(one.state_dict())
                states.append(state)
            return json.dumps(states)
        except StateError:
            return None


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


def _fresh(stream: object) -> Any:
    """Return a copy of the stream.

    So attributes that it sets while it is read don't change the original.
    """
    try:
        return copy.copy(stream)
    except Exception:
        # A generator, say, can't be copied, and can be read only once anyway.
        return stream


def check_threads_copies(stream: Any) -> None:
    """Refuse an iterator of which threads would have no copies of their own.

    Each thread reads all elements and keeps its part.  Of one iterator that they share,
    each would skip what is another's, and nobody would have that.
    """
    if not isinstance(stream, Iterator):
        return
    held = _iterators_in(stream)
    try:
        copied = copy.copy(stream)
        # A copy of ``zip(…)`` has the very iterators that are zipped; a class of the
        # user's may make its own anew when it begins.
        is_shared = False
        if held:
            begun = _iterators_in(iter(copied))
            is_shared = any(one is other for one in held for other in begun)
    except Exception:
        is_shared = True
    if is_shared:
        raise OptionError(
            f"the dataset is an iterator ({type(stream).__name__}), of which threads "
            "can't have a copy each: elements would be lost. Pass num_workers=1, leave "
            "backend unset, or pass a list, or what begins anew."
        )


def _iterators_in(one: Any) -> list[Any]:
    """Return the iterators that an object holds, as it tells ``copy``."""
    try:
        _, arguments, *rest = one.__reduce_ex__(4)
    except Exception:
        # It tells nothing, and can't be copied either.
        return []
    parts = [*arguments]
    for state in rest[:1]:
        if isinstance(state, dict):
            parts += state.values()
    return [part for part in parts if isinstance(part, Iterator)]


def check_told(text: str) -> None:
    """Raise a StateError if ``text`` can't be what a ``Mark`` has in ``told``."""
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if type(told) is not list or len(decoded(told)) != 2:
        raise StateError("the state tells no place of a stream.")


# In torchdata's protocol the iterable, its iterator, or both have ``state_dict`` and
# ``load_state_dict``.  So first the iterable's state is loaded, then ``iter()`` is
# called once, then the iterator's own state is loaded; an iterable that is its own
# iterator is treated as an iterator.


def _went_to(stream: Any, mark: Mark) -> Iterator[Any] | None:
    """Return an iterator that reads ``stream`` from ``mark`` on.

    None if the mark is at the stream's end.
    """
    of_stream, of_iterator = json.loads(mark.told)
    _load(stream, of_stream)
    # If there is only an iterator's state, either the stream is its own iterator, or it
    # has no state and its iterators have.  Which one it is, iter() tells.
    may_be_its_own = of_stream is None and of_iterator is not None
    if mark.is_end:
        # The next epoch may read the same object, so it must be at its end as well.
        if may_be_its_own and iter(stream) is stream:
            _load(stream, of_iterator)
        return None
    iterator: Iterator[Any] = iter(stream)
    if mark.elements:
        _load(iterator, of_iterator)
    elif may_be_its_own and iterator is stream:
        # No element has been read, so the state is from the end of the epoch before.
        # The stream goes there, and iter() then has it begin the next epoch.  A stream
        # that makes another iterator for each epoch has no use for that state.
        _load(iterator, of_iterator)
        iterator = iter(stream)
    return iterator


def _load(teller: Any, told: object) -> None:
    """Load a state that ``state_dict()`` has returned; None is the beginning."""
    if told is None:
        return
    if _teller(teller) is None:
        raise StateError(
            "the state was told by a stream that can go to its place.  "
            f"{type(teller).__qualname__} can't: it has no state_dict() and "
            "load_state_dict(), or these want arguments, or it shuffles in a buffer "
            "that they leave out.  Load it into the class that told it."
        )
    try:
        teller.load_state_dict(decoded(told))
    except Exception as error:
        # Classes raise errors of any type for a wrong state.
        whose = type(teller).__qualname__
        why = f"{type(error).__name__}: {error}"
        raise StateError(
            f"load_state_dict() of {whose} refuses its part of the state: {why}."
        ) from error


def _teller(one: object) -> Any:
    """Return ``one`` if it can tell its place and go there, otherwise None."""
    names = ("state_dict", "load_state_dict")
    for name in names:
        if not callable(getattr(one, name, None)):
            return None
    if arguments_of_state(one) or _has_shuffle_buffer(one):
        return None
    return one


def arguments_of_state(stream: Any) -> str:
    """Return the arguments that ``stream.state_dict()`` needs, as text.

    Some libraries' loaders count what they have handed out, and pass that on, since
    their streams can't tell it by themselves.
    """
    try:
        parameters = inspect.signature(stream.state_dict).parameters.values()
    except (AttributeError, TypeError, ValueError):
        # There is no such method, or it has no signature.
        return ""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = (
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in optional
    )
    return ", ".join(needed)


def _has_shuffle_buffer(stream: object) -> bool:
    """True for a stream of Hugging Face's ``datasets`` that shuffles in a buffer.

    Such a stream is a chain of objects that read from one another.  Its state leaves
    out what lies in the buffer, which would be lost on resuming.
    """
    links = [_attribute(stream, "_ex_iterable")]
    while links:
        link = links.pop()
        inner = _attribute(link, "ex_iterable")
        if inner is not None and _attribute(link, "buffer_size") is not None:
            return True
        if inner is not None:
            links.append(inner)
        several = _attribute(link, "ex_iterables") or ()
        links += [one for one in several if one is not None]
    return False


def _attribute(one: object, name: str) -> Any:
    """Return what ``one`` itself holds; a ``__getattr__`` may make up anything."""
    return getattr(one, "__dict__", {}).get(name)
