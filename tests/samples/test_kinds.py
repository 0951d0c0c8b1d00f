"""Each kind of leaf keeps one contract, and so does one that a program adds."""

from __future__ import annotations

import json
import pickle
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from journeys import Journey
from samples import assert_same

import mpiter
from mpiter.errors import LeafError, UnevenSamples
from mpiter.samples import leaf, tensors
from mpiter.samples.batch import collate, columns_of, samples_of
from mpiter.samples.copying import Look, copied
from mpiter.samples.jagged import Jagged
from mpiter.samples.jsonable import decoded, encoded
from mpiter.samples.kinds import KINDS, OfJax, Tensor, kind_of, leaf_for
from mpiter.samples.tree import Aside, Made, describe
from mpiter.testing import check_dataset

# Values of each kind, alike and different.
VALUES: dict[str, list[Any]] = {
    "Bool": [True, False],
    "Int": [3, -(1 << 63), (1 << 63) - 1, 1 << 80],
    "Float": [0.1, -0.0, float("inf"), float("nan")],
    "Complex": [1j, complex("nan")],
    "Text": ["a", "", None],
    "Bytes": [b"ab", b""],
    "Array": [np.arange(6, dtype=">i2").reshape(2, 3), np.ones((2, 3), ">i2")],
    "Scalar": [np.float16(0.1), np.float16(-0.0)],
    "Tensor": [],
    "OfJax": [],
}
# Those whose memory a dataset may overwrite, and those that no state can hold.
WITH_MEMORY = {"Array", "Tensor"}
NOT_IN_STATES = {"Complex", "OfJax"}
# JAX warns of forks, which tests do a lot, so its arrays are tested in
# tests/support/jax_cases.py, in a process of their own.
every_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.torch] if kind is Tensor else [])
        for kind in KINDS
        if kind is not OfJax
    ],
    ids=lambda kind: kind.__name__,
)


def values_of(kind: Any) -> list[Any]:
    """Return values of a kind; skip the test if their library isn't loaded."""
    if kind is Tensor:
        torch = pytest.importorskip(
            "torch", reason="torch is not installed: run `python3 tests --all`"
        )
        return [torch.arange(6).reshape(2, 3), torch.ones(2, 3, dtype=torch.int64)]
    return VALUES[kind.__name__]


def assert_equal(sent: Any, got: Any) -> None:
    """Compare values of any kind, tensors too."""
    assert type(got) is type(sent)
    if tensors.as_array(sent) is not None:
        sent = tensors.as_array(sent)
        got = tensors.as_array(got)
    assert_same(sent, got)


def test_every_kind_is_in_the_table_of_this_file():
    assert {kind.__name__ for kind in KINDS} == set(VALUES)


@every_kind
def test_a_kind_recognises_its_values(kind):
    for value in values_of(kind):
        assert kind_of(type(value)) is kind
        found = leaf_for(value)
        assert found is None or type(found) is kind


@every_kind
@pytest.mark.parametrize("travels", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_values_of_a_kind_come_back_through_slots_and_as_objects(kind, travels, beside):
    batch: list[Any] = [(value, 1) for value in values_of(kind)]
    if beside:
        # The first sample is of another form, so that these are sent as objects.
        batch = [(object, 1), *batch]
    got = Journey(batch, travels=travels).write(at_once=1).read()
    for (sent, _), (value, _) in zip(batch, got, strict=True):
        assert_equal(sent, value)


@every_kind
@pytest.mark.parametrize("workers", [0, 1])
def test_values_of_a_kind_come_back_from_threads_and_without_workers(kind, workers):
    values = values_of(kind)
    options: dict[str, Any] = {"shuffle": False, "repeat": False}
    if workers:
        made: Any = mpiter.MultithreadIterator(values, 2, **options)
    else:
        made = mpiter.SerialIterator(values, 2, **options)
    with made as batches:
        got = [value for batch in batches for value in batch]
    for sent, value in zip(values, got, strict=True):
        assert_equal(sent, value)


@every_kind
def test_a_copy_of_a_value_has_memory_of_its_own(kind):
    for value in values_of(kind):
        assert_equal(value, copied(value))
        memory, _ = kind.memory(value)
        assert (memory is not None) == (kind.__name__ in WITH_MEMORY)
        if memory is None:
            continue
        look = Look(value)
        assert not look.has_changed()
        other = copied(value)
        memory[...] = 9
        assert look.has_changed()
        assert not (kind.array(other) == 9).any()


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_whose_lengths_make_up_for_each_other_are_uneven_all_the_same(workers):
    rows = [np.full(length, float(length)) for length in (3, 2, 4, 3)]
    options = {"n_processes": workers, "shuffle": False}
    with mpiter.batches(rows, 4, **options) as stream, pytest.raises(UnevenSamples):
        next(stream)
    with mpiter.batches(rows, 4, ragged="list", **options) as stream:
        assert [row.tolist() for row in next(stream)] == [row.tolist() for row in rows]


@every_kind
@pytest.mark.parametrize("beside", [None, []])
def test_values_of_a_kind_come_back_from_a_state(kind, beside):
    for value in values_of(kind):
        if kind.__name__ in NOT_IN_STATES:
            with pytest.raises(mpiter.StateError, match="state is of type"):
                encoded(value)
            continue
        plain = json.loads(json.dumps(encoded(value, beside)))
        assert_equal(value, decoded(plain, beside or ()))


# -- kinds that a program adds ---------------------------------------------------------


class Scan:
    """A value of a kind that mpiter doesn't know."""

    def __init__(self, name: str, points: Any) -> None:
        self.name = name
        self.points = points

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Scan)
        return self.name == other.name and np.array_equal(self.points, other.points)


