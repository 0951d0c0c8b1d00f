"""Texts of samples that come together lie in a column of the batch's memory."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journeys import Journey
from samples import assert_same
from scripts import lives_still, wait_until

import mpiter
from mpiter.samples.batch import columns_of, samples_of
from mpiter.samples.rows import Rows
from mpiter.samples.texts import TextColumn, Texts

# Also those that UTF-8 can't hold, and those with the sign that ends each.
texts = st.text(st.characters(), max_size=8) | st.sampled_from(
    ["", "\0", "a\0b", "ä", "\ud800", "日本", "😀" * 3]
)
columns = st.one_of(
    st.lists(texts, min_size=2, max_size=9),
    st.lists(texts | st.none(), min_size=2, max_size=9),
    st.lists(st.binary(max_size=9) | st.none(), min_size=2, max_size=9),
)


def together(journey: Journey, row: int, values: list[Any]) -> bool:
    """Write samples with these texts into the rows from ``row`` on, at once."""
    sheet = journey.sheet(row, len(values))
    numbers = np.arange(row, row + len(values))
    taken = sheet.together(0, Rows((numbers, values), len(values)))
    if taken:
        journey.arrive(row, len(values), sheet)
    return taken


def in_columns(values: list[Any], **options: Any) -> Journey:
    """Return a journey whose layout has seen such texts come together."""
    samples = [*zip(np.arange(len(values)), values, strict=True)]
    journey = Journey(samples, **options)
    assert together(journey, 0, values)
    journey.contents()
    journey.begin_anew(samples)
    return journey


def has_text_column(journey: Journey) -> bool:
    return any(isinstance(leaf, TextColumn) for leaf, _ in journey.layout.leaves)


@settings(max_examples=200)
@given(
    values=columns,
    at_once=st.integers(1, 4),
    singly=st.booleans(),
    travels=st.booleans(),
    copies=st.booleans(),
)
def test_texts_come_back_as_they_were(values, at_once, singly, travels, copies):
    journey = in_columns(values, travels=travels, copy=copies)
    is_known = any(value is not None for value in values)
    assert has_text_column(journey) == is_known
    for row in range(0, len(values), at_once):
        some = values[row : row + at_once]
        if singly or not together(journey, row, some):
            journey.fetch(row, journey.batch[row : row + at_once])
    contents = journey.contents()
    for sent, got in zip(journey.batch, samples_of(contents), strict=True):
        assert_same(sent, got)
    numbers, found = columns_of(contents)
    assert found == values
    assert [*map(type, found)] == [*map(type, values)]
    assert numbers.tolist() == [*range(len(values))]


@settings(max_examples=100)
@given(values=columns, order=st.permutations(range(9)))
def test_rows_that_failed_leave_the_others_as_they_are(values, order):
    journey = in_columns(values)
    there = [row for row in order if row < len(values)][1:]
    for row in there:
        journey.fetch(row, journey.batch[row : row + 1])
    failed = frozenset(range(len(values))).difference(there)
    found = samples_of(journey.contents(failed))
    assert found == [journey.batch[row] for row in sorted(there)]


@given(values=columns)
def test_texts_are_a_list_that_is_made_once(values):
    found = Texts.of(values)
    if found is None:
        assert {*values} == {None}
        return
    assert len(found) == len(values)
    assert [*found] == found.tolist() == values
    assert found[0] == values[0]
    assert found.tolist() is found.tolist()


@pytest.mark.parametrize("values", [["a", b"b"], [1, 2], ["a", 2], [None], [["a"]]])
def test_other_values_are_no_texts(values):
    assert Texts.of(values) is None


def words(count: int, longest: int = 40) -> list[str]:
    rng = np.random.default_rng(3)
    return ["ä" * int(size) for size in rng.integers(0, longest, count)]


@pytest.mark.parametrize(
    "options",
    [
        {"n_processes": 0},
        {"n_processes": 1},
        {"n_processes": 3},
        {"n_processes": 2, "backend": "thread"},
    ],
)
def test_a_table_with_texts_reads_the_same_with_all_workers(options):
    table = {"at": np.arange(3000), "text": words(3000), "raw": [b"\0" * 3] * 3000}
    at = 0
    with mpiter.batches(table, 70, shuffle=False, epochs=1, **options) as stream:
        for batch in stream:
            rows = len(batch["at"])
            assert batch["text"] == table["text"][at : at + rows]
            assert batch["raw"] == table["raw"][at : at + rows]
            at += rows
    assert at == 3000


def test_texts_that_grow_and_values_that_stop_being_texts_come_back():
    growing = ["x" * (at // 10) for at in range(4000)]
    mixed: list[Any] = [*words(4000)]
    mixed[2500:3000] = range(500)
    table = {"at": np.arange(4000), "growing": growing, "mixed": mixed}
    at = 0
    options = {"n_processes": 2, "shuffle": False, "ragged": "list", "epochs": 1}
    with mpiter.batches(table, 64, **options) as stream:
        for batch in stream:
            rows = len(batch["at"])
            assert batch["growing"] == growing[at : at + rows]
            assert [*batch["mixed"]] == mixed[at : at + rows]
            at += rows
    assert at == 4000


def test_a_killed_worker_costs_no_text():
    table = {"at": np.arange(20_000), "text": [f"text {at}" for at in range(20_000)]}
    seen = list[int]()
    kills = 0
    with mpiter.batches(table, 50, n_processes=2, seed=1, epochs=1) as stream:
        for batch in stream:
            numbers = batch["at"].tolist()
            assert batch["text"] == [f"text {at}" for at in numbers]
            seen += numbers
            if len(seen) // 5000 > kills:
                kills += 1
                pid = stream.worker_pids[kills % 2]
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: not lives_still(pid), "it is dead")
    assert kills == 4
    assert sorted(seen) == [*range(20_000)]
