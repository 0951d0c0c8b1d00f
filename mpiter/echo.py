"""Data echoing: uses each sample several times, where reading one takes long.

``Echo`` wraps an iterator, a ``batches()`` or a loader (its *source*).  It takes the
source's batches in *blocks* of a fixed number: between the batches of a block come, at
an even rate, further uses of the previous block's samples, shuffled.  ``Bundles`` wraps
a dataset, runs in workers, and augments each use anew.  Guarantees that no batch has a
sample twice, and that a state resumes exactly: the batches of the previous block are
fetched again.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Self

import numpy as np

from .datasets.columns import Wrapping
from .engine.options import whole
from .errors import OptionError, StateError
from .order.state import VERSION, number_of, typed
from .samples.batch import Batch
from .samples.kinds import leaf_for
from .typevars import B
from .worker import seeding

__all__ = ["Bundles", "Echo"]

# This is added to the position that seeds a further use, so that no other sample's is
# the same.
_FAR = 1 << 48
# The attributes that are looked up in the source.
_SOURCES = ("epoch", "epoch_detail", "stats", "close")
_Rows = np.ndarray[Any, Any]


class Bundles(Wrapping):
    """A dataset for ``Echo`` that reads each sample once and transforms it repeatedly.

    It returns a tuple of ``times`` transforms of the sample of ``dataset``.  Each
    transform begins with what ``read(i)`` returned, unchanged, and draws other numbers
    from ``mpiter.get_rng()``; the first use equals ``dataset[i]``.

    >>> class Numbers:
    ...     def read(self, index):
    ...         return index
    ...     def transform(self, sample):
    ...         return sample * 10
    >>> Bundles(Numbers(), 2)[3]
    (30, 30)
    """

    def __init__(self, dataset: object, times: int = 2) -> None:
        whole("times", times, least=1)
        reads = getattr(dataset, "read", None)
        transforms = getattr(dataset, "transform", None)
        if not callable(reads) or not callable(transforms):
            raise OptionError(
                "Bundles needs a dataset with read(i) and transform(sample), which "
                f"{type(dataset).__name__} has not; an Echo without Bundles repeats "
                "samples as they are."
            )
        self.dataset = dataset
        self.times = int(times)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        found = self.dataset.read(index)
        uses = []
        try:
            for use in range(self.times):
                if use:
                    seeding.step_to(use * _FAR)
                # A transform may modify what it gets, so only the last one gets the
                # sample that was read.
                mine = found
                if use < self.times - 1:
                    mine = copy.deepcopy(found)
                # It may also return the same array each time.
                made = self.dataset.transform(mine)
                uses.append(copy.deepcopy(made))
        finally:
            seeding.step_to(0, seeds=False)
        return tuple(uses)


class _Repeat(NamedTuple):
    """A planned batch of further uses of the previous block's samples."""

    use: int
    # A batch's number in the block, and rows of it.  There are none if batches are
    # repeated whole.
    rows: list[tuple[int, _Rows]]


