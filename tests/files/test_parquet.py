"""Parquet files as a dataset: each value as it was, each row group decoded once."""

from __future__ import annotations

import contextlib
import copy
import datetime
import decimal
import io
import os
import pickle
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resumed import assert_resumes
from samples import assert_same
from scripts import lives_still, run, wait_until

import mpiter
from mpiter.errors import DamagedFile
from mpiter.files import Parquet

pa = pytest.importorskip(
    "pyarrow", reason="pyarrow is not installed: run python3 tests"
)
pq = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip(
    "fsspec", reason="fsspec is not installed: run python3 tests"
)

ROWS = 240
GROUP = 20
# A row group takes 462 bytes, so that three of them fit in this.
WINDOW = 1500


def write(path: Path, first: int = 0, rows: int = ROWS, group: int = GROUP) -> Path:
    """Write a file whose rows have numbers from ``first`` on."""
    numbers = np.arange(first, first + rows)
    table = pa.table({"number": numbers, "half": numbers / 2})
    pq.write_table(
        table, path, row_group_size=group, compression="none", use_dictionary=False
    )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", ROWS)
    return tmp_path


def numbers_of(stream: Any) -> list[int]:
    return [int(number) for batch in stream for number in batch["number"]]


# -- values ----------------------------------------------------------------------------

MOMENT = datetime.datetime(2026, 11, 29, 13, 30)
# Each kind of column with what its samples are.
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "int8": (pa.array([1, 2, 3], pa.int8()), [*np.array([1, 2, 3], np.int8)]),
    "float": (pa.array([0.5, None, 2.0]), [0.5, np.nan, 2.0]),
    "whole with a null": (pa.array([1, None, 3]), [1, None, 3]),
    "bool": (pa.array([True, False, True]), [True, False, True]),
    "bool with a null": (pa.array([True, None, False]), [True, None, False]),
    "text": (pa.array(["a", None, "ccc"]), ["a", None, "ccc"]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "views of text": (pa.array(["ä", "", None], pa.string_view()), ["ä", "", None]),
    "list of views of text": (
        pa.array([["a"], [], ["b"]], pa.list_(pa.string_view())),
        [["a"], [], ["b"]],
    ),
    "large text": (pa.array(["ä", "", None], pa.large_string()), ["ä", "", None]),
    "large binary": (
        pa.array([b"a", None, b"ccc"], pa.large_binary()),
        [b"a", None, b"ccc"],
    ),
    "text in no words": (pa.array(["", "", ""]), ["", "", ""]),
    "nothing but nulls": (pa.array([None, None, None], pa.string()), [None] * 3),
    "binary": (pa.array([b"a", b"", None]), [b"a", b"", None]),
    "moment": (
        pa.array([MOMENT, None, MOMENT], pa.timestamp("s")),
        [np.datetime64(MOMENT, "s"), np.datetime64("NaT"), np.datetime64(MOMENT, "s")],
    ),
    "decimal": (
        pa.array([decimal.Decimal("1.5"), None, decimal.Decimal("2.5")]),
        [decimal.Decimal("1.5"), None, decimal.Decimal("2.5")],
    ),
    "list": (
        pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
        [np.array(some, np.int32) for some in ([1, 2], [], [3])],
    ),
    "list with a null": (
        pa.array([[1.5], None, [2.5, 3.5]]),
        [np.array([1.5]), None, np.array([2.5, 3.5])],
    ),
    "large list of dates": (
        pa.array([[MOMENT], None, []], pa.large_list(pa.timestamp("s"))),
        [np.array([MOMENT], "M8[s]"), None, np.array([], "M8[s]")],
    ),
    "list of truth": (
        pa.array([[True, False], [False], [True]]),
        [np.array([True, False]), np.array([False]), np.array([True])],
    ),
    "list of numbers with nulls": (
        pa.array([[1, None], [], [2]]),
        [[1, None], np.array([], np.int64), np.array([2])],
    ),
    "list of floats with nulls": (
        pa.array([[1.5, None], [], [2.5]]),
        [np.array(some) for some in ([1.5, np.nan], [], [2.5])],
    ),
    "fixed list with nulls": (
        pa.array([[1, 2], None, [5, None]], pa.list_(pa.int8(), 2)),
        [np.array([1, 2], np.int8), None, [5, None]],
    ),
    "tensor with a null": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int16(), [2, 2]),
            pa.array([[0, 1, 2, 3], None, [4, 5, 6, 7]], pa.list_(pa.int16(), 4)),
        ),
        [np.array([[0, 1], [2, 3]]), None, np.array([[4, 5], [6, 7]])],
    ),
    "struct of lists": (
        pa.array([{"x": [1, 2]}, {"x": []}, {"x": [3]}]),
        [{"x": np.array(some, np.int64)} for some in ([1, 2], [], [3])],
    ),
    "time": (
        pa.array([datetime.time(1), None, datetime.time(2)], pa.time32("s")),
        [datetime.time(1), None, datetime.time(2)],
    ),
    "list of text": (pa.array([["a"], [], ["b", "c"]]), [["a"], [], ["b", "c"]]),
    "list of lists": (pa.array([[[1], [2, 3]], [], [[4]]]), [[[1], [2, 3]], [], [[4]]]),
    "fixed list": (
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
        [*np.array([[1, 2], [3, 4], [5, 6]], np.float32)],
    ),
    "struct": (
        pa.array([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}, {"x": 3, "y": "c"}]),
        [{"x": np.int64(x), "y": y} for x, y in zip((1, 2, 3), "abc", strict=True)],
    ),
    "struct of structs": (
        pa.array([{"x": {"y": number}} for number in (1, 2, 3)]),
        [{"x": {"y": np.int64(number)}} for number in (1, 2, 3)],
    ),
    "struct with a null": (
        pa.array([{"x": 1}, None, {"x": 3}]),
        [{"x": np.int64(1)}, None, {"x": np.int64(3)}],
    ),
    "map": (
        pa.array([[("a", 1)], [], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
        [[("a", 1)], [], [("b", 2)]],
    ),
    "tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(3, 2, 2)),
        [*np.arange(12.0).reshape(3, 2, 2)],
    ),
}


