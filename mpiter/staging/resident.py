"""Resident first: an order that, within a window, draws from what is local before what is not.

An order sampler: asked at each epoch's beginning, in whatever thread plans; or a loader's sampler.  The order is our
own shuffle, in which each window of so many samples has its local ones moved to the front, both parts as they were.
Guarantees that an epoch is still each sample once; that the shuffle depends on the seed and on the order before alone,
so that a resumed run goes on with fresh ones; that what is drawn stands in the log before it is used, and comes again
from there, exactly.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import zlib
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from math import lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.access import offered
from ..engine.options import whole
from ..errors import OptionError, StateError
from ..order.order import Indices, Shuffled
from ..order.state import number_of, typed
from .staged import StagedFetch

_MARK = "mpiter order 1"
_START = (0, 0, "")


class ResidentFirst:
    """An ``order_sampler`` that draws from what is local first, while only part of a staged dataset is.

    It is a loader's ``sampler`` too.

    Args:
        dataset: what ``Staging.of()`` gave.
        window: samples; none is drawn earlier or later than it would be by more. None: an epoch.
        seed: of the shuffle.
        log: a new file, which will have each order that was drawn, and what came before it.
        replay: such a file: the orders come from there, whatever is local. Of a run that was resumed, all its files in
            a list, in the order of time.

    Attributes:
        entropy: of the order drawn last, against a uniform shuffle's: 1 for as random, None before there is one.

    >>> import mpiter
    >>> from mpiter.staging import ResidentFirst, Staging
    >>> class Texts:
    ...     def __len__(self):
    ...         return 6
    ...     def source(self, index):
    ...         return f"https://example.org/{index}.txt"
    ...     def fetch(self, index):
    ...         return b"text %d" % index
    ...     def __getitem__(self, index):
    ...         return len(self.fetch(index))
    >>> staged = Staging("memory", "1MB").of(Texts())
    >>> kept = [staged[4], staged[5]]
    >>> sampler = ResidentFirst(staged, seed=0)
    >>> with mpiter.batches(staged, 2, order_sampler=sampler, n_processes=0) as stream:
    ...     print(round(sampler.entropy, 2))
    ...     sorted(stream.state_dict()["order"]["indices"][:2])
    0.59
    [4, 5]
    """

    def __init__(
        self,
        dataset: Any,
        window: int | None = None,
        seed: int = 0,
        *,
        log: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    ) -> None:
        whole("window", window, least=1, optional=True)
        whole("seed", seed)
        fetch = offered(dataset, "fetch")
        if replay is None and not isinstance(fetch, StagedFetch):
            raise OptionError("resident first needs a dataset that is staged; pass what Staging(…).of(dataset) gives.")
        if log is not None and replay is not None:
            raise OptionError("log and replay exclude each other: what is replayed stands in a log already.")
        self._fetch: Any = fetch
        self._length, self._seed = len(dataset), int(seed)
        self._window = self._length if window is None else int(window)
        if log is not None and not isinstance(log, (str, os.PathLike)):
            raise OptionError(f"log={log!r:.60} is no path; pass that of a new file, which will have the orders.")
        self._log = None if log is None else os.path.abspath(log)
        if self._log is not None:
            try:
                with open(self._log, "xb") as file:
                    np.save(file, np.array([_MARK]))
            except FileExistsError as error:
                raise OptionError(
                    f"{self._log} is there already; log= takes a new file, for each run its own."
                ) from error
        self._answers = None if replay is None else _read_all(replay, self._length)
        self.entropy: float | None = None
        self._place = self._loaded = _START  # of a loader's epochs: after the last index, and where to go on
        self._local = ""

    def __call__(self, order: Indices, position: int) -> Indices:
        if len(order) != self._length:
            raise OptionError(
                f"resident first is for {self._length} samples, and the dataset has {len(order)}; give it that dataset."
            )
        return self._drawn(order, "")

    # -- as a loader's sampler ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """The indices of an epoch, whose number stands for the order before."""
        epoch, given, local = self._loaded if self._loaded != _START else (self._place[0] + bool(self._place[1]), 0, "")
        self._loaded = _START
        if given < self._length:
            order = self._drawn(np.full(self._length, epoch), local).tolist()
            for at in range(given, self._length):
                self._place = epoch, at + 1, self._local
                yield order[at]

    def state_dict(self) -> dict[str, Any]:
        """The place in a loader's epochs, and what was local when the epoch began."""
        return dict(zip(("epoch", "given", "local"), self._place, strict=True))

    def load_state_dict(self, state: Any) -> None:
        """Have the next epoch go on from there."""
        given = number_of(state, "given", high=self._length)
        self._place = self._loaded = number_of(state, "epoch"), given, typed(state, "local", str)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _drawn(self, order: Indices, local: str) -> Indices:
        """The order after this one; ``local`` says what was, unless it is to be looked at."""
        if self._answers is not None:
            return self._replayed(order)
        held = _unpacked(local, self._length) if local else self._fetch.held()
        self._local = local or _packed(held)
        words = int.from_bytes(hashlib.blake2b(_plain(order), digest_size=12).digest(), "little")
        drawn = Shuffled(self._length, self._seed, words).array()
        here = held[drawn]
        self.entropy = entropy(here, self._window)
        found = drawn[resident_first(here, self._window)]
        if self._log is not None:
            with open(self._log, "ab") as file:
                np.save(file, np.stack([np.asarray(order, np.int64), found]))
        return found

    def _replayed(self, order: Indices) -> Indices:
        assert self._answers is not None
        answers = self._answers.get(_plain(order))
        if not answers:
            raise StateError("the log has no order that follows this one: replay with the seed and dataset of the run.")
        return answers.popleft() if len(answers) > 1 else answers[0]


