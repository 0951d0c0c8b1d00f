"""``Pack``: rows of documents, for models that read rows of one length."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..datasets.columns import Reader, in_words, reader_of, users
from ..engine.bringing import brings_order
from ..errors import OptionError
from ..order.order import Order
from ..worker.here import WorkerInfo, call_own_init
from ..worker.underway import refuse_async
from .components import components_in
from .fit import Fits
from .lengths import Counted, counted_for, lengths_for
from .mix import Mix
from .packed_order import Cost, Cut, Fitted, PackedOrder, Rule, Windows, split_at
from .rows import Layout, Row, made, pieces_in
from .together import RowsReader
from .windows import Fixed, Following, Lengths

__all__ = ["Pack"]

_log = logging.getLogger("mpiter")
How = Literal["fit", "cut"]
Long = Literal["error", "split", "truncate", "drop"]
# Lengths that are looked at in one go, so that a mapped file isn't read as a whole.
_AT_ONCE = 1 << 20
# More documents than this take a while to plan.
_MANY = 2_000_000
# Documents of a row that are named in a message.
_SHOWN = 8


class Pack:
    """A dataset of rows that are packed with the documents of another one.

    A document is a 1-D array of tokens, which becomes the rows' field "tokens", or a
    dict of fields that are as long as each other.  A row has these fields, padded with
    zeros at its end to ``capacity`` tokens; ``segment_ids``, which number its documents
    from 1 (0 is padding); and ``positions``, which count the tokens of each from 0.

    Rows depend on the seed, the epoch and the lengths only: a state resumes in the
    midst of a window, under any workers, ranks and batch sizes.  Under ``shard=`` the
    rows of a step are dealt to the ranks such that each has as much to compute, and
    ``step_tokens`` of an iterator or loader is the number of tokens in a step of all
    ranks.

    Args:
        dataset: documents, with ``[]`` and ``len``; a ``Mix`` of such; or another
            dataset that brings its order.
        capacity: tokens in a row.
        how: "fit" puts whole documents into rows, such that little padding is left;
            "cut" joins the documents and cuts them where a row ends.
        lengths: the number of tokens of each document: an array, or the path of a file
            that has it, or gets it at first.  None takes the dataset's ``lengths``, or
            else reads all documents once.
        long: what becomes of a document that is longer than a row, with "fit": "error"
            says how many there are, "split" makes several of it, "truncate" leaves out
            its end, "drop" leaves it out.
        window: documents that are packed together.
        cost: a function of the lengths of a row's documents, an array, that says what
            the row costs the training.  None: the sum of their squares, as attention.
        counted: how many tokens the loss counts, for ``step_tokens``: a function of the
            lengths of documents, or of their pieces in a row, that returns as many
            numbers, both arrays; or a number for each document, as for ``lengths``,
            where "fit" leaves all whole.  None: all.
        layout: "padded", or "jagged": rows without padding, with ``cu_seqlens``, the
            places where documents begin and the last one ends, in place of
            ``segment_ids``.

    >>> import numpy as np
    >>> import mpiter
    >>> documents = [np.arange(1, 4), np.arange(1, 7), np.arange(1, 3)]
    >>> rows = mpiter.Pack(documents, capacity=6)
    >>> for name, column in rows[1].items():
    ...     print(name, column)
    tokens [1 2 3 1 2 0]
    positions [0 1 2 0 1 0]
    segment_ids [1 1 1 2 2 0]
    """

    def __init__(
        self,
        dataset: Any,
        capacity: int,
        how: How = "fit",
        *,
        lengths: Any = None,
        long: Long = "error",
        window: int = 8192,
        cost: Cost | None = None,
        counted: Any = None,
        layout: Layout = "padded",
    ) -> None:
        if isinstance(dataset, Mapping):
            raise OptionError(
                f"Pack needs a dataset of documents, and {dataset!r:.60} is a mapping: "
                "pass its values, or mpiter.Mix(datasets, weights)."
            )
        if isinstance(dataset, Pack):
            raise OptionError(
                "Pack needs documents, and the rows of a Pack are packed already: pass "
                f"{dataset.dataset!r:.60}, which it packs."
            )
        if isinstance(dataset, Mix):
            _check_mix(dataset)
        refuse_async(dataset, type(dataset).__name__, "Pack")
        self.dataset: Any = dataset
        self.capacity = _number("capacity", capacity)
        self.window = _number("window", window)
        self.how = _one_of("how", how, How)
        self.long = _one_of("long", long, Long)
        self.layout = _one_of("layout", layout, Layout)
        if cost is not None and not callable(cost):
            raise OptionError(
                f"cost={cost!r:.60} must be a function of the lengths in a row."
            )
        self.cost = cost
        self.lengths: Lengths = lengths_for(dataset, lengths)
        total, longer, tokens, beyond = _look(self.lengths, self.capacity)
        if not tokens:
            raise OptionError("the documents have no tokens.")
        if how == "fit" and longer and long == "error":
            raise OptionError(
                f"{longer:,} of {total:,} documents are longer than capacity="
                f"{capacity:,}, with {beyond / tokens:.2%} of all tokens beyond it: "
                "pass long='split', 'truncate' or 'drop', how='cut', or a larger "
                "capacity."
            )
        if how == "fit" and longer and long in ("truncate", "drop"):
            left_out = beyond
            if long == "drop":
                left_out += longer * self.capacity
            _log.info(
                "pack: long=%r leaves out %.2f %% of the tokens, of %s of %s documents",
                long,
                100 * left_out / tokens,
                f"{longer:,}",
                f"{total:,}",
            )
        self.counted: Lengths | Counted | None = None
        if counted is not None:
            cuts = how == "cut" or (longer and long in ("split", "truncate"))
            if cuts and not callable(counted):
                raise OptionError(
                    "counted= needs whole documents, or a function: of one that is cut "
                    "a number doesn't say which part has the tokens that count.  A "
                    "function of the lengths of its pieces, counted=lambda sizes: "
                    "sizes - 1, does."
                )
            self.counted = counted_for(dataset, counted, self.lengths, self.capacity)
        # Rows or tokens in each window, which are the same in every epoch, by whether
        # documents are scattered over the windows.
        self._measured: dict[bool, NDArray[np.int64]] = {}
        self._fits = Fits()
        self._first: Order | None = None

    def __len__(self) -> int:
        """Return the number of rows.

        For a dataset that brings its order: in the first epoch with the seed 0.
        """
        return len(self._unshuffled())

    def __getitem__(self, key: int | Row) -> dict[str, NDArray[Any]]:
        if isinstance(key, tuple):
            return made(self.dataset, key, self.capacity, self.layout)
        order = self._unshuffled()
        if not 0 <= key < len(order):
            raise IndexError(f"{key} isn't from 0 to before {len(order)}")
        [row] = order.take(key, key + 1)
        return made(self.dataset, row, self.capacity, self.layout)

    # Rows have tuples as keys.
    takes_any_key = True

    def mpiter_reader(self) -> Reader | None:
        """Return a function that makes many rows at once, if that can be done."""
        if self.layout != "padded":
            return None
        read = reader_of(self.dataset)
        if read is None:
            return None
        return RowsReader(read, self.capacity)

    def worker_init(self, info: WorkerInfo) -> None:
        """Call the ``worker_init`` of the documents, if they have one, in a worker."""
        call_own_init(users(self.dataset), info)

    def mpiter_words(self, row: Row) -> str:
        """Return in words which documents are in a row, for errors and warnings."""
        documents = [document for document, _, _, _ in pieces_in(row)]
        shown = [in_words(self.dataset, one) for one in documents[:_SHOWN]]
        if len(documents) > _SHOWN:
            shown.append(f"{len(documents) - _SHOWN} more")
        return f"a row of documents {', '.join(shown)}"

    def components_of(self, keys: Sequence[Row]) -> dict[str, int]:
        """Return how many documents of each component begin in the rows of these keys.

        None are told if the dataset has no components.  Receipts ask it, for ``mpiter
        audit``.
        """
        documents = list[int]()
        for row in keys:
            for document, begin, _, _ in pieces_in(row):
                # The rest of one that is cut is another piece.
                if not begin:
                    documents.append(document)
        return components_in(self.dataset, documents)

    def __repr__(self) -> str:
        """Say in one line what it packs."""
        return (
            f"Pack({self.dataset!r:.60}: {len(self.lengths):,} documents in rows of "
            f"{self.capacity:,})"
        )

    def _unshuffled(self) -> Order:
        if self._first is None:
            self._first = self.mpiter_order(0, False)
        return self._first

    def __getstate__(self) -> dict[str, Any]:
        # What orders have left isn't sent to workers, which don't need it; nor would
        # the dataset be the same in the next epoch, and workers be started anew.
        return {**self.__dict__, "_first": None, "_measured": {}, "_fits": Fits()}

    def mpiter_order(self, seed: int, shuffle: bool | None) -> PackedOrder[Any]:
        """Return the order of epoch 0; unless ``shuffle`` is False it is shuffled."""
        shuffles = shuffle is not False
        rule = Rule(
            self.capacity,
            self.long,
            shuffles,
            seed,
            self.cost,
            self.counted,
            self._fits,
        )
        windows: Windows
        if brings_order(self.dataset):
            order = self.dataset.mpiter_order(seed, shuffle)
            name = type(self.dataset).__name__
            windows = Following(order, self.lengths, self.window, name)
        else:
            # The number of rows that are fitted depends on which documents are in a
            # window together, and is to be the same whether they are shuffled or not.
            scatters = shuffles or self.how == "fit"
            windows = Fixed(self.lengths, self.window, seed, shuffles, scatters)
        if self.how == "cut":
            return Cut(rule, windows, self._measure, 0)
        return Fitted(rule, windows, self._measure, 0)

    def _measure(self, windows: Windows) -> NDArray[np.int64]:
        """Return the number of rows, or with "cut" of tokens, in each window."""
        if isinstance(windows, Following):
            found = np.zeros(windows.count, np.int64)
            for window, pieces in enumerate(windows.each(), windows.first):
                found[window] = self._units(pieces)
            return found
        measured = self._measured.get(windows.scatters)
        if measured is None:
            if len(self.lengths) > _MANY:
                _log.info("pack: planning %s documents", f"{len(self.lengths):,}")
            measured = np.empty(windows.count, np.int64)
            for number in range(windows.count):
                measured[number] = self._units(windows.members(number))
            self._measured[windows.scatters] = measured
        return measured[windows.numbers()]

    def _units(self, pieces: Any) -> int:
        if self.how == "cut":
            return int(pieces.sizes.sum())
        whole = split_at(pieces, self.capacity, self.long)
        return self._fits.count(whole.sizes, self.capacity)


def _check_mix(mix: Mix) -> None:
    if mix.field is not None:
        raise OptionError(
            f"field={mix.field!r} of the Mix adds a name to each document, and a row "
            "has documents of several components: leave it out.  Receipts have the "
            "components, and mix.source(key) tells that of a document."
        )


def _look(lengths: Lengths, capacity: int) -> tuple[int, int, int, int]:
    """Return the number of documents, and of those longer than a row.

    Return also the tokens of all, and those beyond a row.
    """
    longer = 0
    tokens = 0
    beyond = 0
    for begin in range(0, len(lengths), _AT_ONCE):
        indices = np.arange(begin, min(begin + _AT_ONCE, len(lengths)))
        some = np.asarray(lengths[indices]).astype(np.int64)
        tokens += int(some.sum())
        over = some[some > capacity]
        longer += len(over)
        beyond += int((over - capacity).sum())
    return len(lengths), longer, tokens, beyond


def _number(name: str, given: Any) -> int:
    is_number = isinstance(given, Integral) and not isinstance(given, bool)
    if not is_number or given < 1:
        raise OptionError(f"{name}={given!r:.60} must be a whole number above 0.")
    return int(given)


def _one_of(name: str, given: Any, kinds: Any) -> Any:
    if given not in get_args(kinds):
        known = ", ".join(map(repr, get_args(kinds)))
        raise OptionError(f"{name}={given!r:.60} is unknown; it may be {known}.")
    return given