class ScanLeaf(mpiter.Leaf[Scan]):
    kind = Scan

    def split(self, value: Scan) -> tuple[Any, ...]:
        return value.name, value.points

    def join(self, name: str, points: Any) -> Scan:
        return Scan(name, points)

    def stack(self, names: Any, points: Any) -> Any:
        return {"names": names, "points": points}


class FractionLeaf(mpiter.Leaf[Fraction]):
    kind = Fraction

    def split(self, value: Fraction) -> tuple[int, int]:
        return value.numerator, value.denominator

    def join(self, *parts: int) -> Fraction:
        return Fraction(*parts)


@pytest.fixture(autouse=True)
def _forget():
    before = dict(leaf.added)
    yield
    leaf.added.clear()
    leaf.added.update(before)


class Scans:
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        # The numerators of some don't fit 64 bits.
        large = 1 << 70 if index == 50 else 1
        points = np.full((1 + index % 4, 2), index)
        return Fraction(large + index, 7), Scan(str(index), points), index


WAYS: dict[str, dict[str, Any]] = {
    "fork server": {"n_processes": 2},
    "fork": {"n_processes": 1, "backend": mpiter.Process("fork")},
    "sent": {"n_processes": 1, "serializer": "packed"},
    "threads": {"n_processes": 2, "backend": "thread"},
}


@pytest.mark.parametrize("way", WAYS)
def test_values_of_an_added_kind_come_back_from_workers(way):
    mpiter.add_leaf(FractionLeaf())
    mpiter.add_leaf(ScanLeaf())
    dataset = Scans()
    wanted = [dataset[index] for index in range(60)]
    with mpiter.MultiprocessIterator(
        dataset, 5, repeat=False, shuffle=False, **WAYS[way]
    ) as it:
        batches = [*it]
    assert [sample for batch in batches for sample in batch] == wanted
    fractions, scans, _ = batches[-1].columns
    assert [*map(Fraction, *map(np.ndarray.tolist, fractions))] == [
        sample[0] for sample in wanted[-5:]
    ]
    assert scans["names"] == ["55", "56", "57", "58", "59"]
    assert [len(points) for points in scans["points"]] == [4, 1, 2, 3, 4]


def test_a_worker_that_makes_whole_batches_knows_the_added_kinds():
    class Local(ScanLeaf):
        """Travels by value, since no module has it."""

    mpiter.add_leaf(Local())
    data = [Scan(str(at), np.arange(3)) for at in range(4)]
    with mpiter.DataLoader(data, batch_sampler=[[0, 1], [3]], num_workers=1) as loader:
        first, last = loader
    assert (first["names"], first["points"].shape) == (["0", "1"], (2, 3))
    assert last["names"] == ["3"]


