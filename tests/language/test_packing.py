"""Packed rows hold each document whole, or an error says which is wrong, and why."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import Documents, Plain, lognormal, tokens_in

import mpiter
from mpiter.errors import DocumentError
from mpiter.language import Balanced, flat, measure_lengths

HOWS = ["fit", "cut"]
SHORT = [3, 6, 2, 5, 4]


def rows_of(dataset: Any, batch_size: int = 4, **options: Any) -> list[Any]:
    """Return the batches of an epoch."""
    options = {"n_processes": 0, "seed": 0, **options}
    with mpiter.batches(dataset, batch_size, **options) as stream:
        return list(stream)


def documents_in(row: Any) -> list[list[int]]:
    """Return the documents of a row, in the order of their numbers."""
    found = list[list[int]]()
    for number in range(1, int(row["segment_ids"].max()) + 1):
        found.append(row["tokens"][row["segment_ids"] == number].tolist())
    return found


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None, "8", np.float64(8)])
@pytest.mark.parametrize("name", ["capacity", "window"])
def test_sizes_must_be_whole_numbers_above_0(name: str, wrong: Any) -> None:
    options: dict[str, Any] = {"capacity": 8, name: wrong}
    with pytest.raises(mpiter.OptionError, match=f"{name}=.* a whole number above 0"):
        mpiter.Pack(Documents(SHORT), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"how": "best"}, "how='best' is unknown; it may be 'fit', 'cut'"),
        ({"long": "keep"}, "long='keep' is unknown; it may be 'error', 'split'"),
        ({"layout": "ragged"}, "layout='ragged' is unknown; it may be 'padded'"),
        ({"cost": 2}, "cost=2 must be a function"),
        ({"lengths": [1, 2]}, "lengths= has 2 numbers, and there are 5 documents"),
        ({"lengths": [1.0] * 5}, "lengths= is an array of float64 with shape"),
        ({"lengths": [[1]] * 5}, r"with shape \(5, 1\)"),
        ({"lengths": [1, 2, 3, 4, -1]}, "lengths= has negative numbers"),
        ({"lengths": [0] * 5}, "the documents have no tokens"),
        ({"counted": "typo.npy"}, "counted='typo.npy' isn't there"),
        ({"counted": [3, 6, 2, 6, 4]}, "counted= has 6 for document 3, which has 5"),
        ({"counted": [3, -6, 2, 5, 4]}, "counted= has negative numbers"),
        ({"counted": 5}, "counted=5 must have a number for each document"),
        ({"counted": lambda _: 1}, r"counted= returned int64 of shape \(\) for 5 leng"),
        ({"counted": lambda sizes: sizes / 2}, "counted= returned float64 of shape"),
        ({"counted": lambda sizes: sizes - 3}, "counted= returned -1 for a piece of 2"),
        ({"counted": lambda sizes: sizes + 1}, "counted= returned 4 for a piece of 3"),
        ({"counted": [1]}, "counted= has 1 numbers, and there are 5 documents"),
        ({"counted": [1] * 5, "how": "cut"}, "counted= needs whole documents"),
        (
            {"counted": [1] * 5, "long": "split", "capacity": 4},
            "counted= needs whole documents",
        ),
    ],
)
def test_other_options_are_refused_in_words(options: Any, text: str) -> None:
    with pytest.raises(mpiter.OptionError, match=text):
        mpiter.Pack(Documents(SHORT), **{"capacity": 8, **options})


def test_what_is_packed_already_is_told_so() -> None:
    rows = mpiter.Pack(Documents(SHORT), 8)
    with pytest.raises(mpiter.OptionError, match="rows of a Pack are packed already"):
        mpiter.Pack(rows, 16)
    with pytest.raises(mpiter.OptionError, match="dealt by their cost already"):
        Balanced(rows)


def test_names_of_components_do_not_go_into_rows() -> None:
    mix = mpiter.Mix({"a": Documents(SHORT)}, {"a": 1}, field="source")
    with pytest.raises(mpiter.OptionError, match="field='source' of the Mix adds a na"):
        mpiter.Pack(mix, 8)


@pytest.mark.parametrize("door", ["batches", "loader", "torch", "torch with a worker"])
def test_jagged_rows_in_a_batch_want_flat(door: str) -> None:
    rows = mpiter.Pack(Documents(lognormal(60)), 64, layout="jagged")
    stream: Any
    if door == "batches":
        stream = mpiter.batches(rows, 4, n_processes=0)
    elif door == "loader":
        stream = mpiter.DataLoader(rows, 4)
    else:
        pytest.importorskip("torch", reason="torch is not installed")
        from mpiter.torch import DataLoader

        stream = DataLoader(rows, 4, num_workers=int(door != "torch"))
    with stream, pytest.raises((ValueError, RuntimeError)) as caught:
        next(iter(stream))
    notes = getattr(caught.value, "__notes__", [])
    assert "mpiter.language.flat" in "\n".join([str(caught.value), *notes])


@pytest.mark.parametrize(("long", "share"), [("truncate", "25.00"), ("drop", "65.00")])
def test_what_long_documents_lose_is_logged_once(
    long: Any, share: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    # Of 100 tokens 65 are in long documents, 25 of them beyond a row.
    pack = mpiter.Pack(Documents([35, 30, 20, 15]), 20, long=long)
    rows_of(pack)
    lines = [line for line in caplog.messages if line.startswith("pack:")]
    assert lines == [
        f"pack: long={long!r} leaves out {share} % of the tokens, of 2 of 4 documents"
    ]


def test_documents_longer_than_a_row_are_an_error_with_figures() -> None:
    lengths = [10] * 90 + [30] * 10
    text = (
        r"10 of 100 documents are longer than capacity=20, with 8.33% of all tokens "
        r"beyond it: pass long='split', 'truncate' or 'drop', how='cut', or a larger"
    )
    with pytest.raises(mpiter.OptionError, match=text):
        mpiter.Pack(Documents(lengths), 20)


class Odd(Documents):
    """Documents of which number 2 is something else."""

    def __init__(self, instead: Any) -> None:
        super().__init__(SHORT)
        self.instead = instead

    def __getitem__(self, index: int) -> Any:
        if index != 2:
            return super().__getitem__(index)
        if isinstance(self.instead, Exception):
            raise self.instead
        return self.instead


ODD = {
    "another length": (np.arange(3), "has 3 tokens in its field 'tokens', and its len"),
    "another type": (np.arange(2.0), "has float64 of shape .* others in the row int64"),
    "another shape": (np.zeros((2, 3), np.int64), r"has int64 of shape \(3,\)"),
    "a number": (np.int64(7), "has no tokens in its field 'tokens'"),
    "other fields": ({"text": np.arange(2)}, r"has the fields \['text'\], and others"),
    "an own field": (
        {"tokens": np.arange(2), "positions": np.arange(2)},
        "has a field 'positions', which Pack adds itself",
    ),
    "a shorter field": (
        {"tokens": np.arange(2), "mask": np.arange(1)},
        "has 1 tokens in its field 'mask'",
    ),
    "an error": (ValueError("a torn page"), "a torn page"),
}


# Errors of all kinds travel alike, and starting processes for each would take long.
@pytest.mark.parametrize(
    ("kind", "n_processes"),
    [*((kind, 0) for kind in ODD), ("another length", 1), ("an error", 1)],
)
def test_a_document_that_does_not_fit_in_is_named(kind: str, n_processes: int) -> None:
    instead, text = ODD[kind]
    for_mix = {"web": Documents(SHORT), "code": Odd(instead)}
    mix = mpiter.Mix(for_mix, {"web": 1, "code": 1}, short="renormalise")
    named = {
        "document 2": mpiter.Pack(Odd(instead), 20),
        "document 2 of component 'code'": mpiter.Pack(mix, 40),
        "sample .* of component 'code'": mpiter.Mix(
            {
                "web": mpiter.Pack(for_mix["web"], 20),
                "code": mpiter.Pack(Odd(instead), 20),
            },
            {"web": 1, "code": 1},
        ),
    }
    for name, dataset in named.items():
        with pytest.raises(Exception, match=text) as caught:
            rows_of(dataset, 1, n_processes=n_processes, shuffle=False)
        told = "\n".join([str(caught.value), *caught.value.__notes__])
        assert re.search(name, told), told


class Torn(Documents):
    """Raises one and the same error for two of its documents."""

    error = OSError("a torn page")

    def __getitem__(self, index: int) -> Any:
        if index in (1, 3):
            raise self.error
        return super().__getitem__(index)


@pytest.mark.parametrize("n_processes", [0, 1])
@pytest.mark.parametrize("kind", ["mixed", "packed", "collated"])
def test_what_skip_leaves_out_is_told_with_component_and_document(
    kind: str, n_processes: int
) -> None:
    parts = {"web": Documents(SHORT), "code": Torn(SHORT)}
    mix = mpiter.Mix(parts, {"web": 1, "code": 1}, short="renormalise")
    dataset: Any = mix
    name = r"OSError: a torn page \(sample {0} of component 'code'\)"
    if kind == "packed":
        # A document fills its row.
        dataset = mpiter.Pack(mix, 2, long="split", window=1)
        name = r"document {0} of component 'code' of a packed row\)"
    if kind == "collated":
        loader = mpiter.DataLoader(
            mix, 2, collate_fn=list, num_workers=n_processes, on_error="skip"
        )
    else:
        loader = mpiter.batches(
            dataset, 2, n_processes=n_processes, on_error="skip", ragged="list"
        )
    with loader:
        for _ in loader:
            pass
        texts = [text for _, text in loader.stats().skips]
    assert {*texts}
    for text in texts:
        assert any(re.search(name.format(one), text) for one in (1, 3)), text
        assert ("1 of component" in text) != ("3 of component" in text)


class Killing(Documents):
    """Kills the worker that reads its document 1."""

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_the_death_over_a_row_tells_components_and_documents(
    on_error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    parts = {"web": Documents([4, 4]), "code": Killing([4, 4])}
    mix = mpiter.Mix(parts, {"web": 1, "code": 1}, short="renormalise")
    rows = mpiter.Pack(mix, 4)
    what = "(a row of documents 1 of component 'code')"
    texts = list[str]()
    with mpiter.batches(rows, 1, n_processes=1, on_error=on_error) as stream:
        try:
            for _ in stream:
                pass
        except mpiter.WorkerCrashed as error:
            texts.append(str(error))
        texts += [text for _, text in stream.stats().skips]
    (text,) = texts
    assert what in text
    assert ("on_error='skip' would" in text) == (on_error == "raise")
    assert what in caplog.text


@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_row_with_a_document_that_fails_is_left_out_under_skip(
    n_processes: int,
) -> None:
    documents = Odd(ValueError("a torn page"))
    dataset = mpiter.Pack(documents, 6)
    options = {"n_processes": n_processes, "on_error": "skip"}
    with mpiter.batches(dataset, 1, seed=0, **options) as stream:
        found = tokens_in(stream)
        assert stream.stats().skipped == 1
    # Document 2 has a row with document 4.
    beside = {key for key in found if found[key]}
    assert beside <= {1, 2, 4, 5}
    assert all(found[one] == SHORT[one - 1] for one in beside)
    assert 2 in beside


# -- rows ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["padded", "jagged"])
@pytest.mark.parametrize("how", HOWS)
def test_a_row_numbers_its_documents_and_counts_their_tokens(
    how: Any, layout: Any
) -> None:
    documents = Documents(lognormal(50, most=16))
    pack = mpiter.Pack(documents, np.int64(16), how, layout=layout)
    for at in range(len(pack)):
        row = pack[np.int64(at)]
        if layout == "padded":
            real = row["segment_ids"] > 0
            assert not row["tokens"][~real].any()
            assert not row["positions"][~real].any()
            starts = np.flatnonzero(np.diff(row["segment_ids"], prepend=0) > 0)
            borders = [*starts.tolist(), int(real.sum())]
            assert row["tokens"].shape == (16,)
        else:
            borders = row["cu_seqlens"].tolist()
            assert len(row["tokens"]) == borders[-1] <= 16
            assert "segment_ids" not in row
        for begin, end in itertools.pairwise(borders):
            assert len({*row["tokens"][begin:end].tolist()}) == 1
            assert row["positions"][begin:end].tolist() == [*range(end - begin)]


@pytest.mark.parametrize("long", ["split", "truncate", "drop"])
def test_long_documents_are_split_truncated_or_dropped(long: Any) -> None:
    lengths = [4, 25, 10, 1, 11, 20]
    documents = Documents(lengths)
    batches = rows_of(mpiter.Pack(documents, 10, long=long))
    expected = {
        "split": lengths,
        "truncate": [min(length, 10) for length in lengths],
        "drop": [length * (length <= 10) for length in lengths],
    }[long]
    found = tokens_in(batches)
    assert [found[number] for number in range(1, 7)] == expected
    if long == "split":
        pieces = Counter[int]()
        for batch in batches:
            for row in range(len(batch["tokens"])):
                one = {name: column[row] for name, column in batch.items()}
                for document in documents_in(one):
                    pieces[document[0]] += 1
        assert [pieces[number] for number in range(1, 7)] == [1, 3, 1, 1, 2, 2]


def test_what_comes_of_a_document_that_is_cut_are_its_tokens_in_their_order() -> None:
    long = [np.arange(1, 26), np.arange(100, 140)]
    for options in ({"how": "cut"}, {"long": "split"}):
        pack = mpiter.Pack(long, 10, **options)  # type: ignore[arg-type]
        found = list[int]()
        for at in range(len(pack)):
            for document in documents_in(pack[at]):
                found += document
        if "how" in options:
            assert [one for one in found if one < 100] == [*range(1, 26)]
            assert [one for one in found if one >= 100] == [*range(100, 140)]
        assert sorted(found) == [*range(1, 26), *range(100, 140)]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("window", [1, 3, 8192])
def test_documents_without_tokens_take_no_room(how: Any, window: int) -> None:
    lengths = [0, 3, 0, 0, 6, 1, 0]
    found = tokens_in(rows_of(mpiter.Pack(Documents(lengths), 6, how, window=window)))
    assert found == {2: 3, 5: 6, 6: 1}


def test_all_documents_dropped_leave_no_row() -> None:
    pack = mpiter.Pack(Documents([9, 9]), 6, long="drop")
    assert len(pack) == 0
    with pytest.raises(mpiter.OptionError, match="component 'a' is empty"):
        mpiter.Mix({"a": pack}, {"a": 1})


@pytest.mark.parametrize("how", HOWS)
def test_a_key_beyond_the_last_row_is_an_index_error(how: Any) -> None:
    pack = mpiter.Pack(Documents(SHORT), 8, how)
    for key in (-1, len(pack)):
        with pytest.raises(IndexError, match=f"{key} isn't from 0 to before"):
            pack[key]


def test_fields_travel_side_by_side() -> None:
    documents = list[Any]()
    for length in SHORT:
        tokens = np.full(length, length, "uint16")
        documents.append(
            {"tokens": tokens, "seen": tokens > 3, "two": np.c_[tokens, tokens]}
        )
    [batch] = rows_of(mpiter.Pack(documents, 10), 8)
    assert batch["tokens"].dtype == np.uint16
    assert batch["seen"].dtype == bool
    assert batch["two"].shape[2] == 2
    assert ((batch["tokens"] > 3) == batch["seen"]).all()
    assert (batch["two"] == batch["tokens"][..., None]).all()


# -- lengths ---------------------------------------------------------------------------


def test_lengths_are_given_told_measured_or_kept_in_a_file(tmp_path: Path) -> None:
    lengths = lognormal(60)
    path = tmp_path / "lengths.npy"
    told = Documents(lengths)
    plain = Plain(lengths)
    ways = [
        mpiter.Pack(told, 64),
        mpiter.Pack(plain, 64),
        mpiter.Pack(plain, 64, lengths=[*map(int, lengths)]),
        mpiter.Pack(plain, 64, lengths=tuple(lengths.astype(np.uint8))),
        mpiter.Pack(plain, 64, lengths=path),
        mpiter.Pack(plain, 64, lengths=str(path)),
        mpiter.Pack(mpiter.Mix({"a": plain}, {"a": 1}), 64, lengths=path),
    ]
    assert np.load(path).tolist() == lengths.tolist()
    for pack in ways[:-1]:
        assert len(pack) == len(ways[0])
        for at in range(len(pack)):
            assert pack[at]["tokens"].tolist() == ways[0][at]["tokens"].tolist()
    assert tokens_in(rows_of(ways[-1])) == told.tokens()


def test_measuring_reads_the_tokens_of_dicts_and_names_one_without_fields() -> None:
    documents = [{"id": np.arange(9), "tokens": np.arange(3)}, {"text": np.arange(4)}]
    assert measure_lengths(documents, n_processes=0).tolist() == [3, 4]
    many = [range(number % 77) for number in range(600)]
    lengths = measure_lengths(many, n_processes=0)
    assert lengths.tolist() == [number % 77 for number in range(600)]
    with pytest.raises(DocumentError, match="document 1 has no fields"):
        measure_lengths([{"tokens": [1]}, {}], n_processes=0)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_document_that_cannot_be_measured_is_named(n_processes: int) -> None:
    odd: dict[str, Any] = {
        "a torn page": Odd(ValueError("a torn page")),
        "is of type int64, which has no length": Odd(np.int64(7)),
    }
    for text, documents in odd.items():
        mix = mpiter.Mix(
            {"web": Plain(SHORT), "code": documents}, {"web": 1, "code": 1}
        )
        for dataset, name in (
            (documents, "document 2"),
            (mix, "document 2 of component 'code'"),
        ):
            with pytest.raises(ValueError, match=text) as caught:
                measure_lengths(dataset, n_processes=n_processes)
            told = "\n".join([str(caught.value), *caught.value.__notes__])
            assert name in told


def test_what_is_passed_as_lengths_is_a_number_for_each_document() -> None:
    class Method(Plain):
        def lengths(self) -> Any:  # type: ignore[override]
            return self.held

    class Series(list[int]):
        """Numbers that are looked up by labels, as those of pandas."""

        def __array__(self, *_: Any, **__: Any) -> Any:
            return np.array([*self])

    assert len(mpiter.Pack(Method(SHORT), 20, lengths=Series(SHORT))) == 1
    for options in ({}, {"lengths": 5}):
        with pytest.raises(mpiter.OptionError, match=r"lengths=.* a number for each"):
            mpiter.Pack(Method(SHORT), 20, **options)
    with pytest.raises(mpiter.OptionError, match=r"lengths= has \[\[1\], \[2, 3\]\]"):
        mpiter.Pack(Plain([1, 2]), 20, lengths=[[1], [2, 3]])


def test_a_dataset_whose_keys_are_no_numbers_is_refused_with_the_remedy() -> None:
    inner = mpiter.Mix({"a": mpiter.Pack(Documents(SHORT), 8)}, {"a": 1})
    pack = mpiter.Pack(inner, 8, lengths=[8] * len(inner))
    with pytest.raises(mpiter.OptionError, match="pack each component, and mix the"):
        rows_of(pack)


# -- states ----------------------------------------------------------------------------

WEB = Documents(lognormal(100))
CODE = Documents(lognormal(100, 1), 101)


def around(how: Any, weights: Any, short: Any = "renormalise") -> Any:
    datasets: dict[str, Any] = {"web": WEB, "code": CODE}
    kept = {name: datasets[name] for name in weights}
    return mpiter.Pack(mpiter.Mix(kept, weights, short), 64, how, window=16)


def loader_at(dataset: Any, state: Any) -> Any:
    loader: Any = mpiter.DataLoader(dataset, 1, shuffle=True)
    if state is not None:
        loader.load_state_dict(json.loads(state))
    return loader


@pytest.mark.parametrize("how", HOWS)
def test_a_dropped_component_leaves_the_rest_of_the_others(how: Any) -> None:
    """The epoch of what is left has fewer rows than have come already."""
    loader = loader_at(around(how, {"web": 1, "code": 1}), None)
    most = int(0.8 * len(loader))
    tried = Counter[str]()
    epoch = iter(loader)
    given = list[Any]()
    for _ in range(most):
        given.append(next(epoch))
        state = json.dumps(loader.state_dict())
        if len(given) < most - 8:
            continue
        try:
            rest = [*loader_at(around(how, {"code": 1}), state)]
        except mpiter.StateError as error:
            # Pack has planned a window that has documents of both.
            tried[str(error)[:53]] += 1
            rest = [*loader_at(around(how, {"web": 0, "code": 1}), state)]
        found = tokens_in(given + rest)
        assert {one: found[one] for one in CODE.tokens()} == CODE.tokens()
        tried["all"] += 1
    assert tried["all"] == 9
    assert tried["component 'web' was dropped in the midst of a window "] >= 1


@pytest.mark.parametrize("how", HOWS)
def test_an_epoch_that_goes_on_behind_its_end_leaves_out_no_token(how: Any) -> None:
    def pack(length: int) -> Any:
        mix = mpiter.Mix({"web": WEB}, {"web": 1}, length=length)
        return mpiter.Pack(mix, 64, how, window=16)

    loader = loader_at(pack(40), None)
    epoch = iter(loader)
    given = [next(epoch) for _ in range(len(loader))]
    rest = [*loader_at(pack(100), json.dumps(loader.state_dict()))]
    assert tokens_in(given + rest) == WEB.tokens()


# -- flat ------------------------------------------------------------------------------


def test_flat_rows_are_their_documents_one_after_the_other() -> None:
    documents = Documents(lognormal(80))
    pack = mpiter.Pack(documents, 64, layout="jagged")
    with mpiter.DataLoader(pack, 3, shuffle=True, collate_fn=flat) as loader:
        found = Counter[int]()
        for batch in loader:
            borders = batch["cu_seqlens"]
            assert borders.dtype == np.int32
            assert batch["max_seqlen"] == np.diff(borders).max()
            assert borders[-1] == len(batch["tokens"]) == loader.step_tokens
            for begin, end in itertools.pairwise(borders):
                [number] = {*batch["tokens"][begin:end].tolist()}
                found[number] += int(end - begin)
                assert batch["positions"][begin:end].tolist() == [*range(end - begin)]
    assert found == documents.tokens()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchs_nested_tensors_are_made_of_flat_rows(num_workers: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from mpiter.torch import DataLoader

    documents = Documents(lognormal(40))
    pack = mpiter.Pack(documents, 64, layout="jagged")
    found = Counter[int]()
    loader: Any = DataLoader(
        pack, 3, shuffle=True, collate_fn=flat, num_workers=num_workers
    )
    assert loader.collate_fn is flat
    with loader:
        for batch in loader:
            tokens = batch["tokens"]
            assert batch["cu_seqlens"].dtype == torch.int32
            assert type(batch["max_seqlen"]) is int
            nested = torch.nested.nested_tensor_from_jagged(tokens, batch["cu_seqlens"])
            for document in nested.unbind():
                found[int(document[0])] += len(document)
            assert len(tokens) == loader.step_tokens
    assert found == documents.tokens()