class Echo(Generic[B]):
    """Hands out each sample of ``source`` ``factor`` times.

    ``epoch``, ``epoch_detail``, ``stats()`` and ``close()`` are the source's, so
    further uses don't count.

    Args:
        source: an iterator, a ``batches()`` or a loader of mpiter.  If its dataset is
            ``Bundles(dataset, times)``, each use of a sample is augmented anew; else
            the same sample is repeated.
        factor: uses of each sample.
        shuffle_buffer: the most samples to keep, so that the uses of a sample come in
            different batches.  With 0, each batch is repeated whole, at once; so are
            those of a ``collate_fn``, or any ``ragged=`` but "raise".
        seed: seed of the order of further uses.

    >>> import mpiter
    >>> with mpiter.batches(range(4), 2, n_processes=0, shuffle=False) as stream:
    ...     print(*Echo(stream, 2, shuffle_buffer=0))
    [0 1] [0 1] [2 3] [2 3]
    """

    def __init__(
        self,
        source: Iterable[B],
        factor: int = 2,
        *,
        shuffle_buffer: int = 1024,
        seed: int = 0,
    ) -> None:
        whole("factor", factor, least=1)
        whole("shuffle_buffer", shuffle_buffer, least=0)
        whole("seed", seed, least=0)
        batch_size: int | None = getattr(source, "batch_size", None)
        if not hasattr(source, "state_dict") or not batch_size:
            raise OptionError(
                "an Echo goes around an iterator, batches() or a loader with a "
                f"batch_size, not around {source!r:.60}."
            )
        collate = getattr(source, "collate_fn", None)
        module = getattr(collate, "__module__", "")
        collated_by, _, _ = module.partition(".")
        self._by_torch = collated_by == "torch"
        collates = collated_by not in ("torch", "")
        dataset = getattr(source, "dataset", None)
        self._bundles = 0
        if isinstance(dataset, Bundles):
            self._bundles = dataset.times
        if self._bundles and factor > self._bundles:
            raise OptionError(
                f"factor={factor} needs Bundles(dataset, {factor}), not "
                f"{self._bundles}."
            )
        self.source: Any = source
        self._factor = int(factor)
        self._seed = int(seed)
        is_even = getattr(source, "ragged", "raise") == "raise"
        self._mixes = shuffle_buffer > 0 and not collates and is_even
        most = 0
        if self._mixes:
            # The samples of two blocks are kept: the present one's and those before.
            most = shuffle_buffer // 2
            if isinstance(dataset, Sized):
                most = min(most, len(dataset))
        self._each = max(1, most // batch_size)  # batches in a block
        self._agreed = {
            "factor": self._factor,
            "block": self._each,
            "mixes": self._mixes,
            "bundles": self._bundles,
            "seed": str(self._seed),
        }
        self._passes = 0  # passes that have ended
        # Counts up when an iterator that was made before has no more batches.
        self._turnovers = 0
        # A loaded state, until the next batch is asked for.
        self._loaded: Mapping[str, Any] | None = None
        # The epoch that the source was in before the last step.
        self._epoch = 0
        self._forget()

    def _forget(self) -> None:
        """Forget the block and the place in it; the next batch begins a pass."""
        # The turns of this block.  One that is None is the source's next batch.
        self._turns: list[_Repeat | None] | None = None
        self._items: Iterator[Any] = iter(())
        # True if the source's pass has ended.
        self._has_ended = False
        # The number of the block.
        self._block = 0
        # How many of its turns have been taken.
        self._taken = 0
        # The batches of the previous block.
        self._before: list[Any] = []
        self._now: list[Any] = []  # the batches of this block
        # The source's states at the beginning of these two blocks.
        self._marks: list[dict[str, Any] | StateError] = []

    def __iter__(self) -> Iterator[B]:
        """Return what gives the batches of a pass.

        Around an iterator that is this echo itself.  Around a loader, each ``iter()``
        is a new pass, as over the loader.
        """
        if hasattr(self.source, "__next__"):
            return self
        # A pass that was left counts too, as one of the loader's does.
        if self._turns is not None:
            self._end()
        self._turnovers += 1
        return _Pass(self, self._turnovers)

    def _end(self) -> None:
        self._forget()
        self._passes += 1
        self._turnovers += 1

    def __next__(self) -> B:
        turns = self._turns
        if turns is None:
            turns = self._begin()
        self._epoch = getattr(self.source, "epoch", 0)
        while True:
            if self._taken >= len(turns):
                if self._has_ended and not self._now:
                    self._end()
                    raise StopIteration
                self._before = self._now
                self._now = []
                self._block += 1
                self._taken = 0
                turns = self._planned()
                self._turns = turns
            turn = turns[self._taken]
            try:
                if turn is None:
                    batch = self._fetched()
                else:
                    batch = self._repeated(turn)
            except Exception:
                self._taken += 1
                raise
            # The turn is counted only when its batch is there, so that it comes again
            # after Ctrl-C.
            self._taken += 1
            if turn is not None or not self._has_ended:
                return batch  # type: ignore[no-any-return]

    def _begin(self) -> list[_Repeat | None]:
        """Return the turns of the first block.

        After a state, what it needs is fetched again: the previous block and this one.
        """
        self._forget()
        state = self._loaded or {"block": 0, "taken": 0}
        if self._loaded is not None:
            # Ctrl-C may have interrupted this method when the source had gone on
            # already, so it is sent to the place of the state each time.
            self.source.load_state_dict(self._loaded["source"])
        self._items = iter(self.source)
        if state["block"]:
            self._block = state["block"]
            self._marks = [state["source"]]
            self._fetch_again(self._each)
            self._before = self._now
            self._now = []
        turns = self._planned()
        taken = turns[: state["taken"]]
        self._fetch_again(taken.count(None))
        self._taken = state["taken"]
        self._turns = turns
        self._loaded = None
        return turns

    def _fetch_again(self, batches: int) -> None:
        for _ in range(batches):
            with suppress(Exception):  # the user has seen this error
                self._fetched()

    def _planned(self) -> list[_Repeat | None]:
        """Return the turns of the block that begins.

        They are the source's batches, and further uses at an even rate.
        """
        self._marks = [*self._marks[-1:], self._mark()]
        repeats = self._repeats()
        every = self._each + len(repeats)
        waiting = iter(repeats)
        turns = list[_Repeat | None]()
        due = 0
        for turn in range(1, every + 1):
            before = due
            due = turn * self._each // every
            if before < due:
                turns.append(None)
            else:
                turns.append(next(waiting))
        return turns

    def _repeats(self) -> list[_Repeat]:
        """Return the further uses of the previous block's samples.

        They come in batches of the same sizes.
        """
        found = list[_Repeat]()
        uses = range(1, self._factor)
        if not self._mixes:
            no_rows = np.arange(0)
            for use in uses:
                for number in range(len(self._before)):
                    found.append(_Repeat(use, [(number, no_rows)]))
            return found
        sizes = list[int]()
        for batch in self._before:
            first_use = self._use(batch, 0)
            sizes.append(_rows_in(first_use, self._by_torch))
        if not sizes:
            return found
        ends = np.cumsum(sizes, dtype=int)
        for use in uses:
            seeds = [self._seed, self._passes, self._block, use]
            rng = np.random.default_rng(seeds)
            order = rng.permutation(sum(sizes))
            for chosen in np.split(order, ends[:-1]):
                # The batch that each chosen sample is in.
                of = np.searchsorted(ends, chosen, side="right")
                rows = []
                for one in np.unique(of):
                    first = ends[one] - sizes[one]
                    rows.append((int(one), chosen[of == one] - first))
                found.append(_Repeat(use, rows))
        return found

    def _fetched(self) -> Any:
        if self._has_ended:
            return None
        try:
            batch = next(self._items)
        except StopIteration:
            self._has_ended = True
            return None
        # The user may modify the batch, so a copy is kept.  Of bundles the user gets
        # one use, and the others are kept as they are.
        if self._bundles:
            self._now.append(batch)
        else:
            self._now.append(_copied(batch))
        return self._use(batch, 0)

    def _repeated(self, repeat: _Repeat) -> Any:
        batches = []
        rows = []
        for number, some in repeat.rows:
            batches.append(self._use(self._before[number], repeat.use))
            rows.append(some)
        if not self._mixes:
            return _copied(batches[0])
        length = _rows_in(batches[0], self._by_torch)
        return _mixed(batches, rows, length, self._by_torch)

    def _use(self, batch: Any, use: int) -> object:
        """Return the batch with use number ``use`` of each sample."""
        if not self._bundles:
            return batch
        if isinstance(batch, Batch):
            return Batch.of_rows([sample[use] for sample in batch])
        return batch[use]

    def _mark(self) -> dict[str, Any] | StateError:
        """Return the source's state, or the error if it has none."""
        mark: dict[str, Any] | StateError
        try:
            mark = self.source.state_dict()
        except StateError as error:
            mark = error
        return mark

    def __len__(self) -> int:
        """Return the number of batches in a pass, further uses included."""
        return len(self.source) * self._factor

    def __getattr__(self, name: str) -> Any:
        if name == "step_tokens":
            raise AttributeError(
                "step_tokens isn't known: between the source's batches an Echo gives "
                "further uses of earlier ones, and doesn't count their tokens."
            )
        if name not in _SOURCES:
            raise AttributeError(f"'Echo' object has no attribute {name!r}")
        return getattr(self.source, name)

    @property
    def is_new_epoch(self) -> bool:
        """True if the last batch completed an epoch of the source.

        An epoch of a loader is complete with all further uses.
        """
        if hasattr(self.source, "__next__"):
            return bool(self.source.epoch > self._epoch)
        # Batches come in this block, or further uses in the next one.
        turns = self._turns or []
        left = turns[self._taken :]
        if self._now[: self._factor - 1] or any(left):
            return False
        return self._has_ended or bool(self.source.is_new_epoch)

    @property
    def has_passes(self) -> bool:
        """True if each ``for`` loop begins anew, as over a loader."""
        return hasattr(self.source, "end_pass")

    @property
    def passes(self) -> int:
        """The number of passes before the present one, further uses included."""
        return self._passes

    def end_pass(self) -> bool:
        """Count the present pass as ended if all its batches were handed out.

        Return False if there are batches left in it.  Around an iterator there is
        nothing to count: its next batch goes on where the last one was, so the answer
        is always True.
        """
        if not hasattr(self.source, "end_pass"):
            return True
        if self._loaded is not None:
            # Only the turns of the loaded state show whether any is left.  If some are,
            # the state is loaded once more, and they come as they would have.
            loaded = dict(self._loaded)
            self._begin()
            if not self.is_new_epoch:
                self.load_state_dict(loaded)
                return False
        if self._turns is not None and self.is_new_epoch:
            self.source.end_pass()
            self._end()
        return self._turns is None

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch handed out, as JSON-able values."""
        if self._loaded is not None:
            return dict(self._loaded)
        if self._marks:
            source = self._marks[0]
        else:
            source = self._mark()
        if isinstance(source, StateError):
            raise source
        return {
            "mpiter": VERSION,
            "echo": self._agreed,
            "pass": self._passes,
            "block": self._block,
            "taken": self._taken,
            "source": source,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the position at which ``state`` was saved."""
        if not isinstance(state, Mapping) or "echo" not in state:
            raise StateError("this is no state of an Echo: the key 'echo' is missing.")
        if typed(state, "echo", dict) != self._agreed:
            raise StateError(
                f"the state was saved with echo={state['echo']!r:.120}, here it is "
                f"{self._agreed}."
            )
        turns = self._each * (1 + self._factor)
        numbers = {
            "pass": number_of(state, "pass"),
            "block": number_of(state, "block"),
            "taken": number_of(state, "taken", 0, turns),
        }
        self.source.load_state_dict(typed(state, "source", dict))
        self._forget()
        self._passes = numbers["pass"]
        self._loaded = {**state, **numbers}


class _Pass(Generic[B]):
    """An iterator over one pass of an echo around a loader.

    It ends with the pass, also where a later ``iter()`` begins another.
    """

    def __init__(self, echo: Echo[B], number: int) -> None:
        self._echo = echo
        self._number = number

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> B:
        if self._echo._turnovers != self._number:
            raise StopIteration
        return next(self._echo)


def _is_array(value: object) -> bool:
    """True for an array of NumPy's or a tensor."""
    return isinstance(value, np.ndarray) or hasattr(value, "new_empty")


def _parts(value: object, by_torch: bool) -> list[Any]:
    """Return the parts of a container of columns.

    In mpiter's own batches, containers of other classes are values.
    """
    is_own = type(value) in (tuple, list, dict) or hasattr(value, "_fields")
    if not by_torch and not is_own:
        return []
    if isinstance(value, Mapping):
        return [*value.values()]
    if isinstance(value, (tuple, list)):
        return [*value]
    return []


def _columns(value: Any, by_torch: bool) -> Iterator[Any]:
    has_rows = _is_array(value) and value.ndim > 0
    if has_rows and (by_torch or leaf_for(value) is not None):
        yield value
    for part in _parts(value, by_torch):
        yield from _columns(part, by_torch)


def _rows_in(batch: object, by_torch: bool) -> int:
    if isinstance(batch, Batch):
        return len(batch)
    for column in _columns(batch, by_torch):
        return len(column)
    length = 0
    # There are only lists of values that have no column.  The innermost one is a list
    # of the samples' values.
    while parts := _parts(batch, by_torch):
        length = len(parts)
        batch = parts[0]
    return length


def _is_column(value: Any, length: int, by_torch: bool) -> bool:
    """True for what a batch has for a part of its samples, not of a single one."""
    lengths = {len(column) for column in _columns(value, by_torch)}
    if lengths:
        return lengths == {length}
    if type(value) in (tuple, list) and len(value) == length:
        return True
    parts = _parts(value, by_torch)
    if not parts:
        return False
    return all(_is_column(part, length, by_torch) for part in parts)


def _mixed(
    batches: list[Any],
    rows: list[_Rows],
    length: int,
    by_torch: bool,
) -> object:
    """Return rows of several batches as one batch, a copy that the user may modify.

    The first of these batches has ``length`` rows.
    """
    first = batches[0]
    if _is_array(first):
        parts = []
        for batch, some in zip(batches, rows, strict=True):
            parts.append(batch[some])
        if isinstance(first, np.ndarray):
            return np.concatenate(parts)
        return sys.modules["torch"].cat(parts)
    if isinstance(first, Mapping):
        mixed = {}
        for name in first:
            columns = [batch[name] for batch in batches]
            mixed[name] = _mixed(columns, rows, length, by_torch)
        return mixed
    found = []
    has_samples = isinstance(first, Batch) or not all(
        _is_column(part, length, by_torch) for part in first
    )
    if has_samples:
        for batch, some in zip(batches, rows, strict=True):
            for row in some.tolist():
                found.append(copy.deepcopy(batch[row]))
    else:
        for columns in map(list, zip(*batches, strict=True)):
            found.append(_mixed(columns, rows, length, by_torch))
    if isinstance(first, Batch):
        return Batch.of_rows(found)
    if hasattr(first, "_fields"):
        return type(first)(*found)
    return type(first)(found)


def _copied(batch: object) -> Any:
    if isinstance(batch, Batch):
        return Batch.of_rows(copy.deepcopy([*batch]))
    return copy.deepcopy(batch)
