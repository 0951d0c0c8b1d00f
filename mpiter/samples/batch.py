"""The batch that the user gets: a list of samples that also has its columns.

Columns are arrays with one row for each sample.  Guarantees that they are writable and
belong to the user, and stay valid as long as anything refers to them.  Samples fetched
by workers are views of the columns' rows.  Without workers they are the dataset's
objects, and the columns are copies.  Changing the *list* detaches the columns, which
are from then on stacked from the list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeGuard

import numpy as np

from ..errors import LeafError, OptionError, UnevenSamples
from ..typevars import T
from .jagged import Jagged, common_dtype
from .kinds import Array, Kind, leaf_for
from .leaf import Added
from .ragged import Ragged, widened
from .rows import Rows
from .tree import (
    Aside,
    Contents,
    Group,
    Made,
    Node,
    asides_of,
    describe,
    gather,
    scatter,
    tree_of,
)
from .tree import columns_of as leaves_of

# Where a value lies in a sample: the containers around it, and its number in each.
Route = tuple[tuple[Group, int], ...]
# Turns the values that all samples have at one into what the batch shows there.
Settle = Callable[[Route, Sequence[Any]], Any]
_NUMBERS = {bool, int, float}
# Types of values that never make a column.
_TEXTS = {str, bytes, type(None)}


# What a value would be in a tree; of a list its length.
_Form = Kind | Aside | int


# -- values that fit no column become a list, one array, or an error -------------------
#
# Strings and other objects are a list in any case.  Values are *uneven* where some
# would make a column and others would make another one, or none: arrays of several
# shapes, lists of several lengths, a ``None`` among numbers.


def settle_as(ragged: str) -> Settle:
    """Return the function that implements a value of the ``ragged`` option."""
    if not (isinstance(ragged, str) and ragged in _WAYS):
        raise OptionError(
            f"ragged={ragged!r:.60} is unknown; use 'raise', 'list', 'pad' or 'jagged'."
        )
    return _WAYS[ragged]


def _are_values(lists: Sequence[Any]) -> bool:
    """Return True if ``lists`` are values, not containers with a column for each part.

    They are values if all that they hold are numbers, or objects of one type that has
    no shape.
    """
    kinds = set(map(type, chain.from_iterable(lists)))
    if kinds <= _NUMBERS:
        return True
    if len(kinds) != 1:
        return False
    [kind] = kinds
    return not hasattr(kind, "shape")


def _listed(route: Route, values: Sequence[Any]) -> Any:
    return list(values)


def _refused(route: Route, values: Sequence[Any]) -> Any:
    if _are_texts(values):
        return list(values)
    leaves = _leaves(values)
    other = _differing(leaves)
    if other is None:
        return _stacked(leaves[0], values)
    ways = ["'list'"]
    forms = _leaves(_as_arrays(values))
    if _are_arrays(forms):
        ways.append("'pad'")
    if _are_jagged(forms):
        ways.append("'jagged'")
    where, remedy = _told(route)
    collates = "a collate_fn to a loader"
    if any("cu_seqlens" in group.names for group, _ in route):
        collates += " (for a Pack's jagged rows it is mpiter.language.flat)"
    error = UnevenSamples(
        f"the samples of this batch are uneven{where}: "
        f"{_shown(values[0])} in its row 0, {_shown(values[other])} in row {other}.  "
        f"Pass ragged={' or '.join(ways)}, {collates}, or {remedy}."
    )
    error.rows = 0, other
    raise error


def _told(route: Route) -> tuple[str, str]:
    """Return two parts of the error about uneven values.

    The first says where in the samples they lie, the second what makes them even.
    """
    steps = ""
    leaf: Added | None = None
    within = ""
    for group, at in route:
        if isinstance(group, Made) and leaf is None and not group.leaf.is_ours:
            # The leaf has split a value into parts, so what follows leads to one of
            # these and not to anything in the sample.  The text names both ways.
            leaf = group.leaf
            within = steps
            steps = ""
        steps += group.written(at)
    if leaf is not None:
        where = f" in part {steps} of a {leaf.kind}"
        if within:
            where += f" at {within}"
        return where, f"have {leaf.name}.split return parts of one shape and type"
    remedy = "give them one shape and type in the dataset"
    if steps:
        return f" at {steps}", remedy
    return "", remedy


def _are_texts(values: Sequence[Any]) -> bool:
    """True for values that never make a column, by a look at their types alone."""
    return _TEXTS.issuperset(map(type, values))


def _joined(
    route: Route,
    values: Sequence[Any],
    join: Callable[[Sequence[Any], Sequence[Any]], Any],
    fits: Callable[[Sequence[_Form]], bool],
) -> Any:
    """Return arrays that differ as ``join`` makes one of them.

    It gets them with their leaves, which ``fits`` looks at before.
    """
    if _are_texts(values):
        return list(values)
    values = _as_arrays(values)
    leaves = _leaves(values)
    if _differing(leaves) is None:
        return _stacked(leaves[0], values)
    # Lists that hold other things than numbers, such as words, can't be joined.
    are_lists = set(map(type, values)) == {list}
    if are_lists and _are_values(values):
        return list(values)
    if not fits(leaves):
        return _refused(route, values)
    return join(leaves, _arrays(leaves, values))


def _arrays(leaves: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
    arrays: list[Any] = []
    for leaf, value in zip(leaves, values, strict=True):
        arrays.append(leaf.array(value))
    return arrays


def _padded(route: Route, values: Sequence[Any]) -> Any:
    return _joined(route, values, _pad, _are_arrays)


def _pad(leaves: Sequence[Any], arrays: Sequence[Any]) -> Any:
    shapes = [array.shape for array in arrays]
    largest = np.max(shapes, axis=0)
    dtype = common_dtype(arrays)
    if dtype is None:
        dtype = np.result_type(*arrays)
    padded = np.zeros((len(arrays), *largest), dtype)
    for row, array in zip(padded, arrays, strict=True):
        filled = tuple(map(slice, array.shape))
        row[filled] = array
    return leaves[0].stack(padded)


def _jagged(route: Route, values: Sequence[Any]) -> Any:
    if isinstance(values, Jagged):
        return values
    return _joined(route, values, _lay_end_to_end, _are_jagged)


def _lay_end_to_end(leaves: Sequence[Any], arrays: Sequence[Any]) -> Any:
    rows = Jagged.of(arrays)
    return Jagged(leaves[0].stack(rows.values), rows.offsets)


# A function of its own, since ``_listed`` is also the default where nobody has asked
# for lists.  There a list in a sample is a container.
_kept = functools.partial(_listed)
_WAYS: dict[str, Settle] = {
    "raise": _refused,
    "list": _kept,
    "pad": _padded,
    "jagged": _jagged,
}
# With these, a list in a sample is a value where it can be.
_KEEPING = {_kept, _padded, _jagged}


def _as_arrays(values: Sequence[Any]) -> Sequence[Any]:
    """Return ``values`` as arrays of one dtype if they are lists of numbers.

    Anything else is returned unchanged.
    """
    for value in values:
        if type(value) is not list:
            return values
        if not _NUMBERS.issuperset(map(type, value)):
            return values
    numbers = [*chain.from_iterable(values)]
    dtype = np.array(numbers).dtype
    # Integers beyond 64 bits would become objects.
    if dtype.hasobject:
        return values
    return [np.array(value, dtype) for value in values]


def _are_arrays(leaves: Sequence[_Form]) -> TypeGuard[Sequence[Array]]:
    """Return True if all are arrays with the same number of dimensions."""
    dimensions = set[int]()
    for leaf in leaves:
        if not isinstance(leaf, Array):
            return False
        dimensions.add(len(leaf.shape))
    return len(dimensions) <= 1


def _are_jagged(leaves: Sequence[_Form]) -> bool:
    """Return True if all are arrays that differ in their first dimension only."""
    first = leaves[0]
    if not isinstance(first, Kind):
        return False
    for leaf in leaves:
        if not isinstance(leaf, Kind) or widened(first, leaf) is None:
            return False
    return True


def _leaves(values: Sequence[Any]) -> list[_Form]:
    leaves: list[_Form] = []
    for value in values:
        if type(value) is list:
            leaves.append(len(value))
        else:
            leaves.append(leaf_for(value) or Aside())
    return leaves


def _differing(leaves: list[_Form]) -> int | None:
    """Return the first row whose leaf differs from row 0's; None if there is none.

    None also if no leaf would make a column.
    """
    if not any(isinstance(leaf, (Kind, int)) for leaf in leaves):
        return None
    for row, leaf in enumerate(leaves):
        if leaf != leaves[0]:
            return row
    return None


def _stacked(leaf: _Form, values: Sequence[Any]) -> Any:
    """Return ``values`` as a column if they fit one, else as a list.

    They are even in this batch, but may be objects that never make a column.
    """
    if not isinstance(leaf, Kind):
        return list(values)
    column = np.empty((len(values), *leaf.shape), leaf.dtype)
    if leaf.write(column, 0, list(values)):
        return leaf.stack(column)
    return list(values)


def _shown(value: Any) -> str:
    if type(value) is list:
        return f"list of {len(value)}"
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} {tuple(shape)} of {value.dtype}"
    shown = f"{value!r:.40}"
    if type(value) is int and leaf_for(value) is None:
        return f"{shown}, beyond int64,"
    return shown


def _asides_in(contents: Contents) -> Iterator[Sequence[Any]]:
    """Return an iterator over the values of each leaf that has no column."""
    if not contents.asides:
        return iter(())
    if isinstance(contents.asides, Rows):
        return iter(contents.asides.columns)
    return iter(list(zip(*contents.asides, strict=True)))


def samples_of(contents: Contents) -> list[Any]:
    """Return the batch as a list of samples, made of the columns' rows.

    Samples that didn't fit the columns are in it unchanged.
    """
    samples = contents.objects
    if samples is None:
        columns = iter(contents.columns)
        asides = _asides_in(contents)
        absent = contents.failed.union(contents.odd)
        samples = [*gather(contents.tree, columns, asides, contents.rows, absent)]
        for row, sample in contents.odd.items():
            samples[row] = sample
    failed = contents.failed
    if not failed:
        return samples
    return [sample for row, sample in enumerate(samples) if row not in failed]


def columns_of(
    contents: Contents,
    settle: Settle = _listed,
    stacks: Stacker | None = None,
) -> Any:
    """Return the batch as one tree of columns.

    ``settle`` turns values that can't be stacked into a column.
    """
    if _is_stacked(contents):
        return _columns_in(contents, settle)
    return collate(samples_of(contents), settle, stacks)


def _columns_in(contents: Contents, settle: Settle) -> Any:
    columns = iter(contents.columns)
    asides = _asides_in(contents)
    return _stack(contents.tree, columns, asides, contents.rows, settle, ())


def _stack(
    node: Node,
    columns: Iterator[Any],
    asides: Iterator[Sequence[Any]],
    rows: int,
    settle: Settle,
    route: Route,
) -> Any:
    """Return the subtree ``node`` with columns in place of its leaves.

    ``route`` is where it lies in the sample.
    """
    if isinstance(node, Ragged):
        return _rows_of(node, next(columns), settle, route)
    if isinstance(node, Kind):
        return node.stack(next(columns))
    if isinstance(node, Aside):
        return settle(route, next(asides))
    # With these ways of settling, a list is a value if it can be one: only its contents
    # tell, so they are put together first, and taken apart again if it is none.
    if node.kind == "list" and settle in _KEEPING:
        count = len([*leaves_of(node)])
        mine = [*islice(columns, count)]
        others = [*islice(asides, asides_of(node))]
        lists = gather(node, iter(mine), iter(others), rows)
        if _are_values(lists):
            return settle(route, lists)
        columns = iter(mine)
        asides = iter(others)
    found = []
    for at, part in enumerate(node.parts):
        # A column needs no route.  Most parts are columns, and a call of this function
        # for each of them would double the time.
        if isinstance(part, Kind) and not part.is_ragged:
            found.append(part.stack(next(columns)))
        else:
            inner = (*route, (node, at))
            found.append(_stack(part, columns, asides, rows, settle, inner))
    return node.build(found)


def _rows_of(
    leaf: Ragged,
    column: Any,
    settle: Settle,
    route: Route,
) -> Any:
    """Return what a batch shows of a ragged column: an array if its rows are even."""
    if settle is _jagged or leaf.is_even(column):
        return leaf.stack(column)
    return settle(route, leaf.read(column))


def _is_stacked(contents: Contents) -> bool:
    """Return True if all samples of the batch lie in the columns."""
    if not contents.rows or contents.odd or contents.failed:
        return False
    return not isinstance(contents.tree, Aside)


def stacked_in(batch: Batch[Any]) -> Contents | None:
    """Return a batch's contents if all samples lie in columns, else None."""
    contents = batch._contents
    if contents is None or not _is_stacked(contents):
        return None
    return contents


