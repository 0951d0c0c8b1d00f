"""A dataset is given as columns or as samples, and what could be either is refused."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import plain

import mpiter
from mpiter.datasets.columns import as_dataset

X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = np.arange(20)
LETTERS = [chr(ord("a") + i) for i in range(20)]
Pair = namedtuple("Pair", "x y")
DOORS: list[Callable[..., Any]] = [
    lambda data: mpiter.batches(data, 8, n_processes=0),
    lambda data: mpiter.SerialIterator(data, 8),
    lambda data: mpiter.DataLoader(data, 8),
]


def read(data: Any, **options: Any) -> list[Any]:
    """Read an epoch in another order than that of the columns."""
    options = {"n_processes": 0, "seed": 3, **options}
    with mpiter.batches(data, 8, **options) as stream:
        return [plain(batch) for batch in stream]


def columns_in(container: Any, x: Any, y: Any) -> Any:
    return {"tuple": (x, y), "dict": {"x": x, "y": y}, "named tuple": Pair(x, y)}[
        container
    ]


EXPECTED = [(X[i], Y[i]) for i in range(20)]


@pytest.mark.parametrize(
    ("container", "workers"),
    [("tuple", 0), ("dict", 0), ("named tuple", 0), ("named tuple", 2)],
)
def test_columns_give_rows_in_their_own_container(container: str, workers: int) -> None:
    samples = [columns_in(container, x, y) for x, y in EXPECTED]
    assert read(columns_in(container, X, Y), n_processes=workers) == read(samples)


def test_a_list_may_be_a_column_beside_arrays_or_under_a_name() -> None:
    assert read((X, LETTERS), n_processes=2) == read(list(zip(X, LETTERS, strict=True)))
    samples = [{"x": x, "y": y} for x, y in zip(Y.tolist(), LETTERS, strict=True)]
    assert read({"x": Y.tolist(), "y": LETTERS}) == read(samples)


@pytest.mark.parametrize(
    "column", [range(20), tuple(range(20))], ids=["range", "tuple"]
)
def test_a_sequence_beside_an_array_is_a_column(column: Any) -> None:
    assert read((X, column)) == read((X, Y))


def test_an_archive_is_columns_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    with np.load(tmp_path / "data.npz") as archive:
        assert read(archive) == read({"x": X, "y": Y})


@pytest.mark.torch
def test_tensors_are_columns_and_come_back_as_tensors() -> None:
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    tensors = torch.from_numpy(X), torch.from_numpy(Y)
    x, y = next(mpiter.batches(tensors, 8, n_processes=2, shuffle=False))
    assert torch.equal(x, tensors[0][:8])
    assert torch.equal(y, tensors[1][:8])


def frame_of_pandas(pandas: Any) -> Any:
    return pandas.DataFrame({"x": Y / 2, "y": Y}, index=range(100, 120))


FRAMES: dict[str, Callable[[Any], Any]] = {
    "pandas": frame_of_pandas,
    "polars": lambda polars: polars.DataFrame({"x": Y / 2, "y": Y}),
    "pyarrow": lambda pyarrow: pyarrow.table({"x": Y / 2, "y": Y}),
}


@pytest.mark.clients
@pytest.mark.parametrize("package", FRAMES)
def test_a_frame_is_a_dict_of_its_columns_and_a_series_is_an_array(
    package: str,
) -> None:
    library = pytest.importorskip(
        package, reason=f"{package} is not installed: run `python3 tests --all`"
    )
    frame = FRAMES[package](library)
    assert read(frame) == read({"x": Y / 2, "y": Y})
    assert read((frame["x"], frame["y"])) == read((Y / 2, Y))
    assert read(frame["x"]) == read(Y / 2)


GAPS: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda pandas: pandas.DataFrame(
        {"x": pandas.array([2**53 + 1, None], dtype="Int64")}
    ),
    "polars": lambda polars: polars.DataFrame({"x": [2**53 + 1, None]}),
    "pyarrow": lambda pyarrow: pyarrow.table({"x": [2**53 + 1, None]}),
}


@pytest.mark.clients
@pytest.mark.parametrize("package", GAPS)
def test_whole_numbers_with_missing_ones_are_refused(package: str) -> None:
    library = pytest.importorskip(
        package, reason=f"{package} is not installed: run `python3 tests --all`"
    )
    frame = GAPS[package](library)
    for data, name in (
        (frame, "'x'"),
        (frame["x"], "the column"),
        ((X[:2], frame["x"]), "column 1"),
    ):
        told = rf"{name} has whole numbers \(.nt64\), 1 of them missing.*: fill or drop"
        for door in DOORS:
            with pytest.raises(mpiter.OptionError, match=told):
                door(data)
    assert read(frame[:1]) == [plain({"x": np.array([2**53 + 1])})]


@pytest.mark.clients
def test_a_series_may_have_an_entry_of_any_label() -> None:
    pandas = pytest.importorskip(
        "pandas", reason="pandas is not installed: run `python3 tests --all`"
    )
    series = pandas.Series({"columns": 1.0, "column_names": 2.0})
    assert read(series) == read(np.array([1.0, 2.0]))


@pytest.mark.clients
def test_columns_of_one_name_are_refused() -> None:
    pandas = pytest.importorskip(
        "pandas", reason="pandas is not installed: run `python3 tests --all`"
    )
    for door in DOORS:
        with pytest.raises(
            mpiter.OptionError, match="several columns named 'a': rename them"
        ):
            door(pandas.DataFrame([[1, 2, 3]], columns=["a", "b", "a"]))


@pytest.mark.clients
def test_parts_of_a_zarr_store_are_columns(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    zarr = pytest.importorskip(
        "zarr", reason="zarr is not installed: run `python3 tests --all`"
    )
    request.addfinalizer(zarr.core.sync.cleanup_resources)
    store = zarr.open_group(tmp_path / "data.zarr", mode="w")
    for name, column in (("x", X), ("y", Y)):
        store.create_array(name, shape=column.shape, dtype=column.dtype)[...] = column
    assert read((store["x"], store["y"])) == read((X, Y))
    assert read((store["x"], store["y"]), n_processes=2) == read((X, Y))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            [X, Y],
            r"ndarray \(20, 2\), ndarray \(20,\) may be 2 samples"
            r".*\(X, y\), for columns, or mpiter.Packed",
        ),
        ([X, LETTERS], r"ndarray \(20, 2\), list of 20 may be 2 samples or 2 columns"),
        ([X, Y[:5]], "2 samples or 2 columns"),
        ([X[:2], Y[:2]], "2 samples or 2 columns"),
        ([X] * 4, "4 samples or 4 columns"),
        (
            (X[:2],) * 9,
            "9 samples or 9 columns.*a dict of them for columns, or mpiter.Packed",
        ),
        (
            ([1, 2, 3], [4, 5, 6]),
            "a tuple of list of 3, list of 3 may be 2 samples or 2 columns",
        ),
        (
            (X, Y[1:]),
            "column 0 has 20 rows, column 1 19.*arrays of one length.*mpiter.Packed",
        ),
        ((X, [1, 2]), "column 0 has 20 rows, column 1 2"),
        ({"x": X, "y": Y[1:]}, "'x' has 20 rows, 'y' 19"),
        (((X, Y), Y), "columns can.t be nested, and column 0 is a tuple of arrays"),
        (
            {"in": {"x": X}, "y": Y},
            "columns can.t be nested, and 'in' is dict: pass each as a column",
        ),
        ({"x": X, "y": 3}, "'y' is int"),
        ((X, None), "column 1 is NoneType.*mpiter.Packed"),
        ("images", "'images' is str: its samples would be single letters"),
        (b"images", "single letters"),
        (Pair, r"Pair is a class: pass a dataset made of it, Pair\(…\)"),
        (
            len,
            "len is a function: pass an object with __getitem__ and __len__, or what "
            "it returns",
        ),
        (None, r"a dataset has \[\] or can be iterated over, and NoneType has neither"),
        (8, "8 is no dataset: the dataset comes first, then the batch size"),
        (np.int64(8), "8 is no dataset"),
        (
            "nowhere/images",
            r"'nowhere/images' is a path \(nothing lies there\), "
            "not a dataset: open it",
        ),
        (Path("rows.parquet"), r"pass mpiter.files.Parquet\(path\)"),
        (
            "table/*.parquet",
            r"is a path, not a dataset: pass mpiter.files.Parquet\(path\)",
        ),
        ("s3://here/a.parquet", r"is a path, not .*: pass mpiter.files.Parquet"),
        ("shard.tar", r"pass mpiter.files.Tar\(path\)"),
        ("rows.csv", r"pass pandas.read_csv\(path\)"),
        (
            Path(__file__),
            "test_columns.py. is a path, not a dataset: open it, and pass what it "
            "holds",
        ),
        (
            Path(__file__).parent,
            "is a path, not a dataset: for pictures pass "
            r"mpiter.images.ImageFolder\(path\)",
        ),
        (str(Path(__file__).parent), r"mpiter.images.ImageFolder\(path\)"),
    ],
    ids=lambda given: given if type(given) is str else "",
)
def test_what_may_be_meant_otherwise_is_refused_with_what_to_write(
    data: Any, says: str
) -> None:
    for door in DOORS:
        with pytest.raises(mpiter.OptionError, match=says):
            door(data)


@pytest.mark.parametrize("size", [(), (8,)], ids=["no size", "a size"])
def test_columns_that_are_passed_apart_are_refused(size: Any) -> None:
    for door in (mpiter.batches, mpiter.SerialIterator, mpiter.DataLoader, mpiter.tune)[
        : 4 - len(size)
    ]:
        with pytest.raises(
            mpiter.OptionError,
            match=r"batch_size is of type ndarray: arrays go together.*\(X, y\)",
        ):
            door(X, Y, *size)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("part-0.parquet", r"pass mpiter.files.Parquet\(path\)"),
        ("year=2024/month=1/0.parquet", r"pass mpiter.files.Parquet\(path\)"),
        ("0.tar", r"pass mpiter.files.Tar\(path\)"),
    ],
)
def test_a_folder_of_such_files_is_read_as_one(
    name: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    for door in DOORS:
        with pytest.raises(mpiter.OptionError, match=says):
            door(tmp_path)


@pytest.mark.clients
def test_a_group_of_zarr_has_arrays_for_datasets(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    zarr = pytest.importorskip(
        "zarr", reason="zarr is not installed: run `python3 tests --all`"
    )
    request.addfinalizer(zarr.core.sync.cleanup_resources)
    group = zarr.open_group(str(tmp_path / "store"), mode="w")
    for door in DOORS:
        with pytest.raises(mpiter.OptionError, match="pass an array that lies in it"):
            door(group)
    group.create_array("x", shape=(20, 2), dtype="f4")
    with pytest.raises(
        mpiter.OptionError, match=r"arrays by name: pass group\['x'\]\.$"
    ):
        DOORS[0](group)
    group.create_array("y", shape=(20,), dtype="i8")
    with pytest.raises(
        mpiter.OptionError,
        match=r"or for columns \{'.': group\['.'\], '.': group\['.'\]\}",
    ):
        DOORS[0](group)
    by_name = mpiter.DataLoader(
        group, sampler=["y"], collate_fn=lambda samples: samples[0].shape
    )
    assert list(by_name) == [(20,)]


@pytest.mark.clients
def test_a_lazy_frame_is_collected_first() -> None:
    polars = pytest.importorskip(
        "polars", reason="polars is not installed: run `python3 tests --all`"
    )
    for door in DOORS:
        with pytest.raises(
            mpiter.OptionError, match=r"no rows yet: pass frame.collect\(\)"
        ):
            door(polars.LazyFrame({"x": [1, 2]}))


@pytest.mark.parametrize("arrays", [[X, X], (X, None)], ids=["alike", "not alike"])
def test_packed_arrays_are_samples(arrays: Any) -> None:
    stream = mpiter.SerialIterator(
        mpiter.Packed(arrays), 1, repeat=False, shuffle=False
    )
    assert [plain(batch[0]) for batch in stream] == [*map(plain, arrays)]


@pytest.mark.parametrize(
    "data",
    [
        [X],
        [X, X[1:]],
        [X, None],
        [X] * 9,
        [np.ones(2)] * 2,
        ((X, 1), (X, 2)),
        (("a", X), ("b", X)),
        [1, 2],
        (1, 2, 3),
        (),
        (np.array(1),),
        {0: "a", 1: "b"},
        [(X, Y)],
        ([1], [2, 3]),
        ([1, 2], [3, 4]),
        [np.ones(3)] * 4,
    ],
    ids=repr,
)
def test_what_can_only_be_samples_is_left_alone(data: Any) -> None:
    assert as_dataset(data) is data


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_a_class_of_ones_own_knows_what_its_samples_are(kind: Any) -> None:
    own = type(
        "Own",
        (kind,),
        {"__getitem__": lambda self, index: 10 * index, "__len__": lambda self: 3},
    )
    with mpiter.batches(
        own({"x": X, "y": 3}), 3, shuffle=False, n_processes=0
    ) as stream:
        assert next(stream).tolist() == [0, 10, 20]


def test_a_dict_for_samplers_of_names_has_samples_unless_it_has_columns() -> None:
    named = {"u": (np.zeros(3), 1), "v": (np.ones(3), 2)}
    assert as_dataset(named, by_key=True) is named
    assert len(as_dataset({"x": X, "y": LETTERS}, by_key=True)) == 20