def assert_value(found: Any, wanted: Any) -> None:
    """Compare two values, and whether they are arrays."""
    np.testing.assert_equal(found, wanted)
    for kind in (np.ndarray, list):
        assert isinstance(found, kind) == isinstance(wanted, kind)


@pytest.mark.parametrize("kind", COLUMNS)
def test_values_come_as_they_were(kind: str, tmp_path: Path) -> None:
    array, wanted = COLUMNS[kind]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"value": array}), path, row_group_size=2)
    dataset = Parquet(path)
    assert len(dataset) == 3
    for number, value in enumerate(wanted):
        assert_value(dataset[number]["value"], value)
    with mpiter.SerialIterator(dataset, 3, repeat=False, shuffle=False) as it:
        [batch] = it
    for number, (sample, value) in enumerate(zip(batch, wanted, strict=True)):
        assert_value(sample["value"], value)
        assert_same(sample, dataset[number])


def test_values_of_all_kinds_come_from_a_worker_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({kind: array for kind, (array, _) in COLUMNS.items()})
    pq.write_table(table, path, row_group_size=2)
    dataset = Parquet(path)
    with mpiter.MultiprocessIterator(
        dataset, 3, repeat=False, shuffle=False, n_processes=1
    ) as it:
        [batch] = it
    for number, sample in enumerate(batch):
        for kind, (_, wanted) in COLUMNS.items():
            assert_value(sample[kind], wanted[number])
        assert_same(sample, dataset[number])


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("decoded", ["in order", "shuffled"])
def test_rows_of_several_row_groups_come_in_the_order_that_is_asked_for(
    kind: str, decoded: str, tmp_path: Path
) -> None:
    array, wanted = COLUMNS[kind]
    copies = 8
    rows = copies * len(wanted)
    path = tmp_path / "rows.parquet"
    table = pa.table({"value": pa.chunked_array([array] * copies)})
    # Some of these have a null, and others none.
    pq.write_table(table, path, row_group_size=5)
    dataset = Parquet(path)
    rng = random.Random(0)
    asked = [rng.sample(range(rows), rows), [4, 5, 5, 23, 0]]
    asked += [[*range(rows)], [*range(3, 12)], [7], []]
    if decoded == "in order":
        asked.reverse()
    for indices in asked:
        found = dataset.__getitems__(indices)
        assert len(found) == len(indices)
        for index, row in zip(indices, found, strict=True):
            assert_value(row["value"], wanted[index % len(wanted)])


# Values of which some are beside nulls.
AMONG_NULLS: dict[str, Any] = {
    "whole": pa.array([1, 2, 3, None, 5]),
    "truth": pa.array([True, False, True, None, True]),
    "floats": pa.array([1.5, 2.5, None, 3.5, 4.5]),
    "moments": pa.array([MOMENT, None, MOMENT, MOMENT, None]),
    "dictionary": pa.array([1, 2, None, 2, 1]).dictionary_encode(),
    "lists": pa.array([[1], [2, 3], [None, 1], None, []]),
    "lists of lists": pa.array([[[1]], [[2], None], [], [[None, 1]], None]),
    "lists of structs": pa.array([[{"a": 1}], [], None, [None, {"a": None}], []]),
    "fixed lists": pa.array(
        [[1, 2], [3, 4], [None, 1], None, [5, 6]], pa.list_(pa.int8(), 2)
    ),
    "structs": pa.array(
        [
            {"x": 1, "y": [1], "z": {"w": 1.5}, "t": MOMENT, "b": True},
            {"x": 2, "y": [2, 3], "z": {"w": 2.5}, "t": MOMENT, "b": False},
            {"x": None, "y": None, "z": None, "t": None, "b": None},
            None,
            {"x": 3, "y": [None, 1], "z": {"w": None}, "t": MOMENT, "b": True},
        ]
    ),
    "structs of structs": pa.array(
        [{"x": {"y": 1}}, {"x": {"y": 2}}, {"x": {"y": None}}, {"x": None}, None]
    ),
}


def form_of(value: Any) -> Any:
    """Return a value's type and those of what it consists of."""
    if isinstance(value, dict):
        return {name: form_of(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(form_of, value)]
    if isinstance(value, np.ndarray):
        return np.ndarray, value.dtype, value.shape
    return type(value)


@pytest.mark.parametrize("kind", [*COLUMNS, *AMONG_NULLS])
@pytest.mark.parametrize("group", [1, 2])
def test_what_a_value_is_does_not_depend_on_others_of_its_row_group(
    kind: str, group: int, tmp_path: Path
) -> None:
    array = AMONG_NULLS[kind] if kind in AMONG_NULLS else COLUMNS[kind][0]
    table = pa.table({"value": array})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=group)
    pq.write_table(table, tmp_path / "b.parquet")
    apart = Parquet(tmp_path / "a.parquet")
    together = Parquet(tmp_path / "b.parquet")
    rows = [*range(len(array))]
    wanted = together.__getitems__(rows)
    rng = random.Random(0)
    shuffled = rng.sample(rows, len(rows))
    mixed = Parquet(tmp_path / "a.parquet").__getitems__(shuffled)
    for dataset in (apart, together):
        for row in rows:
            found = dataset[row]
            np.testing.assert_equal(found, wanted[row])
            assert form_of(found) == form_of(wanted[row])
    for row, found in zip(shuffled, mixed, strict=True):
        np.testing.assert_equal(found, wanted[row])
        assert form_of(found) == form_of(wanted[row])


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_is_handed_out_may_be_written_to(folder: Path, shuffle: bool) -> None:
    table = pa.table({"number": [0, 1, 2, 3], "list": [[0], [0, 0], [0], [0, 0]]})
    pq.write_table(table, folder / "c.parquet")
    dataset = Parquet(folder / "c.parquet")
    options = {"n_processes": 0, "epochs": 1, "shuffle": shuffle, "ragged": "list"}
    for batch in mpiter.batches(dataset, 2, **options):
        batch["number"][:] = -1
        for numbers in batch["list"]:
            numbers[:] = -1
    for row in dataset.__getitems__([2, 0, 1, 3]):
        row["list"][:] = -1
    assert [row["number"] for row in dataset] == [0, 1, 2, 3]
    assert not any(row["list"].any() for row in dataset)