def test_without_workers_columns_and_samples_are_the_same():
    mpiter.add_leaf(FractionLeaf())
    data = [Fraction(at, 2) for at in range(4)]
    with mpiter.batches(data, 4, n_processes=0, shuffle=False) as stream:
        tops, bottoms = next(stream)
    assert (tops.tolist(), bottoms.tolist()) == ([0, 1, 1, 3], [1, 2, 1, 2])
    with mpiter.SerialIterator(data, 4, shuffle=False) as it:
        assert next(it) == data


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_loader_makes_tensors_of_an_added_value(workers):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    from mpiter.torch import DataLoader

    mpiter.add_leaf(FractionLeaf())
    for beside in (torch.ones(2), np.ones(2)):
        data = [(beside, Fraction(at, 9)) for at in range(1, 9)]
        with DataLoader(data, 4, num_workers=workers) as loader:
            for ones, (tops, bottoms) in loader:
                assert ones.shape == (4, 2)
                assert (tops.dtype, bottoms.dtype) == (torch.int64, torch.int64)
        assert bottoms.tolist() == [9, 3, 9, 9]
    with (
        DataLoader([(1, object())]) as loader,
        pytest.raises(TypeError, match="default_collate"),
    ):
        next(iter(loader))


def test_an_added_value_is_compared_copied_and_kept_in_a_state():
    mpiter.add_leaf(ScanLeaf())
    scan = Scan("a", np.arange(4))
    other = copied(scan)
    look = Look(scan)
    plain = json.loads(json.dumps(encoded([scan])))
    scan.points[:] = 0
    assert look.has_changed()
    assert other.points.tolist() == [0, 1, 2, 3]
    assert decoded(plain) == [other]
    leaf.added.clear()
    with pytest.raises(mpiter.StateError, match=r"no leaf for '.*Scan' was added"):
        decoded(plain)


def test_a_type_that_was_added_twice_has_the_later_leaf():
    class Rounded(FractionLeaf):
        def split(self, value):
            return (float(value),)

        def join(self, number):
            return Fraction(number)

    trees = []
    for one in (FractionLeaf(), Rounded()):
        mpiter.add_leaf(one)
        trees.append(describe(Fraction(1, 2)))
        contents = Journey([Fraction(1, 2), Fraction(3, 4)]).write().contents()
        assert samples_of(contents) == [Fraction(1, 2), Fraction(3, 4)]
    assert trees[0] != trees[1]
    assert columns_of(contents)[0].tolist() == [0.5, 0.75]


def broken(**methods: Any) -> Any:
    return type("Broken", (FractionLeaf,), methods)()