def columns_in_place(batch: Batch[Any]) -> Any | None:
    """Return the columns if the samples are stacked already, else None.

    Samples that are lists or dicts must be collated, since they may have been modified
    in place.
    """
    contents = stacked_in(batch)
    if contents is None:
        return None
    if len(batch) != contents.rows or _is_mutable(contents.tree):
        return None
    return batch.columns


def _is_mutable(node: Node) -> bool:
    if not isinstance(node, Group):
        return False
    if node.kind not in ("tuple", "namedtuple"):
        return True
    return any(map(_is_mutable, node.parts))


def _built(sample: object) -> str:
    name = type(sample).__name__
    if isinstance(sample, Mapping):
        return f"{name} with {', '.join(map(repr, sample))}"
    if isinstance(sample, (list, tuple)):
        return f"{name} of {len(sample)}"
    return name


def collate(
    samples: Sequence[Any],
    settle: Settle = _listed,
    stacks: Stacker | None = None,
) -> Any:
    """Return samples stacked into columns.

    ``settle`` decides what values that fit no column become.
    """
    if type(samples) is not list and isinstance(samples, Mapping):
        raise TypeError(
            f"a batch is made of a list of samples, not of a {type(samples).__name__}; "
            "pass a collate_fn."
        )
    if not len(samples):
        return []
    found = (stacks or stacked)(samples)
    if found is not None:
        return _columns_in(found, settle)
    # Some samples aren't built like the first one, so a tree is needed that fits all.
    tree, seen = tree_of(samples)
    if tree is None:
        row = seen - 1
        raise TypeError(
            "the samples of this batch are built differently: "
            f"{_built(samples[0]):.100} in its row 0, {_built(samples[row]):.100} in "
            f"row {row}, or something in them.  So it has no columns: build them alike "
            "in the dataset, pass a collate_fn to a loader, or use the iterators, "
            "whose batches are lists."
        )
    found = stacked(samples, tree)
    assert found is not None, "a tree merged from all samples fits them all"
    return _columns_in(found, settle)