def test_columns_are_chosen_by_name(folder: Path) -> None:
    assert Parquet(folder, columns=["half"])[3] == {"half": 1.5}
    with pytest.raises(
        mpiter.OptionError, match=r"no column 'third'.*'number', 'half'"
    ):
        Parquet(folder, columns=["third"])
    with pytest.raises(mpiter.OptionError, match="pass a list of names"):
        Parquet(folder, columns="half")
    with pytest.raises(mpiter.OptionError, match="leave it out to read all"):
        Parquet(folder, columns=[])


def test_files_are_named_by_path_pattern_folder_list_and_address(folder: Path) -> None:
    a = folder / "a.parquet"
    b = folder / "b.parquet"
    # Some programs write a table as a folder.
    (folder / "c.parquet").mkdir()
    b = b.rename(folder / "c.parquet" / "part-0.parquet")
    for paths in (folder, str(folder), folder / "*.parquet", [a, b], iter([a, b])):
        assert len(Parquet(paths)) == 2 * ROWS
    assert len(Parquet(a)) == ROWS
    assert Parquet([b, a])[0]["number"] == ROWS
    assert len(Parquet(f"file://{a}")) == ROWS
    assert len(Parquet(f"file://{folder}/*.parquet")) == 2 * ROWS
    folder = folder / "c.parquet"
    with pytest.raises(FileNotFoundError, match=r"d\.parquet"):
        Parquet(folder / "d.parquet")
    for nothing in (folder / "*.txt", []):
        with pytest.raises(mpiter.OptionError, match=r"names no .*file"):
            Parquet(nothing)


# The names of folders for pyarrow.dataset and us to read columns from.
FOLDERS = {
    "whole numbers": ["k=1", "k=02", "k=-3"],
    "too large": ["k=1", "k=3000000000"],
    "text": ["k=1", "k=a"],
    "signs": ["k=+3", "k=1"],
    "halves": ["k=1.5", "k=2"],
    "dates": ["k=2024-01-01"],
    "letters": ["k=a%20b%2Fc", "k=größe", "k=a=b"],
    "encoded name": ["a%20k=1"],
    "nothing": ["k=", "k=1"],
    "a null": ["k=__HIVE_DEFAULT_PARTITION__", "k=1"],
    "a null among text": ["k=__HIVE_DEFAULT_PARTITION__", "k=x"],
    "two": ["year=2024/month=01", "year=2024/month=12", "year=2023/month=x"],
    "one twice": ["k=1/j=a/k=2"],
    "some": [".", "k=1", "j=2"],
    "no columns": ["a", "b=c.d/1"],
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_columns_in_the_names_of_folders_are_those_that_pyarrow_reads(
    kind: str, tmp_path: Path
) -> None:
    from pyarrow import dataset as pa_dataset

    for number, name in enumerate(FOLDERS[kind]):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / f"{number}.parquet", 10 * number, rows=10, group=4)
    files = sorted(map(str, tmp_path.rglob("*.parquet")))
    for paths in (str(tmp_path), files):
        wanted = pa_dataset.dataset(paths, format="parquet", partitioning="hive")
        rows = wanted.to_table().to_pylist()
        found = Parquet(paths)
        assert {*found.columns} == {*wanted.schema.names}
        by_number = {row["number"]: row for row in rows}
        assert len(found) == len(rows) == len(by_number)
        for row in found.__getitems__([*range(len(found))]):
            other = by_number[row["number"]]
            assert row == other
            for name, value in row.items():
                if value is not None and wanted.schema.field(name).type == pa.int32():
                    assert type(value) is np.int32
    pattern = f"{tmp_path}/**/*.parquet"
    assert {*Parquet(f"file://{tmp_path}").columns} == {*found.columns}
    assert {*Parquet(pattern).columns} == {*found.columns}
    assert {*Parquet(f"file://{pattern}").columns} == {*found.columns}


def test_columns_in_the_names_of_folders_go_through_workers(tmp_path: Path) -> None:
    for year in (2023, 2024):
        for part in ("a", "b"):
            folder = tmp_path / f"year={year}" / f"part={part}"
            folder.mkdir(parents=True)
            write(folder / "0.parquet", year, rows=30)
    dataset = Parquet(tmp_path, columns=["part", "number", "year"])
    assert [*dataset[0]] == ["part", "number", "year"]
    for workers in (0, 2):
        with mpiter.batches(dataset, 8, n_processes=workers, epochs=1) as stream:
            found = []
            for batch in stream:
                assert batch["year"].dtype == np.int32
                rows = zip(batch["year"].tolist(), batch["part"], strict=True)
                found += [*rows]
        assert len(found) == 120
        assert {*found} == {(2023, "a"), (2023, "b"), (2024, "a"), (2024, "b")}
    only = Parquet(tmp_path, columns=["year"])
    assert [row["year"] for row in only] == [2023] * 60 + [2024] * 60
    # Above a folder that is given, names are of other things.
    inner = Parquet(tmp_path / "year=2023")
    assert inner.columns == ("number", "half", "part")