BROKEN = {
    "raises in split": (
        broken(split=lambda self, value: 1 / 0),
        r"Broken.split has raised ZeroDivisionError: division by zero .*Fraction",
    ),
    "splits into a list": (
        broken(split=lambda self, value: [1, 2]),
        r"Broken.split has returned \[1, 2\]; it must return a tuple of one part",
    ),
    "splits into nothing": (
        broken(split=lambda self, value: ()),
        r"Broken.split has returned \(\); it must",
    ),
    "splits into its own kind": (
        broken(split=lambda self, value: (value,)),
        "Broken.split has returned parts that hold a Fraction again",
    ),
    "splits into a list of its own kind": (
        broken(split=lambda self, value: (1, [[value]])),
        "Broken.split has returned parts that hold a Fraction again",
    ),
    "splits into more parts and fewer": (
        broken(split=lambda self, value: (1,) * (1 + value.numerator % 2)),
        r"Broken.split has returned \d parts? \(called with .*, and \d parts? for",
    ),
    "raises in join": (
        broken(join=lambda self, one: one),
        "Broken.join has raised TypeError: .*positional",
    ),
    "joins something else": (
        broken(join=lambda self, *parts: 0.5),
        "Broken.join has returned 0.5; it must return a Fraction",
    ),
    "raises in stack": (
        broken(stack=lambda self: None),
        "Broken.stack has raised TypeError",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_error_of_a_leaf_that_misbehaves_names_it(case):
    one, says = BROKEN[case]
    mpiter.add_leaf(one)
    data = [Fraction(at, 3) for at in range(8)]
    # Only samples are put together, and threads hand over the very objects.
    if "join" in case:
        with pytest.raises(LeafError, match=says):
            Journey(data).write().read()
        return
    with (
        mpiter.batches(data, 2, n_processes=1, backend="thread") as stream,
        pytest.raises(LeafError, match=says),
    ):
        list(stream)


def test_what_holds_its_own_kind_by_way_of_another_leaf_is_named():
    mpiter.add_leaf(broken(split=lambda self, value: (Scan("a", value),)))
    mpiter.add_leaf(ScanLeaf())
    for look in (describe, copied, Look):
        with pytest.raises(LeafError, match=r"Broken.split .* hold a Fraction again"):
            look((Fraction(1, 2),))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "case", [case for case in BROKEN if "split" in case and "fewer" not in case]
)
def test_the_error_of_split_names_the_sample_with_workers_and_without(case, workers):
    one, says = BROKEN[case]
    mpiter.add_leaf(one)
    data = [Fraction(at, 3) for at in range(8)]
    with mpiter.batches(data, 4, n_processes=workers, shuffle=False) as stream:
        for first in (0, 4):
            with pytest.raises(LeafError, match=says) as caught:
                next(stream)
            [note] = caught.value.__notes__
            assert note.startswith(
                f"mpiter: sample {first} (position {first} of epoch 0), fetched by "
            )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("parts", ["none", "fewer"])
def test_a_later_sample_that_split_fails_for_is_named_and_costs_one_batch(
    parts, workers
):
    def split(self, value):
        found = value.numerator, value.denominator
        if value != Fraction(6, 7):
            return found
        return found[:1] if parts == "fewer" else found[:0]

    mpiter.add_leaf(broken(split=split))
    data = [Fraction(at, 7) for at in range(1, 9)]
    with mpiter.batches(data, 2, n_processes=workers, shuffle=False) as stream:
        tops = [next(stream)[0].tolist() for _ in range(2)]
        # Without workers the error may also name the sample that it compares with.
        with pytest.raises(LeafError, match=r"Broken.split has returned") as caught:
            next(stream)
        assert any("sample 5 " in note for note in caught.value.__notes__)
        assert [*tops, next(stream)[0].tolist()] == [[1, 2], [3, 4], [1, 8]]


def test_samples_that_split_fails_for_are_left_out_by_workers():
    def split(self, value):
        return value.numerator, 12 // (value.numerator % 5)

    mpiter.add_leaf(broken(split=split))
    fractions = [Fraction(at, 12) for at in range(1, 60, 2)]
    good = [one for one in fractions if one.numerator % 5]
    rows = np.arange(len(fractions))
    # The first of all fails, which decides what columns there are.
    fractions = [Fraction(5, 12), *fractions[:-1]]
    good = [one for one in fractions if one.numerator % 5]
    for data in (fractions, [*zip(fractions, rows, strict=True)], (fractions, rows)):
        with mpiter.MultiprocessIterator(
            data,
            4,
            n_processes=2,
            shuffle=False,
            repeat=False,
            on_error="skip",
        ) as it:
            found = [sample for batch in it for sample in batch]
        if data is not fractions:
            found = [sample[0] for sample in found]
        assert found == [
            Fraction(one.numerator, 12 // (one.numerator % 5)) for one in good
        ]


def test_samples_sent_as_objects_that_split_fails_for_are_told_by_row():
    def split(self, value):
        return value.numerator, 12 // (value.numerator % 5)

    mpiter.add_leaf(broken(split=split))
    good = Fraction(1, 12)
    journey = Journey([good] * 3)
    journey.odd.update({0: good, 1: Fraction(5, 12), 2: good})
    errors = journey.rooms.place(journey.delivery)
    assert list(errors) == [1]
    assert "split has raised ZeroDivisionError" in str(errors[1])
    # Nothing else looks at it, so it comes back as it was sent.
    assert journey.read() == [good, Fraction(5, 12), good]


def test_samples_built_differently_hide_no_leaf_that_splits_unevenly():
    one, _ = BROKEN["splits into more parts and fewer"]
    mpiter.add_leaf(one)
    samples = [([1], Fraction(1, 2)), ([1, 2], Fraction(2, 3))]
    with pytest.raises(LeafError, match=r"has returned 1 part, and 2 parts for"):
        collate(samples)
    mpiter.add_leaf(FractionLeaf())
    lengths, (tops, bottoms) = collate(samples)
    assert (lengths, tops.tolist(), bottoms.tolist()) == (
        [[1], [1, 2]],
        [1, 2],
        [2, 3],
    )


def test_the_error_of_join_names_the_samples_of_the_batch():
    one, says = BROKEN["joins something else"]
    mpiter.add_leaf(one)
    data = [Fraction(at, 3) for at in range(4)]
    with (
        mpiter.MultiprocessIterator(data, 2, n_processes=1, shuffle=False) as it,
        pytest.raises(LeafError, match=says) as caught,
    ):
        next(it)
    [note] = caught.value.__notes__
    assert "[dataset[i] for i in [0, 1]]" in note


BEYOND = [1, 2, 1 << 63, 4]
UNEVEN: dict[str, tuple[list[Any], str, Any]] = {
    "alone": (
        BEYOND,
        r"uneven: 1 .* beyond int64, in row 2\..*='list', .* type in the dataset",
        BEYOND,
    ),
    "in a leaf": (
        [{"f": Fraction(1, one)} for one in BEYOND],
        r"uneven in part \[1\] of a Fraction at \['f'\]: 1 .* beyond int64, in row 2\."
        r".*='list', .* have FractionLeaf.split return parts of one shape and type",
        {"f": ([1] * 4, BEYOND)},
    ),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("case", UNEVEN)
def test_an_int_beyond_int64_is_as_uneven_in_a_leaf_as_alone(case, workers):
    mpiter.add_leaf(FractionLeaf())
    data, says, listed = UNEVEN[case]
    options: Any = {"n_processes": workers, "shuffle": False}
    with (
        mpiter.batches(data, 4, **options) as stream,
        pytest.raises(UnevenSamples, match=says),
    ):
        next(stream)
    with mpiter.batches(data, 4, ragged="list", **options) as stream:
        found = next(stream)
    if case == "in a leaf":
        tops, bottoms = found["f"]
        found = {"f": (tops.tolist(), bottoms)}
    assert found == listed


def test_check_dataset_names_a_leaf_and_counts_the_bytes_of_its_parts():
    data = [{"f": (Fraction(at, 7), at)} for at in range(1, 7)]
    mpiter.add_leaf(FractionLeaf())
    assert check_dataset(data, n_processes=1).sample_bytes == 24
    uneven = [*data, {"f": (Fraction(1 << 70, 7), 0)}]
    with pytest.raises(AssertionError, match=r"have FractionLeaf.split return parts"):
        check_dataset(uneven, n_processes=1)
    mpiter.add_leaf(broken(join=lambda self, top, bottom: Fraction(bottom, top)))
    # Records are pickled whole, so no worker would show it.
    for samples in (data, [(*one["f"], "a text") for one in data]):
        with pytest.raises(AssertionError, match=r"Broken puts another Fraction .*0\]"):
            check_dataset(samples, n_processes=1)
    mpiter.add_leaf(broken(stack=lambda self: None))
    with pytest.raises(LeafError, match=r"Broken.stack has raised TypeError"):
        check_dataset(data, n_processes=1)


def test_the_error_of_a_leaf_in_a_worker_process_names_it_too():
    def split(self, value):
        return value.numerator, 12 // (value.numerator - 5)

    mpiter.add_leaf(broken(split=split))
    data = [Fraction(at, 3) for at in range(8)]
    with mpiter.batches(data, 2, n_processes=1, shuffle=False) as stream:
        with pytest.raises(LeafError, match=r"split has raised ZeroDivisionError"):
            list(stream)
        # It fails one batch, as an error of the dataset does.
        assert len([*stream]) > 0


def test_what_is_no_leaf_is_refused():
    for wrong, says in (
        (FractionLeaf, "needs an object of a class that is derived from"),
        (type("Nameless", (FractionLeaf,), {"kind": None})(), "Nameless.kind must be"),
        (type("Ours", (FractionLeaf,), {"kind": int})(), "mpiter knows by itself"),
        (type("Ours", (FractionLeaf,), {"kind": Jagged})(), "mpiter knows by itself"),
    ):
        with pytest.raises(mpiter.OptionError, match=says):
            mpiter.add_leaf(wrong)
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (mpiter.Leaf,), {"kind": Fraction})()


def test_rows_of_several_lengths_are_a_leaf_of_our_own():
    rows = Jagged.of([np.arange(2), np.arange(3)])
    assert type(describe(rows)) is Made
    assert type(describe([object])) is not Aside
    (got,) = Journey([rows]).write().read()
    assert_same(rows.values, got.values)
    assert_same(rows.offsets, got.offsets)
    assert_same(pickle.loads(pickle.dumps(rows)).values, rows.values)
    assert "fractions" in sys.modules