def stacked(samples: Sequence[Any], tree: Node | None = None) -> Contents | None:
    """Return the samples in columns as ``tree`` says; None if one doesn't fit.

    By default the tree is that of the first sample.
    """
    if tree is None:
        tree = describe(samples[0])
    if type(samples) is Rows:
        found = _in_place(samples, tree)
        if found is not None:
            return found
    rows = len(samples)
    columns = [np.empty((rows, *leaf.shape), leaf.dtype) for leaf in leaves_of(tree)]
    asides: list[Sequence[Any]] = []
    if not scatter(tree, samples, iter(columns), 0, asides):
        return None
    contents = Contents(tree, rows, columns)
    if asides:
        contents.asides = Rows(tuple(asides), rows)
    return contents


def _in_place(samples: Rows, tree: Node) -> Contents | None:
    """Return samples that lie in columns already, without another copy.

    None if they don't, or if the columns would have other dtypes and shapes.
    """
    if isinstance(samples.columns, dict):
        parts = [*samples.columns.values()]
    else:
        parts = [*samples.columns]
    leaves: tuple[Node, ...] = ()
    if isinstance(tree, Group):
        leaves = tree.parts
    if len(parts) != len(leaves):
        return None
    columns = []
    for part, leaf in zip(parts, leaves, strict=True):
        if not isinstance(leaf, Kind):
            return None
        column = leaf.in_place(part)
        if column is None or column.dtype != leaf.dtype:
            return None
        if column.shape[1:] != leaf.shape:
            return None
        if not column.flags.c_contiguous:
            return None
        columns.append(column)
    return Contents(tree, len(samples), columns)