def _packed(held: NDArray[np.bool_]) -> str:
    return base64.b64encode(zlib.compress(np.packbits(held).tobytes())).decode()


def _unpacked(local: str, length: int) -> NDArray[np.bool_]:
    try:
        bits = np.frombuffer(zlib.decompress(base64.b64decode(local, validate=True)), np.uint8)
        return np.unpackbits(bits, count=length).astype(bool)
    except (ValueError, zlib.error) as error:
        raise StateError(f"the sampler's state does not say what was local: {error}") from error


def _plain(order: Any) -> bytes:
    return np.asarray(order, np.int64).tobytes()


def _read_all(logs: Any, length: int) -> dict[bytes, deque[Indices]]:
    """A later log, of a run that was resumed, counts: but for its first order, drawn before that run had its state."""
    found: dict[bytes, deque[Indices]] = {}
    start = _plain(np.arange(length))
    paths = [logs] if isinstance(logs, (str, os.PathLike)) else logs
    if not isinstance(paths, Sequence) or not paths or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise OptionError(
            f"replay={logs!r:.60} is no path of a log of orders, nor a list of some; pass what log= was given."
        )
    for path in paths:
        drawn = _read(os.fspath(path))
        found |= {before: after for before, after in drawn.items() if before != start or before not in found}
    return found


def _read(path: str) -> dict[bytes, deque[Indices]]:
    """What was drawn after which order; more than once where a run was resumed."""
    found: dict[bytes, deque[Indices]] = defaultdict(deque)
    with open(path, "rb") as file:
        try:
            is_ours = np.load(file, allow_pickle=False).tolist() == [_MARK]
        except (ValueError, EOFError):
            is_ours = False
        if not is_ours:
            raise OptionError(f"{path} is no log of orders, or of another version; pass what log= has written.")
        with contextlib.suppress(ValueError, EOFError):  # the last one was cut short: it has not been used
            while True:
                before, after = np.load(file, allow_pickle=False)
                found[_plain(before)].append(after)
    return dict(found)


def resident_first(here: NDArray[np.bool_], window: int) -> Indices:
    """The places of an order, those that are ``here`` first within each window."""
    number = np.arange(len(here)) // window
    return np.lexsort((~here, number))


def entropy(here: NDArray[np.bool_], window: int) -> float:
    """How random such an order is: its entropy, divided by that of a uniform shuffle.

    In a window of n samples of which k are here, as many shuffles come to the same as there are ways to mix the two:
    n over k.
    """
    total = lgamma(len(here) + 1)
    if total == 0:
        return 1.0
    lost = 0.0
    for start in range(0, len(here), window):
        part = here[start : start + window]
        n, k = len(part), int(part.sum())
        lost += lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return 1 - lost / total
