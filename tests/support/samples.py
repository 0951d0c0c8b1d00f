"""Hypothesis strategies for samples, and a strict comparison of samples."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Plain:
    a: Any
    b: Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any = 0


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = 0


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    a: Any
    b: Any = 0


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class MyDict(dict): ...


class MyList(list): ...


class MyTuple(tuple):
    __slots__ = ()


class MyInt(int): ...


class MyArray(np.ndarray): ...


DATACLASSES = (Plain, Frozen, Slotted, FrozenSlotted)

orders = st.sampled_from("=<>")
# There is no q, because NumPy unpickles it as l.
_CODES = [*"?bBhHiIlLefdgFDG", "S3", "U2", "V5", "S0", "U0"]
scalar_dtypes = st.sampled_from(_CODES).flatmap(
    lambda code: orders.map(lambda order: np.dtype(code).newbyteorder(order))
) | st.sampled_from(
    ["M8[D]", "M8[ns]", "m8[s]", "m8[ms]", ">M8[us]", ">m8[7D]", "M8"]
).map(np.dtype)
structured = st.lists(scalar_dtypes, min_size=1, max_size=3).flatmap(
    lambda parts: st.sampled_from(
        [
            np.dtype([(f"f{at}", part) for at, part in enumerate(parts)]),
            np.dtype([(f"f{at}", part) for at, part in enumerate(parts)], align=True),
            np.dtype(
                [
                    ("in", [(f"f{at}", part) for at, part in enumerate(parts)]),
                    ("more", "i2", (2, 2)),
                ]
            ),
        ]
    )
)
dtypes = scalar_dtypes | structured
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def filled(shape, dtype, seed):
    """Return an array of valid values of ``dtype``.

    Its layout depends on ``seed``.
    """
    rng = np.random.default_rng(seed)
    wide = (*shape[:-1], shape[-1] * 2) if shape else ()
    whole = np.zeros(wide, dtype)
    fill(whole, rng)
    if shape:
        whole = whole[..., ::2]
    if seed % 3 == 0:
        return np.asfortranarray(whole)
    if seed % 3 == 1:
        return whole
    if shape:
        return whole[::-1]
    return whole.copy()


def fill(array, rng):
    if array.dtype.names is not None:
        for name in array.dtype.names:
            fill(array[name], rng)
    elif array.dtype.kind == "U":
        array[...] = rng.choice(np.array(["", "a", "é\U0001f40d"]), array.shape)
    elif array.dtype.kind in "SV":
        array[...] = np.frombuffer(rng.bytes(3), f"{array.dtype.kind}3")[0]
    elif array.dtype.kind == "b":
        array[...] = rng.integers(0, 2, array.shape)
    elif array.dtype.kind in "fc":
        array[...] = rng.choice(
            np.array([0.0, -0.0, 1.5, math.nan, math.inf, 0.1]), array.shape
        )
    else:
        array[...] = rng.integers(0, 100, array.shape).astype(array.dtype)


arrays = st.builds(filled, shapes, dtypes, st.integers(0, 99))
_ODD_ARRAYS = [
    np.ma.masked_array([1, 2, 3], [0, 1, 0], fill_value=7),
    # The byte order is native, since NumPy's own pickle makes it so.
    np.ma.masked_array(np.arange(4.0).reshape(2, 2), np.eye(2)),
    np.arange(4).view(MyArray),
    np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]).view(np.recarray),
    np.zeros(2, np.dtype((np.record, [("a", "i4")]))),
    np.array([1, "two", None, [3]], object),
    np.array([("x", 1)], [("o", object), ("i", "i4")]),
    np.zeros(2, {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]}),
]
numbers = (
    st.booleans()
    | st.integers()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.complex_numbers()
    | st.sampled_from([1 << 63, -(1 << 63), (1 << 63) - 1, -0.0, MyInt(3), Level.LOW])
)
scalars = st.builds(
    lambda d, s: filled((1,), d, s)[0], scalar_dtypes | structured, st.integers(0, 99)
)
# If all letters were allowed, Hypothesis would take seconds to collect them.
text = functools.partial(st.text, "aB~.\0\n\u00e9\u6f22\U0001f40d")
_OTHERS = [
    None,
    Colour.RED,
    Colour.BLUE,
    pathlib.PurePosixPath("a/b"),
    ...,
    bytearray(b"xy"),
    frozenset({1}),
    {1, 2},
]
others = (
    text(max_size=4) | st.binary(max_size=4) | st.sampled_from([*_OTHERS, len, int])
)
leaves = arrays | st.sampled_from(_ODD_ARRAYS) | numbers | scalars | others
_KEYS = [1.0, (1, True), np.str_("a")]
keys = (
    text(max_size=2)
    | st.integers(-2, 2)
    | st.booleans()
    | st.none()
    | st.sampled_from(_KEYS)
)


def containers(inner):
    several = st.lists(inner, max_size=3)
    pairs = st.dictionaries(keys, inner, max_size=3)
    return (
        several.map(tuple)
        | several
        | pairs
        | st.builds(Point, inner, inner)
        | st.sampled_from(DATACLASSES).flatmap(lambda cls: st.builds(cls, inner, inner))
        | several.map(MyList)
        | several.map(MyTuple)
        | pairs.map(MyDict)
        | pairs.map(collections.OrderedDict)
        | pairs.map(lambda pairs: collections.defaultdict(list, pairs))
    )


samples = st.recursive(leaves, containers, max_leaves=6)


def like(draw, sample):
    """Draw a sample of the same form with other values, as in most batches."""
    kind = type(sample)
    if (
        kind is np.ndarray
        and not sample.dtype.hasobject
        and sample.dtype.type is not np.record
    ):
        return filled(sample.shape, sample.dtype, draw(st.integers(0, 99)))
    if kind in (tuple, list):
        return kind(like(draw, part) for part in sample)
    if kind is dict:
        return {key: like(draw, part) for key, part in sample.items()}
    if kind is Point or kind in DATACLASSES:
        parts = sample if kind is Point else [sample.a, sample.b]
        return kind(*(like(draw, part) for part in parts))
    if kind in (int, float, bool):
        return kind(draw(st.integers(0, 5)))
    return sample


def assert_same(sent, got):
    """Compare value, exact type, dtype, byte order, shape and mask.

    NaN equals NaN, and −0 differs from 0.
    """
    assert type(got) is type(sent)
    if isinstance(sent, (np.ndarray, np.generic)):
        assert got.dtype == sent.dtype
        assert got.dtype.type is sent.dtype.type or sent.dtype.kind != "V"
        assert got.shape == sent.shape
        if isinstance(sent, np.ma.MaskedArray):
            assert_same(np.ma.getmaskarray(sent), np.ma.getmaskarray(got))
            assert got.fill_value == sent.fill_value
            sent = sent.data
            got = got.data
        assert_same_values(np.asarray(sent), np.asarray(got))
    elif dataclasses.is_dataclass(sent) and not isinstance(sent, type):
        for field in dataclasses.fields(sent):
            assert_same(getattr(sent, field.name), getattr(got, field.name))
    elif isinstance(sent, dict):
        assert len(sent) == len(got)
        for (key, value), (other, theirs) in zip(
            sent.items(), got.items(), strict=True
        ):
            assert_same(key, other)
            assert_same(value, theirs)
        factory = getattr(got, "default_factory", None)
        assert getattr(sent, "default_factory", None) is factory
    elif isinstance(sent, (tuple, list, collections.deque)):
        assert len(sent) == len(got)
        for one, other in zip(sent, got, strict=True):
            assert_same(one, other)
    elif isinstance(sent, (float, complex)):
        assert repr(sent) == repr(got)
    else:
        assert sent == got


def assert_same_values(sent, got):
    if sent.dtype.hasobject:
        assert sent.tolist() == got.tolist()
    elif sent.dtype.names is not None:
        for name in sent.dtype.names:
            assert_same_values(sent[name], got[name])
    elif sent.dtype.kind in "fc":
        assert np.array_equal(sent, got, equal_nan=True)
        assert np.array_equal(np.signbit(sent.real), np.signbit(got.real))
    else:
        assert sent.tobytes() == got.tobytes()


def arrays_in(value):
    """Yield every ndarray within a sample, at any depth."""
    if isinstance(value, np.ndarray):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from arrays_in(getattr(value, field.name))
    elif isinstance(value, dict):
        for part in value.values():
            yield from arrays_in(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from arrays_in(part)