class Stacker:
    """Stacks batches, trying the tree of the previous batch first.

    Trying is cheaper than describing a sample.  A tree with values that have no column
    isn't kept, since any value would fit there.
    """

    def __init__(self) -> None:
        self._tree: Node | None = None

    def __call__(self, samples: Sequence[Any]) -> Contents | None:
        if self._tree is not None:
            found = stacked(samples, self._tree)
            if found is not None:
                return found
        found = stacked(samples)
        if found is None or found.asides:
            self._tree = None
        else:
            self._tree = found.tree
        return found

    def columns(self, samples: list[Any]) -> Any:
        """Return the columns of samples that have the tree of the previous batch.

        None if they have another one, or one that isn't flat.
        """
        tree = self._tree
        leaves: Sequence[Node | None]
        parts: Sequence[Sequence[Any]] | None
        is_tuple = isinstance(tree, Group) and tree.kind == "tuple"
        if isinstance(tree, Group) and is_tuple:
            leaves = tree.parts
            parts = tree.split(samples)
        else:
            leaves = (tree,)
            parts = [samples]
        if parts is None:
            return None
        found = []
        for leaf, values in zip(leaves, parts, strict=True):
            if not isinstance(leaf, Kind):
                return None
            column = np.empty((len(samples), *leaf.shape), leaf.dtype)
            if not leaf.write(column, 0, values):
                return None
            found.append(leaf.stack(column))
        if not found:
            return None
        if is_tuple:
            return tuple(found)
        return found[0]


