"""A state of packed rows goes on exactly, or says what has become another."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import numpy as np
import pytest
from documents import Documents, lognormal, tokens_in

import mpiter
from mpiter.language import Balanced

WEB = Documents(lognormal(100, most=40))
CODE = Documents(lognormal(60, 1, most=40), 101)
ALL = WEB.tokens() + CODE.tokens()
HOWS = ["fit", "cut"]


def mixture(web: float = 1, length: int | None = None, code: Any = CODE) -> Any:
    short: Any = "renormalise" if length is None else "repeat"
    return mpiter.Mix(
        {"web": WEB, "code": code}, {"web": web, "code": 1}, short, length
    )


def pack(dataset: Any, capacity: int = 64, how: Any = "fit", **options: Any) -> Any:
    return mpiter.Pack(dataset, capacity, how, **{"window": 32, **options})


def stream_of(dataset: Any, state: Any = None, **options: Any) -> Any:
    options = {"n_processes": 0, "seed": 3, **options}
    stream = mpiter.batches(dataset, 1, **options)
    if state is not None:
        stream.load_state_dict(json.loads(state))
    return stream


def begun(dataset: Any, rows: int) -> tuple[list[Any], str]:
    """Return the first rows, and the state behind them."""
    stream = stream_of(dataset)
    given = [*itertools.islice(stream, rows)]
    return given, json.dumps(stream.state_dict())


# At a window's beginning nothing is packed yet, and any rule goes on.
@pytest.mark.parametrize("rows", range(1, 12, 2))
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"capacity": 96},
            "capacity=64, and this Pack has capacity=96, .* pass cap.*=64 to",
        ),
        (
            {"capacity": 48},
            "capacity=64, and this Pack has capacity=48, .* pass cap.*=64 to",
        ),
        (
            {"long": "drop"},
            "long='split', and this Pack has long='drop', .* pass long='split' to",
        ),
    ],
)
def test_rows_of_another_rule_go_on_exactly_or_are_refused(
    options: Any, text: str, rows: int
) -> None:
    capacity = 32 if "long" in options else 64
    options = {"capacity": capacity, "long": "split", **options}
    given, state = begun(pack(mixture(), capacity, long="split"), rows)
    with contextlib.suppress(mpiter.StateError):
        stream = stream_of(pack(mixture(), **options), state)
        assert tokens_in([*given, *stream]) == ALL
        return
    with pytest.raises(mpiter.StateError, match=text):
        stream_of(pack(mixture(), **options), state)


def test_what_becomes_of_long_documents_may_change_where_there_are_none() -> None:
    given, state = begun(pack(mixture()), 4)
    assert tokens_in([*given, *stream_of(pack(mixture(), long="drop"), state)]) == ALL


@pytest.mark.parametrize("rows", [1, 5, 17])
@pytest.mark.parametrize("capacity", [32, 77, 128])
def test_cut_rows_go_on_exactly_in_rows_of_another_length(
    capacity: int, rows: int
) -> None:
    given, state = begun(pack(mixture(), 64, "cut"), rows)
    stream = stream_of(pack(mixture(0.2), capacity, "cut"), state)
    assert tokens_in(given) + tokens_in(stream) == ALL


def test_other_lengths_and_another_shuffle_are_refused() -> None:
    _, state = begun(pack(mixture()), 4)
    other = Documents(CODE.lengths[::-1], 101)
    text = "documents that the state's window has, or their lengths, are others now"
    with pytest.raises(mpiter.StateError, match=text):
        stream_of(pack(mixture(code=other)), state)
    with pytest.raises(mpiter.StateError, match=text):
        stream_of(pack(mixture()), state, shuffle=False)


@pytest.mark.parametrize("rows", range(1, 12, 3))
@pytest.mark.parametrize("how", HOWS)
def test_other_weights_hold_through_a_balanced_dataset(how: Any, rows: int) -> None:
    def dataset(web: float) -> Any:
        mix = mixture(web)
        return pack(Balanced(Balanced(mix)), 64, how, lengths=mix.lengths)

    given, state = begun(dataset(1), rows)
    assert tokens_in([*given, *stream_of(dataset(0.2), state)]) == ALL


class Backwards(mpiter.Order):
    """The user's order: begins with so many documents from the end."""

    def __init__(self, last: int) -> None:
        self.last = last

    def __len__(self) -> int:
        return len(WEB)

    def take(self, start: int, stop: int) -> Any:
        keys = np.roll(np.arange(len(WEB)), self.last)
        return keys[start:stop]

    def later(self, epochs: int) -> Backwards:
        return self

    def state(self, position: int) -> Any:
        return position

    def restored(self, state: Any, position: int) -> Backwards:
        return self


class Ordered(Documents):
    """Documents of one length that bring this order."""

    def __init__(self, last: int) -> None:
        super().__init__([9] * len(WEB))
        self.last = last

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Any:
        return Backwards(self.last)


def test_an_order_that_goes_on_with_other_documents_is_refused() -> None:
    given, state = begun(pack(Ordered(7)), 3)
    whole = tokens_in([*given, *stream_of(pack(Ordered(7)), state)])
    assert whole == Ordered(0).tokens()
    with pytest.raises(mpiter.StateError, match="documents that the state's window"):
        stream_of(pack(Ordered(8)), state)


@pytest.mark.parametrize("how", HOWS)
def test_a_window_that_is_to_begin_ends_with_a_shorter_epoch(how: Any) -> None:
    """What comes behind the epoch's end comes in the next one, and not twice."""

    def dataset(length: int) -> Any:
        parts = {"web": Documents([16] * 100)}
        mix = mpiter.Mix(parts, {"web": 1}, length=length)
        return pack(mix, 64, how)

    # Each window has 8 rows of 4 documents.
    given, state = begun(dataset(100), 16)
    stream = stream_of(dataset(72), state)
    rest = [*stream]
    given += rest
    assert len(rest) == 2
    # The next epoch's first window has 4 documents of the next pass.
    given += itertools.islice(iter(stream), 8)
    counts = tokens_in(given)
    assert len(counts) == 100
    assert sorted(counts.values()) == [16] * 96 + [32] * 4


@pytest.mark.parametrize(
    "wrap", [lambda rows: rows, lambda rows: Balanced(rows, lengths=[64] * len(rows))]
)
def test_a_pack_around_a_mixture_is_refused_as_a_component(wrap: Any) -> None:
    text = "component 'x': a Pack around a Mix can't be a component: .* Pack each"
    with pytest.raises(mpiter.OptionError, match=text):
        mpiter.Mix({"x": wrap(pack(mixture()))}, {"x": 1})
    # These have as many rows in each pass.
    rows = mpiter.Mix({"x": pack(mixture(), how="cut")}, {"x": 1}, "renormalise")
    assert tokens_in(stream_of(rows)) == ALL


def test_cut_rows_whose_number_changes_are_refused_in_the_same_words() -> None:
    rows = mpiter.Mix({"x": pack(mixture(length=70), how="cut")}, {"x": 1}, length=900)
    text = "component 'x': a Pack around a Mix can't be a component"
    with pytest.raises(mpiter.OptionError, match=text):
        list(stream_of(rows))