def test_a_column_of_the_files_goes_before_one_of_their_folders(
    tmp_path: Path,
) -> None:
    (tmp_path / "number=7").mkdir()
    write(tmp_path / "number=7" / "0.parquet", rows=3)
    assert [row["number"] for row in Parquet(tmp_path)] == [0, 1, 2]


def test_a_column_of_a_file_that_others_have_in_their_folders_is_refused(
    tmp_path: Path,
) -> None:
    for year, columns in ((2020, ["x"]), (2021, ["x", "year"])):
        (tmp_path / f"year={year}").mkdir()
        table = pa.table({name: range(3) for name in columns})
        pq.write_table(table, tmp_path / f"year={year}" / "0.parquet")
    message = r"year=2021/0\.parquet has a column 'year', which other files have"
    with pytest.raises(DamagedFile, match=message):
        Parquet(tmp_path)
    assert len(Parquet(tmp_path, columns=["x"])) == 6


def test_many_files_of_which_only_folders_are_read(tmp_path: Path) -> None:
    # Most of them have no rows.
    for day in range(300):
        (tmp_path / f"day={day:03}").mkdir()
        table = pa.table({"x": np.arange(3 if day % 50 == 0 else 0)})
        pq.write_table(table, tmp_path / f"day={day:03}" / "0.parquet")
    dataset = Parquet(tmp_path, columns=["day"])
    for seed in range(3):
        options: dict[str, Any] = {"n_processes": 0, "seed": seed, "epochs": 1}
        with mpiter.batches(dataset, 4, **options) as stream:
            found = [day for batch in stream for day in batch["day"].tolist()]
        assert Counter(found) == dict.fromkeys(range(0, 300, 50), 3)
    # A row group without rows is never decoded.
    assert len(dataset.decodes()) == 6


def test_a_folder_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "k=%ff").mkdir()
    write(tmp_path / "k=%ff" / "0.parquet", rows=3)
    with pytest.raises(mpiter.OptionError, match=r"folder 'k=%ff' of .* isn't UTF-8"):
        Parquet(tmp_path)


def test_hidden_files_of_a_folder_are_left_out(folder: Path) -> None:
    inner = folder / "inner"
    for name in ("_temporary", ".ipynb_checkpoints", "part"):
        (inner / name).mkdir(parents=True)
        write(inner / name / "c.parquet", 2 * ROWS)
    for name in ("._a.parquet", "_metadata.parquet", "part/.b.parquet"):
        (inner / name).write_text("no data")
    (folder / "_SUCCESS").touch()
    for path in (folder, f"file://{folder}"):
        assert len(Parquet(path)) == 3 * ROWS
    # Where a name is asked for, it's read.
    assert len(Parquet(inner / "_temporary")) == ROWS
    assert len(Parquet(f"file://{inner}/_temporary")) == ROWS