def differing(samples: object) -> tuple[int, ...]:
    """Return 0 and the first row that differs from row 0; () if none does.

    Rows differ by shape, type or structure.  If a sample's own kind of leaf fails while
    it splits the sample, return that row alone.
    """
    if not isinstance(samples, list):
        return ()
    trees = list[Node]()
    for row, sample in enumerate(samples):
        try:
            trees.append(describe(sample))
        except LeafError:
            return (row,)
    for row, tree in enumerate(trees):
        if tree != trees[0]:
            return 0, row
    return ()


def differing_in(contents: Contents) -> tuple[int, ...]:
    """Return the rows that ``differing`` names among the samples of a batch."""
    try:
        samples = samples_of(contents)
    except LeafError:
        # A leaf of the program's can't put its values together again.
        return ()
    return differing(samples)


# Stands for the contents of a batch that is only a list: it has the samples, and its
# columns are stacked from them when they are asked for.
_ROWS = Contents(Aside(), 0)


class Batch(list[T]):
    """A list of samples; ``columns`` has the same samples stacked.

    The columns of samples that workers fetched take no copy.

    >>> from mpiter import SerialIterator
    >>> batch = next(SerialIterator([(0, "a"), (1, "b")], 2, shuffle=False))
    >>> batch
    [(0, 'a'), (1, 'b')]
    >>> batch.columns
    (array([0, 1]), ['a', 'b'])
    """

    __slots__ = ("_contents", "_stacked")
    # None once the list was changed.  Then the columns are stacked anew each time.
    _contents: Contents | None

    def __init__(self, contents: Contents) -> None:
        super().__init__(samples_of(contents))
        self._contents = contents
        self._stacked: Any = None

    @classmethod
    def of_rows(cls, samples: list[T]) -> Batch[T]:
        """Return a batch of ``samples`` that this process fetched.

        Its columns are stacked when they are asked for.
        """
        batch = cls.__new__(cls)
        list.__init__(batch, samples)
        batch._contents = _ROWS
        batch._stacked = None
        return batch

    @property
    def columns(self) -> Any:
        """The stacked samples: ``x, y = batch.columns``.

        A sample's container, with an array (or a list) for each part.
        """
        if self._contents is None:
            return collate(self)
        if self._stacked is None:
            if self._contents is _ROWS:
                self._stacked = collate([*self])
            else:
                self._stacked = columns_of(self._contents)
        return self._stacked

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def _detaching(name: str) -> Callable[..., Any]:
    """Return the list method ``name`` such that the batch also forgets its columns.

    It is for methods that modify a list.
    """
    method = getattr(list, name)

    @functools.wraps(method)
    def changed(self: Batch[Any], *args: Any, **kwargs: Any) -> Any:
        self._contents = self._stacked = None
        return method(self, *args, **kwargs)

    return changed


for _name in (
    "__setitem__",
    "__delitem__",
    "__iadd__",
    "__imul__",
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "remove",
    "reverse",
    "sort",
):
    setattr(Batch, _name, _detaching(_name))
