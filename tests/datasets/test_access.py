"""Datasets that read many samples at once give the same samples in fewer calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from datasets import plain_batch
from ways import iterator

import mpiter

BACKENDS: dict[str, dict[str, Any]] = {
    "process": {"n_processes": 2},
    "thread": {"n_processes": 2, "backend": "thread"},
    "serial": {"n_processes": 0},
}
every_backend = pytest.mark.parametrize("options", BACKENDS.values(), ids=BACKENDS)

IMAGES = np.arange(50 * 6, dtype=np.float32).reshape(50, 2, 3)
LABELS = np.arange(50) % 7
MANY = {
    "images": IMAGES,
    "labels": LABELS.astype(">i2"),
    "strings": np.array([f"sample {i}" for i in range(50)]),
    "records": np.array(
        [(i, i / 2) for i in range(50)], dtype=[("a", "i4"), ("b", "f8")]
    ),
    "dates": np.arange(50).astype("M8[D]"),
    "objects": np.array([None, *range(49)], dtype=object),
    "transposed": IMAGES.transpose(0, 2, 1),
    "masked": np.ma.masked_array(IMAGES, IMAGES % 2 == 0),
}
TABLES: dict[str, Any] = {"dict": MANY, "array": IMAGES, "one column": (IMAGES,)}


class OneByOne:
    """The same samples, read one by one."""

    def __init__(self, columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.columns, dict):
            return {name: column[index] for name, column in self.columns.items()}
        if isinstance(self.columns, tuple):
            return tuple(column[index] for column in self.columns)
        return self.columns[index]


def epoch(dataset: Any, **options: Any) -> list[Any]:
    with iterator(dataset, 8, repeat=False, seed=1, **options) as it:
        return [plain_batch(batch) for batch in it]


@every_backend
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_columns_are_a_dataset_of_their_rows(
    options: dict[str, Any], table: Any
) -> None:
    assert epoch(table, **options) == epoch(OneByOne(table), n_processes=0)


@every_backend
def test_batches_of_columns_are_parts_of_them(options: dict[str, Any]) -> None:
    with mpiter.batches((IMAGES, LABELS), 8, shuffle=False, **options) as stream:
        for at, (x, y) in enumerate(stream):
            assert np.array_equal(x, IMAGES[8 * at : 8 * at + 8])
            assert np.array_equal(y, LABELS[8 * at : 8 * at + 8])
            x[...] = 0
    assert IMAGES.any()


def test_a_mapped_file_is_a_dataset(tmp_path: Any) -> None:
    IMAGES.tofile(tmp_path / "images")
    mapped = np.memmap(tmp_path / "images", np.float32, "r", shape=IMAGES.shape)
    for table in (mapped, (mapped, LABELS)):
        plain_table = (IMAGES, LABELS) if isinstance(table, tuple) else IMAGES
        assert epoch(table, n_processes=2) == epoch(
            OneByOne(plain_table), n_processes=0
        )


class Several:
    """A dataset with torch's ``__getitems__``."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.calls = 0

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        if self.wrong == "draws":
            return index, mpiter.get_rng().random()
        if self.wrong == "draws globally":
            return index, np.random.random()
        return index, 0

    def __getitems__(self, indices: list[int]) -> Any:
        assert all(type(index) is int for index in indices)
        self.calls += 1
        if self.wrong == "raises":
            raise ValueError("not today")
        found = [self[index] for index in indices]
        if self.wrong == "a generator":
            return (self[index] for index in indices)
        if self.wrong == "a mapping":
            return {"index": indices, **{str(index): 0 for index in indices[1:]}}
        return found[1:] if self.wrong == "too few" else found


@every_backend
def test_getitems_is_asked_where_it_is_offered(options: dict[str, Any]) -> None:
    assert epoch(Several(), **options) == epoch(
        [(i, 0) for i in range(50)], n_processes=0
    )


def test_getitems_is_called_once_for_many() -> None:
    dataset = Several()
    epoch(dataset, n_processes=0)
    assert dataset.calls == 7


@pytest.mark.parametrize(
    "wrong",
    ["raises", "too few", "draws", "draws globally", "a mapping", "a generator"],
)
def test_what_getitems_gets_wrong_is_put_right_one_by_one(wrong: str) -> None:
    class Single(Several):
        __getitems__ = None  # type: ignore[assignment]

    expected = epoch(Single(wrong), n_processes=0)
    assert epoch(Several(wrong), n_processes=0) == expected
    if wrong in ("raises", "draws globally"):
        assert epoch(Several(wrong), n_processes=2) == expected


@every_backend
def test_a_reader_that_sorts_its_keys_changes_no_sample(
    options: dict[str, Any],
) -> None:
    class Sorts(Several):
        __getitems__ = None  # type: ignore[assignment]

        def mpiter_reader(self) -> Any:
            def read(keys: Any) -> Any:
                keys.sort()
                raise ValueError("not together")

            return read

    assert epoch(Sorts(), **options) == epoch(
        [(i, 0) for i in range(50)], n_processes=0
    )


def test_an_error_is_blamed_on_its_own_sample() -> None:
    class Fails(Several):
        def __getitem__(self, index: int) -> Any:
            if index == 13:
                raise KeyError(index)
            return super().__getitem__(index)

    with iterator(Fails(), 8, repeat=False, shuffle=False, n_processes=1) as it:
        next(it)
        with pytest.raises(KeyError) as caught:
            next(it)
        assert any("dataset[13]" in note for note in caught.value.__notes__)
        assert [sample[0] for sample in next(it)] == list(range(16, 24))