def test_what_is_no_number_is_refused(folder: Path) -> None:
    dataset = Parquet(folder)
    for index in (1.5, "number", slice(3)):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            dataset[index]  # type: ignore[index]
    with pytest.raises(TypeError, match="aren't whole numbers"):
        dataset.__getitems__([0, 1.5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="aren't whole numbers"):
        dataset.rows(np.array([[0, 1], [2, 3]]))
    assert dataset[np.uint8(3)] == dataset.__getitems__(np.array([3], "u1"))[0]


def test_numbers_beyond_the_end_are_refused(folder: Path) -> None:
    dataset = Parquet(folder)
    for number in (-1, 2 * ROWS):
        with pytest.raises(IndexError, match=f"{number} isn't from 0 to before 480"):
            dataset[number]
    with pytest.raises(IndexError, match="9223372036854775813 isn't from 0"):
        dataset.rows(np.array([2**63 + 5], np.uint64))


# -- order -----------------------------------------------------------------------------


def test_rows_are_shuffled_among_the_row_groups_of_a_window(folder: Path) -> None:
    dataset = Parquet(folder, window=WINDOW)
    order = dataset.mpiter_order(1, None)
    assert len(order) == 2 * ROWS
    first = np.asarray(order.take(0, 2 * ROWS))
    assert sorted(first.tolist()) == [*range(2 * ROWS)]
    groups = first // GROUP
    # Three row groups are a window.
    for begin in range(0, 2 * ROWS, 3 * GROUP):
        some = groups[begin : begin + 3 * GROUP]
        assert len({*some.tolist()}) == 3
        assert len({*some[:GROUP].tolist()}) == 3
    later = np.asarray(order.later(1).take(0, 2 * ROWS))
    other = np.asarray(dataset.mpiter_order(2, True).take(0, 2 * ROWS))
    assert (first != later).any()
    assert (first != other).any()


@pytest.mark.parametrize("window", [1, WINDOW, "1GB"])
def test_what_comes_at_a_place_does_not_depend_on_what_was_asked_before(
    folder: Path, window: Any
) -> None:
    order = Parquet(folder, window=window).mpiter_order(3, True).later(2)
    whole = [*np.asarray(order.take(0, 2 * ROWS)).tolist()]
    rng = random.Random(0)
    for _ in range(50):
        start, stop = sorted(rng.sample(range(2 * ROWS + 1), 2))
        assert np.asarray(order.take(start, stop)).tolist() == whole[start:stop]
    assert sorted(whole) == [*range(2 * ROWS)]


@pytest.mark.parametrize("options", [{"n_processes": 0}, {"n_processes": 2}])
def test_without_shuffling_rows_come_as_they_lie(
    folder: Path, options: dict[str, Any]
) -> None:
    dataset = Parquet(folder)
    with mpiter.batches(dataset, 7, shuffle=False, epochs=1, **options) as stream:
        assert numbers_of(stream) == [*range(2 * ROWS)]
    with mpiter.DataLoader(dataset, 7, shuffle=False) as loader:
        assert numbers_of(loader) == [*range(2 * ROWS)]


def test_all_doors_and_backends_give_the_same(folder: Path) -> None:
    dataset = Parquet(folder, window=WINDOW)
    with mpiter.batches(dataset, 8, n_processes=0, seed=1, epochs=2) as stream:
        wanted = numbers_of(stream)
    for options in (
        {"n_processes": 1},
        {"n_processes": 3},
        {"n_processes": 2, "backend": "thread"},
    ):
        with mpiter.batches(dataset, 8, seed=1, epochs=2, **options) as stream:
            assert numbers_of(stream) == wanted
    with mpiter.DataLoader(dataset, 8, seed=1, num_workers=2, shuffle=True) as loader:
        assert numbers_of(loader) + numbers_of(loader) == wanted


@pytest.mark.parametrize("saved", [0, 3, 11, 30, 59, 60, 75])
def test_a_state_resumes_under_other_workers_and_ranks(
    folder: Path, saved: int
) -> None:
    def stream(workers: int, **options: Any) -> Any:
        return mpiter.batches(
            Parquet(folder, window=WINDOW), 8, n_processes=workers, seed=1, **options
        )

    assert_resumes(stream, numbers_of, saved)


@pytest.mark.parametrize("ragged", ["list", "pad", "jagged"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_lists_come_from_workers_as_without_any(
    ragged: str, shuffle: bool, tmp_path: Path
) -> None:
    uneven = [[*range(number % 4)] for number in range(60)]
    even = [[number, -number] for number in range(60)]
    texts = [f"{number}" for number in range(60)]
    table = pa.table({"uneven": uneven, "even": even, "text": texts})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    options = {"ragged": ragged, "shuffle": shuffle, "seed": 1, "epochs": 2}
    found = []
    for workers in (0, 1):
        dataset = Parquet(tmp_path)
        with mpiter.batches(dataset, 9, n_processes=workers, **options) as stream:
            found.append([*stream])
    for one, other in zip(*found, strict=True):
        assert type(one["even"]) is np.ndarray
        np.testing.assert_equal(one["even"], other["even"])
        assert type(one["uneven"]) is type(other["uneven"])
        for these, those in zip(one["uneven"], other["uneven"], strict=True):
            np.testing.assert_equal(these, those)
        assert one["text"] == other["text"]


# -- each row group is decoded once ----------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"n_processes": 0},
        {"n_processes": 1},
        {"n_processes": 4},
        {"n_processes": 3, "backend": "thread"},
    ],
)
def test_each_row_group_is_decoded_once_a_pass(
    folder: Path, options: dict[str, Any], shuffle: bool
) -> None:
    # No worker lags behind by more than two such windows.
    dataset = Parquet(folder, window=2 * WINDOW)
    with mpiter.batches(
        dataset, 5, seed=1, epochs=1, shuffle=shuffle, **options
    ) as stream:
        assert len(numbers_of(stream)) == 2 * ROWS
    assert dataset.decodes().tolist() == [1] * (2 * ROWS // GROUP)


RANK = """
import sys
import mpiter
from mpiter.files import Parquet

if __name__ == "__main__":
    rank = int(sys.argv[1])
    dataset = Parquet(sys.argv[2], window=3000)
    len(dataset.decodes())
    print("ready", flush=True)
    sys.stdin.readline()
    rows = 0
    with mpiter.batches(
        dataset, 5, n_processes=2, seed=1, epochs=1, shard=(rank, 2)
    ) as stream:
        for batch in stream:
            rows += len(batch["number"])
            # Ranks wait for each other after each step.
            print("step", flush=True)
            sys.stdin.readline()
        print(rows, flush=True)
        sys.stdin.readline()
    print(*dataset.decodes())
"""


def test_ranks_of_one_machine_decode_each_row_group_once_together(
    folder: Path,
) -> None:
    import subprocess
    import sys

    script = folder / "rank.py"
    script.write_text(RANK)
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(mpiter.__file__).parents[1])},
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout.readline() == "ready\n"
        told = ["step\n"] * 2
        steps = -1
        while told == ["step\n"] * 2:
            steps += 1
            for rank in ranks:
                rank.stdin.write("go\n")
                rank.stdin.flush()
            told = [rank.stdout.readline() for rank in ranks]
        assert told == [f"{ROWS}\n"] * 2
        assert steps == ROWS // 5
        counts = [rank.communicate("end\n")[0].split() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert counts[0] == ["1"] * (2 * ROWS // GROUP)


def test_no_more_row_groups_are_kept_than_three_windows_have(folder: Path) -> None:
    dataset = Parquet(folder, window=WINDOW)
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    with mpiter.batches(dataset, 5, n_processes=0, seed=1, epochs=3) as stream:
        for _ in stream:
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
    # A descriptor each, those of one that is written, and those of what is shared: the
    # words twice, and the socket.
    assert most <= 3 * 3 + 3 + 3


def texts(seed: int, count: int, longest: int) -> list[str]:
    rng = random.Random(seed)
    return [f"{number} {'w' * rng.randrange(longest)}" for number in range(count)]


def chosen(rng: random.Random, some: list[Any]) -> list[Any]:
    return [rng.choice(some) for _ in range(MANY)]


MANY = 20_000
# Columns of text that are much shorter in the file, or about as long, or longer.
REPEATED = {
    "few": lambda rng: chosen(rng, texts(0, 50, 100)),
    "runs": lambda rng: sorted(chosen(rng, [f"{at:030}" for at in range(50)])),
    "many": lambda rng: chosen(rng, texts(2, 2000, 60)),
    "too long for statistics": lambda rng: chosen(
        rng, [f"{at:05000}" for at in range(8)]
    ),
    "one": lambda rng: ["always the same"] * MANY,
    "different": lambda rng: texts(4, MANY, 300),
    "with nulls": lambda rng: chosen(rng, [None, *texts(5, 5, 60)]),
    "lists": lambda rng: [[one] * (len(one) % 4) for one in REPEATED["few"](rng)],
    "structs": lambda rng: [{"x": one, "y": 1} for one in REPEATED["few"](rng)],
    "decimals": lambda rng: chosen(rng, [*map(decimal.Decimal, range(20))]),
    "dictionary": lambda rng: pa.array(REPEATED["few"](rng)).dictionary_encode(),
}


def memory_of_row_groups() -> int:
    """Return the bytes of the row groups that this process keeps."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        with contextlib.suppress(OSError):
            # Behind the name of the files stands the number of the row group.
            if re.match(r"/memfd:mpiter \w+ \d+ ", os.readlink(path)):
                found += os.stat(path).st_size
    return found


@pytest.mark.parametrize("kind", REPEATED)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_window_has_the_size_that_was_asked_for_once_it_is_decoded(
    kind: str, compression: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": REPEATED[kind](random.Random(0))})
    group = 1000
    pq.write_table(table, path, row_group_size=group, compression=compression)
    dataset = Parquet(path)
    dataset[0]
    size = memory_of_row_groups()
    window = 6 * size
    dataset = Parquet(path, window=window)
    order = dataset.mpiter_order(1, True)
    first = np.asarray(order.take(0, group))
    groups = len({*(first // group).tolist()})
    # The rows that come first are from the row groups of a window.
    assert 2 <= groups <= 9
    del dataset
    most = 0
    dataset = Parquet(path, window=window)
    # One batch isn't in two windows.
    options: dict[str, Any] = {"n_processes": 0, "seed": 1, "epochs": 1}
    with mpiter.batches(dataset, 250, ragged="list", **options) as stream:
        for _ in stream:
            most = max(most, memory_of_row_groups())
    # The present window, the next and the last one.
    assert most <= 3.5 * window
    assert (dataset.decodes() == 1).all()


@pytest.mark.parametrize("row_groups", [1, 2])
def test_row_groups_larger_than_footers_tell_are_kept_for_two_windows(
    row_groups: int, tmp_path: Path
) -> None:
    rng = random.Random(0)
    # The least and the greatest are short.
    some = ["a", *(f"m{number:04}" * 100 for number in range(98)), "z"]
    path = tmp_path / "a.parquet"
    # All row groups have the same texts, and so the same size.
    found = list[str]()
    for _ in range(80):
        found += rng.sample(some * 10, 1000)
    table = pa.table({"text": found})
    pq.write_table(table, path, row_group_size=1000)
    dataset = Parquet(path)
    dataset[0]
    size = memory_of_row_groups()
    window = row_groups * size
    dataset = Parquet(path, window=window)
    order = dataset.mpiter_order(1, True)
    first = np.asarray(order.take(0, 1000))
    in_window = len({*(first // 1000).tolist()})
    assert in_window > row_groups
    most = 0
    with mpiter.batches(dataset, 250, n_processes=0, seed=1, epochs=1) as stream:
        for _ in stream:
            most = max(most, memory_of_row_groups())
    assert most <= max(3 * window, 2 * in_window * size) + 2 * size
    assert (dataset.decodes() <= 1 + (np.arange(80) == 0)).all()
    # What was decoded changes nothing about the order.
    again = np.asarray(dataset.mpiter_order(1, True).take(0, 1000))
    assert (first == again).all()


@pytest.mark.parametrize("seed", range(3))
def test_killed_workers_lose_and_repeat_nothing(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    dataset = Parquet(folder, window=WINDOW)
    with mpiter.batches(dataset, 4, n_processes=0, seed=1, epochs=1) as stream:
        wanted = numbers_of(stream)
    given = list[int]()
    kills = 0
    with mpiter.batches(dataset, 4, n_processes=2, seed=1, epochs=1) as stream:
        for batch in stream:
            given += [int(number) for number in batch["number"]]
            if rng.random() < 0.1 and kills < 4:
                # A worker that is killed again and again while it starts is given up.
                wait_until(lambda: len(stream.worker_pids) == 2, "it is replaced")
                pid = stream.worker_pids[kills % 2]
                kills += 1
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: not lives_still(pid), "it is dead")
    assert kills
    assert given == wanted


def test_a_killed_program_leaves_nothing_and_the_next_one_reads(folder: Path) -> None:
    text = f"""
    import os, signal
    import mpiter
    from mpiter.files import Parquet

    if __name__ == "__main__":
        dataset = Parquet({str(folder)!r})
        stream = mpiter.batches(dataset, 5, n_processes=2, epochs=None)
        next(stream)
        for pid in (os.getpid(), *stream.worker_pids):
            for line in open(f"/proc/{{pid}}/maps"):
                place, _, name = line.rstrip().partition("/dev/shm/")
                print(name, flush=True)
        os.killpg(0, signal.SIGKILL)
    """
    outcome = run(folder, text)
    assert outcome.left_running == []
    assert outcome.lines
    left = {*os.listdir("/dev/shm")}
    assert not left.intersection(outcome.lines)
    with mpiter.batches(Parquet(folder), 5, n_processes=1, epochs=1) as stream:
        assert len(numbers_of(stream)) == 2 * ROWS


def test_a_copy_and_a_pickled_dataset_read_the_same(folder: Path) -> None:
    dataset = Parquet(folder)
    for one in (copy.copy(dataset), copy.deepcopy(dataset)):
        assert one[ROWS] == dataset[ROWS]
    data = pickle.dumps(dataset)
    del dataset, one
    # What it refers to has gone with the process or the dataset.
    assert pickle.loads(data)[ROWS]["number"] == ROWS


def test_a_dataset_that_was_read_is_pickled_as_one_that_was_not(folder: Path) -> None:
    dataset = Parquet(folder)
    before = len(pickle.dumps(dataset))
    with mpiter.batches(dataset, 7, n_processes=0, seed=1, epochs=2) as stream:
        for _ in stream:
            pass
    assert len(pickle.dumps(dataset)) <= before + 8


# -- row groups are decoded ahead ------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("options", [{"n_processes": 0}, {"n_processes": 2}])
@pytest.mark.parametrize("shard", [None, (1, 2)])
def test_the_next_row_groups_are_decoded_before_they_are_needed(
    folder: Path, options: dict[str, Any], shuffle: bool, shard: Any
) -> None:
    dataset = Parquet(folder, window=WINDOW)
    stream = mpiter.batches(
        dataset, 5, seed=1, epochs=1, shuffle=shuffle, shard=shard, **options
    )
    with stream:
        next(stream)
        next(stream)
        # In order there is one more for each worker; else a window has three.
        needed = 2 if not shuffle else 4
        wait_until(lambda: (dataset.decodes() > 0).sum() >= needed, "it is decoded")
        assert (dataset.decodes() <= 1).all()


class ByGroup(mpiter.Order):
    """Goes through one row group after the other, in an order of its own."""

    def __len__(self) -> int:
        return 2 * ROWS

    def take(self, start: int, stop: int) -> list[int]:
        groups = [*range(2 * ROWS // GROUP)]
        random.Random(5).shuffle(groups)
        return [
            groups[place // GROUP] * GROUP + 7 * place % GROUP
            for place in range(start, stop)
        ]

    def later(self, epochs: int) -> ByGroup:
        return self


class InAnotherOrder(Parquet):
    def mpiter_order(self, seed: int, shuffle: bool | None) -> Any:
        return ByGroup()


@pytest.mark.parametrize("workers", [0, 2])
def test_in_another_order_nothing_is_decoded_in_vain(
    folder: Path, workers: int
) -> None:
    dataset = InAnotherOrder(folder, window=WINDOW)
    with mpiter.batches(dataset, 5, n_processes=workers, seed=1, epochs=1) as stream:
        assert sorted(numbers_of(stream)) == [*range(2 * ROWS)]
    assert (dataset.decodes() == 1).all()


def test_iterators_that_take_turns_decode_nothing_in_vain(folder: Path) -> None:
    dataset = Parquet(folder, window=WINDOW)
    options: dict[str, Any] = {"n_processes": 0, "epochs": 1}
    with (
        mpiter.batches(dataset, 5, seed=1, **options) as one,
        mpiter.batches(dataset, 5, seed=2, **options) as other,
    ):
        for _ in zip(one, other, strict=True):
            pass
    # Each goes through a window while the other has its own; some are in both.
    assert dataset.decodes().sum() <= 2.2 * (2 * ROWS // GROUP)


# -- texts -----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_text_that_is_not_utf_8_costs_its_row_alone(
    tmp_path: Path, workers: int, shuffle: bool
) -> None:
    raw = [b"text %d" % number for number in range(400)]
    raw[200] = b"\xff\xfe"
    raw[201] = b"\xed\xa0\x80"
    buffers = pa.array(raw, pa.binary()).buffers()
    texts = pa.Array.from_buffers(pa.string(), len(raw), buffers)
    table = pa.table({"number": range(len(raw)), "text": texts})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    dataset = Parquet(tmp_path)
    with mpiter.batches(
        dataset, 20, n_processes=workers, shuffle=shuffle, epochs=1, on_error="skip"
    ) as stream:
        found = sorted(numbers_of(stream))
        assert stream.stats().skipped == 2
    assert found == [*range(200), *range(202, 400)]
    with pytest.raises(UnicodeDecodeError):
        dataset[200]


@pytest.mark.parametrize("names", [["", "f0"], ["f1", ""]])
def test_a_column_may_have_any_name(tmp_path: Path, names: list[str]) -> None:
    table = pa.table([pa.array(range(9)), pa.array([*"abcdefghi"])], names=names)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    dataset = Parquet(tmp_path)
    assert dataset[4] == {names[0]: 4, names[1]: "e"}
    rows = dataset.__getitems__([8, 0, 3, 1, 7, 6, 5, 2, 4, 4])
    assert [row[names[1]] for row in rows] == [*"iadbhgfcee"]


# -- files that aren't what they should be ---------------------------------------------


def test_a_footer_that_cannot_be_read_names_its_file(folder: Path) -> None:
    path = folder / "b.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DamagedFile, match=r"the footer of .*b\.parquet can't be read"):
        Parquet(folder)


def test_files_that_differ_are_refused_with_the_column(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    pq.write_table(pa.table({"number": ["1"]}), tmp_path / "b.parquet")
    says = r"'number' is int64 in .*a\.parquet, and .*b\.parquet has string"
    with pytest.raises(DamagedFile, match=says):
        Parquet(tmp_path)
    with pytest.raises(DamagedFile, match=r"'half' is double .* no such column"):
        Parquet(tmp_path, columns=["half"])


def damage(path: Path, group: int) -> Path:
    """Garble a row group of a file."""
    footer = pq.read_metadata(path)
    at = footer.row_group(group).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[at : at + 30] = b"\xff" * 30
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_row_group_is_named_or_its_rows_are_left_out(
    tmp_path: Path, workers: int
) -> None:
    path = damage(write(tmp_path / "a.parquet"), group=3)
    options = {"n_processes": workers, "shuffle": False, "epochs": 1}
    with (
        mpiter.batches(Parquet(path), 5, **options) as stream,
        pytest.raises(DamagedFile, match=r"row group 3 of .*a\.parquet can't be read"),
    ):
        numbers_of(stream)
    skip = {"on_error": "skip", **options}
    with mpiter.batches(Parquet(path), 5, **skip) as stream:
        found = numbers_of(stream)
    rest = [*range(3 * GROUP), *range(4 * GROUP, ROWS)]
    assert found == rest


class Store(fsspec.AbstractFileSystem):
    """Files of this machine at a store that counts and may refuse or break off."""

    protocol = "counted"
    cachable = False
    opened = 0
    fails: str | None = None

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = "/" + path.lstrip("/")
        return {"name": path, "size": os.stat(path).st_size, "type": "file"}

    def open(self, path: str, *arguments: Any, **options: Any) -> Any:
        Store.opened += 1
        return StoredFile("/" + path.lstrip("/"), "r")


class StoredFile(io.FileIO):
    def read(self, size: int | None = -1, /) -> bytes:
        if Store.fails == "refuses":
            raise OSError("try again later")
        found = super().read(size) or b""
        return found[:-8] if Store.fails == "breaks off" else found


@pytest.fixture
def store() -> Iterator[type[Store]]:
    fsspec.register_implementation("counted", Store, clobber=True)
    yield Store
    Store.fails = None


@pytest.mark.parametrize("kind", ["counted", "file"])
def test_a_damaged_row_group_is_read_once_whichever_of_its_rows_are_asked_for(
    kind: str, tmp_path: Path, store: type[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = damage(write(tmp_path / "a.parquet"), group=3)
    dataset = Parquet(path if kind == "file" else f"counted://{path}")
    reads = list[int]()
    read = pq.ParquetFile.read_row_group

    def counted(self: Any, group: int, **options: Any) -> Any:
        reads.append(group)
        return read(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    before = store.opened
    with mpiter.batches(
        dataset, 5, n_processes=0, epochs=1, seed=1, on_error="skip"
    ) as stream:
        assert len(numbers_of(stream)) == ROWS - GROUP
    assert sorted(reads) == [*range(ROWS // GROUP)]
    if kind == "counted":
        assert store.opened - before == ROWS // GROUP
    says = set()
    for number in (3 * GROUP, 3 * GROUP + 1):
        with pytest.raises(DamagedFile, match=r"row group 3 of .* can't be") as caught:
            dataset[number]
        says.add(str(caught.value))
    assert len(says) == 1


@pytest.mark.parametrize("fails", ["refuses", "breaks off"])
def test_what_a_store_refuses_is_asked_for_again(
    fails: str, tmp_path: Path, store: type[Store]
) -> None:
    dataset = Parquet(f"counted://{write(tmp_path / 'a.parquet')}")
    store.fails = fails
    with pytest.raises(DamagedFile, match=r"row group 0 of .* can't be read"):
        dataset[0]
    store.fails = None
    assert dataset[0]["number"] == 0


def test_a_damaged_row_group_is_read_again_once_its_file_is_whole(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.parquet")
    whole = path.read_bytes()
    dataset = Parquet(damage(path, group=3))
    with pytest.raises(DamagedFile, match=r"row group 3 of .* can't be read"):
        dataset[3 * GROUP]
    (tmp_path / "b.parquet").write_bytes(whole)
    (tmp_path / "b.parquet").rename(path)
    assert dataset[3 * GROUP]["number"] == 3 * GROUP


def test_columns_of_one_name_are_refused_unless_they_are_left_out(
    tmp_path: Path,
) -> None:
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], ["x", "x", "y"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(mpiter.OptionError, match="has 2 columns named 'x'"):
        Parquet(tmp_path)
    assert Parquet(tmp_path, columns=["y"])[0] == {"y": 3}


CHANGED = {
    "other rows": {"rows": 10, "group": 4},
    "fewer row groups": {"rows": 5, "group": 5},
}


@pytest.mark.parametrize("changed", [*CHANGED, "other columns", "removed"])
@pytest.mark.parametrize("was_read", [True, False])
def test_a_file_that_has_changed_is_named(
    changed: str, was_read: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.parquet", rows=10, group=5)
    dataset = Parquet(path)
    if was_read:
        assert dataset[0]["number"] == 0
    path.unlink()
    if changed in CHANGED:
        write(path, **CHANGED[changed])
    elif changed == "other columns":
        table = pa.table({"number": ["a"] * 10, "half": [0.5] * 10})
        pq.write_table(table, path, row_group_size=5)
    with pytest.raises(DamagedFile, match=r"a\.parquet") as caught:
        dataset[9]
    if changed in ("other rows", "other columns"):
        assert "has changed: its row group 1 had 5 rows" in str(caught.value)


def test_a_file_replaced_by_one_like_it_is_read_as_it_is_now(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows=10, group=5)
    dataset = Parquet(path)
    assert dataset[0]["number"] == 0
    numbers = pa.table({"number": [*range(100, 110)], "half": [0.5] * 10})
    path.unlink()
    # With pages of another length, so that an old footer would lead astray.
    pq.write_table(numbers, path, row_group_size=5, compression="zstd")
    assert dataset[9] == {"number": 109, "half": 0.5}


def test_empty_row_groups_and_files_without_rows_are_passed_over(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a.parquet", rows=0)
    schema = pq.read_schema(tmp_path / "a.parquet")
    with pq.ParquetWriter(tmp_path / "b.parquet", schema) as writer:
        for rows in (2, 0, 0, 1, 0):
            numbers = np.arange(rows)
            writer.write_table(pa.table({"number": numbers, "half": numbers / 2}))
    write(tmp_path / "c.parquet", rows=0)
    dataset = Parquet(tmp_path)
    assert [row["number"] for row in dataset] == [0, 1, 0]
    for window in (1, "1GB"):
        dataset = Parquet(tmp_path, window=window)
        with mpiter.batches(dataset, 2, n_processes=0, seed=0, epochs=1) as stream:
            assert sorted(numbers_of(stream)) == [0, 0, 1]


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows=0)
    with pytest.raises(mpiter.OptionError, match="have no rows"):
        Parquet(tmp_path)


def test_columns_may_come_from_a_generator(folder: Path) -> None:
    dataset = Parquet(folder, columns=(name for name in ["number"]))
    assert [*dataset[0]] == ["number"]


def test_too_many_open_files_are_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from pyarrow import parquet

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(parquet, "read_metadata", refuse)
    with pytest.raises(OSError, match="Too many open files") as caught:
        Parquet(folder)
    assert not isinstance(caught.value, DamagedFile)
