"""``Packed`` holds many small objects in one piece of memory.

The items come back as they were, and workers share the memory.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from datasets import Looked, Pair, file_of
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import assert_same, samples
from scripts import METHODS

import mpiter
from mpiter import Packed
from mpiter.datasets import packed, ship

ITEMS: list[Any] = [
    {"name": f"{number}.jpg", "box": (number, 1), "tags": ["a"] * (number % 3)}
    for number in range(50)
]


# -- what comes back -------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(samples, max_size=4))
def test_items_come_back_with_value_and_type(items: list[Any]) -> None:
    mine = Packed(items)
    assert_same(items, list(mine))
    assert_same(items, list(pickle.loads(pickle.dumps(mine))))


class Text(str): ...


class Number(float): ...


CORNERS: list[Any] = [
    *(
        {},
        [{}],
        (),
        ((),),
        [()],
        {"a": {"b": [1, (2,)]}},
        {2: "a", "b": 1, None: 3, 1.5: 4, b"k": 5, False: 6},
    ),
    *(
        {(1, 2): 3},
        (1 << 64) - 1,
        1 << 64,
        -(1 << 63),
        -(1 << 63) - 1,
        [1 << 80],
        [True, 1, 1.0],
        True,
    ),
    *(
        float("nan"),
        -0.0,
        {"a": Number(1)},
        Number("inf"),
        np.float64(1.5),
        [np.int8(3)],
        1j,
        range(3),
        {1, 2},
    ),
    *(
        "\ud800",
        {"\udcff": 1},
        Text("a"),
        {Text("a"): 1},
        b"\xc1",
        b"",
        bytearray(b"ab"),
        {"a": [bytearray(b"ab")]},
    ),
    *(
        msgpack.ExtType(5, b"ab"),
        [msgpack.Timestamp(1, 2)],
        Pair(1, 2),
        [Pair([1], (2,))],
        np.arange(3, dtype=">i2"),
    ),
    *("x" * 70_000, list(range(70_000))),
]


def test_what_packing_could_lose() -> None:
    for item, got in zip(CORNERS, Packed(CORNERS), strict=True):
        assert_same(item, got)
        if isinstance(item, dict):
            assert_same(list(item), list(got))


def test_items_within_themselves_and_deep_ones() -> None:
    around: list[Any] = []
    around.append(around)
    deep: list[Any] = []
    for _ in range(250):
        deep = [deep]
    round_again, deep_again = Packed([around, deep])
    assert round_again[0] is round_again
    assert deep_again == deep


def test_classes_and_functions_of_no_name() -> None:
    class Local:
        def __init__(self, number: int) -> None:
            self.number = number

    one, other, function, number = Packed([Local(1), Local(2), lambda: 3, 4])
    assert (type(one), one.number, type(other), other.number) == (Local, 1, Local, 2)
    assert (function(), number) == (3, 4)


# -- a sequence ------------------------------------------------------------------------

SLICES = [
    slice(3, 7),
    slice(None, None, -1),
    slice(-5, None),
    slice(40, 5, -7),
    slice(60, 70),
    slice(None),
]


def test_slices_are_those_of_a_list_on_the_same_memory() -> None:
    mine = Packed(ITEMS)
    for cut in SLICES:
        part = mine[cut]
        assert type(part) is Packed
        assert list(part) == ITEMS[cut]
        assert list(part[1:][::2]) == ITEMS[cut][1:][::2]
        assert file_of(part) == file_of(mine)
        assert list(pickle.loads(pickle.dumps(part))) == ITEMS[cut]
    assert list(Packed(part)) == list(part)
    assert file_of(Packed(part)) != file_of(mine)


def test_it_is_a_sequence_like_a_list() -> None:
    mine = Packed(ITEMS)
    assert (len(mine), mine[0], mine[-1], mine[np.int64(7)]) == (
        50,
        ITEMS[0],
        ITEMS[-1],
        ITEMS[7],
    )
    assert list(reversed(mine)) == ITEMS[::-1]
    assert ITEMS[20] in mine
    assert "nothing" not in mine
    assert (mine.index(ITEMS[9]), mine.count(ITEMS[9])) == (9, 1)
    assert list(mine) == list(Packed(iter(ITEMS))) == ITEMS
    for beyond in (50, -51):
        with pytest.raises(IndexError, match=f"no item {beyond} among 50"):
            mine[beyond]
    assert repr(mine) == f"<Packed: 50 items in {mine.nbytes / 1e3:.1f} kB>"
    assert len(Packed([])) == 0
    assert list(Packed([])) == list(pickle.loads(pickle.dumps(Packed([])))) == []


def test_it_is_read_only_and_what_it_gives_is_the_callers() -> None:
    mine: Any = Packed(ITEMS)
    mine[0]["name"] = "lost"
    assert mine[0] == ITEMS[0]
    with pytest.raises(TypeError):
        mine[0] = {}
    with pytest.raises(TypeError):
        del mine[0]
    with pytest.raises(AttributeError):
        mine.anything = 1


# -- making one ------------------------------------------------------------------------


class Seen(list):  # type: ignore[type-arg]
    """A list that can have weak references."""


def test_a_generators_items_never_stand_in_memory_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "_AT_ONCE", 100)
    alive: list[weakref.ref[Any]] = []

    def items() -> Iterator[Any]:
        for number in range(100):
            assert sum(one() is not None for one in alive) <= 1
            one = Seen([number])
            alive.append(weakref.ref(one))
            yield one
            del one

    assert list(Packed(items())) == [[number] for number in range(100)]


def test_an_item_that_cannot_be_packed_is_named_by_its_place() -> None:
    items = [*ITEMS[:7], {"name": "a", "file": {"handle": (letter for letter in "a")}}]
    with pytest.raises(
        mpiter.errors.DatasetNotPicklable,
        match=r"items\[7\]\['file'\]\['handle'\] \(generator\) cannot be",
    ) as e:
        Packed(items)
    assert "worker_init" in str(e.value)
    assert "fork" not in str(e.value)


def test_memory_that_runs_out_is_an_error_with_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "_AT_ONCE", 100)
    monkeypatch.setattr(packed.machine, "memory_available", lambda: 50)
    with pytest.raises(
        mpiter.errors.SharedMemoryFull,
        match=r"after 0 MB of packed items there is no more memory: .*No space",
    ):
        Packed(ITEMS)


# -- how it is shared ------------------------------------------------------------------


def looked_at_by_workers(mine: Packed[Any], method: str) -> None:
    """Check that workers read the items from the same file as this process."""
    dataset = Looked(mine)
    with mpiter.MultiprocessIterator(
        dataset,
        5,
        repeat=False,
        shuffle=False,
        n_processes=2,
        backend=mpiter.Process(method),
    ) as it:
        seen = [sample for batch in it for sample in batch]
    assert [item for item, *_ in seen] == ITEMS
    assert {where for _, where, _ in seen} == {file_of(mine)}
    assert os.getpid() not in {pid for *_, pid in seen}


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_our_workers_map_the_same_memory(method: str) -> None:
    looked_at_by_workers(Packed(ITEMS), method)


def test_where_a_sandbox_forbids_memfd_they_map_the_same_unnamed_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def forbidden(name: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = Packed(ITEMS)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", None)
    looked_at_by_workers(mine, "forkserver")


started_with: list[Packed[Any]] = []


def begin(mine: Packed[Any]) -> None:
    started_with.append(mine)


def of_process(mine: Packed[Any]) -> Any:
    """Return what this process was started with, and what it was sent later."""
    return [(list(one), file_of(one)) for one in (*started_with, mine)]


@pytest.mark.parametrize("method", METHODS)
def test_a_process_being_started_maps_the_same_memory_and_a_running_one_gets_a_copy(
    method: str,
) -> None:
    context: Any = multiprocessing.get_context(method)
    mine = Packed(ITEMS)
    with context.Pool(1, begin, (mine[5:9],)) as pool:
        began, (items, where) = pool.apply(of_process, (mine,))
        pool.close()
        pool.join()
    assert began == (ITEMS[5:9], file_of(mine))
    assert items == ITEMS
    assert where != file_of(mine)


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_by_way_of_a_file_it_travels_by_value(tmp_path: Path, protocol: int) -> None:
    mine = Packed(ITEMS)
    file = tmp_path / "packed"
    file.write_bytes(pickle.dumps({"whole": mine, "part": mine[3:5]}, protocol))
    size = mine.nbytes
    del mine
    gc.collect()
    loaded = pickle.loads(file.read_bytes())
    # The whole and its part are in the file once.
    assert size < file.stat().st_size < 2 * size
    assert ([*loaded["whole"]], [*loaded["part"]]) == (ITEMS, ITEMS[3:5])


def test_workers_stay_as_long_as_it_is_the_same() -> None:
    dataset = Looked(Packed(ITEMS))
    with mpiter.DataLoader(dataset, 5, num_workers=1, collate_fn=list) as loader:
        pids = [{pid for batch in loader for *_, pid in batch} for _ in range(2)]
        dataset.packed = Packed(ITEMS[::-1])
        items = [item for batch in loader for item, *_ in batch]
    assert pids[0] == pids[1]
    assert items == ITEMS[::-1]


# -- when to use it --------------------------------------------------------------------


def test_a_dataset_of_many_objects_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ship, "_MANY", 5_000)
    texts = [str(number) for number in range(5_000)]
    says = r"holds 0 MB of Python objects.*mpiter\.Packed"
    with (
        mpiter.MultiprocessIterator(texts, 5, n_processes=1) as it,
        pytest.warns(RuntimeWarning, match=says) as told,
    ):
        next(it)
    assert len(told) == 1
    with mpiter.MultiprocessIterator(Packed(texts), 5, n_processes=1) as it:
        # A warning would be an error here.
        next(it)
